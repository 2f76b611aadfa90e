# SPDX-License-Identifier: Apache-2.0
"""Gradients that cross the boundary of a call: in-place, views, shared inputs, several passes."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

from builders.recordings import Json, recording

pytestmark = pytest.mark.torch


def norm_of(entry: Any) -> float:
    """The norm in a tensor's record."""
    found: float = entry["Norm"]
    return found


def agrees(entry: Any, tensor: Tensor) -> bool:
    """Whether a tensor's record has the statistics of `tensor`."""
    exact = tensor.double()
    expected = [exact.max(), exact.min(), exact.mean(), exact.norm()]
    found = [entry[key] for key in ("Max", "Min", "Mean", "Norm")]
    return bool(torch.allclose(torch.tensor(found), torch.stack(expected).float(), rtol=1e-5))


def test_a_gradient_is_recorded_although_the_user_clears_it_later(tmp_path: Path) -> None:
    x = torch.ones(4, requires_grad=True)
    with recording(tmp_path, "L1") as run:
        with run.step_of():
            y = torch.tanh(x)
            y.square().sum().backward()
            expected = x.grad.clone()
            x.grad.zero_()
        assert agrees(run.records()["Torch.tanh.0.backward"]["output"][0], expected)


def test_each_backward_pass_is_a_record_of_its_own(tmp_path: Path) -> None:
    x = torch.linspace(0.1, 1, 4).requires_grad_()
    with recording(tmp_path, "mix") as run:
        with run.step_of(nn.Identity()):
            y = torch.tanh(x)
            y.sum().backward(retain_graph=True)
            (3 * y).sum().backward()
        records, parents = run.records(), run.parents()
    first = norm_of(records["Torch.tanh.0.backward"]["output"][0])
    second = norm_of(records["Torch.tanh.0.backward.pass1"]["output"][0])
    assert second == pytest.approx(3 * first)
    assert "Torch.tanh.0.backward.pass1" in parents


def test_calls_of_a_later_pass_are_under_the_modules_of_that_pass(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    with recording(tmp_path, "mix") as run:
        with run.step_of(model):
            loss = model(torch.ones(2, 4, requires_grad=True)).sum()
            loss.backward(retain_graph=True)
            loss.backward()
        parents = run.parents()
    first = {name: parent for name, parent in parents.items() if name.endswith("backward")}
    assert first["Torch.tanh.0.backward"] == "Module.1.Tanh.backward.0"
    for name, parent in parents.items():
        if name.endswith(".pass1"):
            before = parents[name.removesuffix(".pass1")]
            assert parent == (f"{before}.pass1" if before else None), name
    assert parents["Module.1.Tanh.backward.0.pass1"] == "Module.Sequential.backward.0.pass1"


def test_a_double_backward_is_a_second_pass(tmp_path: Path) -> None:
    x = torch.linspace(0.1, 1, 4).requires_grad_()
    with recording(tmp_path, "L1") as run:
        with run.step_of():
            (first,) = torch.autograd.grad(torch.tanh(x).sum(), x, create_graph=True)
            first.square().sum().backward()
        records = run.records()
    assert agrees(records["Torch.tanh.0.backward"]["output"][0], first.detach())
    assert records["Torch.tanh.0.backward.pass1"]["output"][0]["shape"] == [4]


def test_create_graph_leaves_nothing_alive(tmp_path: Path) -> None:
    x = torch.ones(3, requires_grad=True)
    with recording(tmp_path, "mix") as run, run.step_of(nn.Identity()):
        y = torch.tanh(x)
        (grad,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        seen = [weakref.ref(y), weakref.ref(grad)]
        del y, grad
        gc.collect()
        assert [reference() for reference in seen] == [None, None]


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_autograd_grad_with_an_inner_input_gives_its_gradient(level: str, tmp_path: Path) -> None:
    first, second = nn.Linear(4, 4), nn.Linear(4, 2)
    model = nn.Sequential(first, second)
    with recording(tmp_path, level) as run:
        with run.step_of(model):
            inner = first(torch.ones(2, 4))
            (grad,) = torch.autograd.grad(second(inner).square().sum(), inner)
        records = run.records()
    name = "Functional.linear.{}.backward" if level == "L1" else "Module.{}.Linear.backward.0"
    assert agrees(records[name.format(1)]["output"][0], grad)
    if level != "L0":  # at L0 no function mode sees the result of autograd.grad
        assert agrees(records[name.format(0)]["input"][0], grad)


def test_inner_and_outer_inputs_of_autograd_grad_are_one_pass_each_time(tmp_path: Path) -> None:
    x = torch.linspace(0.1, 1, 4).requires_grad_()
    with recording(tmp_path, "L1") as run:
        with run.step_of():
            inner = torch.tanh(x)
            loss = (inner * inner).sum()
            for _ in range(20):  # results that come and go may lie at one address
                torch.autograd.grad(loss, inner, retain_graph=True)
            grads = torch.autograd.grad(loss, [inner, x])
        records = run.records()
    passes = [name for name in records if name.startswith("Torch.tanh.0.backward")]
    assert len(passes) == 21
    assert all(agrees(records[name]["input"][0], grads[0]) for name in passes)
    assert agrees(records[passes[-1]]["output"][0], grads[1])


def test_outputs_of_one_call_reached_by_hooks_and_by_the_result(tmp_path: Path) -> None:
    x = torch.linspace(0.1, 1, 4).requires_grad_()
    with recording(tmp_path, "L1") as run:
        with run.step_of():
            low, high = torch.aminmax(x)
            grads = torch.autograd.grad(low * 3 + high * 5, [low, high])
        records = run.records()
    backward = [record for name, record in records.items() if "aminmax.0.backward" in name]
    assert [[entry["Max"] for entry in record["input"]] for record in backward] == [[3.0, 5.0]]
    assert [grad.item() for grad in grads] == [3.0, 5.0]


def test_an_in_place_call_that_returns_nothing_has_its_argument_as_output(tmp_path: Path) -> None:
    x = torch.ones(3, requires_grad=True)
    with recording(tmp_path, "L1") as run:
        with run.step_of():
            base = torch.zeros(2, 3) * x
            base[0] = 2 * x
            (base * torch.tensor([[3.0], [5.0]])).sum().backward()
        records = run.records()
    forward = records["Tensor.__setitem__.0.forward"]
    assert forward["input_args"][0]["Max"] == 0.0
    assert forward["output"][0]["Max"] == 2.0
    backward = records["Tensor.__setitem__.0.backward"]
    assert backward["input"][0]["Max"] == 5.0
    assert backward["output"][2]["Max"] == 3.0


def test_a_view_changed_in_place_has_its_part_of_the_gradient_of_its_base(tmp_path: Path) -> None:
    x = torch.ones(3, requires_grad=True)
    y = torch.ones(2, 3, requires_grad=True)
    weights = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    with recording(tmp_path, "L1") as run:
        with run.step_of():
            base = y * 1.0
            column = base[:, 1]
            column.mul_(x[:2])
            row = base[1]
            row += x
            (base * weights).sum().backward()
        records = run.records()
        assert run.account()["errors"] == {}
    added, scaled = records["Tensor.__iadd__.0.backward"], records["Tensor.mul_.0.backward"]
    assert [agrees(added[side][0], weights[1]) for side in ("input", "output")] == [True, True]
    assert agrees(added["output"][1], weights[1])
    assert [agrees(scaled[side][0], weights[:, 1]) for side in ("input", "output")] == [True, True]
    assert not any("remarks" in record for record in (added, scaled))


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_an_output_that_is_changed_in_place_later_keeps_its_gradient(
    level: str, tmp_path: Path
) -> None:
    """A linear layer makes a matrix and returns a view of it, from which the graph is cut off."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            hidden = self.first(x)
            kept = hidden * 3  # consumes it before the change
            hidden[mask] = 0.0
            return self.second(hidden + kept)

    torch.manual_seed(0)
    model = Masked()
    x, mask = torch.randn(2, 3, 4), torch.tensor([[1, 0, 0], [0, 0, 1]]).bool()
    with recording(tmp_path, level) as run:
        with run.step_of(model):
            model(x, mask).sum().backward()
        records = run.records()
    from_second = model.second.weight.sum(0).detach().expand(2, 3, 4)
    expected = from_second * 3 + from_second.masked_fill(mask[..., None], 0.0)
    assert agrees(records["Module.first.Linear.backward.0"]["input"][0], expected)
    assert records["Module.first.Linear.backward.0"]["input"][0]["shape"] == [2, 3, 4]
    if level == "mix":
        change = records["Tensor.__setitem__.0.backward"]
        assert agrees(records["Functional.linear.0.backward"]["input"][0], expected)
        assert agrees(change["input"][0], from_second)
        assert agrees(change["output"][0], from_second.masked_fill(mask[..., None], 0.0))


class Stashing(nn.Module):
    """Keeps what it makes a view of, for a further term of the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        made = self.linear(x)
        self.kept = made
        return made.view(-1)


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_other_uses_of_what_a_view_shows_are_not_in_its_gradient(
    level: str, tmp_path: Path
) -> None:
    model = nn.Sequential(Stashing())
    with recording(tmp_path, level) as run:
        with run.step_of(model):
            (model(torch.ones(2, 3, 4)).sum() + 10 * model[0].kept.sum()).backward()
        records = run.records()
    ones = {
        name: record["input"][0]["Max"] for name, record in records.items() if "input" in record
    }
    assert ones["Module.0.linear.Linear.backward.0"] == 11.0
    assert ones["Module.0.Stashing.backward.0"] == ones["Module.Sequential.backward.0"] == 1.0


def test_a_gradient_that_cannot_be_had_has_a_remark(tmp_path: Path) -> None:
    class Pair(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return (x * 1.0).view(-1), x * 2.0

    model = nn.Sequential(Pair())
    with recording(tmp_path, "L0") as run:
        with run.step_of(model):
            flat, other = model(torch.ones(2, 3, requires_grad=True))
            flat.mul_(2)  # outside of all modules
            (flat.sum() + other.sum()).backward()
        record = run.records()["Module.0.Pair.backward.0"]
    assert record["input"][0] is None
    assert "changed in place" in record["remarks"]["input.0"]


def test_views_of_one_tensor_have_a_gradient_each(tmp_path: Path) -> None:
    class Views(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            made = x * 1.0
            return made.view(6), made, made.t(), *made.chunk(2)

    x = torch.ones(2, 3, requires_grad=True)
    with recording(tmp_path, "L0") as run:
        model = nn.Sequential(Views())
        with run.step_of(model):
            parts = model(x)
            torch.stack([part.sum() * 10**n for n, part in enumerate(parts)]).sum().backward()
        record = run.records()["Module.0.Views.backward.0"]
    assert [(entry["Min"], entry["Max"]) for entry in record["input"]] == [
        (10**n, 10**n) for n in range(5)
    ]
    assert agrees(record["output"][0], x.grad)


def test_a_stale_view_breaks_nothing(tmp_path: Path) -> None:
    x = torch.ones(4, requires_grad=True)
    with recording(tmp_path, "mix") as run:
        with run.step_of(nn.Identity()):
            y = x * 1
            first, _ = y.chunk(2)
            y.mul_(2)
            with pytest.raises(RuntimeError):
                first.sum()
            y.sum().backward()
        assert run.account()["errors"] == {}
    assert x.grad.tolist() == [2.0] * 4


def test_a_tensor_passed_twice_has_its_whole_gradient_once(tmp_path: Path) -> None:
    x = torch.full((3,), 2.0, requires_grad=True)
    with recording(tmp_path, "L1") as run:
        with run.step_of():
            h = x * 1
            torch.mul(h, h).sum().backward()
        record = run.records()["Torch.mul.0.backward"]
    assert record["output"][0]["Max"] == 4.0
    assert record["output"][1] is None
    assert record["remarks"]["output.1"] == "same as output.0"


class TwoOutputs(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(x)
        return h, 2 * h


def test_an_output_that_is_an_ancestor_of_another_has_the_share_from_outside(
    tmp_path: Path,
) -> None:
    with recording(tmp_path, "L0") as run:
        model = nn.Sequential(TwoOutputs())
        with run.step_of(model):
            first, second = model(torch.ones(3, requires_grad=True))
            (first + second).sum().backward()
        record = run.records()["Module.0.TwoOutputs.backward.0"]
    assert [entry["Max"] for entry in record["input"]] == [1.0, 1.0]
    assert not [entry for entry in record["input"] if "note" in entry]


@pytest.mark.parametrize("has_more", [False, True], ids=["the root alone", "and another call"])
def test_the_root_of_the_backward_pass_has_its_share(has_more: bool, tmp_path: Path) -> None:
    with recording(tmp_path, "L0") as run:
        model = nn.Sequential(TwoOutputs())
        with run.step_of(model):
            first, second = model(torch.ones((), requires_grad=True))
            more = 4 * first if has_more else 0.0
            (first + (second + more)).backward()
        record = run.records()["Module.0.TwoOutputs.backward.0"]
        assert run.account()["errors"] == {}
    assert [entry["Max"] for entry in record["input"]] == [5.0 if has_more else 1.0, 1.0]


class WithBias(nn.Module):
    """Consumes a bias and hands it on, as layers of an encoder do; the first one makes it."""

    def __init__(self, bias: Tensor | None) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.made = nn.Parameter(bias) if bias is not None else None

    def forward(self, x: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if bias is None:
            assert self.made is not None
            bias = self.made.exp()
        return torch.tanh(self.linear(x) + bias), bias


class Biased(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        first = WithBias(torch.linspace(-1, 1, 4))
        self.layers = nn.ModuleList([first, WithBias(None), nn.Sequential(WithBias(None))])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x, bias = self.layers[0](x)
        x, bias = self.layers[1](x, bias)
        x, bias = self.layers[2][0](x, bias)
        return x, bias


Ways = {
    "loss": lambda y, bias: (y.square().sum() + (3 * bias).sum()).backward(),
    "bias unused": lambda y, bias: y.square().sum().backward(),
    "two roots": lambda y, bias: torch.autograd.backward([y.sum(), bias], [None, bias.detach()]),
    "bias alone": lambda y, bias: bias.backward(torch.ones(4)),
    "grad": lambda y, bias: torch.autograd.grad(y.sum() + bias.sum(), [y, bias]),
    "twice": lambda y, bias: [
        (y.sum() + bias.sum()).backward(retain_graph=True),
        y.square().sum().backward(),
    ],
}


def _torchs_gradients(model: nn.Module, way: str) -> dict[str, tuple[Any, Any]]:
    """What torch's full backward hooks are given in the last pass, by the names of records."""
    found: dict[str, tuple[Any, Any]] = {}
    handles = []
    for name, module in model.named_modules():
        record = f"Module.{name}.{type(module).__name__}.backward.0"
        handles.append(
            module.register_full_backward_hook(
                lambda _m, inputs, outputs, record=record: found.update({record: (inputs, outputs)})
            )
        )
    Ways[way](*model(torch.linspace(0, 1, 8).view(2, 4).requires_grad_()))
    for handle in handles:
        handle.remove()
    return {name.replace("Module..", "Module."): gradients for name, gradients in found.items()}


@pytest.mark.parametrize("level", ["L0", "mix"])
@pytest.mark.parametrize("way", list(Ways))
def test_a_tensor_that_modules_hand_on_has_in_each_the_share_from_outside(
    way: str, level: str, tmp_path: Path
) -> None:
    model = Biased()
    expected = _torchs_gradients(model, way)
    model.zero_grad()
    with recording(tmp_path, level) as run:
        with run.step_of(model):
            Ways[way](*model(torch.linspace(0, 1, 8).view(2, 4).requires_grad_()))
        records = run.records()
        assert run.account()["errors"] == {}
    later = ".pass1" if way == "twice" else ""
    for name, (inputs, outputs) in expected.items():
        record = records.get(f"{name}{later}")
        for side, gradients in (("input", outputs), ("output", inputs)):
            for index, gradient in enumerate(gradients):
                entry = record[side][index] if record is not None else None
                if gradient is None or not gradient.any():
                    assert entry is None, (name, side, index)
                else:
                    assert agrees(entry, gradient), (name, side, index)


def test_a_tensor_that_is_handed_on_leaves_nothing_alive(tmp_path: Path) -> None:
    model = Biased()
    with recording(tmp_path, "mix") as run, run.step_of(model):
        y, bias = model(torch.ones(2, 4))
        (y.sum() + bias.sum()).backward()
        part_of_the_graph = nn.Identity()
        bias.grad_fn.metadata["part"] = part_of_the_graph
        seen = [weakref.ref(one) for one in (y, bias, part_of_the_graph)]
        del y, bias, part_of_the_graph
        gc.collect()
        assert [reference() for reference in seen] == [None] * 3


@pytest.mark.parametrize("leaf", [False, True])
def test_a_module_that_returns_its_input_is_a_pass_through(leaf: bool, tmp_path: Path) -> None:
    with recording(tmp_path, "L0") as run:
        model = nn.Sequential(nn.Dropout(0.5)).eval()
        x = torch.ones(3, requires_grad=True)
        with run.step_of(model):
            model(x if leaf else x * 1).mul(2).sum().backward()
        record = run.records()["Module.0.Dropout.backward.0"]
    assert "pass-through" in record["input"][0]["note"]
    assert record["input"][0]["Max"] == record["output"][0]["Max"] == 2.0


Pair = namedtuple("Pair", "left right")


@dataclasses.dataclass
class Answer:
    loss: Tensor
    extra: dict[str, list[Tensor]]
    name: str = "answer"


class Structured(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.kind = kind

    def forward(self, *, x: Tensor, more: dict[str, list[Tensor]]) -> Any:
        a, b = self.fc(x), more["k"][0] * 2
        if self.kind == "dataclass":
            return Answer(a, {"b": [b]})
        if self.kind == "namedtuple":
            return Pair(a, b)
        return {"a": a, "b": b} if self.kind == "dict" else [a, b]


def _flat(value: Any) -> list[Tensor]:
    if isinstance(value, Answer):
        return [value.loss, value.extra["b"][0]]
    return list(value.values()) if isinstance(value, dict) else list(value)


@pytest.mark.parametrize("kind", ["dataclass", "namedtuple", "dict", "list"])
def test_structured_outputs_and_keyword_inputs_have_their_gradients(
    kind: str, tmp_path: Path
) -> None:
    x, k = torch.ones(2, 4, requires_grad=True), torch.ones(2, 4, requires_grad=True)
    model = nn.ModuleDict({"s": Structured(kind)})
    with recording(tmp_path, "L0") as run:
        with run.step_of(model):
            a, b = _flat(model["s"](x=x, more={"k": [k]}))
            (a * 3 + b * 5).sum().backward()
        record = run.records()["Module.s.Structured.backward.0"]
    assert [entry["Max"] for entry in record["input"]] == [3.0, 5.0]
    assert agrees(record["output_kwargs"]["x"], x.grad)
    assert agrees(record["output_kwargs"]["more.k.0"], k.grad)


def test_a_list_output_is_the_users_own_list(tmp_path: Path) -> None:
    model = nn.ModuleDict({"s": Structured("list")})
    kept: list[Any] = []
    model["s"].register_forward_hook(lambda _m, _a, out: kept.append((out, list(out))))
    x = torch.ones(2, 4, requires_grad=True)
    with recording(tmp_path, "mix") as run, run.step_of(model):
        out = model["s"](x=x, more={"k": [x]})
    assert kept[0][0] is out
    assert all(a is b for a, b in zip(kept[0][1], out, strict=True))


def test_in_place_after_a_module_loses_no_backward(tmp_path: Path) -> None:
    model = nn.Sequential(
        nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True), nn.Identity(), nn.Linear(4, 4)
    )
    with recording(tmp_path, "mix") as run:
        with run.step_of(model):
            y = model(torch.randn(3, 4))
            y += 1
            y.mul_(2)
            y.sum().backward()
        records, parents = run.records(), run.parents()
    for index, kind in enumerate(["Linear", "BatchNorm1d", "ReLU", "Identity", "Linear"]):
        assert f"Module.{index}.{kind}.backward.0" in records
        assert parents[f"Module.{index}.{kind}.backward.0"] == "Module.Sequential.backward.0"


def test_the_backward_of_an_api_is_the_gradient_of_its_arguments(tmp_path: Path) -> None:
    logits = torch.linspace(-1, 1, 20).view(4, 5).requires_grad_()
    x = torch.linspace(-1, 1, 24).view(2, 3, 4).requires_grad_()
    weight = torch.linspace(0, 1, 20).view(5, 4).requires_grad_()
    bias = torch.ones(5, requires_grad=True)
    with recording(tmp_path, "L1") as run:
        with run.step_of():
            F.cross_entropy(logits, torch.arange(4)).backward()
            F.linear(x, weight, bias=bias).square().sum().backward()
        records = run.records()
    assert agrees(records["Functional.cross_entropy.0.backward"]["output"][0], logits.grad)
    linear = records["Functional.linear.0.backward"]
    assert agrees(linear["output"][0], x.grad)
    assert linear["output"][0]["shape"] == [2, 3, 4]
    assert agrees(linear["output"][1], weight.grad)
    assert agrees(linear["output_kwargs"]["bias"], bias.grad)
    assert linear["input"][0]["shape"] == [2, 3, 5]


def test_every_part_of_a_chunk_has_its_gradient(tmp_path: Path) -> None:
    x = torch.ones(4, requires_grad=True)
    with recording(tmp_path, "L1") as run:
        with run.step_of():
            a, b = (x * 1).chunk(2)
            (2 * a + 3 * b).sum().backward()
        record = run.records()["Tensor.chunk.0.backward"]
    assert [entry["Max"] for entry in record["input"]] == [2.0, 3.0]
    assert record["output"][0]["shape"] == [4]


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("outer", [True, False])
@pytest.mark.parametrize("inner", [True, False])
def test_recomputed_calls_are_marked_and_keep_their_gradients(
    outer: bool, inner: bool, tmp_path: Path
) -> None:
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.b, torch.tanh(self.a(x)), use_reentrant=inner)

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.m, self.n = Inner(), Inner()

        def forward(self, x: Tensor) -> Tensor:
            for part in (self.m, self.n):
                x = checkpoint(part, x, use_reentrant=outer)
            return x

    model = Outer()
    x = torch.ones(2, 4, requires_grad=True)
    with recording(tmp_path, "mix") as run:
        with run.step_of(model):
            model(x * 1).sum().backward()
            torch.relu(x)  # a call after the backward is seen as ever
        records: Json = run.records()
        # what `backward` makes for itself, the first gradient, is nobody's call
        assert run.account()["skipped"] == {}
        assert run.account()["errors"] == {}
    for name in ("a", "b"):
        for part in ("m", "n"):
            forward = records[f"Module.{part}.{name}.Linear.forward.0"]
            assert forward["recomputed"] >= 1
            assert f"Module.{part}.{name}.Linear.forward.1" not in records
            backward = records[f"Module.{part}.{name}.Linear.backward.0"]
            assert None not in backward["input"] + backward["output"]
    assert "Torch.relu.0.forward" in records
    assert len([name for name in records if "linear" in name and "backward" in name]) == 4
