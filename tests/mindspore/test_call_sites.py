# SPDX-License-Identifier: Apache-2.0
"""Cells of graphs, which run without Python frames, get their call stacks from the source."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest
from nets import random

import mindspore as ms
from mindspore import Tensor, nn
from msprobe import open_dump
from msprobe.mindspore import PrecisionDebugger


class Block(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Dense(4, 4)
        self.relu = nn.ReLU()

    def construct(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        return self.relu(self.inner(y))


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.CellList([Block(), Block()])
        self.head = nn.SequentialCell(nn.Dense(4, 2))

    def construct(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@pytest.fixture(params=[ms.GRAPH_MODE, ms.PYNATIVE_MODE], ids=["graph", "jit"])
def mode(request: pytest.FixtureRequest) -> Iterator[int]:
    ms.set_context(mode=request.param)
    yield request.param
    ms.set_context(mode=ms.PYNATIVE_MODE)


def line_of(kind: type, text: str) -> int:
    lines, begin = inspect.getsourcelines(kind)
    return begin + next(index for index, line in enumerate(lines) if text in line)


def test_frames_are_the_calls_in_the_source(mode: int, tmp_path: Path) -> None:
    net = Net()

    def forward(x: Tensor) -> Tensor:
        return net(x)

    run = net if mode == ms.GRAPH_MODE else ms.jit(forward)
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0")
    debugger.start(net)
    run(Tensor(random(3, 4)))
    debugger.stop()
    debugger.step()
    ranks = open_dump(tmp_path).step(0).ranks
    view = ranks["rank" if mode == ms.GRAPH_MODE else "graph/rank"]

    def frames(record: str) -> list[str]:
        return view.frames(record)

    first = f"line {line_of(Block, 'y = self.inner(x)')}, in construct"
    second = line_of(Block, "self.relu(")
    block = f"line {line_of(Net, 'x = block(x)')}, in construct"
    inner = frames("Cell.blocks.1.inner.Dense.forward.1")
    assert first in inner[0]
    assert inner[0].endswith(f"y = self.inner(x)  # or line {second}")
    assert block in inner[1]
    assert __file__ in inner[1]
    assert f"line {second}, in construct" in frames("Cell.blocks.0.relu.ReLU.forward.0")[0]
    # A container calls its items in a loop of its own.
    item = frames("Cell.head.0.Dense.forward.0")
    assert "cell(input_data)" in item[0]
    assert f"line {line_of(Net, 'self.head(x)')}, in construct" in item[1]
    caller = "in test_frames_are_the_calls_in_the_source"
    assert any(caller in frame for frame in inner) == (mode != ms.GRAPH_MODE)
