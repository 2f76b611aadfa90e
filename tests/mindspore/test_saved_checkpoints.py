# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that MindSpore itself wrote."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mindspore as ms
from msprobe.checkpoints.comparing import compare_checkpoints
from msprobe.checkpoints.opening import open_checkpoint

VALUES = {
    "a.weight": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4),
    "half": np.linspace(0, 9, 5, dtype=np.float16),
    "scalar": np.float32(2.5),
    "one": np.array([7.0], np.float32),
    "ids": np.arange(6, dtype=np.int64).reshape(2, 3),
    "mask": np.array([True, False]),
}


def parameters() -> list[dict]:
    return [{"name": name, "data": ms.Tensor(value)} for name, value in VALUES.items()]


@pytest.mark.parametrize("options", [{}, {"crc_check": True}], ids=str)
def test_a_file_gives_back_what_was_saved(tmp_path: Path, options: dict) -> None:
    path = tmp_path / "x.ckpt"
    bfloat16 = ms.Tensor(VALUES["a.weight"]).astype(ms.bfloat16)
    ms.save_checkpoint([*parameters(), {"name": "bf", "data": bfloat16}], str(path), **options)
    found = open_checkpoint(path).parameters
    assert found.keys() == VALUES.keys() | {"bf"}
    for name, value in VALUES.items():
        assert found[name].dtype == value.dtype.name
        assert found[name].shape == value.shape
        assert np.array_equal(found[name].array(), value)
    assert found["bf"].dtype == "bfloat16"
    widened = found["bf"].array().astype(np.uint32) << 16
    assert np.allclose(widened.view(np.float32), VALUES["a.weight"], rtol=2**-8)


def test_both_of_its_formats_are_equal(tmp_path: Path) -> None:
    ms.save_checkpoint(parameters(), str(tmp_path / "x.ckpt"))
    ms.save_checkpoint(parameters(), str(tmp_path / "x.safetensors"), format="safetensors")
    found = compare_checkpoints(tmp_path / "x.ckpt", tmp_path / "x.safetensors")
    assert found.is_equal
    assert len(found.differences) == len(VALUES)


def test_values_beside_the_parameters_are_compared(tmp_path: Path) -> None:
    for name, note in (("a", "first"), ("b", "second")):
        extra = {"epoch_num": 3, "lr": 0.1, "note": note}
        ms.save_checkpoint(parameters(), str(tmp_path / f"{name}.ckpt"), append_dict=extra)
    found = compare_checkpoints(tmp_path / "a.ckpt", tmp_path / "b.ckpt")
    assert [name for _, name in found.ranked()] == ["note"]
    assert compare_checkpoints(tmp_path / "a.ckpt", tmp_path / "a.ckpt").is_equal


def test_ranks_are_joined_as_the_strategy_says(tmp_path: Path) -> None:
    from mindspore.train.node_strategy_pb2 import ParallelStrategyMap

    whole = np.arange(24, dtype=np.float32).reshape(4, 6)
    for rank in range(4):
        (tmp_path / "m" / f"rank_{rank}").mkdir(parents=True)
        part = np.split(np.split(whole, 2)[rank // 2], 2, axis=1)[rank % 2]
        entries = [
            {"name": "w", "data": ms.Tensor(np.ascontiguousarray(part))},
            {"name": "b", "data": ms.Tensor(whole[0])},
        ]
        ms.save_checkpoint(entries, str(tmp_path / "m" / f"rank_{rank}" / "net.ckpt"))
    strategy = ParallelStrategyMap(current_stage=0)
    for name, axes in (("w", [1, 0]), ("b", [-1])):
        item = strategy.parallel_layout_item.add()
        item.param_name = name
        layouts = item.parallel_layouts
        layouts.dev_matrix.add().dim.extend([2, 2])
        layouts.tensor_map.add().dim.extend(axes)
        layouts.field = layouts.opt_weight_shard_step = layouts.opt_weight_shard_size = 0
    (tmp_path / "m" / "strategy.ckpt").write_bytes(strategy.SerializePartialToString())
    entries = [{"name": "w", "data": ms.Tensor(whole)}, {"name": "b", "data": ms.Tensor(whole[0])}]
    ms.save_checkpoint(entries, str(tmp_path / "whole.ckpt"))
    found = compare_checkpoints(tmp_path / "m", tmp_path / "whole.ckpt")
    assert found.is_equal
    assert len(found.differences) == 2
