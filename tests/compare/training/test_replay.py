# SPDX-License-Identifier: Apache-2.0
"""Recorded optimizer steps, replayed by the rules of their optimizers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

torch = pytest.importorskip("torch")

from msprobe import open_dump  # noqa: E402
from msprobe.capture.session import reset_session  # noqa: E402
from msprobe.compare.training.replay import replay  # noqa: E402
from msprobe.dump.facts import OptimizerStep  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402

pytestmark = pytest.mark.torch

STEPS = 3
OPTIMIZERS: list[tuple[type[torch.optim.Optimizer], dict[str, Any], set[str]]] = [
    (torch.optim.Adadelta, {}, set()),
    (torch.optim.Adamax, {}, set()),
    (torch.optim.NAdam, {"weight_decay": 0.1}, set()),
    (torch.optim.RAdam, {}, set()),
    (torch.optim.ASGD, {}, set()),
    (torch.optim.Rprop, {}, set()),
    (torch.optim.Adafactor, {"lr": 0.1}, {"weight", "bias"}),
    (torch.optim.Muon, {"lr": 0.1}, {"weight"}),
]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    reset_session()  # a test of another file may have left one
    yield
    reset_session()


def recorded(
    folder: Path, kind: type[torch.optim.Optimizer], options: dict[str, Any]
) -> list[OptimizerStep]:
    """Train a layer, and return the records of its optimizer's steps."""
    torch.manual_seed(0)
    model = torch.nn.Linear(12, 10)
    parameters = [p for p in model.parameters() if kind is not torch.optim.Muon or p.ndim == 2]
    optimizer = kind(parameters, **options)  # type: ignore[call-arg]
    debugger = PrecisionDebugger(dump_path=folder, level="L0", task="statistics")

    for _ in range(STEPS):
        debugger.start(model)
        model(torch.randn(3, 12)).square().mean().backward()
        debugger.stop()
        optimizer.step()
        optimizer.zero_grad()
        debugger.step()
    found = []
    for number in range(STEPS):
        facts = open_dump(folder).step(number).rank().facts
        assert facts is not None
        found += facts.optimizer_steps()
    return found


def wrong(step: OptimizerStep, factor: float) -> OptimizerStep:
    """Return a step whose update of the weight is so many times what it was."""
    samples = dict(step.parameters.samples)
    place = step.parameters.name.index("weight")
    before, after = samples["before"][place], samples["after"][place]
    assert before is not None
    assert after is not None
    samples["after"] = [*samples["after"]]
    samples["after"][place] = [
        old + factor * (new - old)
        for old, new in zip(before, after, strict=True)
        if old is not None and new is not None
    ]
    parameters = msgspec.structs.replace(step.parameters, samples=samples)
    return msgspec.structs.replace(step, parameters=parameters)


def _name(argument: object) -> str:
    """Return the same name in every process: sets of texts have no order."""
    return ",".join(sorted(argument)) if isinstance(argument, set) else str(argument)


@pytest.mark.parametrize(("kind", "options", "bounded"), OPTIMIZERS, ids=_name)
def test_every_optimizer_does_what_its_rule_says(
    tmp_path: Path, kind: type[torch.optim.Optimizer], options: dict[str, Any], bounded: set[str]
) -> None:
    found = [replay(step) for step in recorded(tmp_path, kind, options)]

    assert [each.misfits for each in found] == [()] * STEPS
    assert found[-1].bounded == bounded
    assert found[-1].judged == (frozenset() if bounded else {"weight", "bias"})


@pytest.mark.parametrize(("kind", "options", "bounded"), OPTIMIZERS, ids=_name)
def test_a_wrong_update_is_found(
    tmp_path: Path, kind: type[torch.optim.Optimizer], options: dict[str, Any], bounded: set[str]
) -> None:
    # Bounds show only what is far off; a rule shows one percent.
    *_, step = recorded(tmp_path, kind, options)
    last = replay(wrong(step, -30.0 if bounded else 1.01))

    assert [misfit.parameter for misfit in last.misfits] == ["weight"]
    assert last.misfits[0].is_bound is bool(bounded)
