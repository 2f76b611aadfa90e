# SPDX-License-Identifier: Apache-2.0
"""Cells that are hard to record in compiled code compute what they did, and have their records."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from compiled_nets import Training, training
from nets import Case, random

import mindspore as ms
from mindspore import Tensor, nn, ops
from msprobe import open_dump
from msprobe.mindspore import PrecisionDebugger


@pytest.fixture(autouse=True)
def modes() -> Iterator[None]:
    yield
    ms.set_context(mode=ms.PYNATIVE_MODE)


class Pair(NamedTuple):
    x: Tensor
    y: Tensor


class OfPair(nn.Cell):
    def construct(self, pair: Pair) -> Tensor:
        return pair.x * 2.0 + pair.y


class NamedTuples(nn.Cell):
    """MindSpore gives them to Python, where nothing of ours can be compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.pair = nn.Dense(4, 4), OfPair()

    def construct(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        return self.pair(Pair(y, y + 1.0))


class Optional(nn.Cell):
    def construct(self, x: Tensor, mask: Any = None, kind: str = "a", cache: Any = None) -> Any:
        y = x * mask if kind == "full" else x
        return {"y": y, "cache": cache, "kind": kind}


class Take(nn.Cell):
    def construct(self, entries: dict[str, Any]) -> Tensor:
        return entries["y"] * 2.0


class Dictionaries(nn.Cell):
    """Dictionaries with tensors, None and texts in them, as keywords, argument and result."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.optional, self.take = nn.Dense(4, 4), Optional(), Take()

    def construct(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        found = self.optional(y, mask=y, kind="full", cache=None)
        return self.take({"y": found["y"], "kind": "full", "cache": None})


class _Block(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Dense(4, 4)

    def construct(self, x: Tensor) -> Tensor:
        return self.fc(x)


class Private(nn.Cell):
    """A class of the user's with an underscore, and a container that nobody calls."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.layers = _Block(), nn.CellList([nn.Tanh()])

    def construct(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(self.block(x))
        return x


class Thrice(nn.Cell):
    """Its gradient is its own."""

    def __init__(self) -> None:
        super().__init__()
        self.tanh = nn.Tanh()

    def construct(self, x: Tensor, scale: Tensor) -> Tensor:
        return self.tanh(x) * scale

    def bprop(self, x: Tensor, scale: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor, Tensor]:
        return dout * 3.0, ops.zeros_like(scale)


class OwnBackward(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.thrice, self.last = nn.Dense(4, 4), Thrice(), nn.Dense(4, 2)

    def construct(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        return self.last(self.thrice(y, y.mean()))


class Crops(nn.Cell):
    """A cell that is called with batches of two sizes, independently."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Dense(4, 2)

    def construct(self, x: Tensor, y: Tensor) -> Tensor:
        return self.fc(x).mean(0) * 3.0 - self.fc(y).mean(0)


def train(kind: type[nn.Cell], mode: str, debugger: Any = None) -> tuple[Any, Training]:
    inputs = (random(3, 4), random(5, 4)) if kind is Crops else (random(3, 4),)
    ms.set_context(mode=ms.GRAPH_MODE if mode == "graph" else ms.PYNATIVE_MODE)
    trained = training(Case(kind, inputs), mode)
    losses = []
    for _ in range(3):
        if debugger is not None:
            debugger.start(trained.model)
        losses.append(trained.step()[0].asnumpy().tobytes())
        if debugger is not None:
            debugger.stop()
            debugger.step()
    return (losses, trained.parameters()), trained


def recorded(folder: Path, mode: str) -> Any:
    """Return the records of the first step's compiled cells."""
    half = folder if mode == "graph" else folder / "graph"
    return open_dump(half / "step0" / "rank").step().rank()


def array(view: Any, record: str, part: str, index: int = 0) -> np.ndarray:
    return np.asarray(view.tensor(list(view.records[record].tensors(part))[index][1]).array)


@pytest.mark.parametrize("mode", ["graph", "step"])
def test_what_cannot_be_compiled_for_recording_is_compiled_without(
    mode: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    alone, _ = train(NamedTuples, mode)
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0")
    with caplog.at_level(logging.WARNING):
        found, trained = train(NamedTuples, mode, debugger)
    assert found == alone
    said = [one.message for one in caplog.records if "could not compile" in one.message]
    assert len(said) == 1
    assert not any("construct" in vars(cell) for _, cell in trained.model.cells_and_names())


def test_an_error_of_the_users_reaches_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Wrong(nn.Cell):
        def construct(self, x: Tensor) -> Tensor:
            return self.nothing(x)

    ms.set_context(mode=ms.GRAPH_MODE)
    net = Wrong()
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0")
    debugger.start(net)
    with pytest.raises(AttributeError, match="nothing"), caplog.at_level(logging.WARNING):
        net(Tensor(random(2, 2)))
    assert not [one for one in caplog.records if "could not compile" in one.message]
    debugger.stop()
    debugger.step()
    assert "construct" not in vars(net)
    assert json.loads((tmp_path / "step0" / "rank" / "dump.json").read_text())["data"] == {}


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        (Dictionaries, "step"),
        (Dictionaries, "cell"),
        (OwnBackward, "graph"),
        (OwnBackward, "cell"),
        (Private, "graph"),
        (Crops, "step"),
    ],
)
def test_training_is_the_same(kind: type[nn.Cell], mode: str, tmp_path: Path) -> None:
    alone, _ = train(kind, mode)
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0", task="tensor")
    assert train(kind, mode, debugger)[0] == alone
    assert not list(tmp_path.rglob("dump_error_info.log"))
    assert recorded(tmp_path, mode).records


def test_dictionaries_hold_what_is_no_tensor_as_well(tmp_path: Path) -> None:
    train(Dictionaries, "graph", PrecisionDebugger(dump_path=tmp_path, level="L0", task="tensor"))
    view = recorded(tmp_path, "graph")
    forward = "Cell.net.optional.Optional.forward.0"
    y = array(view, "Cell.net.fc.Dense.forward.0", "output")
    np.testing.assert_array_equal(array(view, forward, "input_kwargs"), y)
    np.testing.assert_array_equal(array(view, forward, "output"), y * y)
    written = json.loads((tmp_path / "step0" / "rank" / "dump.json").read_text())["data"][forward]
    assert written["input_kwargs"]["kind"] == {"type": "str", "value": "full"}
    assert "Cell.net.take.Take.backward.0" in view.records


@pytest.mark.parametrize("mode", ["graph", "step"])
def test_parents_are_cells_that_are_called(mode: str, tmp_path: Path) -> None:
    train(Private, mode, PrecisionDebugger(dump_path=tmp_path, level="L0"))
    view = recorded(tmp_path, mode)
    assert view.parents["Cell.net.block.fc.Dense.forward.0"] == "Cell.net.block._Block.forward.0"
    assert view.parents["Cell.net.layers.0.Tanh.forward.0"] == "Cell.net.Private.forward.0"
    assert all(parent is None or parent in view.records for parent in view.parents.values())


@pytest.mark.parametrize("mode", ["graph", "step"])
def test_a_cell_with_a_backward_of_its_own(mode: str, tmp_path: Path) -> None:
    train(OwnBackward, mode, PrecisionDebugger(dump_path=tmp_path, level="L0", task="tensor"))
    view = recorded(tmp_path, mode)
    backward = "Cell.net.thrice.Thrice.backward.0"
    to_result = array(view, backward, "input")
    below = array(view, "Cell.net.last.Dense.backward.0", "output")
    np.testing.assert_array_equal(to_result, below)
    np.testing.assert_array_equal(array(view, backward, "output"), to_result * np.float32(3))
    np.testing.assert_array_equal(array(view, backward, "output", 1), np.float32(0))


@pytest.mark.parametrize("mode", ["graph", "step"])
def test_a_gradient_belongs_to_a_call_of_its_shape(mode: str, tmp_path: Path) -> None:
    train(Crops, mode, PrecisionDebugger(dump_path=tmp_path, level="L0", task="tensor"))
    view = recorded(tmp_path, mode)
    for number in range(2):
        name = f"Cell.net.fc.Dense.{{}}.{number}"
        out = array(view, name.format("forward"), "output")
        gradient = array(view, name.format("backward"), "input")
        assert gradient.shape == out.shape
        assert (gradient > 0).any() or (gradient < 0).any()


def test_cells_of_unknown_shapes_have_records_without_values(tmp_path: Path) -> None:
    ms.set_context(mode=ms.GRAPH_MODE)
    net = nn.SequentialCell(nn.Dense(4, 4), nn.ReLU())
    net.set_inputs(Tensor(shape=[None, 4], dtype=ms.float32))
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0")
    debugger.start(net)
    net(Tensor(random(3, 4)))
    debugger.stop()
    debugger.step()
    records = open_dump(tmp_path).step(0).rank().records
    assert list(records) == [
        "Cell.0.Dense.forward.0",
        "Cell.1.ReLU.forward.0",
        "Cell.SequentialCell.forward.0",
    ]
    assert not list(records["Cell.0.Dense.forward.0"].tensors("output"))
    assert len(list(records["Cell.0.Dense.forward.0"].tensors("parameters"))) == 2


def test_sparse_gradients_are_left_alone(tmp_path: Path) -> None:
    class Embedded(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.fc = nn.EmbeddingLookup(7, 4, sparse=True), nn.Dense(4, 2)

        def construct(self, ids: Tensor) -> Tensor:
            return (self.fc(self.table(ids)) ** 2).mean()

    def run(debugger: Any = None) -> list[bytes]:
        ms.set_context(mode=ms.GRAPH_MODE)
        ms.set_seed(4)
        net = Embedded()
        one_step = nn.TrainOneStepCell(net, nn.LazyAdam(net.trainable_params())).set_train()
        for _ in range(2):
            if debugger is not None:
                debugger.start(net)
            one_step(Tensor([[1, 2], [2, 6]], ms.int32))
            if debugger is not None:
                debugger.stop()
                debugger.step()
        return [one.asnumpy().tobytes() for one in net.get_parameters()]

    alone = run()
    assert run(PrecisionDebugger(dump_path=tmp_path, level="L0")) == alone
    records = open_dump(tmp_path).step(0).rank().records
    assert "Cell.table.EmbeddingLookup.forward.0" in records
    assert "Cell.fc.Dense.backward.0" in records
