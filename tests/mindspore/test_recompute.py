# SPDX-License-Identifier: Apache-2.0
"""What a recomputed cell runs again is no further call: the first record says how often it ran."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nets import random

import mindspore as ms
from mindspore import Tensor, nn, ops
from msprobe import open_dump
from msprobe.mindspore import PrecisionDebugger

MODES = [{}, {"use_reentrant": False}]


class Block(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Dense(4, 4)

    def construct(self, x: Tensor) -> Tensor:
        return ops.tanh(self.fc(x)) * 2.0


class Net(nn.Cell):
    """Two blocks; the first runs twice."""

    def __init__(self, recompute: dict[str, Any] | None) -> None:
        super().__init__()
        self.first, self.second = Block(), Block()
        if recompute is not None:
            self.first.recompute(**recompute)

    def construct(self, x: Tensor) -> Tensor:
        return self.second(self.first(self.first(x))).sum()


def train(tmp_path: Path, recompute: dict[str, Any] | None, *, recorded: bool = True) -> Any:
    ms.set_seed(3)
    net = Net(recompute)
    both = ms.value_and_grad(net, 0, net.trainable_params())
    debugger = PrecisionDebugger(dump_path=tmp_path, level="mix") if recorded else None
    results = []
    for _ in range(2):
        if debugger is not None:
            debugger.start(net)
        loss, (gradient, weights) = both(Tensor(random(3, 4)))
        if debugger is not None:
            debugger.stop()
            debugger.step()
        results.append([one.asnumpy().tobytes() for one in (loss, gradient, *weights)])
    assert not list(tmp_path.rglob("dump_error_info.log"))
    return results


@pytest.mark.parametrize("mode", MODES)
def test_the_second_run_makes_no_calls_of_its_own(mode: dict[str, Any], tmp_path: Path) -> None:
    plain = train(tmp_path / "plain", mode, recorded=False)
    assert train(tmp_path / "again", mode) == plain
    views = [open_dump(tmp_path / "again").step(step).rank() for step in (0, 1)]
    for view in views:
        names = list(view.records)
        assert sum("tanh" in name and name.endswith(".forward") for name in names) == 3
        assert "Cell.first.fc.Dense.forward.1" in names
        assert "Cell.first.fc.Dense.forward.2" not in names
        said = {name: record.notes.get("recomputed") for name, record in view.records.items()}
        again = {name for name, times in said.items() if times}
        assert {"Cell.first.fc.Dense.forward.0", "Cell.first.fc.Dense.forward.1"} <= again
        assert {"Functional.tanh.0.forward", "Functional.tanh.1.forward"} <= again
        assert {said[name] for name in again} == {1}
        assert "Functional.tanh.2.forward" not in again


@pytest.mark.parametrize("mode", MODES)
def test_gradients_are_those_of_the_net_without_recomputation(
    mode: dict[str, Any], tmp_path: Path
) -> None:
    from msprobe.capture.session import reset_session

    train(tmp_path / "plain", None)
    reset_session()
    train(tmp_path / "again", mode)
    plain = open_dump(tmp_path / "plain").step(0).rank()
    again = open_dump(tmp_path / "again").step(0).rank()
    for name in ("Functional.tanh.0.backward", "Functional.tanh.1.backward"):
        expected = [value.norm for _, value in plain.records[name].tensors("output")]
        found = [value.norm for _, value in again.records[name].tensors("output")]
        np.testing.assert_allclose(found, expected, rtol=1e-6)
