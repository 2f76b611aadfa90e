# SPDX-License-Identifier: Apache-2.0
"""Functions that the user registers: recorded as one call, and restored to the very object."""

import inspect
import pickle
import sys
import types

import pytest
import torch
from torch import nn

from builders.recordings import Setting, observed
from msprobe.errors import ConfigError, UsageError
from msprobe.pytorch import PrecisionDebugger

pytestmark = pytest.mark.torch

L1 = Setting("L1", "statistics")


def swish(x, *, beta: float = 1.0):
    """x times its sigmoid."""
    if beta < 0:
        raise ValueError("beta")
    return x * torch.sigmoid(beta * x)


@pytest.fixture
def library(monkeypatch):
    """A module of the user's with one function."""
    module = types.ModuleType("user_library")
    function = types.FunctionType(swish.__code__, swish.__globals__, "swish")
    function.__kwdefaults__ = {"beta": 1.0}
    function.__doc__ = swish.__doc__
    function.__annotations__ = swish.__annotations__
    function.__module__ = "user_library"
    module.swish = function
    monkeypatch.setitem(sys.modules, "user_library", module)
    return module


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_a_registered_api_is_one_call_with_its_gradients(level, library, tmp_path):
    x = torch.randn(3, 4, requires_grad=True)
    with observed(tmp_path, Setting(level, "statistics")) as run:
        run.debugger.register_custom_api(library, "swish")
        with run.step_of(nn.Identity()):
            library.swish(x, beta=2.0).sum().backward()
            library.swish(x)
        records = run.records()
    forward = [name for name in records if name.endswith(".forward")]
    assert forward[:2] == ["user_library.swish.0.forward", "Tensor.sum.0.forward"]
    assert "user_library.swish.1.forward" in forward
    assert not [name for name in forward if "sigmoid" in name or "__mul__" in name]
    assert records["user_library.swish.0.forward"]["input_kwargs"]["beta"]["value"] == 2.0
    backward = records["user_library.swish.0.backward"]
    (gradient,) = torch.autograd.grad(swish(x, beta=2.0).sum(), x)
    assert backward["output"][0]["Norm"] == pytest.approx(gradient.norm().item(), rel=1e-6)
    assert backward["input"][0]["Max"] == 1.0


def test_a_prefix_can_be_chosen_and_torch_functions_registered(tmp_path):
    original = torch.relu
    with observed(tmp_path, L1) as run:
        PrecisionDebugger.register_custom_api(torch, "relu", "Mine")
        with run.step_of(None):
            torch.relu(torch.ones(2))
        assert [name for name in run.records() if "relu" in name] == ["Mine.relu.0.forward"]
        PrecisionDebugger.restore_custom_api(torch, "relu")
        assert torch.relu is original


def test_name_docstring_signature_and_pickling_stay(library, tmp_path):
    original = library.swish
    with observed(tmp_path, L1) as run:
        run.debugger.register_custom_api(library, "swish")
        recorded = library.swish
        assert recorded is not original
        assert recorded.__name__ == "swish"
        assert recorded.__doc__ == "x times its sigmoid."
        assert inspect.signature(recorded) == inspect.signature(original)
        data = pickle.dumps(recorded)
        assert pickle.loads(data) is recorded
        run.debugger.restore_custom_api(library, "swish")
        assert pickle.loads(data) is original


def test_restoring_and_the_end_of_the_session_bring_back_the_very_object(library, tmp_path):
    original = vars(library)["swish"]
    with observed(tmp_path, L1) as run:
        run.debugger.register_custom_api(library, "swish")
        run.debugger.register_custom_api(library, "swish", "Again")
        run.debugger.restore_custom_api(library, "swish")
        assert vars(library)["swish"] is original
        run.debugger.register_custom_api(library, "swish")
    assert vars(library)["swish"] is original


def test_a_replacement_by_somebody_else_is_not_undone(library, tmp_path):
    with observed(tmp_path, L1) as run:
        run.debugger.register_custom_api(library, "swish")
        library.swish = len
    assert library.swish is len


def test_methods_of_all_kinds_can_be_registered(tmp_path):
    class Maths:
        factor = 3.0

        def scaled(self, x):
            return x * self.factor

        @staticmethod
        def halved(x):
            return x / 2

        @classmethod
        def tripled(cls, x):
            return x * cls.factor

    class Child(Maths):
        pass

    names = ("scaled", "halved", "tripled")
    before = [vars(Maths)[name] for name in names]
    with observed(tmp_path, L1) as run:
        for name in names:
            run.debugger.register_custom_api(Maths, name)
        run.debugger.register_custom_api(Child, "halved")  # inherited
        with run.step_of(None):
            x = torch.ones(2)
            assert Maths().scaled(x).tolist() == [3, 3]
            assert Maths.halved(x).tolist() == [0.5, 0.5]
            assert Maths().tripled(x).tolist() == [3, 3]
            assert Child.halved(x).tolist() == [0.5, 0.5]
        recorded = {name for name in run.records() if not name.startswith(("Torch", "Tensor"))}
    assert recorded == {
        "Maths.scaled.0.forward",
        "Maths.halved.0.forward",
        "Maths.tripled.0.forward",
        "Child.halved.0.forward",
    }
    assert all(vars(Maths)[name] is raw for name, raw in zip(names, before, strict=True))
    assert "halved" not in vars(Child)


def test_an_exception_of_the_users_passes_and_recording_goes_on(library, tmp_path):
    with observed(tmp_path, L1) as run:
        run.debugger.register_custom_api(library, "swish")
        with run.step_of(None):
            with pytest.raises(ValueError, match="beta"):
                library.swish(torch.ones(2), beta=-1.0)
            torch.relu(torch.ones(2))
            library.swish(torch.ones(2))
        records = run.records()
    assert records["user_library.swish.0.forward"]["raised"] == "ValueError"
    assert "output" in records["user_library.swish.1.forward"]
    assert "Torch.relu.0.forward" in records


def test_an_api_inside_another_makes_no_record(library, tmp_path):
    library.twice = lambda x: library.swish(library.swish(x))
    with observed(tmp_path, L1) as run:
        run.debugger.register_custom_api(library, "swish")
        run.debugger.register_custom_api(library, "twice")
        with run.step_of(None):
            library.twice(torch.ones(2))
        assert [name for name in run.records() if name.startswith("user_library")] == [
            "user_library.twice.0.forward"
        ]


def test_what_unseen_code_writes_is_not_taken_for_the_old_value(library, tmp_path):
    def fill(x):
        x.numpy()[:] = 7.0  # moves no version

    library.fill = fill
    with observed(tmp_path, L1) as run:
        run.debugger.register_custom_api(library, "fill")
        with run.step_of(None):
            x = torch.ones(3) + 1
            library.fill(x)
            torch.relu(x)
        assert run.records()["Torch.relu.0.forward"]["input_args"][0]["Max"] == 7.0


def test_nothing_is_recorded_outside_start_and_stop_and_at_l0(library, tmp_path):
    model = nn.Linear(2, 2)
    with observed(tmp_path, Setting("L0", "statistics")) as run:
        run.debugger.register_custom_api(library, "swish")
        with run.step_of(model):
            library.swish(model(torch.ones(1, 2)))
        library.swish(torch.ones(2))
        names = list(run.records())
    assert names
    assert all(name.startswith("Module.") for name in names)


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (("swish", 3), "api_prefix"),
        (("swish", ""), "api_prefix"),
        (("no_such",), "api_name"),
        ((None,), "api_name"),
        (("__doc__",), "api_name"),
    ],
)
def test_wrong_arguments_are_refused(arguments, key, library, tmp_path):
    with observed(tmp_path, L1) as run:
        with pytest.raises(ConfigError) as caught:
            run.debugger.register_custom_api(library, *arguments)
        assert caught.value.key == key


def test_an_object_without_a_name_needs_a_prefix(tmp_path):
    with observed(tmp_path, L1) as run:
        thing = types.SimpleNamespace(f=lambda x: x)
        with pytest.raises(ConfigError, match="no __name__"):
            run.debugger.register_custom_api(thing, "f")
        run.debugger.register_custom_api(thing, "f", "Thing")


def test_restoring_what_was_not_registered_is_refused(library, tmp_path):
    with observed(tmp_path, L1) as run, pytest.raises(UsageError, match="not registered"):
        run.debugger.restore_custom_api(library, "swish")


def test_without_a_debugger_nothing_can_be_registered(library):
    with pytest.raises(UsageError):
        PrecisionDebugger.register_custom_api(library, "swish")
