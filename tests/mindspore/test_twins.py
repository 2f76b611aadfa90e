# SPDX-License-Identifier: Apache-2.0
"""A MindSpore net and its PyTorch twin with the same weights: their records pair up and agree.

The twin was recorded by ``data/make_torch_twin.py``, in an environment with PyTorch.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mindspore as ms
import msprobe
from mindspore import Tensor, nn, ops
from msprobe.mindspore import PrecisionDebugger

TWIN = Path(__file__).parent / "data" / "torch_twin"


def values(seed: int, *shape: int) -> Tensor:
    return Tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


class TwinNet(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Dense(4, 8), nn.LayerNorm((8,)), nn.Dense(8, 2)

    def construct(self, x: Tensor) -> Tensor:
        x = ops.gelu(self.first(x), approximate="tanh")
        return self.last(self.norm(x) * 2.0)


def record(folder: Path, factor: float) -> None:
    net = TwinNet()
    for seed, (layer, shape) in enumerate([(net.first, (8, 4)), (net.last, (2, 8))]):
        layer.weight.set_data(values(seed, *shape) * factor)
        layer.bias.set_data(values(seed + 10, shape[0]))
    net.norm.gamma.set_data(values(20, 8))
    net.norm.beta.set_data(values(21, 8))
    net.norm.epsilon = 1e-5
    both = ms.value_and_grad(lambda x: (net(x) ** 2).mean(), None, net.trainable_params())
    debugger = PrecisionDebugger(dump_path=folder, level="mix")
    debugger.start(net)
    both(values(30, 3, 4))
    debugger.stop()
    debugger.step()


@pytest.mark.parametrize("factor", [1.0, 1.5])
def test_records_of_twins_pair_up_and_agree(factor: float, tmp_path: Path) -> None:
    record(tmp_path, factor)
    result = msprobe.compare_dumps(tmp_path, TWIN)
    rows = result.frame.filter(result.frame["target_name"].is_not_null())
    modules = {
        row["operation"]: row["reference_name"]
        for row in rows.iter_rows(named=True)
        if row["operation"].startswith("Cell.")
    }
    assert set(modules) >= {f"Cell.{name}.forward.0" for name in ("first.Dense", "last.Dense")}
    assert all(modules.values()), modules
    assert str(modules["Cell.first.Dense.forward.0"]).startswith("Module.first.Linear.forward.0")
    weights = rows.filter(rows["slot"] == "parameters.weight")
    assert set(weights["status"]) == ({"equal"} if factor == 1.0 else {"differs"})
    outputs = rows.filter((rows["role"] == "output") & rows["reference_name"].is_not_null())
    forward = outputs.filter(outputs["kind"] == "forward")
    if factor == 1.0:
        assert set(forward["status"]) <= {"equal", "close"}, forward
        assert result.summary["introduced"] == []
    else:
        assert result.summary["introduced"][0]["kind"] == "parameter"
        assert result.summary["introduced"][0]["module"] == "first"
