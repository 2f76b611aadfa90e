# SPDX-License-Identifier: Apache-2.0
"""Calls after an optimizer of the same step inherit from it, and only these."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from builders.recordings import recording  # noqa: E402
from builders.two_runs import recorded_steps, verdict_on  # noqa: E402
from msprobe.compare.options import CompareOptions  # noqa: E402
from msprobe.compare.run import run_comparison  # noqa: E402
from msprobe.dump.reader import open_dump  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402

pytestmark = pytest.mark.torch


def recorded(
    folder: Path,
    level: str,
    *,
    lr: float | None = 0.1,
    keep: float = 0.9,
    before: Callable[[nn.Module], object] = lambda _model: None,
    halves: bool = False,
) -> Path:
    """Record a step that averages the parameters after the optimizer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    average = [torch.zeros_like(p) for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=lr or 0.1)
    with recording(folder, level) as observed, observed.step_of(model):
        before(model)
        model(torch.ones(2, 3)).sum().backward()
        for parameter in model.parameters() if halves else ():
            parameter.grad /= 2.0
        if lr is not None:
            optimizer.step()
        with torch.no_grad():
            for mean, p in zip(average, model.parameters(), strict=True):
                mean.lerp_(p.clone(), 1 - keep)
            model(torch.zeros(1, 3))
    return folder


def summary_of(target: Path, reference: Path) -> Any:
    return run_comparison(target, reference, CompareOptions()).summary


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_what_reads_the_parameters_after_the_update_is_not_blamed(
    tmp_path: Path, level: str
) -> None:
    sides = [recorded(tmp_path / str(lr), level, lr=lr) for lr in (0.2, 0.1)]
    summary = summary_of(*sides)
    assert summary["verdict"]["class"] == "optimizer_setting"
    assert "SGD lr is 0.2 in the target, 0.1 in the reference" in summary["verdict"]["sentence"]
    assert not summary["introduced"]


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("rates", [(None, 0.1), (0.1, None)])
def test_what_reads_parameters_that_one_side_did_not_update_is_not_blamed(
    tmp_path: Path, level: str, rates: tuple[float | None, float | None]
) -> None:
    sides = [recorded(tmp_path / str(lr), level, lr=lr) for lr in rates]
    summary = summary_of(*sides)
    assert summary["verdict"]["class"] == "update", summary["verdict"]["sentence"]
    assert "never in the" in summary["verdict"]["sentence"]
    assert not summary["introduced"]


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_gradients_that_one_side_alone_changes_are_no_rounding(tmp_path: Path, level: str) -> None:
    sides = [recorded(tmp_path / str(halves), level, halves=halves) for halves in (False, True)]
    verdict = summary_of(*sides)["verdict"]
    assert verdict["class"] == "gradient", verdict["sentence"]
    assert verdict["where"]["phase"] in ("reduce", "backward")


def test_an_argument_after_the_update_is_named(tmp_path: Path) -> None:
    sides = [recorded(tmp_path / str(keep), "mix", keep=keep) for keep in (0.5, 0.9)]
    summary = summary_of(*sides)
    assert summary["verdict"]["class"] == "argument"
    assert "lerp_" in summary["verdict"]["sentence"]


def averaging(debugger: PrecisionDebugger, change: str | None) -> None:
    """Average parameters by two calls of one line; some begin as zeros."""
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
    average = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    keep = 0.8 if change else 0.9
    for _ in recorded_steps(debugger, model):
        optimizer.zero_grad()
        model(torch.arange(6.0).view(2, 3)).sin().sum().backward()
        optimizer.step()
        with torch.no_grad():
            for mean, p in zip(reversed(average), reversed([*model.parameters()]), strict=True):
                mean.mul_(0.9).add_(p, alpha=1 - keep)


def averaging_at_once(debugger: PrecisionDebugger, change: str | None) -> None:
    """Average by one call on both sides."""
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
    average = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in recorded_steps(debugger, model):
        optimizer.zero_grad()
        model(torch.arange(6.0).view(2, 3)).sin().sum().backward()
        optimizer.step()
        with torch.no_grad():
            for mean, p in zip(reversed(average), reversed([*model.parameters()]), strict=True):
                mean.lerp_(p, 0.2 if change else 0.1)


@pytest.mark.parametrize("level", ["L1", "mix"])
@pytest.mark.parametrize("program", [averaging, averaging_at_once])
def test_another_weight_of_an_average_is_an_update(
    tmp_path: Path, level: str, program: Any
) -> None:
    verdict = verdict_on(tmp_path, program, "weight", level=level)

    assert verdict["class"] == "update", verdict["sentence"]
    assert "(test_after_updates.py:" in verdict["sentence"]


def projecting(debugger: PrecisionDebugger, change: str | None) -> None:
    """Keep the norm of a weight behind each update, as the other side does not."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in recorded_steps(debugger, model):
        optimizer.zero_grad()
        model(torch.arange(6.0).view(2, 3)).sin().sum().backward()
        optimizer.step()
        if change is None:
            with torch.no_grad():
                size = model[2].weight.norm()
                model[2].weight.mul_((0.3 / size).clamp(max=1.0))


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("sides", [("left out", None), (None, "left out")])
def test_a_projection_of_one_side_alone_is_an_update(
    tmp_path: Path, level: str, sides: tuple[str | None, str | None]
) -> None:
    verdict = verdict_on(tmp_path, projecting, *sides, level=level)

    assert verdict["class"] == "update", verdict["sentence"]
    assert "(test_after_updates.py:" in verdict["sentence"]


def test_a_value_from_outside_before_the_update_is_named(tmp_path: Path) -> None:
    """Though the optimizer leaves other parameters, too."""

    def scaled(model: Any) -> None:
        with torch.no_grad():
            model[0].weight.mul_(torch.ones(3).clone() * 1.5)

    sides = [
        recorded(tmp_path / "target", "mix", before=scaled),
        recorded(tmp_path / "reference", "mix"),
    ]
    assert summary_of(*sides)["introduced"]


def test_the_optimizer_knows_the_last_record_before_it(tmp_path: Path) -> None:
    recorded(tmp_path, "mix")
    view = open_dump(tmp_path).step().rank()
    assert view.facts is not None
    (step,) = view.facts.optimizer_steps()
    names = [name for name in view.records if name.endswith("forward") or ".forward." in name]
    first = names.index("Tensor.clone.0.forward")
    assert step.record == names[first - 1]
