# SPDX-License-Identifier: Apache-2.0
"""Once it has stopped, nothing of the tool is left: in torch, in the model, in the interpreter.

By default each exception is tried with a third of the settings, each setting with several of the
exceptions; with MSPROBE_TEST_WHOLE_CORPUS=1 with all of them.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from families import FAMILIES, REFERENCES, TrainCase, differences, train
from families.training import seed_everything
from restoration import changes, snapshot
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from builders.extent import covering
from builders.recordings import Setting, observed

pytestmark = pytest.mark.torch

SETTINGS = [
    Setting(level, task)
    for level, task in (
        ("L0", "statistics"),
        ("L1", "tensor"),
        ("mix", "statistics"),
        ("mix", "md5"),
        ("mix", "structure"),
        ("mix", "overflow_check"),
        ("mix", "nan_check"),
        ("L2", "statistics"),
        ("debug", "statistics"),
    )
]


def test_the_snapshot_notices_a_patched_function_a_hook_and_a_mode() -> None:
    model = nn.Linear(2, 2)
    before = snapshot(model)
    assert changes(before, snapshot(model)) == []
    original, torch.relu = torch.relu, lambda x: x
    try:
        assert changes(before, snapshot(model)) == ["torch.relu"]
    finally:
        torch.relu = original
    handle = model.register_forward_hook(lambda *_: None)
    assert changes(before, snapshot(model)) == ["model 0.._forward_hooks"]
    handle.remove()
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    assert changes(before, snapshot(model)) == ["number of _global_forward_hooks"]
    handle.remove()
    model.weight.register_hook(lambda grad: grad)
    assert changes(before, snapshot(model)) == ["model 0.weight hooks"]
    with torch.device("cpu"):  # a function mode, too
        assert "function modes" in changes(before, snapshot(model))


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_a_constructed_debugger_has_installed_nothing(setting: Setting, tmp_path: Path) -> None:
    case = FAMILIES["conv_bn_inplace"](7)
    before = snapshot(*case.modules)
    with observed(tmp_path, setting):
        assert changes(before, snapshot(*case.modules)) == []
        case.run_step(0)
        assert changes(before, snapshot(*case.modules)) == []


@pytest.mark.parametrize("family", FAMILIES)
def test_stop_and_step_restore_everything(family: str, tmp_path: Path) -> None:
    case = FAMILIES[family](7)
    case.run_step(0)  # what torch sets up once, it has set up now
    before = snapshot(*case.modules)
    with observed(tmp_path, Setting("mix", "statistics")) as run:
        for step in range(2):
            with run.step_of(case.model):
                case.run_step(step)
            assert changes(before, snapshot(*case.modules)) == []
    assert changes(before, snapshot(*case.modules)) == []


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_stop_alone_restores_torch(setting: Setting, tmp_path: Path) -> None:
    case = FAMILIES["prenorm_transformer"](7)
    case.run_step(0)
    before = snapshot()
    with observed(tmp_path, setting) as run:
        run.debugger.start(case.model)
        case.run_step(1)
        run.debugger.stop()
        assert changes(before, snapshot()) == []
        run.debugger.stop()
        run.debugger.step()
        run.debugger.step()
        assert changes(before, snapshot()) == []


class PlannedError(Exception):
    """Raised by the user's code on purpose."""


class _RaisesInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:
        raise PlannedError("backward")


class Fragile(nn.Module):
    """Raises in the way that `fault` says, deep inside of two modules."""

    def __init__(self) -> None:
        super().__init__()
        self.outer = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.ReLU(inplace=True))
        self.inner = nn.Linear(4, 4)
        self.fault = "none"

    def forward(self, x: Tensor) -> Tensor:
        x = self.outer(x)
        if self.fault == "checkpoint":
            x = checkpoint(self._second_half, x, use_reentrant=False)
        else:
            x = self._second_half(x)
        return x.square().mean()

    def _second_half(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        if self.fault == "api":
            torch.nn.functional.linear(y, torch.ones(3, 3))
        if self.fault in ("module", "checkpoint"):
            raise PlannedError(self.fault)
        if self.fault == "interrupt":
            raise KeyboardInterrupt
        if self.fault == "stop iteration":
            next(iter(()))
        if self.fault == "backward":
            y = _RaisesInBackward.apply(y)
        if self.fault == "gradient hook":
            y.register_hook(_raise_planned)
        return y


def _raise_planned(_grad: Tensor) -> None:
    raise PlannedError("hook")


FAULTS: dict[str, type[BaseException]] = {
    "module": PlannedError,
    "api": RuntimeError,
    "interrupt": KeyboardInterrupt,
    "stop iteration": StopIteration,
    "checkpoint": PlannedError,
    "backward": PlannedError,
    "gradient hook": PlannedError,
}


def _failing_training(fault: str) -> TrainCase:
    """Step 1 fails and the user catches it; the training goes on."""
    seed_everything(3)
    model = Fragile()
    x = torch.randn(5, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # the same calls in every step

    def run_step(step: int) -> Tensor:
        optimizer.zero_grad()
        model.fault = fault if step == 1 else "none"
        try:
            loss = model(x)
            loss.backward()
        except BaseException as error:  # noqa: BLE001  KeyboardInterrupt is one of the faults
            case.extra["error"] = [type(error).__name__, str(error)]
            return torch.zeros(())
        optimizer.step()
        return loss

    case = TrainCase(model, run_step, [optimizer])
    return case


@pytest.mark.parametrize(("fault", "setting"), covering(3, FAULTS, SETTINGS), ids=str)
def test_an_exception_in_the_model_reaches_the_user_and_leaves_nothing(
    fault: str, setting: Setting, tmp_path: Path
) -> None:
    model = Fragile()
    model.fault = fault
    before = snapshot(model)
    with observed(tmp_path, setting) as run:
        run.debugger.start(model)
        with pytest.raises(FAULTS[fault]):
            model(torch.randn(5, 4)).backward()
        run.debugger.stop()
        run.debugger.step()
        assert changes(before, snapshot(model)) == []


@pytest.mark.parametrize(
    ("fault", "setting"),
    covering(3, FAULTS, [setting for setting in SETTINGS if setting.level != "L2"]),
    ids=str,
)
def test_training_after_a_caught_exception_is_bit_identical_and_recorded(
    fault: str, setting: Setting, tmp_path: Path
) -> None:
    expected = train(_failing_training(fault), 4)
    assert expected["step2/loss"] != expected["step0/loss"]
    with observed(tmp_path, setting) as run:
        found = train(_failing_training(fault), 4, run.around)
    assert differences(expected, found) == []
    if setting.task in ("statistics", "md5", "tensor") and setting.level != "debug":
        # A step after the failed one has the same records as the one before it.
        assert list(run.records(2)) == list(run.records(0))
        assert run.failures(4) == []


def test_a_failed_step_without_stop_does_not_harm_the_next(tmp_path: Path) -> None:
    with observed(tmp_path, Setting("mix", "statistics")) as run:
        model = Fragile()
        before = snapshot(model)
        model.fault = "module"
        run.debugger.start(model)
        with pytest.raises(PlannedError):
            model(torch.randn(5, 4))
        model.fault = "none"
        run.debugger.step()
        run.debugger.start(model)
        model(torch.randn(5, 4)).backward()
        run.debugger.stop()
        run.debugger.step()
        assert changes(before, snapshot(model)) == []
        names = list(run.records(1))
    assert "Module.inner.Linear.forward.0" in names
    assert "Module.outer.0.Linear.backward.0" in names


@pytest.mark.parametrize("reentrant", [False, True])
def test_start_and_stop_inside_a_checkpointed_forward(reentrant: bool, tmp_path: Path) -> None:
    class Inner(nn.Module):
        def __init__(self, start: Callable[[], None], stop: Callable[[], None]) -> None:
            super().__init__()
            self.fc1, self.fc2 = nn.Linear(4, 4), nn.Linear(4, 4)
            self.start, self.stop = start, stop

        def forward(self, x: Tensor) -> Tensor:
            self.start()
            y = torch.tanh(self.fc1(x))
            self.stop()
            return self.fc2(y)

    def training(start: Callable[[], None], stop: Callable[[], None]) -> TrainCase:
        seed_everything(5)
        inner = Inner(start, stop)
        enter = nn.Linear(4, 4)
        model = nn.ModuleList([enter, inner])
        x = torch.randn(3, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def run_step(_step: int) -> Tensor:
            optimizer.zero_grad()
            loss = checkpoint(inner, enter(x), use_reentrant=reentrant).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        return TrainCase(model, run_step, [optimizer])

    expected = train(training(lambda: None, lambda: None))
    before = snapshot()
    with observed(tmp_path, Setting("L1", "statistics")) as run:
        case = training(run.debugger.start, run.debugger.stop)
        for step in range(5):
            case.snapshot(case.run_step(step))
            run.debugger.step()
            assert changes(before, snapshot()) == []
    assert differences(expected, case.state()) == []
    assert "Functional.linear.0.forward" in run.records(0)
    assert "Functional.linear.0.forward" in run.records(4)


@pytest.mark.parametrize(
    "setting",
    [
        pytest.param(Setting("L0", "statistics"), id="L0-statistics", marks=pytest.mark.slow),
        pytest.param(Setting("mix", "statistics"), id="mix-statistics"),
        pytest.param(Setting("mix", "tensor"), id="mix-tensor", marks=pytest.mark.slow),
    ],
)
def test_two_hundred_steps_add_no_objects(
    setting: Setting, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "msprobe")  # pytest keeps every line that is logged
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(2, 4)

    def count() -> tuple[int, int]:
        gc.collect()
        objects = gc.get_objects()
        return len(objects), sum(issubclass(type(o), Tensor) for o in objects)

    with observed(tmp_path, setting) as run:
        for step in range(200):
            with run.step_of(model):
                model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 49:
                early = count()
        late = count()
    assert late[1] <= early[1]  # fewer: a written batch was let go in between
    assert late[0] - early[0] <= 20


def test_the_compiled_family_is_held_against_its_eager_run() -> None:
    assert REFERENCES["compiled"] is not FAMILIES["compiled"]
