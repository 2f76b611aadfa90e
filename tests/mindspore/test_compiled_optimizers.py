# SPDX-License-Identifier: Apache-2.0
"""Gradients of parameters in compiled graphs, recorded where an optimiser receives them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mindspore.dataset import NumpySlicesDataset
from mindspore.experimental import optim
from mindspore.train import Model
from nets import random

import mindspore as ms
from mindspore import Tensor, mint, nn, ops
from msprobe import open_dump
from msprobe.mindspore import MsprobeStep, PrecisionDebugger

BATCH = random(6, 4)


@pytest.fixture(autouse=True)
def modes() -> Iterator[None]:
    yield
    ms.set_context(mode=ms.PYNATIVE_MODE)


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.frozen, self.last = nn.Dense(4, 8), nn.Dense(8, 8), nn.Dense(8, 2)
        for parameter in self.frozen.get_parameters():
            parameter.requires_grad = False

    def construct(self, x: Tensor) -> Tensor:
        return self.last(self.frozen(ops.tanh(self.first(x))))


def loss_of(net: nn.Cell, x: Tensor) -> Tensor:
    return (net(x) ** 2).mean()


class Loss(nn.Cell):
    def __init__(self, net: nn.Cell) -> None:
        super().__init__()
        self.net = net

    def construct(self, x: Tensor) -> Tensor:
        return loss_of(self.net, x)


def new_net() -> Net:
    ms.set_seed(5)
    return Net().set_train()


def true_gradients(net: Net) -> dict[str, np.ndarray]:
    """Return the gradients of a net's weights, computed eagerly."""
    weights = net.trainable_params()
    gradients = ms.grad(forward_of(net), None, weights)(Tensor(BATCH))
    return {one.name: gradient.asnumpy() for one, gradient in zip(weights, gradients, strict=True)}


def recorded(rank: Path) -> dict[str, np.ndarray]:
    """Return the recorded gradients of parameters by the names of these."""
    view, found = open_dump(rank).step().rank(), {}
    for name, record in view.records.items():
        if name.endswith(".parameters_grad"):
            for part in record.parts:
                ((_, leaf),) = record.tensors(part)
                found[f"{name.split('.')[1]}.{part}"] = np.asarray(view.tensor(leaf).array)
    return found


def check(rank: Path, expected: dict[str, np.ndarray]) -> None:
    found = recorded(rank)
    assert found.keys() == expected.keys() == {f"{a}.{b}" for a in ("first", "last") for b in KEYS}
    for name, gradient in expected.items():
        np.testing.assert_allclose(found[name], gradient, rtol=1e-5, atol=1e-7, err_msg=name)


KEYS = ("weight", "bias")


def test_a_trained_model_with_its_callback(tmp_path: Path) -> None:
    ms.set_context(mode=ms.GRAPH_MODE)
    net = new_net()
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0", task="tensor", step=[0])
    debugger.start(net)  # the optimiser may come later
    model = Model(Loss(net), optimizer=nn.Adam(net.trainable_params()))
    data = NumpySlicesDataset(BATCH[None], shuffle=False)
    model.train(1, data, callbacks=[MsprobeStep(debugger)], dataset_sink_mode=False)
    ms.set_context(mode=ms.PYNATIVE_MODE)
    check(tmp_path / "step0" / "rank", true_gradients(new_net()))


def test_a_step_in_functions_of_graph_mode(tmp_path: Path) -> None:
    ms.set_context(mode=ms.GRAPH_MODE)
    net = new_net()
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    both = ms.value_and_grad(forward_of(net), None, optimizer.parameters)
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0", task="tensor")
    for _ in range(2):
        debugger.start(net)
        _, gradients = both(Tensor(BATCH))
        optimizer(gradients)
        debugger.stop()
        debugger.step()
    ms.set_context(mode=ms.PYNATIVE_MODE)
    check(tmp_path / "step0" / "rank", true_gradients(new_net()))
    for weight, gradient in zip(net.trainable_params(), gradients, strict=True):
        found = recorded(tmp_path / "step1" / "rank")[weight.name]
        np.testing.assert_array_equal(found, gradient.asnumpy())


def forward_of(net: Net) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        return loss_of(net, x)

    return forward


def jitted_step(net: Net, optimizer: Any) -> Callable[[Tensor], Tensor]:
    both = ms.value_and_grad(forward_of(net), None, net.trainable_params())

    @ms.jit
    def step(x: Tensor) -> Tensor:
        loss, gradients = both(x)
        optimizer(gradients)
        return loss

    return step


@pytest.mark.parametrize("kind", ["experimental", "mint", "grouped"])
def test_a_jitted_step(kind: str, tmp_path: Path) -> None:
    net = new_net()
    weights = net.trainable_params()
    if kind == "grouped":  # the optimiser has its own order
        groups = [{"params": weights[2:]}, {"params": weights[:2], "lr": 0.01}]
        optimizer: Any = nn.Momentum([*groups, {"order_params": weights}], 0.1, 0.9)
    else:
        optimizer = (optim.Adam if kind == "experimental" else mint.optim.SGD)(weights, lr=0.01)
    step = jitted_step(net, optimizer)
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0", task="tensor")
    debugger.start(net)
    step(Tensor(BATCH))
    debugger.stop()
    debugger.step()
    check(tmp_path / "graph" / "step0" / "rank", true_gradients(new_net()))


class Doubling(nn.Optimizer):
    """Wraps another one, and calls its argument as it likes."""

    def __init__(self, inner: nn.Optimizer) -> None:
        super().__init__(0.1, list(inner.parameters))
        self.inner = inner

    def construct(self, grads: tuple[Tensor, ...]) -> Any:
        return self.inner(grads)


def test_an_optimiser_around_another_counts_once(tmp_path: Path) -> None:
    net = new_net()
    optimizer = Doubling(nn.SGD(net.trainable_params(), 0.1))
    both = ms.value_and_grad(forward_of(net), None, net.trainable_params())

    @ms.jit
    def step(x: Tensor) -> Tensor:
        loss, gradients = both(x)
        optimizer(grads=gradients)
        return loss

    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0", task="tensor")
    debugger.start(net)
    step(Tensor(BATCH))
    debugger.stop()
    debugger.step()
    rank = tmp_path / "graph" / "step0" / "rank"
    check(rank, true_gradients(new_net()))
    assert not any("parameters_grad." in name for name in open_dump(rank).step().rank().records)


def test_an_optimiser_on_its_own_adds_nothing(tmp_path: Path) -> None:
    """The dynamic graph, whose gradients they are, shows them."""
    net = new_net()
    optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
    both = ms.value_and_grad(ms.jit(forward_of(net)), None, net.trainable_params())
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0", task="tensor")
    debugger.start(net)
    _, gradients = both(Tensor(BATCH))
    optimizer(gradients)
    debugger.stop()
    debugger.step()
    check(tmp_path / "step0" / "rank", true_gradients(new_net()))
    assert recorded(tmp_path / "graph" / "step0" / "rank") == {}


def test_none_without_the_backward_pass(tmp_path: Path) -> None:
    ms.set_context(mode=ms.GRAPH_MODE)
    net = new_net()
    one_step = nn.TrainOneStepCell(Loss(net), nn.SGD(net.trainable_params(), 0.1)).set_train()
    config = {"task": "statistics", "level": "L0", "statistics": {"data_mode": ["forward"]}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    debugger = PrecisionDebugger(tmp_path / "config.json", dump_path=tmp_path / "dump")
    debugger.start(net)
    one_step(Tensor(BATCH))
    debugger.stop()
    debugger.step()
    records = open_dump(tmp_path / "dump").step(0).rank().records
    assert records
    assert all(".forward." in name for name in records)


def test_step_gives_the_optimiser_its_construct_back(tmp_path: Path) -> None:
    ms.set_context(mode=ms.GRAPH_MODE)
    net = new_net()
    optimizer, other = (nn.SGD(one.trainable_params(), 0.1) for one in (net, new_net()))
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0")
    debugger.start(net)
    assert "construct" in vars(optimizer)
    assert "construct" not in vars(other)  # trains another model
    debugger.stop()
    assert "construct" in vars(optimizer)  # its gradients belong to the step
    debugger.step()
    assert "construct" not in vars(optimizer)
