# SPDX-License-Identifier: Apache-2.0
"""Which calls cells are made of is in facts.json at level L0, and the verdict names them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mindspore
from mindspore import nn, ops
from msprobe.capture.session import reset_session
from msprobe.compare.options import CompareOptions
from msprobe.compare.run import run_comparison
from msprobe.mindspore import PrecisionDebugger

pytestmark = pytest.mark.mindspore

X = np.random.default_rng(3).standard_normal((5, 4)).astype(np.float32)


class Net(nn.Cell):
    def __init__(self, change: str | None) -> None:
        super().__init__()
        self.first, self.last = nn.Dense(4, 8), nn.Dense(8, 3)
        self.change = change

    def construct(self, x: Any) -> Any:
        h = self.first(x) * (0.5 if self.change == "scale" else 0.25)
        if self.change == "call":
            h = ops.tanh(h)
        return self.last(ops.relu(h))


def train(folder: Path | None, change: str | None, level: str = "L0") -> list[np.ndarray]:
    """Train two steps, recorded if there is a folder, and return losses and parameters."""
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    mindspore.set_seed(1)
    reset_session()
    net = Net(change)
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    factor = 2.0 if change == "loss" else 1.0

    def loss_of(x: Any) -> Any:
        return ops.square(net(x)).mean() * factor + ops.abs(net.last.bias).sum()

    step = mindspore.value_and_grad(loss_of, None, optimizer.parameters)
    debugger = None
    if folder is not None:
        debugger = PrecisionDebugger(dump_path=str(folder), task="statistics", level=level)
    results = []
    for _ in range(2):
        if debugger is not None:
            debugger.start(net)
        loss, gradients = step(mindspore.Tensor(X))
        optimizer(gradients)
        if debugger is not None:
            debugger.stop()
            debugger.step()
        results.append(loss.asnumpy())
    reset_session()
    return [*results, *(each.asnumpy() for each in net.trainable_params())]


def outline_of(folder: Path) -> Any:
    return json.loads((folder / "step0" / "rank" / "facts.json").read_text()).get("outline")


def test_calls_between_the_parts_of_cells_are_told_in_order(tmp_path: Path) -> None:
    train(tmp_path, None)
    outline = outline_of(tmp_path)
    runs = [
        (run["parent"], run["after"], [outline["calls"][n]["name"] for n in body])
        for run in outline["runs"]
        for body in [outline["bodies"][run["body"]]]
    ]
    net, first = "Cell.Net.forward.0", "Cell.first.Dense.forward.0"
    assert (net, first, ["Tensor.__mul__", "Functional.relu"]) in runs
    assert runs[-1][:2] == (None, net)
    assert {"Functional.square", "Functional.abs"} <= set(runs[-1][2])
    (times,) = (c for c in outline["calls"] if c["arguments"] == ["tensor", "0.25"])
    assert times["source"].startswith(f"{__file__}:")


def test_the_training_is_the_same_and_every_function_is_put_back(tmp_path: Path) -> None:
    before = ops.relu, mindspore.Tensor.__mul__, mindspore.ops.square
    plain = train(None, None)
    recorded = train(tmp_path, None)
    assert all(map(np.array_equal, plain, recorded))
    assert (ops.relu, mindspore.Tensor.__mul__, mindspore.ops.square) == before


def test_other_levels_record_the_calls_instead(tmp_path: Path) -> None:
    train(tmp_path, None, "mix")
    assert outline_of(tmp_path) is None


@pytest.mark.parametrize(
    ("change", "expected", "words"),
    [
        ("scale", "argument", "argument 1 of Tensor.__mul__ ("),
        ("call", "call", "only the target calls Functional.tanh ("),
        ("loss", "argument", "argument 1 of Tensor.__mul__ ("),
        (None, "equal", "agree"),
    ],
)
def test_the_verdict_names_the_call(
    change: str | None, expected: str, words: str, tmp_path: Path
) -> None:
    train(tmp_path / "target", change)
    train(tmp_path / "reference", None)
    found = run_comparison(tmp_path / "target", tmp_path / "reference", CompareOptions()).summary
    assert found["verdict"]["class"] == expected, found["verdict"]["sentence"]
    assert words in found["verdict"]["sentence"]
