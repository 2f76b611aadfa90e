# SPDX-License-Identifier: Apache-2.0
"""Which calls modules are made of is in facts.json at level L0, and costs the training nothing."""

from __future__ import annotations

import copy
import os
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

from builders.recordings import Json, read, recording
from builders.warm_python import run_warm

pytestmark = pytest.mark.torch

IDS = torch.tensor([[1, 2, 3, 4], [4, 3, 2, 1]])


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.mul(2.0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * 2.0


class Layer(nn.Module):
    """Calls operators between its parts, and some of each kind of argument."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.drop = nn.Linear(4, 4), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(x * 0.5)
        h = self.drop(Double.apply(h)) + 1
        y = F.layer_norm(h, (4,), eps=1e-3)
        return torch.cat([y[..., ::2], y[..., 1:3]], dim=-1).to(torch.float64).float()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, 4)
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.head = nn.Linear(4, 8)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        x = self.layers[0](x)
        x = checkpoint(self.layers[1], x, use_reentrant=False)
        return self.head(x)


def train(model: nn.Module) -> tuple[list[Tensor], Tensor]:
    torch.manual_seed(5)
    optimizer = torch.optim.Adam(model.parameters(), 0.1, foreach=False)
    loss = F.cross_entropy(model(IDS).flatten(0, 1), IDS.flatten(), label_smoothing=0.25)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return [loss.detach(), *(each.detach().clone() for each in model.parameters())], torch.rand(3)


def record(folder: Path, level: str = "L0", **settings: Any) -> Json:
    torch.manual_seed(3)
    model = Net()
    with recording(folder, level=level, **settings) as run, run.step_of(model):
        train(model)
    facts: Json = read(folder, 0, "rank", "facts.json")
    return facts


def shown(facts: Json) -> list[tuple[str | None, str | None, list[str]]]:
    """Each run of calls: the module, the record before it, and the calls in words."""
    outline = facts["outline"]
    words = [
        f"{call['name']}({', '.join([*call.get('arguments', ()), *named(call)])})"
        for call in outline["calls"]
    ]
    return [
        (run["parent"], run["after"], [words[number] for number in outline["bodies"][run["body"]]])
        for run in outline["runs"]
    ]


def named(call: Json) -> list[str]:
    return [f"{name}={word}" for name, word in call.get("named", {}).items()]


def test_calls_between_the_parts_of_modules_are_told_in_order(tmp_path: Path) -> None:
    facts = record(tmp_path)
    first = "Module.layers.0.Layer.forward.0"
    inner, drop = "Module.layers.0.inner.Linear", "Module.layers.0.drop.Dropout"
    runs = [run for run in shown(facts) if "layers.0" in (run[0] or "")]
    assert runs == [
        (first, "Module.embed.Embedding.forward.0", ["Tensor.__mul__(tensor, 0.5)"]),
        (
            f"{inner}.forward.0",
            "Module.embed.Embedding.forward.0",
            ["Functional.linear(tensor, tensor, tensor)"],
        ),
        (first, f"{inner}.forward.0", ["Tensor.mul(tensor, 2.0)"]),
        (
            f"{drop}.forward.0",
            f"{inner}.forward.0",
            ["Functional.dropout(tensor, p=0.5, training=True, inplace=False)"],
        ),
        (
            first,
            f"{drop}.forward.0",
            [
                "Tensor.__add__(tensor, 1)",
                "Functional.layer_norm(tensor, [4], weight=None, bias=None, eps=0.001)",
                "Tensor.__getitem__(tensor, [ellipsis, None:None:2])",
                "Tensor.__getitem__(tensor, [ellipsis, 1:3:None])",
                "Torch.cat([tensor, tensor], dim=-1)",
                "Tensor.to(tensor, torch.float64)",
                "Tensor.float(tensor)",
            ],
        ),
    ]
    parent, after, calls = shown(facts)[-1]
    assert (parent, after) == (None, "Module.Net.forward.0")
    (loss,) = (call for call in calls if "cross_entropy" in call)
    assert loss.startswith("Functional.cross_entropy(tensor, tensor")
    assert "label_smoothing=0.25" in loss


class Parts(nn.Module):
    """Feeds its calls with results, parts of results, parameters, and what no call made."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.weight = nn.Linear(4, 4), nn.Parameter(torch.ones(4, 4))
        self.register_buffer("table", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        h += self.table
        a, b = h.chunk(2, dim=-1)
        joined = torch.cat([b, a], dim=-1) @ self.weight.mT
        made_elsewhere = torch.from_numpy(joined.detach().numpy())
        joined[:, 0] = h.mT[0]
        return joined.add(made_elsewhere) + x.to(x.dtype)


def feeds(facts: Json) -> list[tuple[str, list[str]]]:
    """What each call is fed with: ``Torch.cat.0`` is the first result of that call."""
    outline = facts["outline"]
    numbers = [n for run in outline["runs"] for n in outline["bodies"][run["body"]]]
    calls = [outline["calls"][number] for number in numbers]
    rest = iter(outline["fed"])
    found: list[tuple[str, list[str]]] = []
    for place, call in enumerate(calls):
        words = str([*call.get("arguments", ()), *call.get("named", {}).values()])
        fed = []
        for _ in range(words.count("tensor")):
            item, back = divmod(number := next(rest), 100_000)
            name = "?" if number == 0 else outline["given"][~number] if number < 0 else ""
            fed.append(name or f"{found[place - back][0]}.{item}")
        found.append((call["name"].partition(".")[2], fed))
    assert not [*rest]
    return found


def record_parts(folder: Path) -> Json:
    model = Parts()
    with recording(folder, level="L0") as run, run.step_of(model):
        model(torch.ones(3, 4)[:2])
    facts: Json = read(folder, 0, "rank", "facts.json")
    return facts


PARTS = [
    ("ones", []),
    ("__getitem__", ["ones.0"]),
    ("linear", ["__getitem__.0", "first.weight", "first.bias"]),
    ("__iadd__", ["linear.0", "table"]),
    ("chunk", ["linear.0"]),
    ("cat", ["chunk.1", "chunk.0"]),
    ("__matmul__", ["cat.0", "weight.T"]),
    ("detach", ["__matmul__.0"]),
    ("__getitem__", ["linear.64"]),
    ("__setitem__", ["__matmul__.0", "__getitem__.0"]),
    ("add", ["__matmul__.0", "?"]),
    ("to", ["__getitem__.0"]),
    ("__add__", ["add.0", "__getitem__.0"]),
]


def test_it_is_told_what_calls_are_fed_with(tmp_path: Path) -> None:
    facts = record_parts(tmp_path)
    assert feeds(facts) == PARTS


def test_inputs_of_a_model_have_names(tmp_path: Path) -> None:
    model = Parts()
    x = torch.ones(2, 4)
    with recording(tmp_path, level="L0") as run, run.step_of(model):
        (model(x) - x).sum().backward()
    found = feeds(read(tmp_path, 0, "rank", "facts.json"))
    assert found[0] == ("linear", ["input.0", "first.weight", "first.bias"])
    assert ("__sub__", ["__add__.0", "input.0"]) in found


def test_an_input_that_a_call_was_given_before_has_its_name(tmp_path: Path) -> None:
    model = Parts()
    x = torch.ones(2, 4)
    with recording(tmp_path, level="L0") as run, run.step_of(model):
        model(x.requires_grad_()).sum().backward()
    found = feeds(read(tmp_path, 0, "rank", "facts.json"))
    assert found[:2] == [
        ("requires_grad_", ["?"]),
        ("linear", ["input.0", "first.weight", "first.bias"]),
    ]


def test_no_tensor_is_kept_and_no_address_taken_for_another(tmp_path: Path) -> None:
    model, x = nn.Linear(4, 4), torch.ones(2, 4)
    with recording(tmp_path, level="L0") as run, run.step_of(model):
        kept = model(x)
        for _ in range(50):
            gone = weakref.ref(kept * 2)
            assert gone() is None
            # Made without a call that is seen, perhaps where the other one was.
            with torch._C.DisableTorchFunction():
                new = torch.ones(2, 4)
            new.relu()
            del new
    found = feeds(read(tmp_path, 0, "rank", "facts.json"))
    assert [fed for name, fed in found if name == "relu"] == [["?"]] * 50


def test_parameters_can_be_swapped_after_a_step(tmp_path: Path) -> None:
    """As `Module.to` may do, which a weak reference would forbid."""
    model, x = nn.Linear(4, 4), torch.ones(2, 4)
    with recording(tmp_path, level="L0") as run:
        for _ in range(2):
            with run.step_of(model):
                result = model(x).relu()
            torch.utils.swap_tensors(result, torch.ones(2, 4))


def test_lines_are_those_of_the_program(tmp_path: Path) -> None:
    calls = record(tmp_path)["outline"]["calls"]
    lines = Path(__file__).read_text("utf-8").splitlines()
    sources = {call["name"]: call.get("source") for call in calls}
    file, _, number = sources["Torch.cat"].rpartition(":")
    assert file == __file__
    assert "torch.cat" in lines[int(number) - 1]
    assert sources["Functional.linear"] is None  # a module of torch makes it


def test_recomputed_calls_and_those_of_optimizers_are_left_out(tmp_path: Path) -> None:
    outline = record(tmp_path)["outline"]
    runs = [run["parent"] for run in outline["runs"]]
    assert runs.count("Module.layers.1.Layer.forward.0") == runs.count(
        "Module.layers.0.Layer.forward.0"
    )
    names = {call["name"] for call in outline["calls"]}
    assert not {name for name in names if "add" in name and "__" not in name}
    assert outline["is_whole"]


def test_labels_are_fingerprinted_where_they_meet_results(tmp_path: Path) -> None:
    (label,) = record(tmp_path)["labels"]
    assert label["where"] == "Functional.cross_entropy.1"
    assert (label["shape"], label["dtype"]) == ([8], "torch.int64")
    assert label["norm"] == pytest.approx(float(IDS.double().norm()))


def test_large_tensors_are_no_labels(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    with recording(tmp_path, level="L0") as run, run.step_of(model):
        out = model(torch.ones(1, 2))
        for shape in ((1 << 21,), ((1 << 21) + 1,), (3, 1)):
            (out * torch.ones(shape)).sum()
    labels = read(tmp_path, 0, "rank", "facts.json")["labels"]
    assert [label["shape"] for label in labels] == [[1 << 21], [3, 1]]


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_other_levels_record_the_calls_instead(level: str, tmp_path: Path) -> None:
    assert "outline" not in record(tmp_path, level)


def test_each_step_has_its_own_outline_and_all_its_windows(tmp_path: Path) -> None:
    torch.manual_seed(3)
    model = Net()
    with recording(tmp_path, level="L0") as run:
        for number in range(2):
            run.debugger.start(model)
            model(IDS)
            run.debugger.stop()
            model(IDS).tanh()
            run.debugger.start(model)
            model(IDS).sin() if number else model(IDS).cos()
            run.debugger.stop()
            run.debugger.step()
    first, second = (shown(read(tmp_path, step, "rank", "facts.json")) for step in (0, 1))
    assert [run[2] for run in first if run[0] is None] == [["Tensor.cos(tensor)"]]
    assert [run[2] for run in second if run[0] is None] == [["Tensor.sin(tensor)"]]
    assert sum(run[0] == "Module.layers.0.Layer.forward.1" for run in first) == 3


def test_the_training_is_the_same_to_the_bit(tmp_path: Path) -> None:
    torch.manual_seed(3)
    model = Net()
    plain, drawn = train(copy.deepcopy(model))
    with recording(tmp_path, level="L0") as run, run.step_of(model):
        recorded, after = train(model)
    assert all(map(torch.equal, plain, recorded))
    assert torch.equal(drawn, after)
    assert torch._C._len_torch_function_stack() == 0


def test_fused_layers_stay_fused(tmp_path: Path) -> None:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
    x = torch.randn(2, 3, 8)
    with torch.no_grad():
        expected = model(x)
        with recording(tmp_path, level="L0") as run, run.step_of(model):
            found = model(x)
    assert torch.equal(found, expected)
    names = read(tmp_path, 0, "rank", "dump.json")["data"]
    assert all(name.startswith("Module.") for name in names)


def test_an_argument_that_cannot_be_read_harms_nothing(tmp_path: Path) -> None:
    class Odd(float):
        __hash__ = None  # type: ignore[assignment]

    model = nn.Linear(2, 2)
    with recording(tmp_path, level="L0") as run, run.step_of(model):
        result = model(torch.ones(1, 2)) * Odd(3.0)
    assert torch.equal(result, model(torch.ones(1, 2)) * 3.0)
    assert shown(read(tmp_path, 0, "rank", "facts.json"))[-1][2] == ["Tensor.__mul__(tensor, Odd)"]


def test_it_is_the_same_without_the_extensions(tmp_path: Path) -> None:
    code = "import sys, pathlib, test_call_outlines as t; t.record(pathlib.Path(sys.argv[1]))"
    paths = [str(Path(__file__).parent), str(Path(__file__).parent.parent), *sys.path]
    environment = os.environ | {"MSPROBE_NATIVE": "0", "PYTHONPATH": os.pathsep.join(paths)}
    ended = run_warm("-c", code, tmp_path / "without", env=environment)
    assert ended.returncode == 0, ended.stderr
    without = read(tmp_path / "without", 0, "rank", "facts.json")
    facts = record(tmp_path / "with")
    assert shown(without) == shown(facts)
    assert without["outline"]["fed"] == facts["outline"]["fed"]
    assert without["outline"]["given"] == facts["outline"]["given"]
    assert [each["where"] for each in without["labels"]] == [e["where"] for e in facts["labels"]]


def test_numbers_that_are_new_in_each_step_fill_no_memory(tmp_path: Path) -> None:
    model, x = nn.Linear(2, 2), torch.ones(1, 2)
    with recording(tmp_path, level="L0") as run:
        for step in range(3):
            with run.step_of(model):
                model(x)
                for number in range(6000):
                    x * (step * 6000 + number)
    for step in range(3):
        facts = read(tmp_path, step, "rank", "facts.json")
        calls = shown(facts)[-1][2]
        assert calls == [f"Tensor.__mul__(tensor, {step * 6000 + n})" for n in range(6000)]
        assert facts["outline"]["is_whole"]
        assert len(facts["outline"]["calls"]) < 6010


def test_a_loop_without_end_is_cut_off_and_says_so(tmp_path: Path) -> None:
    model, x = nn.Linear(2, 2), torch.ones(1, 2)
    with recording(tmp_path, level="L0") as run, run.step_of(model):
        model(x)
        for _ in range(100_050):
            x.relu()
    outline = read(tmp_path, 0, "rank", "facts.json")["outline"]
    assert not outline["is_whole"]
    assert sum(len(outline["bodies"][each["body"]]) for each in outline["runs"]) == 100_000
