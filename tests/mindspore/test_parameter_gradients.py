# SPDX-License-Identifier: Apache-2.0
"""Under which cell the gradient of a parameter is recorded when several cells hold it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from nets import random

import mindspore as ms
from mindspore import Tensor, nn
from msprobe import open_dump
from msprobe.mindspore import PrecisionDebugger

INPUT = random(3, 4)


class Tied(nn.Cell):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Dense(4, 4), nn.Dense(4, 4)
        self.second.weight = self.first.weight

    def construct(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


@pytest.mark.parametrize(("names", "owner"), [([], "first"), (["Cell.second."], "second")])
def test_a_shared_weight_is_recorded_once_under_the_first_cell_that_is_wanted(
    names: list[str], owner: str, tmp_path: Path
) -> None:
    file = tmp_path / "config.json"
    settings = {"dump_path": str(tmp_path / "dump"), "level": "L0", "statistics": {"list": names}}
    file.write_text(json.dumps(settings))
    debugger = PrecisionDebugger(config_path=file)
    net = Tied()
    debugger.start(net)
    run = ms.value_and_grad(lambda x: net(x).sum(), None, net.trainable_params())
    _, gradients = run(Tensor(INPUT))
    debugger.stop()
    debugger.step()

    view = open_dump(tmp_path / "dump").step(0).rank()
    found = {
        (name.split(".")[1], part): value
        for name in view.records
        if "parameters_grad" in name
        for part in view.records[name].parts
        for _, value in view.records[name].tensors(part)
    }
    assert [cell for cell, part in found if part == "weight"] == [owner]
    assert ("second", "bias") in found
    by_name = dict(zip([p.name for p in net.trainable_params()], gradients, strict=True))
    wanted = by_name[net.first.weight.name].asnumpy()
    assert found[owner, "weight"].norm == pytest.approx(float(np.linalg.norm(wanted)), rel=1e-6)


def norms_of_weights(folder: Path, step: int) -> dict[str, float]:
    """Return the norms of the recorded gradients of the first cell's weight, by record."""
    view = open_dump(folder).step(step).rank()
    return {
        name: value.norm
        for name, record in view.records.items()
        if name.startswith("Cell.0.Dense.parameters_grad")
        for _, value in record.tensors("weight")
    }


def test_only_passes_over_recorded_calls_count(tmp_path: Path) -> None:
    net = nn.SequentialCell(nn.Dense(4, 4), nn.ReLU(), nn.Dense(4, 2))
    run = ms.value_and_grad(lambda x: (net(x) ** 2).sum(), None, net.trainable_params())
    small, large = Tensor(INPUT), Tensor(INPUT * 100.0)
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0")
    wanted = []
    for _ in range(2):
        run(large)
        debugger.start(net)
        _, gradients = run(small)
        debugger.stop()
        run(large)
        debugger.start(net)
        run(small)
        debugger.stop()
        debugger.step()
        wanted.append(float(np.linalg.norm(gradients[0].asnumpy())))
    for step, norm in enumerate(wanted):
        found = norms_of_weights(tmp_path, step)
        assert list(found) == ["Cell.0.Dense.parameters_grad", "Cell.0.Dense.parameters_grad.1"]
        assert list(found.values()) == pytest.approx([norm, norm], rel=1e-5)


def test_a_pass_after_stop_counts_until_the_step_ends(tmp_path: Path) -> None:
    net = nn.SequentialCell(nn.Dense(4, 4), nn.ReLU(), nn.Dense(4, 2))
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0")

    def recorded(x: Tensor) -> Tensor:
        debugger.start(net)
        result = net(x)
        debugger.stop()
        return result.sum()

    def ended(x: Tensor) -> Tensor:
        result = recorded(x)
        debugger.step()
        return result

    for function in (recorded, ended):
        ms.value_and_grad(function, None, net.trainable_params())(Tensor(INPUT))
    debugger.start(net)  # the pass over the call of the step before has come and gone
    net(Tensor(INPUT))
    debugger.stop()
    debugger.step()
    assert list(norms_of_weights(tmp_path, 0)) == ["Cell.0.Dense.parameters_grad"]
    assert not norms_of_weights(tmp_path, 1)
