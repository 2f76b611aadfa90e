# SPDX-License-Identifier: Apache-2.0
"""The task `grad_probe` in MindSpore's dynamic graph."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

import mindspore
from builders.csv_files import csv_rows
from mindspore import Tensor, nn, ops
from msprobe.capture.session import reset_session
from msprobe.errors import ConfigError, UsageError
from msprobe.mindspore import PrecisionDebugger


def probe(folder: Path) -> PrecisionDebugger:
    path = folder / "config.json"
    keys = {"task": "grad_probe", "dump_path": str(folder / "dump"), "grad_probe": {}}
    path.write_text(json.dumps(keys))
    return PrecisionDebugger(str(path))


@pytest.fixture(autouse=True)
def _dynamic_graph():
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    yield
    reset_session()


def test_gradients_of_an_optimizer_are_recorded(tmp_path):
    net = nn.Dense(3, 2)
    optimizer = nn.SGD(net.trainable_params(), learning_rate=0.1)
    debugger = probe(tmp_path)
    debugger.monitor(optimizer)
    gradient_of = mindspore.grad(lambda x: ops.sum(net(x) ** 2), None, net.trainable_params())
    seen = []
    for step in range(3):
        if step == 2:
            debugger.stop()
        gradients = gradient_of(Tensor(np.ones((4, 3), np.float32)))
        seen.append([one.asnumpy().copy() for one in gradients])
        optimizer(gradients)
    folder = tmp_path / "dump" / "rank0"
    names = ["grad_summary_0.csv", "grad_summary_1.csv", "step0", "step1"]
    assert sorted(one.name for one in folder.iterdir()) == names
    rows = csv_rows(folder / "grad_summary_1.csv")
    assert [row["param_name"] for row in rows] == [one.name for one in net.trainable_params()]
    assert [float(row["max"]) for row in rows] == [float(one.max()) for one in seen[1]]


def test_only_optimizers_are_watched(tmp_path):
    debugger = probe(tmp_path)
    with pytest.raises(ConfigError, match="an optimizer of mindspore"):
        debugger.monitor(nn.Dense(3, 2))


class Loss(nn.Cell):
    def __init__(self, net: nn.Cell) -> None:
        super().__init__()
        self.net = net

    def construct(self, x: Tensor) -> Tensor:
        return ops.sum(self.net(x) ** 2)


def test_gradients_in_graph_mode_are_those_of_the_dynamic_graph(tmp_path):
    found = {}
    for mode in (mindspore.PYNATIVE_MODE, mindspore.GRAPH_MODE):
        reset_session()
        mindspore.set_context(mode=mode)
        mindspore.set_seed(1)
        net = nn.SequentialCell(nn.Dense(3, 4), nn.ReLU(), nn.Dense(4, 2))
        for one in net.trainable_params():
            values = np.linspace(-1, 1, one.size, dtype=np.float32)
            one.set_data(Tensor(values.reshape(one.shape)))
        optimizer = nn.Adam(net.trainable_params(), learning_rate=0.1)
        folder = tmp_path / str(mode)
        folder.mkdir()
        debugger = probe(folder)
        debugger.monitor(optimizer)
        step = nn.TrainOneStepCell(Loss(net), optimizer)
        for number in range(4):
            if number == 3:
                debugger.stop()
            step(Tensor(np.full((4, 3), number + 1, np.float32)))
        rank = folder / "dump" / "rank0"
        names = [f"grad_summary_{number}.csv" for number in range(3)]
        assert sorted(one.name for one in rank.iterdir() if one.suffix) == names
        rows = [list(csv.DictReader((rank / name).read_text().splitlines())) for name in names]
        found[mode] = {(n, row["param_name"]): row for n, one in enumerate(rows) for row in one}
    dynamic, graph = found.values()
    assert dynamic.keys() == graph.keys()
    assert len(dynamic) == 3 * 4
    for key, row in dynamic.items():
        assert float(graph[key]["norm"]) == pytest.approx(float(row["norm"]), rel=1e-5)
        assert graph[key]["shape"] == row["shape"]


def test_a_compiled_optimizer_is_refused(tmp_path):
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    net = nn.Dense(3, 2)
    optimizer = nn.SGD(net.trainable_params(), learning_rate=0.1)
    nn.TrainOneStepCell(Loss(net), optimizer)(Tensor(np.ones((4, 3), np.float32)))
    with pytest.raises(UsageError, match=r"monitor\(\): .* compiled already"):
        probe(tmp_path).monitor(optimizer)
