# SPDX-License-Identifier: Apache-2.0
"""Histograms and error maps of the tensors that a report shows."""

from __future__ import annotations

import json
import re
from functools import partial

import numpy as np

import msprobe
from builders.networks import write_dump
from msprobe.compare.tensors.pictures import MOST_ELEMENTS, MOST_PICTURES, picture_of

# No call is computed again, which takes a process.
compare_dumps = partial(msprobe.compare_dumps, verify=False)


def sections(folder) -> dict:
    (page,) = folder.glob("compare_report_*.html")
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text())
    return json.loads(found[1])


def compared(tmp_path, task="tensor", **choices) -> dict:
    new = write_dump(tmp_path / "new", task, scale=1.5, **choices)
    old = write_dump(tmp_path / "old", task, **choices)
    compare_dumps(new, old, output=tmp_path / "out", html=True)
    return sections(tmp_path / "out")


def test_the_culprit_has_a_picture(tmp_path):
    data = compared(tmp_path)
    picture = data["pictures"][0]
    culprit = data["summary"]["introduced"][0]
    assert picture["id"] == f"{culprit['step']}/{culprit['rank']}/{culprit['order']}"
    assert picture["slot"] == "output.0"
    assert sum(picture["histogram"]["target"]) == 32
    shades = picture["map"]["shades"]
    assert [len(line) for line in shades] == [8] * 4
    assert "n" in "".join(shades)


def test_without_tensors_there_are_none(tmp_path):
    assert "pictures" not in compared(tmp_path, "statistics")


def test_their_number_is_bounded(tmp_path):
    data = compared(tmp_path, layers=40, steps=(0, 1))
    assert len(data["pictures"]) == MOST_PICTURES


def test_a_damaged_file_costs_its_picture_only(tmp_path):
    new = write_dump(tmp_path / "new", "tensor", scale=1.5)
    old = write_dump(tmp_path / "old", "tensor")
    result = compare_dumps(new, old)
    (new / "step0/rank0/dump_tensor_data/Functional.linear.1.forward.output.0.npy").unlink()
    result.write(tmp_path / "out", html=True)
    shown = {each["id"] for each in sections(tmp_path / "out")["pictures"]}
    assert shown == {"0/0/3", "0/0/4", "0/0/5", "0/0/6"}


def test_rotated_tensors_have_none(tmp_path):
    for side in ("new", "old"):
        write_dump(tmp_path / side, "tensor", scale=1.5 if side == "new" else 1.0)
    np.save(tmp_path / "double.npy", np.eye(8, dtype=np.float32) * 2)
    matrices = tmp_path / "matrices.yaml"
    matrices.write_text(
        "right_matmul:\n  target_tensor_map:\n"
        "    double.npy: [Functional.linear.0.forward.output.0.npy]\n"
    )
    compare_dumps(
        tmp_path / "new",
        tmp_path / "old",
        output=tmp_path / "out",
        html=True,
        processing=matrices,
    )
    assert "pictures" not in sections(tmp_path / "out")


def test_a_map_shows_where_errors_are():
    reference = np.zeros((3, 4), np.float32)
    target = reference.copy()
    target[0, 1], target[1, 2], target[2, 3] = 1.0, 0.09, np.nan
    found = picture_of(target, reference)["map"]
    assert (found["rows"], found["columns"], found["largest"]) == (3, 4, 1.0)
    assert found["shades"] == [".n..", "..j.", "...!"]


def test_large_arrays_are_folded_into_blocks():
    reference = np.zeros((2, 50, 100), np.float16)
    target = reference.copy()
    target[1, 49, 99] = 2.0
    found = picture_of(target, reference)["map"]
    assert (found["rows"], found["columns"]) == (100, 100)
    assert (len(found["shades"]), len(found["shades"][0])) == (32, 48)
    assert found["shades"][-1][-1] == "n"
    assert "".join(found["shades"]).count(".") == 32 * 48 - 1
    assert len(json.dumps(picture_of(target, reference))) < 4_000


def test_a_histogram_counts_finite_values_of_both_sides():
    target = np.array([0.0, 1.0, 1.0, np.inf])
    found = picture_of(target, np.array([0.0, 4.0, np.nan, 2.0]))["histogram"]
    assert (found["low"], found["high"]) == (0.0, 4.0)
    assert (sum(found["target"]), sum(found["reference"])) == (3, 3)
    assert found["target"][0] == found["reference"][0] == 1
    assert found["reference"][-1] == 1


def test_extremes():
    tiny, huge = np.finfo(np.float32).smallest_subnormal, np.finfo(np.float64).max
    assert picture_of(np.array([huge]), np.array([-huge]))["histogram"] is None
    assert picture_of(np.array([huge]), np.array([-huge]))["map"]["shades"] == ["!"]
    found = picture_of(np.array([tiny, 1.0], np.float32), np.array([0.0, 0.0], np.float32))
    assert found["map"]["shades"] == ["0n"]
    assert picture_of(np.array(3), np.array(3))["map"]["shades"] == ["."]
    assert picture_of(np.array([True]), np.array([False]))["map"]["largest"] == 1.0


def test_what_has_no_picture():
    assert picture_of(np.zeros(3), np.zeros(4)) is None
    assert picture_of(np.zeros(0), np.zeros(0)) is None
    assert picture_of(np.zeros(3, np.complex64), np.zeros(3, np.complex64)) is None
    large = np.lib.stride_tricks.as_strided(np.zeros(1), (MOST_ELEMENTS + 1,), (0,))
    assert picture_of(large, large) is None
