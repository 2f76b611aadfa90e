# SPDX-License-Identifier: Apache-2.0
"""Two writings of one model, whose modules have other names and run in another order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from builders.recordings import recording  # noqa: E402
from msprobe.compare.matching.renamed_modules import renamed_modules  # noqa: E402
from msprobe.compare.options import CompareOptions  # noqa: E402
from msprobe.compare.run import run_comparison  # noqa: E402
from msprobe.dump.facts import Facts, Parameters  # noqa: E402
from msprobe.triage.ladder import climb  # noqa: E402

pytestmark = pytest.mark.torch


class Old(nn.Module):
    """A gate of two parts; the second runs first."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleDict({"query": nn.Linear(6, 6), "key": nn.Linear(6, 6)})
        self.layernorm = nn.LayerNorm(6)

    def forward(self, x: Tensor) -> Tensor:
        key, query = self.inner["key"](x), self.inner["query"](x) + torch.zeros(6).sum()
        y: Tensor = self.layernorm(query * key.sigmoid())
        return y


class New(nn.Module):
    """The same in other words."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj = nn.Linear(6, 6), nn.Linear(6, 6)
        self.layernorm = nn.LayerNorm(6)

    def forward(self, x: Tensor) -> Tensor:
        q = self.q_proj(x) + torch.ones(6, 6).triu(1).tril().sum()
        y: Tensor = self.layernorm(q * self.k_proj(x).neg().exp().add(1).reciprocal())
        return y


def recorded(folder: Path, kind: type[nn.Module], lr: float = 0.1, scale: float = 1.0) -> Path:
    torch.manual_seed(3)
    blocks = nn.ModuleDict({f"{kind.__name__.lower()}_{number}": kind() for number in range(2)})
    model = nn.Sequential(*blocks.values()) if kind is New else nn.ModuleList([blocks])
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    batches = torch.randn(3, 5, 6)
    with recording(folder, "mix") as observed:
        for x in batches:
            with observed.step_of(model):
                y = x
                for block in blocks.values():
                    y = block(y * scale)
                y.pow(3).mean().backward()
                optimizer.step()
                optimizer.zero_grad()
    return folder


def test_another_writing_of_a_model_is_equal(tmp_path: Path) -> None:
    sides = recorded(tmp_path / "new", New), recorded(tmp_path / "old", Old)
    verdict: dict[str, Any] = run_comparison(*sides, CompareOptions()).summary["verdict"]

    assert (verdict["class"], verdict["confidence"]) == ("equal", "proved")
    assert not any("parameters" in each for each in verdict["evidence"])


@pytest.mark.parametrize(
    ("change", "wanted", "words"),
    [
        ({"lr": 0.11}, "optimizer_setting", "SGD lr is 0.11 in the target, 0.1 in the reference"),
        ({"scale": 1.01}, "argument", "1.01 instead of 1"),
    ],
)
def test_its_faults_are_named(
    tmp_path: Path, change: dict[str, float], wanted: str, words: str
) -> None:
    sides = recorded(tmp_path / "new", New, **change), recorded(tmp_path / "old", Old)
    summary = run_comparison(*sides, CompareOptions()).summary
    verdict = summary["verdict"]

    assert verdict["class"] == wanted
    assert words in verdict["sentence"]
    if wanted == "optimizer_setting":
        assert words in climb(*sides).verdict["sentence"]
        # Other calls that were without consequence before the first step are so behind it.
        assert summary["introduced_total"] == 0


class Kept:
    """What one version of a library keeps from call to call."""


class Worded(nn.Module):
    """Two versions of a library: other buffers, looked up in another order, other results."""

    def __init__(self, is_new: bool, factor: float) -> None:
        super().__init__()
        self.is_new, self.factor = is_new, factor
        self.words, self.places = nn.Embedding(9, 6), nn.Embedding(9, 6)
        self.head = nn.Linear(6, 1)
        self.register_buffer("ids", torch.arange(8).expand(1, -1), persistent=False)
        self.register_buffer("kinds", torch.zeros(1, 8, dtype=torch.long), persistent=False)
        if is_new:
            self.register_buffer("scale", torch.tensor([2.0, 3.0]))

    def forward(self, words: Tensor) -> dict[str, Any]:
        ids, kinds = self.get_buffer("ids"), self.get_buffer("kinds")
        if self.is_new:
            ids, kinds = ids[:, :5], kinds[:, :5]
            mask = words.ge(4).logical_or(words.ge(5))
        else:
            kinds, ids = kinds[:, :5], ids[:, :5]
            mask = words.gt(3)
        found = (self.words(words) + self.places(ids) + self.places(kinds)) * mask.unsqueeze(-1)
        y = self.head(found * self.factor)
        return {"y": y, "cache" if self.is_new else "past": Kept()}


def versioned(
    folder: Path, level: str, *, is_new: bool, limit: float = 0.0, factor: float = 1.0
) -> Path:
    torch.manual_seed(3)
    model = Worded(is_new, factor)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recording(folder, level) as observed:
        for words in torch.randint(0, 9, (2, 4, 5)):
            with observed.step_of(model):
                model(words)["y"].square().mean().backward()
                if limit:
                    nn.utils.clip_grad_norm_(model.parameters(), limit)
                optimizer.step()
                optimizer.zero_grad()
    return folder


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_what_another_version_keeps_and_looks_up_is_no_cause(tmp_path: Path, level: str) -> None:
    old = versioned(tmp_path / "old", level, is_new=False)
    for limit in (0.0, 0.01):
        new = versioned(tmp_path / f"new{limit}", level, is_new=True, limit=limit)
        summary = run_comparison(new, old, CompareOptions()).summary
        assert summary["verdict"]["class"] == ("clipping" if limit else "equal")
        assert summary["introduced_total"] == 0
    new = versioned(tmp_path / "new", level, is_new=True, factor=1.5)
    summary = run_comparison(new, old, CompareOptions()).summary
    assert summary["verdict"]["class"] == "argument"
    assert "1.5 instead of 1.0" in summary["verdict"]["sentence"]
    assert len(summary["culprit_groups"]) == 1


def facts(**held: list[str]) -> Facts:
    """Return facts of modules with parameters of these checksums."""
    names = [
        f"{path.replace('__', '.')}.{number}" for path, each in held.items() for number in each
    ]
    count = len(names)
    return Facts(
        parameters=Parameters(
            name=names,
            kind=["parameter"] * count,
            shape=[[2]] * count,
            checksum=[each for column in held.values() for each in column],
        )
    )


@pytest.mark.parametrize(
    ("target", "reference", "found"),
    [
        (facts(a=["1"]), facts(a=["2"]), {}),  # its name says it
        (facts(a=["1"], b=["2"]), facts(b=["2"], c=["1"]), {"a": "c", "a.1": "c.1"}),
        (facts(a=["1"], b=["1"]), facts(c=["1"], d=["1"]), {}),  # one of two
        (
            facts(x__n=["1"], y__n=["1"]),
            facts(u__n=["1"], v__n=["1"]),
            {"x.n": "u.n", "x.n.1": "u.n.1", "y.n": "v.n", "y.n.1": "v.n.1"},
        ),
        (  # changed, between two that are known
            facts(a=["1"], b=["2"], c=["3"]),
            facts(x=["1"], y=["9"], z=["3"]),
            {"a": "x", "a.1": "x.1", "b": "y", "b.2": "y.9", "c": "z", "c.3": "z.3"},
        ),
        (  # one of two
            facts(a=["1"], b=["2"], c=["3"]),
            facts(x=["1"], y=["9"], w=["8"], z=["3"]),
            {"a": "x", "a.1": "x.1", "c": "z", "c.3": "z.3"},
        ),
        (facts(a=["1"]), None, {}),
    ],
)
def test_modules_are_found_by_what_they_hold(
    target: Facts, reference: Facts | None, found: dict[str, str]
) -> None:
    assert renamed_modules(target, reference) == found
