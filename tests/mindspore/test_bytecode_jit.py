# SPDX-License-Identifier: Apache-2.0
"""Code that MindSpore compiles from its bytecode shows its APIs and cells while it is recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from nets import random

import mindspore as ms
from mindspore import Tensor, nn, ops
from msprobe import open_dump
from msprobe.mindspore import PrecisionDebugger
from msprobe.mindspore.bytecode_jit import context_class

INPUT = random(3, 4)


class Plain(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Dense(4, 4), nn.Dense(4, 2)

    def construct(self, x: Tensor) -> Tensor:
        return self.second(ops.tanh(self.first(x)))


class Compiled(Plain):
    @ms.jit(capture_mode="bytecode")
    def construct(self, x: Tensor) -> Tensor:
        return self.second(ops.tanh(self.first(x)))


@ms.jit(capture_mode="bytecode")
def softened(x: Tensor) -> Tensor:
    return ops.softmax(x) * 2.0


def gradients(net: nn.Cell) -> list[bytes]:
    run = ms.value_and_grad(lambda x: softened(net(x)).sum(), None, net.trainable_params())
    value, found = run(Tensor(INPUT))
    return [one.asnumpy().tobytes() for one in (value, *found)]


def records(folder: Path, debugger: Any, net: nn.Cell) -> tuple[list[bytes], list[list[str]]]:
    found = []
    for _ in range(3):
        debugger.start(net)
        values = gradients(net)
        debugger.stop()
        debugger.step()
        found.append(list(open_dump(folder).step(len(found)).rank().records))
    return values, found


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("before", [False, True], ids=["first call", "compiled before"])
def test_it_is_recorded_like_code_that_is_not_compiled(
    level: str, before: bool, tmp_path: Path
) -> None:
    ms.set_seed(3)
    plain = Plain()
    debugger = PrecisionDebugger(dump_path=tmp_path, level=level, step=["0-5"])
    expected, wanted = records(tmp_path, debugger, plain)
    ms.set_seed(3)
    net = Compiled()
    if before:
        gradients(net)
    enter, leave = context_class().__enter__, context_class().__exit__
    found = []
    for step in range(3, 6):
        debugger.start(net)
        assert gradients(net) == expected
        debugger.stop()
        debugger.step()
        names = open_dump(tmp_path).step(step).rank().records
        found.append([name.replace("Compiled", "Plain") for name in names])
    assert found == wanted
    assert any("softmax" in name for name in found[0]) == (level != "L0")
    assert (context_class().__enter__, context_class().__exit__) == (enter, leave)


def test_recording_may_begin_and_end_inside(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L1")

    @ms.jit(capture_mode="bytecode")
    def begins(x: Tensor) -> Tensor:
        debugger.start()
        return ops.tanh(x)

    @ms.jit(capture_mode="bytecode")
    def ends(x: Tensor) -> Tensor:
        y = ops.exp(x)
        debugger.stop()
        return ops.tanh(y)

    alone = softened(Tensor(INPUT)).asnumpy().tobytes()
    ends(begins(Tensor(INPUT)))
    debugger.step()
    assert softened(Tensor(INPUT)).asnumpy().tobytes() == alone
    names = list(open_dump(tmp_path).step(0).rank().records)
    assert "Functional.exp.0.forward" in names
