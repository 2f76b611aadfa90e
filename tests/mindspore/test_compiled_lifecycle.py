# SPDX-License-Identifier: Apache-2.0
"""Jitted code in a dynamic graph: where its records stand, and that nothing of ours stays in it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nets import random

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops
from msprobe import open_dump
from msprobe.mindspore import PrecisionDebugger
from msprobe.mindspore.jit_calls import executor_class


class Middle(nn.Cell):
    """A jitted cell with a cell inside, which may fail when it is compiled."""

    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.fc, self.fails = nn.Dense(4, 4), fails

    @ms.jit
    def construct(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        if self.fails:
            raise ValueError("mine")
        return y * 2.0


class Outer(nn.Cell):
    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Dense(4, 4), Middle(fails), nn.Dense(4, 2)

    def construct(self, x: Tensor) -> Tensor:
        return self.last(self.middle(self.first(x)))


def made(kind: Callable[[], nn.Cell] = Outer) -> tuple[nn.Cell, Callable[[], Any]]:
    """Return a net and what takes its loss and gradients."""
    ms.set_seed(5)
    net = kind()
    both = ms.value_and_grad(lambda x: (net(x) ** 2).mean(), None, net.trainable_params())
    return net, lambda: both(Tensor(random(3, 4)))


def step(debugger: Any, net: nn.Cell, run: Callable[[], Any]) -> Any:
    debugger.start(net)
    result = run()
    debugger.stop()
    debugger.step()
    return result


def array(view: Any, name: str, part: str, index: int = 0) -> Any:
    """Return a value, None where it stands as null."""
    value = view.records[name].values(part)[index]
    return np.asarray(view.tensor(value).array) if value.is_tensor else None


def patchable(net: nn.Cell) -> dict[Any, Any]:
    """Return everything that recording may touch, to be compared by identity."""
    owner: Any = executor_class()
    found: dict[Any, Any] = {("executor", name): one for name, one in vars(owner).items()}
    for path, cell in net.cells_and_names():
        found |= {(path, name): one for name, one in vars(cell).items() if "hook" not in name}
        for name in ("_forward_hook", "_forward_pre_hook", "_backward_hook", "_backward_pre_hook"):
            found[path, name] = len(getattr(cell, name))
    for parameter in net.get_parameters():
        found["hooks", parameter.name] = len(parameter.hooks())
    for name in ("tanh", "matmul", "relu"):
        found["ops", name] = getattr(ops, name)
    return found


def changes(before: dict[Any, Any], after: dict[Any, Any]) -> set[Any]:
    """Return what was added, removed or replaced."""
    return (before.keys() ^ after.keys()) | {
        key
        for key, old in before.items()
        if key in after and not (after[key] == old if isinstance(old, int) else after[key] is old)
    }


def changes_alone(fails: bool = False) -> set[Any]:
    """Return what MindSpore changes when it compiles: that is no concern of ours."""
    net, run = made(lambda: Outer(fails))
    before = patchable(net)
    with pytest.raises(ValueError, match="mine") if fails else nullcontext():
        run()
    return changes(before, patchable(net))


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_the_outermost_cell_stands_in_both_halves(level: str, tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path, level=level, task="tensor")
    net, run = made()
    step(debugger, net, run)
    ranks = open_dump(tmp_path).step(0).ranks
    assert sorted(map(str, ranks)) == ["graph/rank", "pynative/rank"]
    graph, dynamic = ranks["graph/rank"], ranks["pynative/rank"]
    for part in ("input_args", "output"):
        name = "Cell.middle.Middle.forward.0"
        np.testing.assert_array_equal(array(graph, name, part), array(dynamic, name, part))
    for part in ("input", "output"):
        name = "Cell.middle.Middle.backward.0"
        found = array(graph, name, part)
        assert found is not None
        np.testing.assert_array_equal(found, array(dynamic, name, part))
    # What stands around it, in the dynamic half, has the same values.
    before, after = "Cell.first.Dense.forward.0", "Cell.last.Dense.backward.0"
    np.testing.assert_array_equal(
        array(graph, "Cell.middle.Middle.forward.0", "input_args"), array(dynamic, before, "output")
    )
    np.testing.assert_array_equal(
        array(graph, "Cell.middle.Middle.backward.0", "input"), array(dynamic, after, "output")
    )
    assert graph.parents["Cell.middle.fc.Dense.forward.0"] == "Cell.middle.Middle.forward.0"
    assert graph.parents["Cell.middle.fc.Dense.backward.0"] == "Cell.middle.Middle.backward.0"
    assert dynamic.parents["Cell.middle.Middle.forward.0"] == "Cell.Outer.forward.0"
    assert [n for n in graph.records if not n.startswith("Cell.middle.")] == []
    jits = [name for name in dynamic.records if name.startswith("Jit.")]
    assert jits == (["Jit.Middle.0.forward", "Jit.Middle.0.backward"] if level == "mix" else [])


def test_jitted_functions_are_one_record_at_level_l1(tmp_path: Path) -> None:
    fc = nn.Dense(4, 4)

    @ms.jit
    def doubled(x: Tensor, y: Tensor) -> Tensor:
        return ops.tanh(fc(x)) * 2.0 + y

    def loss(x: Tensor) -> Tensor:
        return doubled(ops.exp(x), x).sum()

    both = ms.value_and_grad(loss, 0, fc.trainable_params())
    x = Tensor(random(3, 4))
    alone = [one.asnumpy() for one in ms.grad(loss, 0)(x)]
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L1", task="tensor")
    debugger.start()
    _, (gradient, weights) = both(x)
    debugger.stop()
    debugger.step()
    view = open_dump(tmp_path).step(0).rank()
    names = [name for name in view.records if name.startswith("Jit.")]
    assert names == ["Jit.doubled.0.forward", "Jit.doubled.0.backward"]
    assert not any("tanh" in name for name in view.records)
    np.testing.assert_array_equal(gradient.asnumpy(), np.stack(alone))
    # Of the first input, by numpy: the weights come after it, and none of theirs stands there.
    weight, bias = (one.asnumpy().astype(np.float64) for one in (fc.weight, fc.bias))
    inside = np.tanh(np.exp(random(3, 4).astype(np.float64)) @ weight.T + bias)
    expected = (2.0 * (1.0 - inside**2)) @ weight
    found = [array(view, "Jit.doubled.0.backward", "output", index) for index in range(2)]
    np.testing.assert_allclose(found[0], expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(found[1], np.ones((3, 4), np.float32))
    assert [one.shape for one in weights] == [(4, 4), (4,)]


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_everything_is_as_before_after_stop(level: str, tmp_path: Path) -> None:
    net, run = made()
    debugger = PrecisionDebugger(dump_path=tmp_path, level=level)
    before = patchable(net)
    debugger.start(net)
    executor: Any = executor_class()
    assert vars(executor)["__call__"] is not before["executor", "__call__"]
    run()
    debugger.stop()
    assert executor.__call__ is before["executor", "__call__"]
    debugger.step()  # gradients of parameters may come until then
    assert changes(before, patchable(net)) <= changes_alone()
    assert not any("construct" in vars(cell) for _, cell in net.cells_and_names())


def test_an_exception_in_jitted_code_passes_and_nothing_stays(tmp_path: Path) -> None:
    net, run = made(lambda: Outer(fails=True))
    debugger = PrecisionDebugger(dump_path=tmp_path, level="mix")
    before = patchable(net)
    debugger.start(net)
    with pytest.raises(ValueError, match="mine"):
        run()
    assert not any("construct" in vars(cell) for _, cell in net.cells_and_names())
    debugger.stop()
    debugger.step()
    left = changes(before, patchable(net)) - changes_alone(fails=True)
    # MindSpore 2.10 cannot remove any hook of a parameter after a compilation has failed.
    assert {kind for kind, _ in left} <= {"hooks"}
    # The run goes on, and is recorded.
    other, run = made()
    step(debugger, other, run)
    ranks = open_dump(tmp_path).step(1).ranks
    assert "Cell.middle.fc.Dense.backward.0" in ranks["graph/rank"].records


def test_a_step_that_is_not_wanted_leaves_nothing(tmp_path: Path) -> None:
    net, run = made()
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0", task="tensor", step=[2])
    for _ in range(4):  # compiled in the first
        step(debugger, net, run)
    dump = open_dump(tmp_path)
    assert list(dump.steps) == [2]
    graph = dump.step(2).ranks["graph/rank"]
    assert {name for name in graph.records if "ward" in name} == {
        "Cell.middle.fc.Dense.forward.0",
        "Cell.middle.Middle.forward.0",
        "Cell.middle.Middle.backward.0",
        "Cell.middle.fc.Dense.backward.0",
    }
    fc = net.middle.fc
    x = array(graph, "Cell.middle.fc.Dense.forward.0", "input_args").astype(np.float64)
    expected = x @ fc.weight.asnumpy().astype(np.float64).T + fc.bias.asnumpy()
    found = array(graph, "Cell.middle.fc.Dense.forward.0", "output")
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_code_compiled_before_start_is_named_once(
    level: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def losses(debugger: Any) -> list[bytes]:
        net, run = made()
        optimizer = nn.SGD(net.trainable_params(), 0.1)
        found = []
        for number in range(5):
            if debugger is None or number == 0:
                loss, gradients = run()
            else:
                loss, gradients = step(debugger, net, run)
            optimizer(gradients)
            found.append(loss.asnumpy().tobytes())
        return found + [one.asnumpy().tobytes() for one in net.get_parameters()]

    alone = losses(None)
    assert losses(PrecisionDebugger(dump_path=tmp_path, level=level)) == alone
    warnings = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert len(warnings) == 1
    assert warnings[0].startswith("Middle was compiled before start()")
    assert caplog.text.count("skipped 1 (calls of code compiled before start())") == 4
    ranks = open_dump(tmp_path).step(0).ranks
    assert [str(name) for name in ranks] == ["pynative/rank"]
    names = set(ranks["pynative/rank"].records)
    assert {"Cell.middle.Middle.forward.0", "Cell.middle.Middle.backward.0"} <= names
    assert ("Jit.Middle.0.backward" in names) == (level == "mix")


class Demanding(nn.Cell):
    """A jitted cell with two inputs and two weights, all of one shape."""

    def __init__(self) -> None:
        super().__init__()
        self.a = Parameter(Tensor(random(4, 4, seed=1)), name="a")
        self.b = Parameter(Tensor(random(4, 4, seed=2)), name="b")

    @ms.jit
    def construct(self, x: Tensor, y: Tensor) -> Tensor:
        return ops.matmul(x, self.a) * 3.0 + ops.matmul(y, self.b) * 5.0


@pytest.mark.parametrize("demanded", ["x", "y", "both", "weight_a", "weight_b", "frozen", "apart"])
@pytest.mark.parametrize("ambiguous", [True, False], ids=["one shape", "two shapes"])
def test_no_gradient_is_given_to_another_input(
    demanded: str, ambiguous: bool, tmp_path: Path
) -> None:
    """A jitted node leaves out gradients that nobody asked for: null is right, another is not."""
    net, rows = Demanding(), 4 if ambiguous else 3
    x, y = Tensor(random(rows, 4, seed=3)), Tensor(random(rows, 4, seed=4))
    net.b.requires_grad = demanded != "frozen"
    weights = {
        "weight_a": [net.a],
        "weight_b": [net.b],
        "frozen": [net.a],
        "apart": net.trainable_params(),
    }.get(demanded)
    positions = {"x": 0, "y": 1, "both": (0, 1), "apart": 0}.get(demanded)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return net(x * 1.0, y * 1.0).sum()

    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0", task="tensor")
    debugger.start(net)
    result = ms.value_and_grad(loss, positions, weights)(x, y)[1]
    debugger.stop()
    debugger.step()
    ones = np.ones((rows, 4))
    truth = [3.0 * ones @ net.a.asnumpy().T, 5.0 * ones @ net.b.asnumpy().T]
    recorded = 0
    for half, view in open_dump(tmp_path).step(0).ranks.items():
        if "Cell.Demanding.backward.0" not in view.records:
            continue
        recorded += 1
        np.testing.assert_array_equal(array(view, "Cell.Demanding.backward.0", "input"), ones)
        for index, expected in enumerate(truth):
            found = array(view, "Cell.Demanding.backward.0", "output", index)
            asked = demanded in (("x", "both", "apart"), ("y", "both"))[index]
            if found is not None:
                assert found.shape == expected.shape
                np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
            else:  # the compiled half always knows what was computed
                assert not asked or str(half) == "pynative/rank"
    assert recorded == 2
    assert result is not None
