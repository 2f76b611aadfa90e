# SPDX-License-Identifier: Apache-2.0
"""The numbers in a record are those that NumPy and MindSpore's own gradients give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nets import CASES, random, train

import mindspore as ms
from mindspore import Tensor, nn, ops
from msprobe import open_dump
from msprobe.dump.values import Value
from msprobe.mindspore import PrecisionDebugger


def record(tmp_path: Path, run: Any, *, model: Any = None, **settings: Any) -> Any:
    debugger = PrecisionDebugger(dump_path=tmp_path, **{"level": "L1", **settings})
    debugger.start(model)
    result = run()
    debugger.stop()
    debugger.step()
    return result, open_dump(tmp_path).step(0).rank()


def only(view: Any, name: str, part: str) -> list[Value]:
    return [value for _, value in view.records[name].tensors(part)]


VALUES = {
    "float32": random(3, 4),
    "float64": random(3, 4).astype(np.float64) * 1e200,
    "float16": random(5).astype(np.float16),
    "nan": np.array([1.0, np.nan, np.inf, -np.inf, -2.0], np.float32),
    "zero_d": np.float32(-7.5),
    "int64": np.array([2**53 + 1, -5, 7], np.int64),
    "uint8": np.array([0, 255, 7], np.uint8),
    "bool": np.array([True, False]),
    "complex64": np.array([3 + 4j, 1j], np.complex64),
    "empty": np.zeros((0, 3), np.float32),
}


@pytest.mark.parametrize("kind", VALUES)
def test_statistics_are_those_of_numpy(kind: str, tmp_path: Path) -> None:
    array = np.asarray(VALUES[kind])
    _, view = record(tmp_path, lambda: ops.reshape(Tensor(array), array.shape))
    value = only(view, "Functional.reshape.0.forward", "input_args")[0]
    assert value.shape == array.shape
    if array.size == 0:
        assert (value.max, value.min, value.mean, value.norm) == (None,) * 4
        return
    if array.dtype.kind == "b":
        assert (value.max, value.min, value.mean, value.norm) == (True, False, None, None)
        return
    wide = np.abs(array) if array.dtype.kind == "c" else array
    if array.dtype.kind in "iu":
        assert (value.max, value.min) == (int(array.max()), int(array.min()))
    else:
        np.testing.assert_equal(value.max, float(wide.max()))
        np.testing.assert_equal(value.min, float(wide.min()))
    with np.errstate(all="ignore"):
        mean = float(wide.astype(np.longdouble).mean())
        norm = float(np.sqrt(np.square(wide.astype(np.longdouble)).sum()))
    np.testing.assert_allclose(value.mean, mean, rtol=1e-13)
    np.testing.assert_allclose(value.norm, norm, rtol=1e-13)
    if kind == "nan":
        assert (value.nan_count, value.pos_inf_count, value.neg_inf_count) == (1, 1, 1)
        assert (value.finite_max, value.finite_min) == (1.0, -2.0)


def test_bfloat16_is_saved_as_float32(tmp_path: Path) -> None:
    tensor = Tensor([1.5, -2.25], ms.bfloat16)
    _, view = record(tmp_path, lambda: ops.reshape(tensor, (2,)), task="tensor")
    value = only(view, "Functional.reshape.0.forward", "input_args")[0]
    assert (value.dtype, value.max) == ("bfloat16", 1.5)
    assert value.data_name == "Functional.reshape.0.forward.input.0.npy"
    np.testing.assert_array_equal(view.tensor(value).array, np.array([1.5, -2.25], np.float32))


# The functions are looked up when they are called: then they record.
# ruff: noqa: PLW0108
OPERATIONS = {
    "matmul": (lambda a, b: ops.matmul(a, b), (random(3, 4), random(4, 2, seed=1))),
    "gelu": (lambda a: ops.gelu(a), (random(3, 4),)),
    "cat": (lambda a, b: ops.cat((a, b), axis=1), (random(2, 3), random(2, 2, seed=1))),
    "mul_itself": (lambda a: ops.mul(a, a), (random(3),)),
    "softmax": (lambda a: ops.softmax(a, axis=-1), (random(3, 4),)),
    "bmm": (lambda a, b: ops.bmm(a, b), (random(2, 3, 4), random(2, 4, 3, seed=1))),
    "tanh": (lambda a: ops.tanh(a), (random(3, 4),)),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_gradients_are_those_of_the_operation_alone(name: str, tmp_path: Path) -> None:
    function, arrays = OPERATIONS[name]
    inputs = [Tensor(array) for array in arrays]
    weight = Tensor(random(*function(*inputs).shape, seed=9))

    def loss(*inputs: Any) -> Any:
        # The inputs are computed, so that their gradients are those of nodes inside the graph.
        return (function(*[one * 1.0 for one in inputs]) * weight).sum()

    positions = tuple(range(len(inputs)))
    expected = ms.grad(loss, positions)(*inputs)
    expected = expected if isinstance(expected, tuple) else (expected,)
    run = ms.value_and_grad(loss, positions)
    _, view = record(tmp_path, lambda: run(*inputs), task="tensor")
    name = next(n for n in view.records if n.startswith("Functional.") and n.endswith("backward"))
    backward = view.records[name]
    (arrived,) = only(view, name, "input")
    np.testing.assert_array_equal(view.tensor(arrived).array, weight.asnumpy())
    found = [view.tensor(value).array for _, value in backward.tensors("output")]
    # An input that stands twice (a * a) has one gradient, at its first place.
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other.asnumpy(), rtol=1e-6, atol=1e-7)


def test_nested_inputs_and_outputs_have_gradients(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path, level="mix")
    train(CASES["nested"], steps=1, debugger=debugger)
    view = open_dump(tmp_path).step(0).rank()
    backward = view.records["Cell.split.Split.backward.0"]
    paths = [path for path, _ in backward.tensors("output")]
    assert paths == [("output", 0, "a"), ("output", 1, 0)]
    assert len(only(view, "Cell.split.Split.backward.0", "input")) == 3
    assert [path for path, _ in view.records["Functional.cat.0.backward"].tensors("output")] == [
        ("output", 0, 0),
        ("output", 0, 1),
    ]


def test_a_shared_cell_has_two_calls_and_one_gradient(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0")
    train(CASES["embedding"], steps=1, debugger=debugger)
    names = list(open_dump(tmp_path).step(0).rank().records)
    assert [name for name in names if "forward" in name] == [
        "Cell.twice.Dense.forward.0",
        "Cell.twice.Dense.forward.1",
        "Cell.SharedEmbedding.forward.0",
    ]
    assert [name for name in names if "parameters_grad" in name] == [
        "Cell.twice.Dense.parameters_grad",
        "Cell.SharedEmbedding.parameters_grad",
    ]


def test_parameter_gradients_are_those_that_the_optimiser_gets(tmp_path: Path) -> None:
    net = nn.Dense(3, 2)
    model = nn.SequentialCell(net)
    x = Tensor(random(4, 3))
    both = ms.value_and_grad(lambda x: (model(x) ** 2).sum(), None, model.trainable_params())
    (_, gradients), view = record(tmp_path, lambda: both(x), model=model, level="L0", task="tensor")
    name = next(name for name in view.records if name.endswith("parameters_grad"))
    for parameter, gradient in zip(("weight", "bias"), gradients, strict=True):
        (value,) = only(view, name, parameter)
        np.testing.assert_array_equal(view.tensor(value).array, gradient.asnumpy())


def test_compiled_parts_are_one_record(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L1")
    train(CASES["compiled"], steps=2, debugger=debugger)
    for step in (0, 1):
        names = list(open_dump(tmp_path).step(step).rank().records)
        assert [name for name in names if name.startswith("Jit.")] == [
            "Jit.Compiled.0.forward",
            "Jit.Compiled.0.backward",
        ]


def test_primitives_have_the_name_of_their_attribute(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path, level="mix")
    train(CASES["conv"], steps=1, debugger=debugger)
    view = open_dump(tmp_path).step(0).rank()
    assert "Primitive.conv2d.Conv2D.0.forward" in view.records
    assert view.parents["Primitive.conv2d.Conv2D.0.forward"] == "Cell.conv1.Conv2d.forward.0"
    assert not any(".Shape." in name for name in view.records)


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_cells_of_compiled_parts_stand_in_a_half_of_their_own(level: str, tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path, level=level, task="tensor")
    train(CASES["compiled_cell"], steps=2, debugger=debugger)
    step = open_dump(tmp_path).step(1)
    assert sorted(map(str, step.ranks)) == ["graph/rank", "pynative/rank"]
    graph, dynamic = step.rank("graph/rank"), step.rank("pynative/rank")
    cells = [name for name in dynamic.records if name.startswith("Cell.") and "forward" in name]
    assert cells == [
        "Cell.first.Dense.forward.0",
        "Cell.inner.Inner.forward.0",
        "Cell.last.Dense.forward.0",
        "Cell.CompiledCell.forward.0",
    ]
    forward = [name for name in graph.records if "forward" in name]
    assert forward == [
        "Cell.inner.layers.0.Dense.forward.0",
        "Cell.inner.layers.1.ReLU.forward.0",
        "Cell.inner.layers.SequentialCell.forward.0",
        "Cell.inner.out.Dense.forward.0",
        "Cell.inner.Inner.forward.0",
    ]
    ((_, entering),) = graph.records[forward[0]].tensors("input_args")
    ((_, given),) = dynamic.records["Cell.inner.Inner.forward.0"].tensors("input_args")
    np.testing.assert_array_equal(graph.tensor(entering).array, dynamic.tensor(given).array)
    assert "Cell.inner.Inner.backward.0" in dynamic.records
