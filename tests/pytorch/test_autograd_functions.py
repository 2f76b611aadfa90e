# SPDX-License-Identifier: Apache-2.0
"""Custom `torch.autograd.Function`s have records of their own, with their gradients."""

import inspect
import json
import warnings

import pytest
import torch
from torch import nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from builders.recordings import Setting, observed, read
from msprobe.capture.session import reset_session
from msprobe.pytorch import PrecisionDebugger

pytestmark = pytest.mark.torch

L1 = Setting("L1", "statistics")


class Cube(Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        ctx.factor = factor
        return torch.pow(x, 3) * factor

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 3 * x**2 * ctx.factor, None


class Split(Function):
    """In the style with setup_context, with two outputs and a keyword default."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, at=1):
        return x[:at].clone(), x[at:].clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, first, second):
        return torch.cat([first, second]), None


class Increment(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.add_(1)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Careless(Function):
    """Its backward writes into the gradient it is given."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        gradient.numpy()[:] = 5.0
        return gradient


bound_early = Cube.apply
IN_PYTHON = isinstance(vars(Function)["apply"], classmethod)  # before PyTorch 2.14


def installed():
    """Return what a diversion exchanges: the code of `apply`, or since PyTorch 2.14 itself."""
    apply = vars(Function)["apply"]
    return apply.__func__.__code__ if IN_PYTHON else apply


def of_functions(records):
    return {name: record for name, record in records.items() if name.startswith("Autograd.")}


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_a_call_is_recorded_with_inputs_outputs_and_gradients(level, tmp_path):
    x = torch.randn(4, requires_grad=True)
    with observed(tmp_path, Setting(level, "statistics")) as run:
        with run.step_of(nn.Identity()):
            (bound_early if IN_PYTHON else Cube.apply)(x * 1, 2.0).sum().backward()
        records = run.records()
        parents = read(tmp_path, 0, "rank", "construct.json")
        assert run.account()["errors"] == {}
    forward = records["Autograd.Cube.0.forward"]
    assert [part["type"] for part in forward["input_args"]] == ["torch.Tensor", "float"]
    assert forward["output"][0]["Max"] == pytest.approx((2 * x**3).max().item())
    backward = records["Autograd.Cube.0.backward"]
    assert backward["input"][0]["Max"] == backward["input"][0]["Min"] == 1.0
    assert backward["output"][0]["Norm"] == pytest.approx((6 * x**2).norm().item())
    assert backward["output"][1] is None
    assert "Torch.pow.0.forward" in records
    if level == "mix":
        assert parents["Torch.pow.0.forward"] == "Autograd.Cube.0.forward"
        assert parents["Autograd.Cube.0.forward"] is None


def test_setup_context_defaults_and_several_outputs(tmp_path):
    x = torch.arange(4.0, requires_grad=True)
    with observed(tmp_path, L1) as run:
        with run.step_of(None):
            first, second = Split.apply(x)
            (first.sum() + 2 * second.sum()).backward()
        record = of_functions(run.records())
    assert len(record["Autograd.Split.0.forward"]["output"]) == 2
    backward = record["Autograd.Split.0.backward"]
    assert [part["Max"] for part in backward["input"]] == [1.0, 2.0]
    assert backward["output"][0]["Mean"] == 1.75


def test_a_function_that_changes_its_input(tmp_path):
    x = torch.ones(3, requires_grad=True)
    with observed(tmp_path, L1) as run:
        with run.step_of(None):
            y = x * 2
            Increment.apply(y)
            (y * 4).sum().backward()
        record = of_functions(run.records())
    forward = record["Autograd.Increment.0.forward"]
    assert (forward["input_args"][0]["Max"], forward["output"][0]["Max"]) == (2.0, 3.0)
    backward = record["Autograd.Increment.0.backward"]
    assert backward["input"][0]["Max"] == backward["output"][0]["Max"] == 4.0


def test_a_backward_that_writes_into_its_gradient_is_seen_as_it_was_and_is(tmp_path):
    x = torch.ones(3, requires_grad=True)
    with observed(tmp_path, L1) as run:
        with run.step_of(None):
            (Careless.apply(x * 1) * 4).sum().backward()
        backward = run.records()["Autograd.Careless.0.backward"]
    assert backward["input"][0]["Max"] == 4.0
    assert backward["output"][0]["Max"] == 5.0
    assert x.grad.tolist() == [5.0] * 3


def test_training_is_bit_identical(tmp_path):
    def gradient():
        torch.manual_seed(3)
        x = torch.randn(5, requires_grad=True)
        first, second = Split.apply(Increment.apply(bound_early(x, 0.5) * 1))
        (first.sum() * second.square().sum()).backward()
        return x.grad

    plain = gradient()
    with observed(tmp_path, L1) as run, run.step_of(None):
        assert torch.equal(gradient(), plain)


def test_exceptions_pass_and_the_tree_is_right_afterwards(tmp_path):
    class Faulty(Function):
        @staticmethod
        def forward(ctx, x):
            torch.relu(x)
            raise KeyError("mine")

    with observed(tmp_path, Setting("mix", "statistics")) as run:
        with run.step_of(nn.Identity()):
            with pytest.raises(KeyError, match="mine"):
                Faulty.apply(torch.ones(2))
            torch.sin(torch.ones(2))
        record = run.records()["Autograd.Faulty.0.forward"]
        parents = read(tmp_path, 0, "rank", "construct.json")
    assert record["raised"] == "KeyError"
    assert parents["Torch.relu.0.forward"] == "Autograd.Faulty.0.forward"
    assert parents["Torch.sin.0.forward"] is None


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_is_no_record_but_functions_inside_are(reentrant, tmp_path):
    x = torch.randn(3, requires_grad=True)
    with observed(tmp_path, L1) as run:
        with run.step_of(None):
            y = checkpoint(lambda t: Cube.apply(t, 1.0) * 2, x, use_reentrant=reentrant)
            y.sum().backward()
        record = of_functions(run.records())
    assert set(record) == {"Autograd.Cube.0.forward", "Autograd.Cube.0.backward"}
    assert record["Autograd.Cube.0.forward"]["recomputed"] == 1
    backward = record["Autograd.Cube.0.backward"]
    assert backward["output"][0]["Norm"] == pytest.approx(x.grad.norm().item())


def test_functorch_transforms_pass(tmp_path):
    x = torch.randn(2, 4)

    def total(row):
        first, second = Split.apply(row, 2)
        return (first * 2).sum() + second.sum()

    expected = torch.vmap(torch.func.grad(total))(x)
    with observed(tmp_path, L1) as run:
        with run.step_of(None):
            assert torch.equal(torch.vmap(torch.func.grad(total))(x), expected)
        assert of_functions(run.records()) == {}
        assert run.account()["errors"] == {}


def test_an_api_list_filter_selects_them(tmp_path):
    x = torch.ones(2, requires_grad=True)
    with observed(tmp_path, L1, list=["Cube"]) as run:
        with run.step_of(None):
            Cube.apply(x, 1.0).sum().backward()
        assert set(run.records()) == {"Autograd.Cube.0.forward", "Autograd.Cube.0.backward"}


def test_scope_knows_their_names(tmp_path):
    scope = ["Autograd.Cube.0.forward", "Autograd.Cube.0.forward"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with observed(tmp_path, L1, scope=scope) as run:
            with run.step_of(None):
                torch.sin(torch.ones(2))
                Cube.apply(torch.ones(2), 1.0)
                torch.cos(torch.ones(2))
            names = list(run.records())
    assert names[0] == "Autograd.Cube.0.forward"
    assert "Torch.cos.0.forward" not in names


def test_apply_or_its_code_comes_back(tmp_path):
    held, code = vars(Function)["apply"], installed()
    with observed(tmp_path, L1) as run:
        signature = inspect.signature(Cube.apply) if IN_PYTHON else None
        run.debugger.start()
        assert installed() is not code
        if IN_PYTHON:
            assert vars(Function)["apply"] is held
            assert inspect.signature(Cube.apply) == signature
        run.debugger.stop()
        assert installed() is code
        assert vars(Function)["apply"] is held
        assert not IN_PYTHON or "__signature__" not in vars(held.__func__)


@pytest.mark.parametrize("level", ["L0", "L1"])
def test_nothing_is_diverted_where_it_is_not_wanted(level, tmp_path):
    code = installed()
    folder = tmp_path / "dump"
    with observed(folder, Setting(level, "statistics")) as run:
        if level == "L1":
            run.debugger.stop()
        else:
            run.debugger.start(nn.Identity())
        assert installed() is code


def test_the_black_list_leaves_a_class_out_but_looks_inside(tmp_path):
    with observed(tmp_path, L1, black_list=["Cube"]) as run:
        with run.step_of(None):
            Cube.apply(torch.ones(2), 1.0)
        names = list(run.records())
    assert "Autograd.Cube.0.forward" not in names
    assert "Torch.pow.0.forward" in names


def test_with_module_boundaries_only_nothing_is_diverted(tmp_path):
    code = installed()
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps({"level": "L1", "dump_path": str(tmp_path), "compile": "modules_only"})
    )
    reset_session()
    debugger = PrecisionDebugger(config_path=str(config))
    try:
        debugger.start()
        assert installed() is code
    finally:
        reset_session()


@pytest.mark.parametrize(
    "around", [Cube.apply, lambda x, n: checkpoint(torch.tanh, x, use_reentrant=True) * n]
)
def test_a_stack_through_a_diverted_function_is_the_same_one_in_every_step(around, tmp_path):
    with observed(tmp_path, L1) as run:
        for _ in range(3):
            with run.step_of(None):
                around(torch.ones(2, requires_grad=True), 2).sum().backward()
    first, *others = (read(tmp_path, step, "rank", "stack.json") for step in range(3))
    assert others == [first, first]
