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
