# SPDX-License-Identifier: Apache-2.0
"""Steps that one program leaves without an end, so that the next batch goes into the same one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from builders.two_runs import recorded_steps, verdict_on  # noqa: E402
from msprobe.capture.session import reset_session  # noqa: E402
from msprobe.compare.options import CompareOptions  # noqa: E402
from msprobe.compare.run import run_comparison  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402

pytestmark = pytest.mark.torch

LEVELS = ["L0", "L1", "mix"]


def divided(debugger: PrecisionDebugger, change: Any) -> None:
    """Train on eight samples, at once or in micro batches that each call ``start``."""
    model = nn.Linear(5, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for batch in torch.randn(3, 8, 5):
        optimizer.zero_grad()
        for part in batch.chunk(2 if change else 1):
            debugger.start(model)
            (model(part).square().sum() / 8).backward()
        optimizer.step()
        debugger.stop()
        debugger.step()


def training(debugger: PrecisionDebugger, change: Any) -> None:
    """Train on each batch, but for those that the program leaves; with batch norm."""
    model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    batches = torch.randn(4, 8, 5)
    if change == "other data":
        batches[1] += 1
    for number, batch in enumerate(batches):
        debugger.start(model)
        if change == "twice":
            debugger.start(model)
        if change == "before the model" and number == 1:
            continue
        loss = model(batch).square().mean()
        if change in ("behind the model", "other data") and number == 1:
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        debugger.stop()
        debugger.step()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(
    ("change", "made"), [("before the model", "no calls"), ("behind the model", "1 call")]
)
def test_a_step_that_is_left_and_begun_again_is_named(
    tmp_path: Path, change: str, made: str, swapped: bool, level: str
) -> None:
    sides = (None, change) if swapped else (change, None)
    verdict = verdict_on(tmp_path, training, *sides, level)
    side = "reference" if swapped else "target"
    assert verdict["class"] == "incomplete", verdict["sentence"]
    assert f"step 1 of the {side} was left and begun again" in verdict["sentence"]
    assert f"it had made {made} of the model" in verdict["sentence"]


@pytest.mark.parametrize("level", LEVELS)
def test_a_batch_that_differs_before_is_the_cause(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, training, "other data", None, level)
    assert verdict["class"] == "data", verdict["sentence"]


@pytest.mark.parametrize("level", LEVELS)
def test_a_program_that_calls_start_twice_in_each_step_is_not_accused(
    tmp_path: Path, level: str
) -> None:
    verdict = verdict_on(tmp_path, training, "twice", None, level)
    assert verdict["class"] == "equal", verdict["sentence"]


@pytest.mark.parametrize("level", LEVELS)
def test_micro_batches_that_each_call_start_are_not_accused(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, divided, True, None, level)
    assert verdict["class"] in ("equal", "rounding"), verdict["sentence"]


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(("wanted", "expected"), [([0, 1, 3], "incomplete"), (None, "equal")])
def test_a_program_that_ends_between_steps_lacks_those_that_it_was_to_record(
    tmp_path: Path, wanted: list[int] | None, expected: str, swapped: bool
) -> None:
    for name, count in (("target", 4 if swapped else 2), ("reference", 2 if swapped else 4)):
        torch.manual_seed(1)
        reset_session()
        debugger = PrecisionDebugger(dump_path=str(tmp_path / name), level="L0", step=wanted)
        model = nn.Linear(5, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        batches = torch.randn(4, 8, 5)
        for number in recorded_steps(debugger, model, count):
            model(batches[number]).square().mean().backward()
            optimizer.step()
    reset_session()
    sides = tmp_path / "target", tmp_path / "reference"
    verdict = run_comparison(*sides, CompareOptions()).summary["verdict"]
    assert verdict["class"] == expected, verdict["sentence"]
    side, numbers = ("reference" if swapped else "target"), "step 3" if wanted else "steps 2, 3"
    assert f"has {numbers}" in verdict["sentence"]
    words = f"the {side} ends after step 1; it was to record more: 3"
    assert (words in verdict["sentence"]) is (expected == "incomplete")
