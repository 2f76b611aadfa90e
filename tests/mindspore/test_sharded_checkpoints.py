# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of ranks are joined as MindSpore itself joins them."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import numpy as np
import pytest

mindspore = pytest.importorskip("mindspore")

from mindspore.train.node_strategy_pb2 import ParallelStrategyMap  # noqa: E402

from msprobe.checkpoints.comparing import compare_checkpoints  # noqa: E402

pytestmark = pytest.mark.mindspore

GRID = (2, 4)
# For each dimension the axis of the grid that cuts it, counted from the last one; -1 for none.
AXES = {"fc1.weight": (-1, 0), "fc2.weight": (1, 0), "fc2.bias": (1,), "norm.gamma": (-1,)}
SHAPES = {"fc1.weight": (8, 16), "fc2.weight": (16, 8), "fc2.bias": (8,), "norm.gamma": (8,)}


def part(value: np.ndarray, axes: tuple[int, ...], rank: int) -> np.ndarray:
    places = np.unravel_index(rank, GRID)
    for dimension, axis in enumerate(axes):
        if axis >= 0:
            parts = np.split(value, GRID[-1 - axis], axis=dimension)
            value = parts[int(places[-1 - axis])]
    return np.ascontiguousarray(value)


def save(values: dict[str, np.ndarray], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    entries = [{"name": name, "data": mindspore.Tensor(each)} for name, each in values.items()]
    mindspore.save_checkpoint(entries, str(path))


def write_ranks(folder: Path, values: dict[str, np.ndarray]) -> None:
    for rank in range(math.prod(GRID)):
        parts = {name: part(each, AXES[name], rank) for name, each in values.items()}
        save(parts, folder / f"rank_{rank}" / "net-1_10.ckpt")


def write_strategy(path: Path) -> None:
    strategy = ParallelStrategyMap(current_stage=0)
    for name, axes in AXES.items():
        item = strategy.parallel_layout_item.add()
        item.param_name = name
        layouts = item.parallel_layouts
        layouts.dev_matrix.add().dim.extend(GRID)
        layouts.tensor_map.add().dim.extend(axes)
        layouts.param_split_shape.add()
        layouts.indices_offset.add()
        layouts.field = layouts.opt_weight_shard_step = layouts.opt_weight_shard_size = 0
    path.parent.mkdir(parents=True)
    path.write_bytes(strategy.SerializeToString())


def test_ranks_are_joined_as_mindspore_joins_them(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values = {name: rng.standard_normal(shape, np.float32) for name, shape in SHAPES.items()}
    ranks, strategy = tmp_path / "ranks", tmp_path / "ranks" / "strategy" / "strategy.ckpt"
    write_ranks(ranks, values)
    plain = shutil.copytree(ranks, tmp_path / "plain")  # MindSpore wants the ranks alone
    write_strategy(strategy)
    mindspore.transform_checkpoints(str(plain), str(tmp_path / "w"), "net", str(strategy), None)
    (whole,) = (tmp_path / "w").rglob("*.ckpt")
    assert compare_checkpoints(ranks, whole).is_equal
    values["fc2.weight"][15, 7] += 1
    write_ranks(ranks, values)
    assert compare_checkpoints(ranks, whole).ranked() == [("changed", "fc2.weight")]
    values["norm.gamma"][0] = 9
    save(
        {name: part(each, AXES[name], 5) for name, each in values.items()},
        ranks / "rank_5" / "net-1_10.ckpt",
    )
    found = compare_checkpoints(ranks, whole)
    assert found.ranked()[0] == ("contradiction", "norm.gamma"), found.ranked()
