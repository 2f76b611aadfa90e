# SPDX-License-Identifier: Apache-2.0
"""Cells and functions with a backward of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mindspore.common._grad_function import _Function
from nets import random

import mindspore as ms
from mindspore import Tensor, nn
from msprobe import open_dump
from msprobe.mindspore import PrecisionDebugger

INPUT = random(3, 4)


class Tripled(nn.Cell):
    """Says that its gradient is three times what it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ReLU()

    def construct(self, x: Tensor) -> Tensor:
        return self.inner(x) * 2.0

    def bprop(self, x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
        return (dout * 3.0,)


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.own, self.last = nn.Dense(4, 4), Tripled(), nn.Dense(4, 2)

    def construct(self, x: Tensor) -> Tensor:
        return self.last(self.own(self.first(x)))


def gradients(net: nn.Cell, debugger: Any = None) -> list[bytes]:
    run = ms.value_and_grad(lambda x: net(x).sum(), None, net.trainable_params())
    if debugger is not None:
        debugger.start(net)
    value, found = run(Tensor(INPUT))
    if debugger is not None:
        debugger.stop()
        debugger.step()
    return [one.asnumpy().tobytes() for one in (value, *found)]


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_cell_with_a_bprop_is_recorded_like_any_other(level: str, tmp_path: Path) -> None:
    net = Net()
    alone = gradients(net)
    debugger = PrecisionDebugger(dump_path=tmp_path, level=level, task="tensor")
    assert gradients(net, debugger) == alone
    assert net.own.has_bprop
    assert not net.own._forward_hook

    view = open_dump(tmp_path).step(0).rank()
    call = view.records["Cell.own.Tripled.forward.0"]
    assert "raised" not in call.notes
    ((_, output),) = call.tensors("output")
    ((_, given),) = view.records["Cell.last.Dense.forward.0"].tensors("input_args")
    np.testing.assert_array_equal(view.tensor(output).array, view.tensor(given).array)
    backward = view.records["Cell.own.Tripled.backward.0"]
    ((_, arrived),) = backward.tensors("input")
    ((_, left),) = backward.tensors("output")
    np.testing.assert_array_equal(view.tensor(left).array, 3.0 * view.tensor(arrived).array)

    parents = json.loads((tmp_path / "step0" / "rank" / "construct.json").read_text())
    for cell in ("first.Dense", "own.Tripled", "last.Dense"):
        assert parents[f"Cell.{cell}.forward.0"] == "Cell.Net.forward.0"
    assert parents["Cell.own.inner.ReLU.forward.0"] == "Cell.own.Tripled.forward.0"
    assert parents["Cell.last.Dense.backward.0"] == "Cell.Net.backward.0"


class Square(_Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * 2.0 * x


@pytest.mark.parametrize("call", [Tripled(), Square.apply], ids=["bprop", "_Function"])
def test_operators_of_a_backward_are_no_forward_calls(call: Any, tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L1")
    debugger.start()
    ms.grad(lambda x: call(x).sum())(Tensor(INPUT))
    debugger.stop()
    debugger.step()
    names = [name for name in open_dump(tmp_path).step(0).rank().records if "__mul__" in name]
    assert names == ["Tensor.__mul__.0.forward"]
    account = json.loads((tmp_path / "step0" / "rank" / "account.json").read_text())
    assert account["skipped"]["calls inside a backward pass"] > 0


def test_a_cell_called_while_an_error_is_handled_has_not_raised(tmp_path: Path) -> None:
    net = nn.SequentialCell(nn.ReLU())
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0")
    debugger.start(net)
    try:
        {}["mine"]
    except KeyError:
        net(Tensor(INPUT))
    debugger.stop()
    debugger.step()
    records = open_dump(tmp_path).step(0).rank().records
    assert all("output" in record.parts for record in records.values())
