# SPDX-License-Identifier: Apache-2.0
"""Gradients of micro batches, divided in the loss, before or after they are clipped: one training.

Clipping hides from an optimizer by how much gradients were larger; the total norm before it tells.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

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


class Sharded(torch.optim.Optimizer):
    """Updates the first parameters by another optimizer; those of other ranks come from there."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})
        own = self.param_groups[0]["params"]
        self.inner, self.others = torch.optim.AdamW(own[:2], lr), own[2:]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.inner.step()
        for each in self.others:
            each.sub_(0.01 * each.grad)


def limit_between(
    debugger: PrecisionDebugger, way: tuple[type[torch.optim.Optimizer], bool]
) -> None:
    """Train three steps of two micro batches, clipped after the first or after both."""
    make, is_early = way
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    optimizer = make(model.parameters(), lr=1e-3)
    batches, labels = torch.randn(3, 2, 8, 16), torch.randint(0, 4, (3, 2, 8))
    for number in recorded_steps(debugger, model):
        for micro, (x, y) in enumerate(zip(batches[number], labels[number], strict=True)):
            (F.cross_entropy(model(x), y) / 2).backward()
            if micro == (0 if is_early else 1):
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("make", [torch.optim.AdamW, Sharded])
@pytest.mark.parametrize("is_early", [True, False])
@pytest.mark.parametrize("level", LEVELS)
def test_gradients_that_are_clipped_before_they_are_complete(
    tmp_path: Path, level: str, is_early: bool, make: type[torch.optim.Optimizer]
) -> None:
    ways = (make, is_early), (make, not is_early)
    verdict = verdict_on(tmp_path, limit_between, *ways, level=level)

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


def changed_behind(debugger: PrecisionDebugger, is_behind: bool) -> None:
    """Divide gradients by the ranks behind the limit, or before it, as a reduction may."""
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    batches, labels = torch.randn(3, 8, 16), torch.randint(0, 4, (3, 8))

    def shrink() -> None:
        for place, parameter in enumerate(model.parameters()):
            assert parameter.grad is not None
            parameter.grad.numpy()[:] *= 0.5 + 0.1 * place  # out of sight of torch

    for number in recorded_steps(debugger, model):
        optimizer.zero_grad()
        F.cross_entropy(model(batches[number]), labels[number]).backward()
        if not is_behind:
            shrink()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        if is_behind:
            shrink()
        optimizer.step()


@pytest.mark.parametrize("is_behind", [True, False])
def test_gradients_that_are_changed_after_they_are_clipped(tmp_path: Path, is_behind: bool) -> None:
    verdict = verdict_on(tmp_path, changed_behind, is_behind, not is_behind, level="L0")

    side = "target" if is_behind else "reference"
    assert verdict["class"] == "clipping", verdict["sentence"]
    assert (
        f"the {side} changes gradients after clip_grad_norm_: that leaves the total norm 0.0999999"
        ", and the optimizer gets 0.0" in verdict["sentence"]
    )


def scaled_until(debugger: PrecisionDebugger, is_late: bool) -> None:
    """Scale the loss by 128, which is taken back behind the limit of gradients; else not at all."""
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    batches, labels = torch.randn(3, 8, 16), torch.randint(0, 4, (3, 8))
    for number in recorded_steps(debugger, model):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batches[number]), labels[number])
        (loss * 128 if is_late else loss).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        for parameter in model.parameters() if is_late else ():
            assert parameter.grad is not None
            parameter.grad.div_(128)
        optimizer.step()


@pytest.mark.parametrize("is_late", [True, False])
@pytest.mark.parametrize("level", LEVELS)
def test_a_scale_that_is_taken_back_behind_the_limit(
    tmp_path: Path, level: str, is_late: bool
) -> None:
    verdict = verdict_on(tmp_path, scaled_until, is_late, not is_late, level=level)

    side = "target" if is_late else "reference"
    assert verdict["class"] == "clipping", verdict["sentence"]
    assert (
        f"the {side} clips gradients before it takes back the scale of its loss, 128"
        in verdict["sentence"]
    )


def added_behind(debugger: PrecisionDebugger, is_noisy: bool) -> None:
    """Add noise to gradients behind the backward pass."""
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    batches, labels = torch.randn(3, 8, 16), torch.randint(0, 4, (3, 8))
    for number in recorded_steps(debugger, model):
        optimizer.zero_grad()
        F.cross_entropy(model(batches[number]), labels[number]).backward()
        for parameter in model.parameters() if is_noisy else ():
            assert parameter.grad is not None
            parameter.grad.add_(torch.randn_like(parameter.grad), alpha=0.01)
        optimizer.step()


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_the_call_behind_a_backward_pass_that_agrees_is_named(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, added_behind, True, False, level=level)

    assert verdict["class"] == "gradient", verdict["sentence"]
    assert "only the target calls Torch.randn_like.0.forward (" in verdict["sentence"]
    assert "after the backward pass began" in verdict["sentence"]


def sent_coarsely(debugger: PrecisionDebugger, is_coarse: bool) -> None:
    """Cast gradients on their way to the optimizer, as to send them."""
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    batches, labels = torch.randn(3, 8, 16), torch.randint(0, 4, (3, 8))
    for number in recorded_steps(debugger, model):
        optimizer.zero_grad()
        F.cross_entropy(model(batches[number]), labels[number]).backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            sent = parameter.grad.reshape(-1)
            sent = sent.bfloat16() if is_coarse else sent
            parameter.grad.copy_(sent.view_as(parameter.grad))
        optimizer.step()


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_gradients_that_are_cast_on_their_way_are_precision(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, sent_coarsely, True, False, level=level)

    assert verdict["class"] == "precision", verdict["sentence"]
    assert "only the target calls Tensor.bfloat16.0.forward" in verdict["sentence"]


def annealed(debugger: PrecisionDebugger, ahead: int) -> None:
    """Make two updates a step, whose rate falls from step to step."""
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    batches = torch.randn(5, 2, 8, 6)
    debugged = recorded_steps(debugger, model, 5)
    for number in debugged:
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * (1 - (number + ahead) / 10)
        for x in batches[number]:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()


def test_a_schedule_is_ahead_by_steps_though_they_make_several_updates(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, annealed, 1, 0, level="L0")

    assert verdict["class"] == "schedule", verdict["sentence"]
    assert verdict["sentence"].endswith("the target is 1 step ahead")
