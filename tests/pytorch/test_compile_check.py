# SPDX-License-Identifier: Apache-2.0
"""`PrecisionChecker`: healthy compiled modules pass, a wrong fusion is named with its operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from builders.csv_files import csv_rows
from msprobe.errors import UsageError
from msprobe.pytorch import PrecisionChecker

pytestmark = pytest.mark.torch


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.norm(self.up(x))))  # the line of the fusion


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        self.block, self.leave = Block(), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(self.block(self.enter(x)))


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    return Model()


def loss_of(model: nn.Module) -> Tensor:
    return model(torch.linspace(-3, 3, 40).reshape(5, 8)).square().mean()


def miscompiled(function: Callable[..., Any], by: Callable[..., Any]) -> Callable[..., Any]:
    """Return a backend that takes another function in place of one."""

    def backend(graph: torch.fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        for node in graph.graph.nodes:
            if node.target is function:
                node.target = by
        graph.recompile()
        return graph.forward

    return backend


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_healthy_model_passes_forward_and_backward(model: Model, backend: str) -> None:
    checker = PrecisionChecker(backend)
    checker.wrap_all_children(model)
    result = checker.compare(loss_of, model)
    assert result.passed
    assert result.loss is not None
    assert {row.module_name for row in result.rows} == {"enter", "block", "leave"}
    kinds = {row.check_type for row in result.rows if row.module_name == "block"}
    assert kinds == {"forward", "input_grad", "param_grad"}
    assert all(row.status == "PASS" for row in result.rows)


def test_containers_that_never_run_are_no_level() -> None:
    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4)) for _ in range(2))
            self.heads = nn.ModuleDict({"a": nn.Linear(4, 1)})

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
            return self.heads["a"](x)

    for depth, names in (
        (1, {"layers.0", "layers.1", "heads.a"}),
        (2, {"layers.0.0", "layers.1.0"}),
    ):
        checker, stack = PrecisionChecker("eager"), Stack()
        checker.wrap_all_children(stack, depth=depth)
        result = checker.compare(lambda model: model(torch.ones(2, 4)).sum(), stack)
        assert result.passed
        assert {row.module_name for row in result.rows} == names


def test_a_wrong_fusion_is_named_with_module_graph_operator_and_line(
    model: Model, tmp_path: Path
) -> None:
    wrong = miscompiled(F.gelu, lambda x: F.gelu(x, approximate="tanh"))
    checker = PrecisionChecker(wrong)
    result = checker.compare(loss_of, checker.wrap_all_children(model))
    first = result.failures[0]
    line = Block.forward.__code__.co_firstlineno + 1
    assert (first.module_name, first.check_type) == ("block", "forward")
    assert first.graph == f"graph 0: gelu (test_compile_check.py:{line})"
    assert {row.module_name for row in result.failures} == {"block"}
    checker.report(result, tmp_path / "check.csv")
    rows = csv_rows(tmp_path / "check.csv")
    assert list(rows[0])[:9] == [
        *("module_name", "check_type", "tensor_index", "status", "max_abs_diff", "mean_abs_diff"),
        *("max_rel_diff", "shape", "note"),
    ]
    assert {row["module_name"] for row in rows if row["status"] == "FAIL"} == {"block"}
    assert next(result.lines()) == "1 of 3 compiled modules differ from eager; first: block"


def test_the_limit_follows_the_type(model: Model) -> None:
    def slightly(x: Tensor) -> Tensor:
        return torch.tanh(x) * (1 + 2**-9)

    backend = miscompiled(torch.tanh, slightly)
    assert not PrecisionChecker(backend).compare(loss_of, model).passed
    # Half a unit in the last place of bfloat16.
    assert PrecisionChecker(backend, cast_dtype=torch.bfloat16).compare(loss_of, model).passed


def test_a_wrong_gradient_alone_is_found(model: Model) -> None:
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x.tanh())
            return x.tanh()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * (1 - ctx.saved_tensors[0] ** 2) * 1.01

    def wrong(x: Tensor) -> Tensor:
        return Wrong.apply(x)

    backend = miscompiled(torch.tanh, wrong)
    result = PrecisionChecker(backend).compare(loss_of, model)
    assert {(row.module_name, row.check_type) for row in result.failures} == {
        ("enter", "param_grad"),
    }
    assert result.failures[0].graph == "a backward graph"


def test_the_model_stays_as_it_is(model: Model) -> None:
    model.add_module("norm", nn.BatchNorm1d(8))
    model.leave.weight.grad = torch.ones_like(model.leave.weight)
    before = {name: one.clone() for name, one in model.state_dict().items()}
    state = torch.get_rng_state()
    checker = PrecisionChecker("eager", single_pass=False)
    result = checker.compare(
        lambda model: loss_of(model) + model.norm(torch.rand(4, 8)).sum(), model
    )
    assert {row.module_name for row in result.rows} == {"enter", "block", "leave", "norm"}
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(model.leave.weight.grad, torch.ones_like(model.leave.weight))
    assert model.enter[0].weight.grad is None
    assert all(not one._forward_hooks and not one._forward_pre_hooks for one in model.modules())


def test_a_step_of_ones_own_is_checked_between_install_and_collect(model: Model) -> None:
    checker = PrecisionChecker("aot_eager")
    checker.wrap_by_policy(model, (nn.Linear, Block))
    checker.ignore(model.leave)
    checker.install(model)
    with torch.autocast("cpu", torch.bfloat16):
        loss = loss_of(model)
    loss.backward()
    result = checker.collect(loss)
    assert result.passed
    assert result.loss == pytest.approx(loss.item())
    assert "leave" not in {row.module_name for row in result.rows}
    assert {row.dtype for row in result.rows if row.check_type == "forward"} == {"bfloat16"}
    with pytest.raises(UsageError, match="install"):
        checker.collect()


def test_what_cannot_be_judged_says_why(model: Model, tmp_path: Path) -> None:
    class Noisy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + torch.rand_like(x)

    class Idle(nn.Module):
        pass

    checker = PrecisionChecker("eager", dump_graphs=True, graph_dir=tmp_path)
    whole = nn.Sequential(Noisy(), nn.Dropout(), nn.Linear(8, 1))
    whole[2].register_module("idle", Idle())
    checker.wrap_all_children(whole)
    checker.wrap(whole[2].idle, "idle")
    result = checker.compare(lambda model: model(torch.ones(3, 8)).sum(), whole)
    notes = {row.module_name: row.note for row in result.rows if row.status == "SKIP"}
    assert notes["0"] == "it draws random numbers"
    assert notes["idle"] == "it did not run"
    assert "1" not in notes or "compiled" in notes["1"]  # dropout is off
    assert (tmp_path / "2.graph0.py").read_text().count("linear") >= 1
    with pytest.raises(UsageError, match="no backend"):
        PrecisionChecker("nonsense")


@contextmanager
def patched_lowering() -> Iterator[None]:
    """Have inductor compile tanh wrongly."""
    from torch._inductor import config
    from torch._inductor.lowering import lowerings

    tanh, mul = torch.ops.aten.tanh.default, torch.ops.aten.mul.Tensor
    plain = lowerings[tanh]
    lowerings[tanh] = lambda x: lowerings[mul](plain(x), 1.001)
    try:
        with config.patch(force_disable_caches=True):
            yield
    finally:
        lowerings[tanh] = plain


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_patched_lowering_of_inductor_is_named(model: Model) -> None:
    model.block = nn.Identity()  # each kernel more takes seconds to compile
    checker = PrecisionChecker("inductor")
    checker.wrap_all_children(model)
    with patched_lowering():
        result = checker.compare(loss_of, model)
    assert {row.module_name for row in result.failures} == {"enter"}
    assert "tanh" in result.failures[0].graph
