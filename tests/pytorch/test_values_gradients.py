# SPDX-License-Identifier: Apache-2.0
"""Backward records hold the gradients that torch itself gives, of modules and of single calls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from families import FAMILIES
from families.training import without_warnings
from oracle import ApiOracle, ModuleOracle, Observation, compare
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from builders.recordings import Setting, observed, recording

pytestmark = pytest.mark.torch

SEED = 7
# One call repeated alone may add its terms in another order than the whole graph.
REL = {"torch.float32": 2e-6, "torch.bfloat16": 2e-2, "torch.complex64": 4e-6}

# torch's full backward hooks refuse in-place changes of what they return, and functorch.
FULL_HOOK_FAMILIES = [
    "prenorm_transformer",
    "encoder_decoder",
    "weight_tying",
    "evaluation_in_the_loop",
    "mixture_of_experts",
    "sparse_embeddings",
    "recurrent",
    "custom_functions",
    "custom_operators",
    "user_modes",
    "half_precision",
    "random_everywhere",
]
# Where the gradient at a boundary inside a call is not that of the call alone: recomputation shares
# numbers with its first run, a double backward passes several times, a subclass hides from the
# oracle, and compiled code is traced through it.
API_FAMILIES = [
    family
    for family in FAMILIES
    if family not in ("compiled", "tensor_subclass", "checkpointing", "gradient_penalty")
]


def records_of(family: str, level: str, folder: Path) -> dict[str, object]:
    """The records of the first step."""
    with observed(folder, Setting(level, "statistics")) as run:
        case = FAMILIES[family](SEED)
        with run.step_of(case.model):
            case.run_step(0)
        assert run.failures(1) == []
        return run.records()


def disagreements(name: str, seen: Observation, record: object) -> list[str]:
    found = []
    for path, statistics in seen.backward.items():
        problems = compare({path: statistics}, record, REL.get(statistics.dtype, 1e-12))
        found += [f"{name}: {problem}" for problem in problems]
    return found


@pytest.mark.parametrize("family", FULL_HOOK_FAMILIES)
@pytest.mark.parametrize("level", [pytest.param("L0", marks=pytest.mark.slow), "mix"])
def test_module_gradients_equal_full_backward_hooks(
    family: str, level: str, tmp_path: Path
) -> None:
    case = FAMILIES[family](SEED)
    oracle = ModuleOracle(case.modules[0], gradients=True)
    with without_warnings(r"Full backward hook is firing when gradients are computed"):
        case.run_step(0)
    expected = {
        name.replace(".forward.", ".backward."): seen
        for name, seen in oracle.calls.items()
        if seen.backward
    }
    assert expected
    records = records_of(family, level, tmp_path)
    assert set(expected) <= set(records)
    found = [p for name, seen in expected.items() for p in disagreements(name, seen, records[name])]
    assert found == []


@pytest.mark.parametrize("family", API_FAMILIES)
@pytest.mark.parametrize("level", ["L1", pytest.param("mix", marks=pytest.mark.slow)])
def test_api_gradients_equal_those_of_the_call_alone(
    family: str, level: str, tmp_path: Path
) -> None:
    case = FAMILIES[family](SEED)
    oracle = ApiOracle()
    with oracle:
        case.run_step(0)
    oracle.finish()
    expected = {
        name.replace(".forward", ".backward"): seen
        for name, seen in oracle.calls.items()
        if seen.backward
    }
    records = records_of(family, level, tmp_path)
    missing = [name for name in expected if name not in records]
    assert missing == []
    found = [p for name, seen in expected.items() for p in disagreements(name, seen, records[name])]
    assert found == []


def test_the_oracle_would_notice_a_wrong_gradient() -> None:
    oracle = ApiOracle()
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    with oracle:
        y = torch.exp(x)
    y.backward(torch.tensor([1.0, 1.0]))
    oracle.finish()
    seen = oracle.calls["Torch.exp.0.forward"]
    right = x.grad
    assert right is not None

    def record(gradient: Tensor) -> dict[str, object]:
        values = gradient.double()
        numbers = {
            "Max": values.max().item(),
            "Min": values.min().item(),
            "Mean": values.mean().item(),
            "Norm": values.norm().item(),
        }
        entry = {"dtype": "torch.float32", "shape": [2], **numbers}
        ones = {
            "dtype": "torch.float32",
            "shape": [2],
            "Max": 1,
            "Min": 1,
            "Mean": 1,
            "Norm": 2**0.5,
        }
        return {"input": [ones], "output": [entry]}

    assert disagreements("exp", seen, record(right)) == []
    assert len(disagreements("exp", seen, record(right * 1.0001))) == 4


def test_parameter_gradients_are_those_that_the_optimizer_sees(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    x = torch.randn(5, 3)
    with observed(tmp_path, Setting("mix", "statistics")) as run:
        with run.step_of(model):
            model(x).square().sum().backward()
            first = {n: p.grad.double().norm().item() for n, p in model.named_parameters()}
            model(x).sum().backward()
        second = {n: p.grad.double().norm().item() for n, p in model.named_parameters()}
        records = run.records()
    for suffix, expected in (("", first), (".1", second)):
        for index, name in ((0, "0"), (2, "2")):
            record = records[f"Module.{name}.Linear.parameters_grad{suffix}"]
            for parameter in ("weight", "bias"):
                norm = record[parameter][0]["Norm"]
                assert norm == pytest.approx(expected[f"{index}.{parameter}"], rel=1e-12)


class HookedView(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 5))

    def forward(self, x: Tensor) -> Tensor:
        rows = x.view(6, 4)
        rows.register_hook(lambda gradient: 2 * gradient)
        return rows @ self.weight


def test_a_hook_on_a_view_inside_a_module_counts(tmp_path: Path) -> None:
    model, leaf = HookedView(), torch.randn(2, 3, 4, requires_grad=True)
    with recording(tmp_path, "L0") as run, run.step_of(model):
        model(leaf * 1).sum().backward()
    (record,) = run.records()["Module.HookedView.backward.0"]["output"]
    assert leaf.grad is not None
    assert record["shape"] == [2, 3, 4]
    assert record["Norm"] == pytest.approx(leaf.grad.double().norm().item(), rel=1e-6)


PRODUCTS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "linear": lambda *factors: F.linear(*factors),  # noqa: PLW0108 - looked up when it is called
    "without bias": lambda x, weight, _: F.linear(x, weight),
    "matrix": lambda x, weight, bias: F.linear(x[0], weight, bias),
    "vector": lambda x, weight, bias: F.linear(x[0, 0], weight, bias),
    "turned": lambda x, weight, bias: F.linear(x.transpose(0, 1), weight, bias),
    "not of the input": lambda x, weight, bias: F.linear(x.detach(), weight, bias),
    "not of the weight": lambda x, weight, bias: F.linear(x, weight.detach(), bias),
}


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("is_expanded", [False, True])
def test_factors_seen_as_views_have_their_own_gradients(
    name: str, is_expanded: bool, tmp_path: Path
) -> None:
    torch.manual_seed(SEED)
    x, weight, bias = (torch.randn(size, requires_grad=True) for size in ((2, 3, 4), (5, 4), (5,)))
    seen: dict[int, Tensor] = {}
    arguments: list[Tensor] = []

    def look(index: int) -> Callable[[Tensor], None]:
        return lambda gradient: seen.__setitem__(index, gradient)

    linear = F.linear

    def watched(*args: Tensor) -> Tensor:
        for index, one in enumerate(args):
            if one.requires_grad:
                one.register_hook(look(index))
        arguments.extend(args)
        return linear(*args)

    with recording(tmp_path, "L1") as run, run.step_of(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(F, "linear", watched)
        y = PRODUCTS[name](x * 1, weight * 1, bias * 1)
        y.sum().backward() if is_expanded else (y * y).sum().backward()
    found = run.records()["Functional.linear.0.backward"]["output"]
    assert [one is None for one in found] == [not one.requires_grad for one in arguments]
    for index, gradient in seen.items():
        record = found[index]
        assert record["shape"] == list(gradient.shape)
        assert record["Max"] == gradient.max().item()
        assert record["Min"] == gradient.min().item()
        assert record["Norm"] == pytest.approx(gradient.double().norm().item(), rel=1e-6)
        assert record.get("stride", list(gradient.stride())) == list(gradient.stride())
        assert ("stride" in record) == (not gradient.is_contiguous())
