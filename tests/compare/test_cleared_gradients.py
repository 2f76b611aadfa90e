# SPDX-License-Identifier: Apache-2.0
"""Gradients cleared between micro batches are told from sums, of the step and side that clears."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from builders.recordings import recording  # noqa: E402
from builders.two_runs import recorded_steps, verdict_on  # noqa: E402
from compare.judging import compare  # noqa: E402
from msprobe.compare.training.fingerprints import Fingerprint  # noqa: E402
from msprobe.compare.training.gradients import is_cleared  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402

pytestmark = pytest.mark.torch
MICROS = 4


def trained(folder: Path, clear: dict[int, slice], scale: float = 1.0) -> Path:
    """Record a step of four micro batches.

    Args:
        folder: an empty folder.
        clear: micro batch → which parameters' gradients are cleared before it.
        scale: of the loss.
    """
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))
    parameters = list(model.parameters())
    data = torch.randn(MICROS, 4, 5)
    shares = []
    for x in data:
        shares.append(torch.autograd.grad(model(x).exp().sum() * scale, parameters))
    with recording(folder) as recorded, recorded.step_of(model):
        for number, x in enumerate(data):
            for p in parameters[clear.get(number, slice(0, 0))]:
                p.grad = None
            (model(x).exp().sum() * scale).backward()
    # The oracle: what autograd adds, micro batch by micro batch.
    for place, p in enumerate(parameters):
        first = max((n for n, which in clear.items() if place in range(4)[which]), default=0)
        assert p.grad is not None
        torch.testing.assert_close(p.grad, sum(share[place] for share in shares[first:]))
    return folder / "step0" / "rank"


ALL, NONE = slice(None), slice(0, 0)


@pytest.mark.parametrize("first", range(1, MICROS))
@pytest.mark.parametrize("side", ["target", "reference"])
def test_the_first_cleared_micro_batch_is_named(tmp_path: Path, first: int, side: str) -> None:
    clear = dict.fromkeys(range(first, MICROS), ALL)
    sides = [trained(tmp_path / "cleared", clear), trained(tmp_path / "summed", {})]
    if side == "reference":
        sides.reverse()

    words = compare(*sides).summary["verdict"]["sentence"]

    how = "not cleared between backward passes" if side == "reference" else "cleared between micro"
    assert f"the target's gradients are {how}" in words
    assert f"micro batch {first} " in words
    assert "(step 0, 4 gradients)" in words


def test_gradients_whose_mean_tells_nothing_are_not_counted(tmp_path: Path) -> None:
    """Those of a bias and of the weight before it add up to zero over the classes."""

    def run(folder: Path, clears: bool) -> Path:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))
        data, labels = torch.randn(MICROS, 4, 5), torch.randint(0, 3, (MICROS, 4))
        with recording(folder) as recorded, recorded.step_of(model):
            for x, y in zip(data, labels, strict=True):
                if clears:
                    model.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
        return folder / "step0" / "rank"

    sides = run(tmp_path / "cleared", True), run(tmp_path / "summed", False)

    assert "(step 0, at least 2 gradients)" in compare(*sides).summary["verdict"]["sentence"]


@pytest.mark.parametrize(
    ("clear", "scale"),
    [({}, 1.0), ({}, 0.5), ({2: slice(0, 1)}, 1.0)],
    ids=["summed", "another loss", "one parameter of four"],
)
def test_other_differences_are_not_taken_for_it(
    tmp_path: Path, clear: dict[int, slice], scale: float
) -> None:
    sides = trained(tmp_path / "target", clear, scale), trained(tmp_path / "reference", {})
    assert "cleared between" not in json.dumps(compare(*sides).summary)


@pytest.mark.parametrize("level", ["L0", "mix"])
@pytest.mark.parametrize("side", ["target", "reference"])
def test_gradients_left_over_are_known_before_their_elements_are_clipped(
    tmp_path: Path, side: str, level: str
) -> None:
    def run(debugger: PrecisionDebugger, clears: bool) -> None:
        model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        data = torch.randn(3, 4, 5)
        for number in recorded_steps(debugger, model):
            if clears:
                optimizer.zero_grad()
            model(data[number]).exp().sum().backward()
            nn.utils.clip_grad_value_(model.parameters(), 0.5)
            optimizer.step()

    verdict = verdict_on(tmp_path, run, side == "reference", side == "target", level)

    assert verdict["class"] == "gradient"
    assert f"the {side}'s gradients are not cleared" in verdict["sentence"]
    assert "(step 1)" in verdict["sentence"]


@pytest.mark.parametrize("limit", [1e-3, 1e6], ids=["clipped", "below the limit"])
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_the_gradients_of_one_optimizer_that_are_left_over_are_named(
    tmp_path: Path, level: str, limit: float
) -> None:
    def run(debugger: PrecisionDebugger, clears: bool) -> None:
        model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))
        optimizers = [torch.optim.SGD(part.parameters(), 1e-2) for part in (model[0], model[2])]
        data = torch.randn(3, 4, 5)
        for number in recorded_steps(debugger, model):
            for optimizer in optimizers[not clears :]:
                optimizer.zero_grad()
            model(data[number]).exp().sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), limit)
            for optimizer in optimizers:
                optimizer.step()

    verdict = verdict_on(tmp_path, run, False, True, level)

    assert verdict["class"] == "gradient"
    names = re.search(
        r"the target's gradients of 2 of 4 parameters \((.*)\) are", verdict["sentence"]
    )
    assert names is not None, verdict["sentence"]
    assert sorted(names[1].split(", ")) == ["0.bias", "0.weight"]
    assert "(step 1)" in verdict["sentence"]


@pytest.mark.parametrize(
    ("left", "apart", "is_known"),
    [(1.0, 1.0, False), (1.0, 1e-3, True), (0.0, 0.0, False), (1e-4, 1e-4, False)],
    ids=["added", "cleared", "nothing left over", "as small as rounding"],
)
def test_gradients_that_agree_are_cleared_if_what_was_left_over_would_show(
    left: float, apart: float, is_known: bool
) -> None:
    def gradient(norm: float, *projections: float) -> Fingerprint:
        return Fingerprint("torch.float32", norm=norm, projections=projections)

    reference, last = gradient(100.0, 60.0, -80.0), gradient(left, left, 0.5 * left)
    target = gradient(100.0, 60.0 + apart, -80.0 + 0.5 * apart)
    assert is_cleared(target, reference, (last, last)) is is_known
