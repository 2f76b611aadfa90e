# SPDX-License-Identifier: Apache-2.0
"""The function mode and the user's own modes, subclasses, threads, transforms and traces."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from builders.recordings import recording

pytestmark = pytest.mark.torch

BATCH = torch.linspace(-1, 1, 8).view(2, 4)


class Doubling(TorchFunctionMode):
    """A user's mode that changes what `relu` gets."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.relu:
            args = (args[0] * 2,)
        return func(*args, **(kwargs or {}))


def test_starting_inside_a_device_context_leaves_the_context_working(tmp_path: Path) -> None:
    with recording(tmp_path, "L1") as run:
        with torch.device("meta"):
            run.debugger.start()
            assert torch.ones(1).device.type == "meta"
            run.debugger.stop()
            assert torch.ones(1).device.type == "meta"
        assert torch._C._len_torch_function_stack() == 0
        assert torch.ones(1).device.type == "cpu"


def test_stopping_after_a_device_context_ended_leaves_nothing(tmp_path: Path) -> None:
    with recording(tmp_path, "L1") as run:
        with torch.device("meta"):
            run.debugger.start()
        torch.relu(BATCH)
        run.debugger.stop()
        assert torch._C._len_torch_function_stack() == 0
        assert torch.ones(1).device.type == "cpu"
        run.debugger.step()
        assert "Torch.relu.0.forward" in run.records()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_mode_of_the_users_changes_what_is_recorded_and_survives(
    when: str, tmp_path: Path
) -> None:
    with recording(tmp_path, "L1") as run:
        if when == "after":
            run.debugger.start()
        with Doubling():
            if when == "before":
                run.debugger.start()
            seen = torch.relu(BATCH)
            if when == "before":
                run.debugger.stop()
            assert torch.relu(BATCH).max() == 2.0
        run.debugger.stop()
        run.debugger.step()
        assert seen.max() == 2.0
        # Ours is the lowest: it sees the call as the user's mode made it.
        assert run.records()["Torch.relu.0.forward"]["input_args"][0]["Max"] == 2.0


class Watched(Tensor):
    """A tensor subclass that notes everything done to it."""

    seen: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        cls.seen.append(getattr(func, "__name__", str(func)))
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_tensor_subclass_sees_nothing_of_ours(level: str, tmp_path: Path) -> None:
    def work(model: nn.Module) -> list[str]:
        Watched.seen.clear()
        x = BATCH.clone().as_subclass(Watched).requires_grad_()
        model(x).sum().backward()
        return list(Watched.seen)

    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    alone = work(model)
    with recording(tmp_path, level) as run:
        with run.step_of(model):
            observed = work(model)
        assert run.account()["errors"] == {}
        assert [name for name in run.records() if "backward" in name]
    assert observed == alone


class Counting(TorchDispatchMode):
    """Counts the operators that reach the dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("task", ["statistics", "tensor", "overflow_check"])
def test_a_dispatch_mode_sees_the_same_operators_with_and_without_us(
    task: str, tmp_path: Path
) -> None:
    def work() -> list[str]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Dropout(0.5))
        with Counting() as counter:
            run.debugger.start(model)
            model(BATCH).sum().backward()
            run.debugger.stop()
        return counter.names

    with recording(tmp_path, "mix", task, rank=[7]) as run:  # not this rank: nothing is recorded
        alone = work()
    with recording(tmp_path, "mix", task) as run:
        observed = work()
        run.debugger.step()
        assert run.account()["errors"] == {}
    assert observed == alone


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_non_reentrant_checkpoints_count_the_same_saved_tensors(task: str, tmp_path: Path) -> None:
    fc = nn.Linear(4, 4)

    def block(x: Tensor) -> Tensor:
        return torch.tanh(fc(x)) * x

    with recording(tmp_path, "mix", task) as run:
        with run.step_of(fc):
            x = BATCH.clone().requires_grad_()
            checkpoint(
                block, x, use_reentrant=False, early_stop=False, determinism_check="default"
            ).sum().backward()
        assert run.account()["errors"] == {}


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_functorch_transforms_run_as_ever(tmp_path: Path) -> None:
    def loss(w: Tensor, x: Tensor) -> Tensor:
        return torch.tanh(F.linear(x, w)).sum()

    def work() -> list[Tensor]:
        w = torch.linspace(-1, 1, 16).view(4, 4)
        per_sample = torch.func.vmap(torch.func.grad(loss), (None, 0))(w, BATCH)
        _, tangent = torch.func.jvp(torch.tanh, (w,), (w,))
        return [
            per_sample,
            tangent,
            torch.func.jacrev(torch.tanh)(w),
            torch.func.hessian(loss)(w, BATCH),
        ]

    alone = work()
    with recording(tmp_path, "mix") as run:
        with run.step_of(nn.Identity()):
            observed = work()
        assert run.account()["errors"] == {}
        assert run.names("linear")
    assert all(torch.equal(a, b) for a, b in zip(alone, observed, strict=True))


@pytest.mark.parametrize("how", ["make_fx", "jit", "export", "fake"])
def test_tracing_sees_the_users_operators_alone(how: str, tmp_path: Path) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(self.fc(x))

    def work(net: nn.Module) -> str:
        if how == "make_fx":
            return str(make_fx(net)(BATCH).graph)
        if how == "jit":
            return str(torch.jit.trace(net, BATCH).graph)
        if how == "export":
            return str(torch.export.export(net, (BATCH,)).graph)
        with FakeTensorMode(allow_non_fake_inputs=True):
            return str(net(BATCH).shape)

    torch.manual_seed(0)
    net = Net()
    with pytest.warns() if how == "jit" else nullcontext():
        alone = work(net)
    with recording(tmp_path, "mix") as run:
        with run.step_of(net), pytest.warns() if how == "jit" else nullcontext():
            observed = work(net)
            torch.tanh(BATCH)
        assert run.account()["errors"] == {}
        assert "Torch.tanh.0.forward" in run.records()
    # torch numbers the classes that it traces, and notes which line of Python made a call.
    changing = re.compile(r"___torch_mangle_\d+\.| # /.*")
    assert changing.sub("", observed) == changing.sub("", alone)


def test_calls_of_other_threads_are_counted_and_not_recorded(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    with recording(tmp_path, "mix") as run:
        with run.step_of(model):
            thread = threading.Thread(target=lambda: model(BATCH).sum().backward())
            thread.start()
            thread.join()
        assert not [name for name in run.records() if "Linear.forward" in name]
        assert run.account()["skipped"]["module calls in other threads"] == 2
        assert run.account()["errors"] == {}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_fused_inference_kernels_stay_fused(level: str, masked: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    x = torch.randn(2, 5, 8)
    mask = torch.tensor([[False] * 5, [False] * 3 + [True] * 2]) if masked else None
    with torch.no_grad():
        alone = model(x, src_key_padding_mask=mask)
        with recording(tmp_path, level) as run:
            with run.step_of(model):
                observed = model(x, src_key_padding_mask=mask)
                torch.relu(x)
            names = run.names()
    assert torch.equal(alone, observed)
    whole = "Torch.TransformerEncoder.0.forward"
    assert (whole if level == "L1" else "Module.TransformerEncoder.forward.0") in names
    if level != "L0":
        assert "Torch.relu.0.forward" in names  # the mode is back


def test_exceptions_in_an_api_leave_later_calls_recorded_with_their_parents(
    tmp_path: Path,
) -> None:
    class Careful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            try:
                F.linear(x, torch.ones(3, 3))
            except RuntimeError:
                x = torch.relu(x)
            return self.fc(x)

    with recording(tmp_path, "mix") as run:
        model = nn.Sequential(Careful(), nn.Linear(4, 4))
        with run.step_of(model):
            model(BATCH).sum().backward()
        records, parents = run.records(), run.parents()
    assert records["Functional.linear.0.forward"]["raised"] == "RuntimeError"
    assert "output" not in records["Functional.linear.0.forward"]
    assert parents["Torch.relu.0.forward"] == "Module.0.Careful.forward.0"
    assert parents["Functional.linear.1.forward"] == "Module.0.fc.Linear.forward.0"
    assert parents["Functional.linear.2.forward"] == "Module.1.Linear.forward.0"


def test_an_exception_in_a_module_that_its_caller_catches_ends_its_record(tmp_path: Path) -> None:
    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("no")

    class Catches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fails, self.fc = Fails(), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            try:
                return self.fails(x)
            except ValueError:
                return self.fc(x)

    with recording(tmp_path, "mix") as run:
        model = Catches()
        with run.step_of(model):
            model(BATCH).sum().backward()
        records, parents = run.records(), run.parents()
    assert records["Module.fails.Fails.forward.0"]["raised"] == "ValueError"
    assert parents["Module.fc.Linear.forward.0"] == "Module.Catches.forward.0"
    assert parents["Module.fc.Linear.backward.0"] == "Module.Catches.backward.0"


@pytest.mark.slow
def test_a_stance_is_restored_and_one_that_the_user_sets_stays(tmp_path: Path) -> None:
    import torch._dynamo

    def stance() -> str:
        return torch._dynamo.eval_frame._stance.stance

    with recording(tmp_path, "L0") as run:
        with run.step_of(nn.Identity()):
            assert stance() == "force_eager"
        assert stance() == "default"
        run.debugger.start(nn.Identity())
        torch.compiler.set_stance("eager_on_recompile")
        run.debugger.stop()
        assert stance() == "eager_on_recompile"
        torch.compiler.set_stance("default")


def test_observing_does_not_import_the_compiler(tmp_path: Path) -> None:
    script = f"""
import sys, torch
from msprobe.pytorch import PrecisionDebugger
debugger = PrecisionDebugger(dump_path={str(tmp_path)!r}, level="mix")
debugger.start(torch.nn.Identity())
torch.relu(torch.ones(2))
debugger.stop()
debugger.step()
sys.exit("torch._dynamo" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
    assert (tmp_path / "step0" / "rank" / "dump.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_compiled_model_may_stay_compiled_and_shows_its_boundary(
    level: str, tmp_path: Path
) -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 4))
    compiled = torch.compile(model, backend="eager")
    with recording(tmp_path, level, compile="modules_only") as run:
        with run.step_of(compiled):  # the compiler meets our hooks
            observed = compiled(BATCH)
            observed.sum().backward()
        assert run.account()["errors"] == {}
        assert run.names("Sequential.") == [
            "Module.Sequential.forward.0",
            "Module.Sequential.backward.0",
        ]
        assert any("module boundaries" in note for note in run.account()["notes"])
    torch._dynamo.reset()
    assert torch.equal(observed, model(BATCH))


def test_a_compiled_model_is_recorded_under_the_names_of_the_model_itself(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    names = []
    for folder, observed in (("plain", model), ("compiled", torch.compile(model, backend="eager"))):
        (tmp_path / folder).mkdir()
        with recording(tmp_path / folder, "mix") as run:
            with run.step_of(observed):
                observed(BATCH).sum().backward()
            names.append(set(run.records()))
    torch._dynamo.reset()
    assert "Module.0.Linear.forward.0" in names[0]
    assert names[0] == names[1]


def test_gradients_that_arrive_after_their_step_are_dropped_quietly(tmp_path: Path) -> None:
    model = nn.Linear(4, 4)
    with recording(tmp_path, "mix") as run:
        with run.step_of(model):
            loss = model(BATCH).sum()
        with run.step_of(model):
            loss.backward()
        assert "Module.Linear.forward.0" in run.records(0)
        assert run.names("Linear.backward", step=1) == []
        assert run.account(1)["errors"] == {}


class Interrupted(nn.Module):
    """Raises what no `except Exception` catches, once and after its first layer."""

    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)
        self.error: type[BaseException] | None = error

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        return self.second(x)


class Retrying(nn.Module):
    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self.inner = nn.Sequential(Interrupted(error))
        self.last = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            try:
                return self.last(self.inner(x))
            except BaseException:  # noqa: BLE001 - as a retry loop of the user's
                x = torch.erf(x)
        raise AssertionError


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
def test_calls_after_a_caught_interrupt_have_their_own_parents(
    error: type[BaseException], tmp_path: Path
) -> None:
    with recording(tmp_path, "mix") as run:
        model, other = Retrying(error), nn.Linear(4, 4)
        with run.step_of([model, other]):
            model(BATCH).sum().backward()
            model.inner[0].error = error
            with suppress(BaseException):
                model.inner(BATCH)
            torch.sin(other(BATCH))
        records, parents = run.records(), run.parents()
        assert run.account()["errors"] == {}
    whole = "Module.0.Retrying.forward.0"
    assert parents["Torch.erf.0.forward"] == whole
    assert parents["Module.0.inner.Sequential.forward.1"] == whole
    assert (
        parents["Module.0.inner.0.Interrupted.forward.1"] == "Module.0.inner.Sequential.forward.1"
    )
    assert parents["Module.0.last.Linear.forward.0"] == whole
    assert parents["Module.1.Linear.forward.0"] is None
    assert parents["Torch.sin.0.forward"] is None
    raised = "ValueError" if error is ValueError else "BaseException"
    for number in (0, 2):
        assert records[f"Module.0.inner.0.Interrupted.forward.{number}"]["raised"] == raised
        assert records[f"Module.0.inner.Sequential.forward.{number}"]["raised"] == raised
    assert "raised" not in records[whole]


def test_an_interrupted_call_is_recorded_when_recording_stops(tmp_path: Path) -> None:
    with recording(tmp_path, "L0") as run:
        model = Interrupted(KeyboardInterrupt)
        with suppress(KeyboardInterrupt), run.step_of(model):
            model(BATCH)
        assert run.records()["Module.Interrupted.forward.0"]["raised"] == "BaseException"


def test_an_interrupted_fused_layer_leaves_apis_observed(tmp_path: Path) -> None:
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval()
    layer.register_forward_pre_hook(_interrupt)
    with recording(tmp_path, "L1") as run, torch.no_grad():
        with run.step_of():
            for _ in range(2):
                with suppress(KeyboardInterrupt):
                    layer(torch.ones(1, 2, 4))
            layer._forward_pre_hooks.clear()
            layer(torch.ones(1, 2, 4))
            torch.erf(BATCH)
        assert "Torch.erf.0.forward" in run.names()


def _interrupt(*_args: object) -> None:
    raise KeyboardInterrupt
