# SPDX-License-Identifier: Apache-2.0
"""Comparisons of steps whose parameters no record of an optimizer tells."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from msprobe.capture.session import reset_session  # noqa: E402
from msprobe.compare.options import CompareOptions  # noqa: E402
from msprobe.compare.run import run_comparison  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402

pytestmark = pytest.mark.torch

Update = Callable[[torch.nn.Module], None]


def _in_place(rate: float, net: torch.nn.Module) -> None:
    with torch.no_grad():
        for one in net.parameters():
            one.sub_(rate * one.grad)


def _of_data(rate: float, net: torch.nn.Module) -> None:
    for one in net.parameters():
        one.data = one.data - rate * one.grad


def _by_optimizer(rate: float, net: torch.nn.Module) -> None:
    torch.optim.SGD(net.parameters(), rate).step()


def _not(_net: torch.nn.Module) -> None:
    """Leave the parameters as they are."""


@pytest.mark.parametrize("update", [_in_place, _of_data])
def test_an_update_by_hand_that_differs_in_the_only_step_is_seen(
    tmp_path: Path, update: Callable[[float, torch.nn.Module], None]
) -> None:
    verdict = _verdict(tmp_path, partial(update, 0.1), partial(update, 0.05))
    assert (verdict["class"], verdict["confidence"]) == ("argument", "proved")
    assert "all 4 parameters differ after step 0" in verdict["sentence"]
    assert "mul__ (" in verdict["sentence"]
    assert "is 0.1 in the target, 0.05 in the reference" in verdict["sentence"]


def test_equal_updates_by_hand_are_proved_equal(tmp_path: Path) -> None:
    verdict = _verdict(tmp_path, partial(_in_place, 0.1), partial(_of_data, 0.1))
    assert (verdict["class"], verdict["confidence"]) == ("equal", "proved")
    assert "was not recorded" not in verdict["sentence"]


def test_what_an_older_recording_did_not_read_is_not_proved(tmp_path: Path) -> None:
    paths = _record_both(tmp_path, partial(_in_place, 0.1), partial(_in_place, 0.05))
    for path in paths:
        (facts,) = path.rglob("facts.json")
        content = json.loads(facts.read_text())
        del content["buffers_after"]
        facts.write_text(json.dumps(content))
    verdict = run_comparison(*paths, CompareOptions(workers=1)).summary["verdict"]
    assert (verdict["class"], verdict["confidence"]) == ("equal", "likely")
    assert "what step 0 made of the parameters was not recorded" in verdict["sentence"]


def test_the_same_update_by_an_optimizer_and_by_hand_is_equal(tmp_path: Path) -> None:
    verdict = _verdict(tmp_path, partial(_by_optimizer, 0.1), partial(_of_data, 0.1))
    assert verdict["class"] == "equal", verdict["sentence"]


def test_another_update_by_hand_than_by_an_optimizer_is_not_said_to_be_missing(
    tmp_path: Path,
) -> None:
    verdict = _verdict(tmp_path, partial(_by_optimizer, 0.1), partial(_of_data, 0.05))
    assert verdict["class"] == "update"
    assert "never" not in verdict["sentence"]
    assert (
        "all 4 parameters are updated by SGD in the target, by other code in the reference"
        in verdict["sentence"]
    )


def test_an_update_that_one_side_leaves_out_is_still_said_to_be_missing(tmp_path: Path) -> None:
    verdict = _verdict(tmp_path, partial(_by_optimizer, 0.1), _not)
    assert verdict["class"] == "update"
    assert "optimizer.step() is called once in the target, never" in verdict["sentence"]


def _verdict(folder: Path, target: Update, reference: Update) -> dict[str, Any]:
    paths = _record_both(folder, target, reference)
    return run_comparison(*paths, CompareOptions(workers=1)).summary["verdict"]


def _record_both(folder: Path, target: Update, reference: Update) -> tuple[Path, Path]:
    return _record(folder / "target", target), _record(folder / "reference", reference)


def _record(folder: Path, update: Update) -> Path:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
    x = torch.randn(8, 8)
    reset_session()
    debugger = PrecisionDebugger(task="statistics", level="L0", dump_path=str(folder))
    debugger.start(net)
    net(x).pow(2).mean().backward()
    update(net)
    debugger.stop()
    debugger.step()
    return folder
