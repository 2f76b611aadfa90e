# SPDX-License-Identifier: Apache-2.0
"""Cells inside compiled graphs are recorded at level L0, and the graph computes what it did."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mindspore.dataset import NumpySlicesDataset
from mindspore.train import Model
from nets import CASES, ConvNet, Transformer, random

import mindspore as ms
from builders.extent import covering
from mindspore import Tensor, nn, ops
from msprobe import open_dump
from msprobe.capture.session import reset_session
from msprobe.errors import UnsupportedError, UsageError
from msprobe.mindspore import MsprobeStep, PrecisionDebugger


@pytest.fixture(autouse=True)
def graph_mode() -> Iterator[None]:
    ms.set_context(mode=ms.GRAPH_MODE)
    yield
    ms.set_context(mode=ms.PYNATIVE_MODE)


class Twice(nn.Cell):
    """A cell that is called twice, and one inside another."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.SequentialCell(nn.Dense(4, 8), nn.ReLU())
        self.shared = nn.Dense(8, 8)

    def construct(self, x: Tensor) -> Tensor:
        return self.shared(self.shared(self.block(x)))


class Detached(nn.Cell):
    """A part behind `stop_gradient`, whose weights get no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.head = nn.Dense(4, 4), nn.Dense(4, 2)

    def construct(self, x: Tensor) -> Tensor:
        return self.head(ops.stop_gradient(self.frozen(x))) + self.head(x)


def encoder() -> nn.Cell:
    """Its layers are called with keyword arguments that are None."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 1)


NETS = {
    "detached": (Detached, random(3, 4)),
    "encoder": (encoder, random(2, 3, 8)),
    "twice": (Twice, random(3, 4)),
    "conv": (ConvNet, CASES["conv"].inputs[0]),
    "transformer": (Transformer, CASES["transformer"].inputs[0]),
}


class Loss(nn.Cell):
    def __init__(self, net: nn.Cell) -> None:
        super().__init__()
        self.net = net

    def construct(self, x: Tensor) -> Tensor:
        return (self.net(x) ** 2).mean()


def account(dump_path: Path, step: int = 0) -> Any:
    return json.loads((dump_path / f"step{step}" / "rank" / "account.json").read_text())


def train(name: str, debugger: Any = None, steps: int = 5) -> tuple[list[bytes], list[bytes]]:
    ms.set_seed(3)
    make, array = NETS[name]
    net, losses = make(), []
    weights = net.trainable_params()
    one_step = nn.TrainOneStepCell(Loss(net), nn.Momentum(weights, 0.01, 0.9)).set_train()
    for _ in range(steps):
        if debugger is not None:
            debugger.start(net)
        losses.append(one_step(Tensor(array)))  # read after stop(), as the graph may still run
        if debugger is not None:
            debugger.stop()
            debugger.step()
    return [loss.asnumpy().tobytes() for loss in losses], [
        weight.asnumpy().tobytes() for weight in weights
    ]


# Compiling takes most of the time: each net is recorded with one of the tasks by default.
@pytest.mark.parametrize(("name", "task"), covering(2, NETS, ["statistics", "tensor"]))
def test_losses_and_parameters_are_the_same(name: str, task: str, tmp_path: Path) -> None:
    alone = train(name)
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0", task=task)
    assert train(name, debugger) == alone
    assert list(open_dump(tmp_path).steps) == [0, 1, 2, 3, 4]


def test_every_call_is_recorded_once_with_its_values(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0", task="tensor", step=[1])
    train("twice", debugger, steps=3)
    dump = open_dump(tmp_path)
    assert list(dump.steps) == [1]
    view = dump.step(1).rank()
    assert [name for name in view.records if "forward" in name] == [
        "Cell.block.0.Dense.forward.0",
        "Cell.block.1.ReLU.forward.0",
        "Cell.block.SequentialCell.forward.0",
        "Cell.shared.Dense.forward.0",
        "Cell.shared.Dense.forward.1",
        "Cell.Twice.forward.0",
    ]
    assert view.parents["Cell.shared.Dense.forward.1"] == "Cell.Twice.forward.0"
    assert account(tmp_path, 1)["capture_ms"] > 0
    assert view.parents["Cell.block.1.ReLU.forward.0"] == "Cell.block.SequentialCell.forward.0"

    def values(name: str, part: str, index: int = 0) -> Any:
        return view.tensor(list(view.records[name].tensors(part))[index][1]).array

    x = values("Cell.shared.Dense.forward.0", "input_args")
    weight = values("Cell.shared.Dense.forward.0", "parameters", 0)
    bias = values("Cell.shared.Dense.forward.0", "parameters", 1)
    out = values("Cell.shared.Dense.forward.0", "output")
    np.testing.assert_allclose(out, x @ weight.T + bias, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(values("Cell.shared.Dense.forward.1", "input_args"), out)
    # The backward pass comes from the end: its first call is the forward's last.
    last, first = "Cell.shared.Dense.backward.1", "Cell.shared.Dense.backward.0"
    np.testing.assert_array_equal(values(last, "output"), values(first, "input"))
    gradient = values(last, "input")
    np.testing.assert_allclose(values(last, "output"), gradient @ weight, rtol=1e-5, atol=1e-6)


def test_model_train_in_graph_mode(tmp_path: Path) -> None:
    net = nn.SequentialCell(nn.Dense(3, 4), nn.ReLU(), nn.Dense(4, 2))
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0", step=[0, 2])
    debugger.start(net)
    data = NumpySlicesDataset((random(6, 3), random(6, 2, seed=1)), shuffle=False).batch(2)
    model = Model(net, nn.MSELoss(), nn.SGD(net.trainable_params(), 0.1))
    model.train(1, data, callbacks=[MsprobeStep(debugger)], dataset_sink_mode=False)
    dump = open_dump(tmp_path)
    assert list(dump.steps) == [0, 2]
    assert "Cell.2.Dense.backward.0" in dump.step(2).rank().records


def test_a_compiled_model_is_refused(tmp_path: Path) -> None:
    net = Twice()
    Loss(net)(Tensor(random(3, 4)))
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0")
    # Kept alive, the cell around it was compiled.
    loss = Loss(net)
    loss(Tensor(random(3, 4)))
    with pytest.raises(UsageError, match="Loss has been compiled already"):
        debugger.start(net)


def test_other_levels_are_refused(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path, level="mix")
    with pytest.raises(UnsupportedError, match="graph mode, which level mix cannot record"):
        debugger.start(Twice())


def test_cells_have_their_own_construct_again_after_stop(tmp_path: Path) -> None:
    net = Twice()
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0", step=[1])
    for _ in range(2):
        debugger.start(net)
        assert "construct" in vars(net.shared)
        net(Tensor(random(3, 4)))
        debugger.stop()
        assert not any("construct" in vars(cell) for _, cell in net.cells_and_names())
        debugger.step()
    assert "Cell.shared.Dense.forward.1" in open_dump(tmp_path).step(1).rank().records


class Widening(nn.Cell):
    def construct(self, x: Tensor, number: Tensor) -> Tensor:
        return ops.cast(x, ms.float32) * ops.cast(number, ms.float32)


class Narrow(nn.Cell):
    """bfloat16 crosses the boundary of a cell, with dimensions and without."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.widen = nn.Dense(4, 4), Widening()

    def construct(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        return self.widen(ops.cast(y, ms.bfloat16), ops.cast(y.max(), ms.bfloat16))


def test_bfloat16_is_recorded_exactly(tmp_path: Path) -> None:
    ms.set_seed(3)
    net = Narrow()
    weights = net.trainable_params()
    one_step = nn.TrainOneStepCell(Loss(net), nn.SGD(weights, 0.01)).set_train()
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0", task="tensor")
    debugger.start(net)
    one_step(Tensor(random(3, 4)))
    debugger.stop()
    debugger.step()
    view = open_dump(tmp_path).step(0).rank()
    forward = view.records["Cell.widen.Widening.forward.0"]
    (_, x), (_, number) = forward.tensors("input_args")
    assert (x.dtype, x.shape) == ("bfloat16", (3, 4))
    assert (number.dtype, number.shape) == ("bfloat16", ())
    ((_, made),) = view.records["Cell.fc.Dense.forward.0"].tensors("output")
    wide = view.tensor(made).array
    narrow = Tensor(wide).astype(ms.bfloat16).astype(ms.float32).asnumpy()
    np.testing.assert_array_equal(view.tensor(x).array, narrow)
    assert view.tensor(number).array == narrow.max()
    assert x.max == narrow.max()
    backward = view.records["Cell.widen.Widening.backward.0"]
    (_, to_x), (_, to_number) = backward.tensors("output")
    assert (to_x.dtype, to_number.dtype) == ("bfloat16", "bfloat16")
    ((_, to_result),) = backward.tensors("input")
    share = view.tensor(to_result).array * narrow.max()
    expected = Tensor(share).astype(ms.bfloat16).astype(ms.float32).asnumpy()
    np.testing.assert_array_equal(view.tensor(to_x).array, expected)


class Kinds(nn.Cell):
    """Values of many types and shapes; some parameters change in the call."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc, self.pick, self.half = (
            nn.BatchNorm1d(4),
            nn.Dense(4, 4),
            Picking(),
            Widening(),
        )

    def construct(self, x: Tensor) -> Tensor:
        y = self.fc(self.norm(x))
        whole = ops.cast(y * 10, ms.int64)
        z = self.pick(whole, y > 0, ops.transpose(y, (1, 0)), ops.sqrt(y), ops.cast(y, ms.float16))
        return z + self.half(ops.cast(y, ms.bfloat16), ops.cast(y.max(), ms.bfloat16))


class Picking(nn.Cell):
    def construct(
        self, whole: Tensor, mask: Tensor, across: Tensor, bad: Tensor, half: Tensor
    ) -> Tensor:
        return ops.cast(mask, ms.float32) * ops.transpose(across, (1, 0)) + ops.cast(
            half, ms.float32
        )


@pytest.mark.parametrize("mode", ["C calls Python", "Python"])
def test_statistics_that_c_keeps_are_those_of_the_values(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def records(folder: Path, summary: str) -> dict[str, Any]:
        ms.set_seed(3)
        net = Kinds()
        weights = net.trainable_params()
        one_step = nn.TrainOneStepCell(Loss(net), nn.SGD(weights, 0.01)).set_train()
        config = {"dump_path": str(folder), "level": "L0", "task": "statistics"}
        file = tmp_path / f"{folder.name}.json"
        file.write_text(json.dumps({**config, "statistics": {"summary_mode": summary}}))
        debugger = PrecisionDebugger(file)
        for _ in range(2):
            debugger.start(net)
            one_step(Tensor(random(3, 4)))
            debugger.stop()
            debugger.step()
        reset_session()
        found: dict[str, Any] = json.loads((folder / "step1" / "rank" / "dump.json").read_text())
        return found

    def without_checksums(tree: Any) -> Any:
        if isinstance(tree, list):
            return [without_checksums(one) for one in tree]
        if isinstance(tree, dict):
            return {key: without_checksums(one) for key, one in tree.items() if key != "md5"}
        return tree

    kept = records(tmp_path / "kept", "statistics")["data"]
    if mode == "Python":  # MindSpore refuses libraries outside of this folder
        monkeypatch.setenv("MS_CUSTOM_AOT_WHITE_LIST", str(tmp_path))
        other = records(tmp_path / "other", "statistics")["data"]
    else:
        other = without_checksums(records(tmp_path / "other", "md5")["data"])
    assert len(kept) >= 12
    text = json.dumps(kept)
    assert text == json.dumps(other)  # a NaN is no other
    assert all(name in text for name in ("Int64", "Bool", "Float16", "BFloat16", "nan_count"))


def gradients_of(net: nn.Cell) -> Any:
    """Return what takes the loss and the gradients of a net, in a graph of its own."""

    def forward(x: Tensor) -> Tensor:
        return net(x).sum()

    return ms.value_and_grad(forward, None, net.trainable_params())


def test_stop_waits_for_a_graph_whose_result_is_not_read(tmp_path: Path) -> None:
    net = Twice()
    both = gradients_of(net)
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0")
    for _ in range(3):
        debugger.start(net)
        both(Tensor(random(3, 4)))
        debugger.stop()
        debugger.step()
    dump = open_dump(tmp_path)
    names = list(dump.step(0).rank().records)
    assert "Cell.block.0.Dense.backward.0" in names
    assert [list(dump.step(step).rank().records) for step in (1, 2)] == [names, names]
    assert account(tmp_path)["complete"] is True


@pytest.mark.parametrize("passes", [1, 2])
def test_gradients_that_come_before_their_calls_are_given_to_the_right_ones(
    passes: int, tmp_path: Path
) -> None:
    """Nothing but weights is needed for the gradients of this loss, so they may come first."""
    net = Twice()
    both = gradients_of(net)
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0", task="tensor")
    for _ in range(2):
        debugger.start(net)
        for _ in range(passes):
            both(Tensor(random(3, 4)))
        debugger.stop()
        debugger.step()
    for step in range(2):
        view = open_dump(tmp_path).step(step).rank()
        for number in range(2 * passes):
            record = view.records[f"Cell.shared.Dense.backward.{number}"]
            ((_, value),) = record.tensors("input")
            is_last = bool((view.tensor(value).array == 1.0).all())
            assert is_last == (number % 2 == 1), (step, number)


@pytest.mark.parametrize("place", ["before stop", "after stop", "never"])
def test_gradients_of_parameters_come_with_the_optimizer(place: str, tmp_path: Path) -> None:
    net = Twice()
    both, optimizer = gradients_of(net), nn.SGD(net.trainable_params(), 0.1)
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0")
    for _ in range(2):
        debugger.start(net)
        _, gradients = both(Tensor(random(3, 4)))
        if place == "before stop":
            optimizer(gradients)
        debugger.stop()
        if place == "after stop":
            optimizer(gradients)
        debugger.step()
    for step in range(2):
        records = open_dump(tmp_path).step(step).rank().records
        found = {name for name in records if name.endswith("parameters_grad")}
        said = [one for one in account(tmp_path, step)["notes"] if "gradients of parameters" in one]
        if place == "never":
            assert not found
            assert len(said) == 1
            assert "none ran before step()" in said[0]
        else:
            assert found == {
                "Cell.block.0.Dense.parameters_grad",
                "Cell.shared.Dense.parameters_grad",
            }
            assert not said


def test_a_step_whose_graph_was_compiled_before_is_not_complete(tmp_path: Path) -> None:
    net, x = Twice(), Tensor(random(3, 4))
    both = gradients_of(net)
    both(x)
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0")
    debugger.start(net)
    both(x)
    debugger.stop()
    debugger.step()
    assert account(tmp_path)["complete"] is False
    assert "compiled code ran, and no call of the model was seen" in account(tmp_path)["notes"]


def test_a_step_in_which_nothing_ran_is_complete(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0")
    debugger.start(Twice())
    debugger.stop()
    debugger.step()
    assert account(tmp_path)["complete"] is True


@pytest.mark.parametrize(
    ("settings", "put_in"),
    [
        ({"list": ["Dense.forward.1"]}, {"block.0", "shared"}),
        ({"list": ["shared"]}, {"shared"}),
        ({"list": ["nowhere"]}, set()),
        (
            {"scope": ["Cell.block.0.Dense.forward.0", "Cell.block.1.ReLU.forward.0"]},
            {"block", "block.0", "block.1"},
        ),
        (
            {"scope": ["Cell.block.0.Dense.forward.0", "Cell.shared.Dense.forward.1"]},
            {"", "block", "block.0", "block.1", "shared"},
        ),
    ],
)
def test_cells_left_out_by_the_selection_are_compiled_as_they_are(
    settings: dict[str, Any], put_in: set[str], tmp_path: Path
) -> None:
    def recorded(dump_path: Path, section: dict[str, Any]) -> tuple[set[str], list[str]]:
        config = tmp_path / "config.json"
        common = {"task": "statistics", "dump_path": str(dump_path), "level": "L0"}
        config.write_text(json.dumps(common | {"statistics": section}))
        ms.set_seed(1)
        net = Twice()
        debugger = PrecisionDebugger(config)
        debugger.start(net)
        found = {name for name, cell in net.cells_and_names() if "construct" in vars(cell)}
        gradients_of(net)(Tensor(random(3, 4)))
        debugger.stop()
        debugger.step()
        reset_session()
        assert account(dump_path)["complete"] is True
        return found, list(open_dump(dump_path).step(0).rank().records)

    everywhere, names = recorded(tmp_path / "all", {})
    assert everywhere == {"", "block", "block.0", "block.1", "shared"}
    found, kept = recorded(tmp_path / "some", settings)
    assert found == put_in
    if "list" in settings:
        assert kept == [name for name in names if settings["list"][0] in name]
    else:
        first, last = (names.index(name) for name in settings["scope"])
        assert kept == names[first : last + 1]


@pytest.mark.parametrize("method", ["construct", "start", "save"])
def test_saving_is_refused_in_graph_mode(method: str, tmp_path: Path) -> None:
    if method == "construct":
        with pytest.raises(UnsupportedError, match="graph mode, which level debug cannot record"):
            PrecisionDebugger(dump_path=tmp_path, level="debug")
        return
    ms.set_context(mode=ms.PYNATIVE_MODE)
    debugger = PrecisionDebugger(dump_path=tmp_path, level="debug")
    ms.set_context(mode=ms.GRAPH_MODE)
    with pytest.raises(UnsupportedError, match="graph mode, which level debug cannot record"):
        debugger.start() if method == "start" else debugger.save(Tensor([1.0]), "x")
