# SPDX-License-Identifier: Apache-2.0
"""Gradients of micro batches, divided in the loss, before or after they are clipped: one training.

Clipping hides from an optimizer by how much gradients were larger; the total norm before it tells.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from builders.two_runs import recorded_steps, verdict_on  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402

pytestmark = pytest.mark.torch

LEVELS = ["L0", "L1", "mix"]


class Way(NamedTuple):
    """How gradients are divided.

    Attributes:
        divided: "loss", "before" or "after" the clipping, or "never".
        parts: micro batches of a step.
        limit: of the total norm that the optimizer gets, where it is reached.
    """

    divided: str
    parts: int = 2
    limit: float = 0.1


def run(debugger: PrecisionDebugger, way: Way) -> None:
    """Train three steps of micro batches, with clipping."""
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    parts = way.parts
    batches, labels = torch.randn(3, parts, 8, 16), torch.randint(0, 4, (3, parts, 8))

    def divide() -> None:
        for parameter in model.parameters():
            parameter.grad.div_(parts)

    for number in recorded_steps(debugger, model):
        for x, y in zip(batches[number], labels[number], strict=True):
            loss = F.cross_entropy(model(x), y)
            (loss / parts if way.divided == "loss" else loss).backward()
        is_late = way.divided == "after"
        if way.divided == "before":
            divide()
        nn.utils.clip_grad_norm_(model.parameters(), way.limit * (parts if is_late else 1))
        if is_late:
            divide()
        optimizer.step()
        optimizer.zero_grad()


def run_sums(debugger: PrecisionDebugger, way: Way) -> None:
    """Train likewise by sums over samples, whose number divides, and limit each element.

    The bias before the norm has no gradient but rounding, which the optimizer makes steps of.
    """
    model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Linear(32, 4))
    optimizer = torch.optim.Adamax(model.parameters(), 1e-3)
    batches, labels = torch.randn(3, way.parts, 8, 16), torch.randint(0, 4, (3, way.parts, 8))
    samples = 8 * way.parts
    for number in recorded_steps(debugger, model):
        for x, y in zip(batches[number], labels[number], strict=True):
            loss = F.cross_entropy(model(x), y, reduction="sum")
            (loss / samples if way.divided == "loss" else loss).backward()
        for parameter in model.parameters() if way.divided == "before" else ():
            parameter.grad.div_(samples)
        nn.utils.clip_grad_value_(model.parameters(), way.limit)
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("level", LEVELS)
def test_sums_divided_by_the_number_of_samples(tmp_path: Path, level: str) -> None:
    ways = Way("loss", 3, 0.02), Way("before", 3, 0.02)
    verdict = verdict_on(tmp_path, run_sums, *ways, level=level)
    assert verdict["class"] in ("equal", "rounding"), verdict["sentence"]
    # Without modules no record tells that what the program divides are gradients.
    assert verdict["confidence"] == ("possible" if level == "L1" else "proved")


@pytest.mark.parametrize("limit", [1e-7, 0.02], ids=["all limited", "some limited"])
@pytest.mark.parametrize("level", LEVELS)
def test_sums_that_one_side_does_not_divide(tmp_path: Path, level: str, limit: float) -> None:
    ways = Way("never", 3, limit), Way("loss", 3, limit)
    verdict = verdict_on(tmp_path, run_sums, *ways, level=level)
    assert verdict["class"] in ("gradient", "call"), verdict["sentence"]


@pytest.mark.parametrize("limit", [0.1, 100.0], ids=["clipped", "below the limit"])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("target", "reference", "parts"),
    [("before", "loss", 2), ("loss", "before", 3), ("after", "loss", 2), ("before", "after", 2)],
)
def test_where_gradients_are_divided_changes_nothing(
    tmp_path: Path, target: str, reference: str, parts: int, level: str, limit: float
) -> None:
    ways = (Way(each, parts, limit) for each in (target, reference))
    verdict = verdict_on(tmp_path, run, *ways, level=level)

    assert verdict["class"] in ("equal", "rounding"), verdict["sentence"]
    assert verdict["confidence"] == "proved", verdict["sentence"]


@pytest.mark.parametrize("limit", [0.1, 100.0], ids=["clipped", "below the limit"])
@pytest.mark.parametrize("level", LEVELS)
def test_gradients_that_one_side_does_not_divide_are_told(
    tmp_path: Path, level: str, limit: float
) -> None:
    ways = (Way(each, limit=limit) for each in ("never", "before"))
    verdict = verdict_on(tmp_path, run, *ways, level=level)

    assert verdict["class"] in ("gradient", "call"), verdict["sentence"]


def limit_between(debugger: PrecisionDebugger, is_early: bool) -> None:
    """Train three steps of two micro batches, clipped after the first or after both."""
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    batches, labels = torch.randn(3, 2, 8, 16), torch.randint(0, 4, (3, 2, 8))
    for number in recorded_steps(debugger, model):
        for micro, (x, y) in enumerate(zip(batches[number], labels[number], strict=True)):
            (F.cross_entropy(model(x), y) / 2).backward()
            if micro == (0 if is_early else 1):
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("is_early", [True, False])
@pytest.mark.parametrize("level", LEVELS)
def test_gradients_that_are_clipped_before_they_are_complete(
    tmp_path: Path, level: str, is_early: bool
) -> None:
    verdict = verdict_on(tmp_path, limit_between, is_early, not is_early, level=level)

    side = "target" if is_early else "reference"
    assert verdict["class"] == "clipping", verdict["sentence"]
    assert (
        f"the {side} calls clip_grad_norm_ with 0.1 before its gradients are complete"
        in (verdict["sentence"])
    )


def limit_each(debugger: PrecisionDebugger, is_early: bool) -> None:
    """Train three steps of two updates, each of one batch, clipped before backward or after it."""
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    batches, labels = torch.randn(3, 2, 8, 16), torch.randint(0, 4, (3, 2, 8))
    for number in recorded_steps(debugger, model):
        for x, y in zip(batches[number], labels[number], strict=True):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            if is_early:
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            loss.backward()
            if not is_early:
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()


@pytest.mark.parametrize("is_early", [True, False])
@pytest.mark.parametrize("level", LEVELS)
def test_gradients_that_are_clipped_before_there_are_any(
    tmp_path: Path, level: str, is_early: bool
) -> None:
    verdict = verdict_on(tmp_path, limit_each, is_early, not is_early, level=level)

    side = "target" if is_early else "reference"
    assert verdict["class"] == "clipping", verdict["sentence"]
    assert (
        f"the {side} calls clip_grad_norm_ with 0.1 where there is nothing to limit, as before the "
        "backward pass: the total norm is 0 then" in verdict["sentence"]
    )
