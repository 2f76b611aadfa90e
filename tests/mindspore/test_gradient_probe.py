# SPDX-License-Identifier: Apache-2.0
"""The task `grad_probe` in MindSpore's dynamic graph."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

import mindspore
from mindspore import Tensor, nn, ops
from msprobe.capture.session import reset_session
from msprobe.errors import ConfigError
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
    with (folder / "grad_summary_1.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["param_name"] for row in rows] == [one.name for one in net.trainable_params()]
    assert [float(row["max"]) for row in rows] == [float(one.max()) for one in seen[1]]


def test_only_optimizers_are_watched(tmp_path):
    debugger = probe(tmp_path)
    with pytest.raises(ConfigError, match="an optimizer of mindspore"):
        debugger.monitor(nn.Dense(3, 2))
