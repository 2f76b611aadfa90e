# SPDX-License-Identifier: Apache-2.0
"""All values of a rank as one polars table."""

from __future__ import annotations

import math
from pathlib import Path

import polars as pl

from builders.dumps import write_rank
from builders.records import forward, scalar, tensor
from msprobe.dump.rank_view import RankView


def test_each_value_is_a_row_in_order_of_execution(tmp_path: Path) -> None:
    x = tensor((2, 3), Max=2.0, Min=-1, Mean=0.5, Norm=3.0, value_id=7)
    y = tensor((2,), Max=math.nan, Min=math.nan, Mean=math.nan, Norm=math.nan, nan_count=2)
    records = {
        "Torch.mul.3.forward": forward([x, scalar("int", 2)], [y]),
        "Module.fc.Linear.forward.0": forward([x], [x]),
    }
    frame = RankView(write_rank(tmp_path / "rank0", records)).frame()
    assert (
        frame["record"].to_list()
        == ["Torch.mul.3.forward"] * 3 + ["Module.fc.Linear.forward.0"] * 2
    )
    assert frame["slot"].to_list() == ["input.0", "input.1", "output.0", "input.0", "output.0"]
    assert frame.row(0, named=True) | {"shape": None} == {
        "record": "Torch.mul.3.forward",
        "kind": "forward",
        "index": 3,
        "module": False,
        "slot": "input.0",
        "role": "input",
        "type": "torch.Tensor",
        "dtype": "float32",
        "shape": None,
        "max": 2.0,
        "min": -1.0,
        "mean": 0.5,
        "norm": 3.0,
        **dict.fromkeys(("nan_count", "pos_inf_count", "neg_inf_count", "md5", "data_name")),
        "value_id": 7,
    }
    assert frame["shape"].to_list()[:3] == [[2, 3], None, [2]]
    assert frame.filter(pl.col("nan_count") > 0)["slot"].to_list() == ["output.0"]
    assert math.isnan(frame["max"][2])
    assert frame["module"].to_list() == [False] * 3 + [True] * 2


def test_a_damaged_record_is_left_out_and_an_empty_dump_has_the_columns(tmp_path: Path) -> None:
    records = {
        "Torch.log.0.forward": {"output": [{"type": "t", "shape": "NaN"}]},
        "Torch.log.1.forward": forward([tensor((1,), Max=10**400)], []),
    }
    frame = RankView(write_rank(tmp_path / "rank0", records)).frame()
    assert set(frame["record"]) <= {"Torch.log.1.forward"}
    empty = RankView(write_rank(tmp_path / "rank1", {})).frame()
    assert empty.shape == (0, 19)
    assert empty.schema == frame.schema
