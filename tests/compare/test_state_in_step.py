# SPDX-License-Identifier: Apache-2.0
"""State that agrees when a step starts and changes in it: buffers, training flags, losses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from builders.recordings import recording  # noqa: E402
from msprobe.compare.options import CompareOptions  # noqa: E402
from msprobe.compare.run import run_comparison  # noqa: E402

pytestmark = pytest.mark.torch

Between = Callable[[nn.Sequential], object]


def recorded(
    folder: Path,
    level: str,
    *,
    between: Between = lambda _: None,
    momentum: float = 0.1,
    autocast: bool = False,
    late_factor: float = 1.0,
    maximize: bool = False,
    rank: int = 0,
) -> Path:
    """Record a step of three micro batches; `between` is called after the first."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, momentum=momentum), nn.Flatten(), nn.Linear(144, 5)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, maximize=maximize)
    batches, labels = torch.randn(3, 6, 3, 8, 8), torch.randint(0, 5, (3, 6))
    batches += rank
    with recording(folder, level) as observed, observed.step_of(model):
        for number, (x, y) in enumerate(zip(batches, labels, strict=True)):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                logits = model(x)
            loss = F.cross_entropy(logits.float(), y)
            factor = late_factor if number == 0 else 1.0
            ((-loss if maximize else loss) * factor).backward()
            if number == 0:
                between(model)
        optimizer.step()
    return folder


def compared(folder: Path, level: str, **change: Any) -> Any:
    target = recorded(folder / "target", level, **change)
    reference = recorded(folder / "reference", level)
    return run_comparison(target, reference, CompareOptions()).summary


def unseen_write(model: nn.Sequential) -> None:
    model[1].running_mean.numpy()[:] += 0.5  # type: ignore[union-attr, operator]


def test_a_buffer_that_one_side_takes_from_another_rank_is_communication(tmp_path: Path) -> None:
    averages: list[Any] = []

    def taken(model: nn.Sequential) -> None:
        model[1].running_mean.numpy()[:] = averages[0]  # type: ignore[union-attr, operator]

    def ranks(folder: Path, between: Between) -> Path:
        keep: Between = lambda model: averages.append(model[1].running_mean.numpy().copy())  # noqa: E731
        for rank, each in enumerate((keep, between)):
            alone = recorded(folder / str(rank), "L1", between=each, rank=rank)
            (folder / "all" / "step0").mkdir(parents=True, exist_ok=True)
            (alone / "step0" / "rank").rename(folder / "all" / "step0" / f"rank{rank}")
        return folder / "all"

    target, reference = ranks(tmp_path / "target", taken), ranks(tmp_path / "own", lambda _: None)
    verdict = run_comparison(target, reference, CompareOptions()).summary["verdict"]
    assert verdict["class"] == "communication"
    assert "only the target holds what another rank holds, too" in verdict["sentence"]


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_buffer_written_after_its_last_use_is_seen_when_the_step_ends(
    tmp_path: Path, level: str
) -> None:
    def record(folder: Path, *, writes: bool) -> Path:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4))
        model.register_buffer("seen", torch.zeros(3))
        model.register_buffer("mask", torch.ones(3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with recording(folder, level) as observed, observed.step_of(model):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            model.seen.numpy()[1] += 2.0 if writes else 1.0  # type: ignore[union-attr, operator]
        return folder

    sides = [record(tmp_path / str(writes), writes=writes) for writes in (True, False)]
    verdict = run_comparison(*sides, CompareOptions()).summary["verdict"]
    assert (verdict["class"], verdict["confidence"]) == ("update", "proved")
    assert "seen differs after step 0 by 1 of the norm" in verdict["sentence"]
    own = run_comparison(sides[0], sides[0], CompareOptions()).summary["verdict"]
    assert (own["class"], own["confidence"]) == ("equal", "proved")


def freeze(model: nn.Sequential) -> None:
    model[1].eval()


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_an_argument_is_to_blame_for_the_buffer_that_it_rules(tmp_path: Path, level: str) -> None:
    summary = compared(tmp_path, level, momentum=0.5)
    assert summary["verdict"]["class"] == "argument"
    assert {each["cause"] for each in summary["introduced"]} == {"argument"}


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_a_buffer_written_by_unrecorded_code_agreed_at_the_start(
    tmp_path: Path, level: str
) -> None:
    verdict = compared(tmp_path, level, between=unseen_write)["verdict"]
    assert verdict["class"] == "call"
    assert "running_mean" in verdict["sentence"]
    assert "it agreed when the step began" in verdict["sentence"]


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_buffer_in_another_precision_is_no_parameter(tmp_path: Path, level: str) -> None:
    summary = compared(tmp_path, level, autocast=True)
    assert summary["verdict"]["class"] == "precision", summary["verdict"]["sentence"]
    assert not summary["introduced"]


def test_a_flag_set_within_the_step_is_named_by_modules(tmp_path: Path) -> None:
    summary = compared(tmp_path, "L0", between=freeze)
    verdict = summary["verdict"]
    assert verdict["class"] == "mode"
    assert "1 is in eval mode in the target" in verdict["sentence"]
    assert "(step 0, from call 1 of the model on)" in verdict["sentence"]
    assert summary["introduced"][0]["name"] == "Module.1.BatchNorm2d.forward.1"


def test_the_loss_of_the_first_pass_is_named_though_later_forward_passes_differ(
    tmp_path: Path,
) -> None:
    def follow(model: nn.Sequential) -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(parameter.grad, alpha=0.1)

    sides = [
        recorded(tmp_path / str(factor), "L0", late_factor=factor, between=follow)
        for factor in (0.75, 1.0)
    ]
    verdict = run_comparison(*sides, CompareOptions()).summary["verdict"]
    assert "the loss is" in verdict["sentence"], verdict["sentence"]


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_negated_loss_for_an_optimizer_that_maximizes_is_no_cause(
    tmp_path: Path, level: str
) -> None:
    summary = compared(tmp_path, level, maximize=True)
    assert summary["verdict"]["class"] == "equal", summary["verdict"]["sentence"]
    assert summary["verdict"]["confidence"] == "proved"
    assert not summary["introduced"]


def test_what_is_made_of_a_cancelled_value_is_explained(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Linear(8, 8)
    frozen = nn.Linear(8, 8).requires_grad_(False)
    frozen.load_state_dict(net.state_dict())
    x = torch.randn(16, 8)

    def record(folder: Path, *, autocast: bool) -> Path:
        net.zero_grad()
        with recording(folder, "L1") as observed, observed.step_of(net):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                own = net(x)
            margin = own.float() - frozen(x)
            F.logsigmoid(margin * 0.5).mean().backward()
        return folder

    target = record(tmp_path / "target", autocast=True)
    reference = record(tmp_path / "reference", autocast=False)
    verdict = run_comparison(target, reference, CompareOptions()).summary["verdict"]
    assert verdict["class"] == "precision", verdict["sentence"]


class Projections(nn.Module):
    """Three projections of one value, as one weight or as three."""

    def __init__(self, *, packed: bool) -> None:
        super().__init__()
        weight = torch.randn(12, 4, generator=torch.Generator().manual_seed(1)) / 2
        names = ["qkv"] if packed else ["q", "k", "v"]
        for name, part in zip(names, weight.chunk(len(names)), strict=True):
            self.register_parameter(name, nn.Parameter(part.clone()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [F.linear(x, weight) for weight in self.parameters()]
        q, k, v = parts if len(parts) == 3 else parts[0].chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v)


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_several_weights_held_as_one_train_alike(tmp_path: Path, level: str) -> None:
    sides = []
    for packed in (True, False):
        torch.manual_seed(0)
        model = nn.Sequential(Projections(packed=packed), nn.Linear(4, 2))
        optimizer = torch.optim.AdamW(model.parameters())
        torch.manual_seed(1)
        nn.init.normal_(model[1].weight)
        nn.init.zeros_(model[1].bias)
        with recording(tmp_path / str(packed), level) as observed, observed.step_of(model):
            model(torch.randn(2, 6, 4)).square().mean().backward()
            optimizer.step()
        sides.append(tmp_path / str(packed))
    summary = run_comparison(*sides, CompareOptions()).summary
    assert summary["verdict"]["class"] == "equal", summary["verdict"]["sentence"]
    assert not summary["introduced"]


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_running_averages_follow_a_bias_that_a_norm_takes_out(tmp_path: Path, level: str) -> None:
    sides = []
    for other in (True, False):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
        nn.init.zeros_(model[0].bias)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        batches = torch.randn(3, 16, 6)
        with recording(tmp_path / str(other), level) as observed:
            for x in batches:
                with observed.step_of(model):
                    made = model(x)
                    made = made.softmax(-1).log() if other else made.log_softmax(-1)
                    made[:, 0].mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()
        sides.append(tmp_path / str(other))
    verdict = run_comparison(*sides, CompareOptions()).summary["verdict"]
    assert verdict["class"] in ("equal", "rounding"), verdict["sentence"]
