# SPDX-License-Identifier: Apache-2.0
"""facts.json of MindSpore: the state at the start, data, optimizer steps, how the step ended."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mindspore
from mindspore import Tensor, nn
from msprobe import open_dump
from msprobe.capture.session import reset_session
from msprobe.compare.options import CompareOptions
from msprobe.compare.run import run_comparison
from msprobe.dump.facts import Ending, OptimizerStep
from msprobe.mindspore import PrecisionDebugger

pytestmark = pytest.mark.mindspore

BATCH = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)


def crc(array: Any) -> str:
    return f"{zlib.crc32(np.ascontiguousarray(array).tobytes()):08x}"


@pytest.fixture
def net() -> nn.Cell:
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    mindspore.set_seed(3)
    net = nn.SequentialCell(nn.Dense(4, 3), nn.Dropout(p=0.5))
    net.set_train()
    net[1].set_train(False)
    return net


def facts(tmp_path: Path, step: int = 0) -> Any:
    return open_dump(tmp_path).step(step).rank().facts


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_state_data_and_optimizer_steps(level: str, net: nn.Cell, tmp_path: Path) -> None:
    optimizer = nn.Adam(net.trainable_params(), learning_rate=0.1, beta2=0.99)
    gradients_of = mindspore.value_and_grad(lambda x: net(x).sum(), None, optimizer.parameters)
    debugger = PrecisionDebugger(dump_path=tmp_path, level=level)
    values, gradients, losses = [], [], []
    for _ in range(2):
        values.append([one.asnumpy().copy() for one in optimizer.parameters])
        debugger.start(net)
        loss, found = gradients_of(Tensor(BATCH))
        losses.append(float(loss.asnumpy()))
        debugger.stop()
        gradients.append([one.asnumpy().copy() for one in found])
        optimizer(found)  # seen after stop(), too
        debugger.step()
    values.append([one.asnumpy().copy() for one in optimizer.parameters])

    for step in range(2):
        known = facts(tmp_path, step)
        assert known.ended.how is Ending.WHOLE
        assert known.modes.training == {"": True, "1": False}
        assert known.settings["mindspore.version"] == mindspore.__version__
        assert set(known.random) == {"python", "numpy", "seed", "default"}
        assert known.parameters.name == [one.name for one in optimizer.parameters]
        assert known.parameters.checksum == [crc(one) for one in values[step]]
        (entry,) = known.data
        assert (entry.micro, entry.where, entry.checksum) == (0, "input.0", crc(BATCH))
        assert (entry.record is None) == (level == "L1")
        (loss,) = known.loss
        assert (loss.micro, loss.value, loss.shape) == (0, losses[step], [])
        (event,) = known.events
        assert isinstance(event, OptimizerStep)
        assert event.class_name == "mindspore.nn.optim.adam.Adam"
        (group,) = event.groups
        assert group.parameters == [0, 1]
        assert group.options["lr"] == pytest.approx(0.1)
        assert group.options["beta2"] == pytest.approx(0.99)
        columns = event.parameters
        assert columns.steps == [step, step]
        assert columns.gradient.checksum == [crc(one) for one in gradients[step]]
        assert None not in (*columns.before.projections, *known.parameters.projections)
        assert entry.projections is not None
        assert columns.before.checksum == [crc(one) for one in values[step]]
        assert columns.after.checksum == [crc(one) for one in values[step + 1]]
        assert set(columns.state) == {"moment1", "moment2"}
        index = columns.samples["index"][0]
        assert columns.samples["after"][0] == values[step + 1][0].reshape(-1)[index].tolist()


def test_an_interrupted_step(tmp_path: Path) -> None:
    class Picky(nn.Cell):
        def construct(self, x: Tensor) -> Tensor:
            raise ValueError("too wide")

    debugger, net = PrecisionDebugger(dump_path=tmp_path, level="L0"), Picky()
    debugger.start(net)
    with pytest.raises(ValueError, match="too wide"):
        net(Tensor(BATCH))
    debugger.stop()
    debugger.step()
    ended = facts(tmp_path).ended
    assert (ended.how, ended.record) == (Ending.INTERRUPTED, "Cell.Picky.forward.0")
    assert ended.exception == "ValueError: too wide"


def test_every_backward_pass_has_its_loss(net: nn.Cell, tmp_path: Path) -> None:
    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        found = net(x)
        return found.sum(), found

    weights = net.trainable_params()
    one = mindspore.value_and_grad(both, None, weights, has_aux=True)
    two = mindspore.ops.GradOperation(get_by_list=True)(net, weights)
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0")
    debugger.start(net)
    (loss, output), _ = one(Tensor(BATCH))
    two(Tensor(BATCH))
    debugger.stop()
    one(Tensor(BATCH))  # not observed
    debugger.step()

    first, second = facts(tmp_path).loss
    assert (first.micro, first.value) == (0, float(loss.asnumpy()))
    assert second.micro == 1
    assert second.shape == list(output.shape)
    assert second.value == pytest.approx(first.value)


def test_a_backward_pass_that_raises(net: nn.Cell, tmp_path: Path) -> None:
    class Broken(nn.Cell):
        def construct(self, x: Tensor) -> Tensor:
            return x * 2

        def bprop(self, *_: Tensor) -> Tensor:
            raise ValueError("no gradient")

    model = nn.SequentialCell(net, Broken())
    gradients_of = mindspore.value_and_grad(lambda x: model(x).sum(), None, net.trainable_params())
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0")
    debugger.start(model)
    with pytest.raises(ValueError, match="no gradient"):
        gradients_of(Tensor(BATCH))
    debugger.stop()
    debugger.step()

    assert facts(tmp_path).ended.how is Ending.INTERRUPTED


@pytest.mark.parametrize("whole", [True, False], ids=["train one step", "called by the program"])
def test_optimizers_of_compiled_graphs(whole: bool, tmp_path: Path) -> None:
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    net = nn.SequentialCell(nn.Dense(4, 3), nn.ReLU())
    optimizer = nn.Momentum(net.trainable_params(), learning_rate=0.1, momentum=0.9)
    loss = nn.WithLossCell(net, nn.MSELoss())
    train = nn.TrainOneStepCell(loss, optimizer)
    gradients_of = mindspore.value_and_grad(loss, None, optimizer.parameters)
    target = Tensor(np.ones((2, 3), np.float32))
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0")
    values, gradients = [], []
    for _ in range(2):
        values.append([one.asnumpy().copy() for one in optimizer.parameters])
        debugger.start(net)
        if whole:
            train(Tensor(BATCH), target)
        else:
            _, found = gradients_of(Tensor(BATCH), target)
            gradients.append([one.asnumpy().copy() for one in found])
            optimizer(found)
        debugger.stop()
        debugger.step()
    values.append([one.asnumpy().copy() for one in optimizer.parameters])
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)

    for step in range(2):
        (event,) = facts(tmp_path, step).events
        assert event.class_name == "mindspore.nn.optim.momentum.Momentum"
        (group,) = event.groups
        assert group.options["lr"] == pytest.approx(0.1)
        columns = event.parameters
        assert columns.has_gradient == [True, True]
        assert columns.before.checksum == [crc(one) for one in values[step]]
        assert columns.after.checksum == [crc(one) for one in values[step + 1]]
        known = [None, None] if whole else [crc(one) for one in gradients[step]]
        assert columns.gradient.checksum == known


def test_statistics_of_a_normalisation_and_decay_by_parameter(tmp_path: Path) -> None:
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    mindspore.set_seed(3)
    net = nn.SequentialCell(nn.Dense(4, 3), nn.BatchNorm1d(3, momentum=0.5))
    net.set_train()
    optimizer = nn.SGD(net.trainable_params(), 0.1, weight_decay=0.5)
    gradients_of = mindspore.value_and_grad(lambda x: net(x).sum(), None, optimizer.parameters)
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0")
    debugger.start(net)
    before = [one.asnumpy().copy() for one in optimizer.parameters]
    _, gradients = gradients_of(Tensor(BATCH))
    debugger.stop()
    optimizer(gradients)
    debugger.step()
    known = facts(tmp_path)
    statistics = net[1].moving_mean, net[1].moving_variance
    kinds = dict(zip(known.parameters.name, known.parameters.kind, strict=True))
    assert [name for name, kind in kinds.items() if kind == "buffer"] == known.buffers_after.name
    assert known.buffers_after.name == [one.name for one in statistics]
    assert known.buffers_after.checksum == [crc(one.asnumpy()) for one in statistics]
    norms = [np.linalg.norm(one.asnumpy().astype(np.float64)) for one in statistics]
    assert known.buffers_after.norm == pytest.approx(norms)
    # What was subtracted beside the gradient tells what was decayed.
    (event,) = known.events
    decays = {
        event.parameters.name[place]: group.options["weight_decay"]
        for group in event.groups
        for place in group.parameters
    }
    for one, start, gradient in zip(optimizer.parameters, before, gradients, strict=True):
        rest = (start - one.asnumpy()) / 0.1 - gradient.asnumpy()
        np.testing.assert_allclose(rest, decays[one.name] * start, atol=1e-5)
    assert set(decays.values()) == {0.0, 0.5}


@pytest.mark.parametrize("kind", [nn.SGD, nn.Adam, nn.RMSProp, "mint"])
@pytest.mark.parametrize("has_apis", [False, True])
def test_calls_inside_an_optimizer_make_records_if_asked_for(
    kind: Any, has_apis: bool, net: nn.Cell, tmp_path: Path
) -> None:
    if kind == "mint":
        optimizer = mindspore.mint.optim.SGD(net.trainable_params(), lr=0.1)
    else:
        optimizer = kind(net.trainable_params(), learning_rate=0.1)
    gradients_of = mindspore.value_and_grad(lambda x: net(x).sum(), None, optimizer.parameters)
    config = tmp_path / "config.json"
    content = {"task": "statistics", "level": "L1", "optimizer_apis": has_apis}
    config.write_text(json.dumps({**content, "dump_path": str(tmp_path), "rank": [], "step": []}))
    debugger = PrecisionDebugger(str(config))
    for _ in range(2):
        debugger.start(net)
        _, found = gradients_of(Tensor(BATCH))
        optimizer(found)
        net(Tensor(BATCH)) * 2  # calls after it are recorded as ever
        debugger.stop()
        debugger.step()

    for step in range(2):
        view = open_dump(tmp_path).step(step).rank()
        assert len(view.facts.optimizer_steps()) == 1
        names = list(view.records)
        last = max(place for place, name in enumerate(names) if name.endswith(".backward"))
        behind = [name for name in names[last + 1 :] if name.endswith(".forward")]
        own = ["Primitive.matmul.MatMul.1.forward", "Primitive.bias_add.BiasAdd.1.forward"]
        assert [name for name in behind if name in own] == own
        assert (len(behind) > len(own) + 1) == has_apis, behind


class Falling(nn.learning_rate_schedule.LearningRateSchedule):
    """A schedule of the program: the rate halves, from a first one."""

    def __init__(self, first: float) -> None:
        super().__init__()
        self.first = first

    def construct(self, step: Tensor) -> Tensor:
        return self.first * mindspore.ops.pow(0.5, mindspore.ops.cast(step, mindspore.float32))


RATES = [0.4, 0.2, 0.1]


@pytest.mark.parametrize("in_graph", [False, True], ids=["dynamic graph", "one compiled step"])
@pytest.mark.parametrize("kind", ["list", "schedule", "by group"])
def test_schedules_are_asked_for_what_holds_in_the_step(
    kind: str, in_graph: bool, tmp_path: Path
) -> None:
    """The oracle: what plain SGD leaves."""
    mode = mindspore.GRAPH_MODE if in_graph else mindspore.PYNATIVE_MODE
    mindspore.set_context(mode=mode)
    net = nn.SequentialCell(nn.Dense(4, 3), nn.Dense(3, 1))
    weights = net.trainable_params()
    groups: Any = [{"params": weights[:2], "lr": 0.25}, {"params": weights[2:]}]
    rate: Any = Falling(0.4) if kind == "schedule" else RATES
    given = groups if kind == "by group" else weights
    # It divides gradients by the scale, and multiplies the decay by it.
    optimizer = nn.SGD(given, rate, weight_decay=0.5, loss_scale=4.0)
    loss = nn.WithLossCell(net, nn.MSELoss())
    train = nn.TrainOneStepCell(loss, optimizer, sens=4.0)
    target = Tensor(np.ones((2, 1), np.float32))
    gradients_of = mindspore.value_and_grad(loss, None, weights)
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0")
    updates, gradients = [], []
    for _ in range(2):
        gradients.append([one.asnumpy().copy() for one in gradients_of(Tensor(BATCH), target)[1]])
        before = [one.asnumpy().copy() for one in weights]
        debugger.start(net)
        train(Tensor(BATCH), target)
        debugger.stop()
        debugger.step()
        updates.append([(b, b - w.asnumpy()) for b, w in zip(before, weights, strict=True)])
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)

    for step in range(2):
        (event,) = facts(tmp_path, step).events
        options = {
            event.parameters.name[place]: group.options
            for group in event.groups
            for place in group.parameters
        }
        for number, one in enumerate(weights):
            is_constant = kind == "by group" and number < 2
            rate, decay = (options[one.name][key] for key in ("lr", "weight_decay"))
            assert rate == pytest.approx(0.25 if is_constant else RATES[step])
            assert decay == 0.5
            before, update = updates[step][number]
            expected = rate * (gradients[step][number] + decay * before)
            np.testing.assert_allclose(update, expected, rtol=1e-4, atol=1e-6)
        names = {name for group in event.groups for name in group.options}
        assert not {name for name in names if "learning_rate" in name or "group" in name}


class Net(nn.Cell):
    """A net that MindSpore can rewrite: its class is that of a module."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Dense(4, 3)

    def construct(self, x: Tensor) -> Tensor:
        return self.first(x)


def test_cells_that_mixed_precision_rewrites_keep_their_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # MindSpore writes what it rewrites there
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)

    net = mindspore.amp.auto_mixed_precision(Net(), "O1")
    assert type(net.first).__name__ != "Dense"
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0")
    debugger.start(net)
    net(Tensor(BATCH))
    debugger.stop()
    debugger.step()
    view = open_dump(tmp_path).step(0).rank()
    assert [*view.records] == ["Cell.first.Dense.forward.0", "Cell.Net.forward.0"]
    assert view.facts.settings["module.first"].startswith("Dense(")


def test_options_of_the_cell_around_a_primitive_are_the_argument(tmp_path: Path) -> None:
    """Primitives hold them; they are not among the inputs of the call."""
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    for name, epsilon in (("target", 0.1), ("reference", 1e-7)):
        reset_session()
        net = nn.SequentialCell(nn.LayerNorm((4,), epsilon=epsilon))
        debugger = PrecisionDebugger(dump_path=tmp_path / name, level="mix")
        debugger.start(net)
        net(Tensor(BATCH))
        debugger.stop()
        debugger.step()
    found = run_comparison(tmp_path / "target", tmp_path / "reference", CompareOptions())
    assert found.summary["verdict"]["class"] == "argument"
    assert "epsilon is 0.1 in the target, 1e-07 in" in found.summary["verdict"]["sentence"]


def test_compiled_code_that_leaves_the_same_parameters_is_no_other_program(tmp_path: Path) -> None:
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    for name in ("target", "reference"):
        reset_session()
        mindspore.set_seed(3)
        net = nn.SequentialCell(*(nn.Dense(4, 4) for _ in range(3)))
        optimizer = nn.SGD(net.trainable_params(), 0.1)

        def loss(x: Tensor, net: Any = net) -> Tensor:
            return net(x).sum()

        run = mindspore.jit(loss) if name == "target" else loss
        gradients_of = mindspore.value_and_grad(run, None, optimizer.parameters)
        debugger = PrecisionDebugger(dump_path=tmp_path / name, level="L1")
        for _ in range(4):
            debugger.start(net)
            optimizer(gradients_of(Tensor(BATCH))[1])
            debugger.stop()
            debugger.step()
    found = run_comparison(tmp_path / "target", tmp_path / "reference", CompareOptions())
    assert found.summary["verdict"]["class"] != "different_programs"
