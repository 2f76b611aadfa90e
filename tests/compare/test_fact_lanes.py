# SPDX-License-Identifier: Apache-2.0
"""Data and optimizer steps of both sides in the report."""

from __future__ import annotations

import json
import math
import re

import pytest

import msprobe
from builders.networks import write_dump
from msprobe.compare.fact_lanes import MOST_FACTS
from msprobe.dump.facts import (
    Clip,
    Data,
    Ended,
    Ending,
    Fingerprints,
    OptimizedParameters,
    OptimizerGroup,
    OptimizerStep,
    Scaler,
    Schedule,
)
from msprobe.dump.writer import DumpHead, DumpWriter

HEAD = DumpHead("statistics", "mix", "pytorch")


def batch(checksum: str, micro: int = 0, where: str = "input.0.ids") -> Data:
    return Data(
        micro=micro, record=None, where=where, shape=[4, 8], dtype="torch.int64",
        checksum=checksum, max=9, min=0, index=3,
    )  # fmt: skip


def adamw(beta2: float, after: str = "aa") -> OptimizerStep:
    return OptimizerStep(
        class_name="torch.optim.adamw.AdamW",
        number=0,
        call=0,
        groups=[OptimizerGroup(options={"lr": 1e-3, "betas": [0.9, beta2]}, parameters=[0])],
        parameters=OptimizedParameters(
            name=["fc.weight"],
            has_gradient=[True],
            gradient=Fingerprints(checksum=["bb"], norm=[2.0]),
            after=Fingerprints(checksum=[after], norm=[math.nan]),
        ),
    )


def write(path, *facts, steps=(0,)):
    writer = DumpWriter()
    for step in steps:
        dump = writer.open(path / f"step{step}" / "rank0", HEAD)
        dump.put_record("Functional.relu.0.forward", 0, {"output": [{"type": "int", "value": 1}]})
        for part, value in facts:
            dump.put_fact(part, value)
        dump.put_fact("ended", Ended(how=Ending.WHOLE))
        dump.close()
    writer.close()
    return path


def lanes(tmp_path, target, reference) -> list[dict]:
    msprobe.compare_dumps(target, reference, output=tmp_path / "out", html=True)
    (page,) = (tmp_path / "out").glob("compare_report_*.html")
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text())
    return json.loads(found[1]).get("lanes", [])


def test_both_sides_of_data_and_events(tmp_path):
    clip = Clip(function="clip_grad_norm_", max=1.0, norm_type=2.0, total_norm=3.2, parameters=1)
    target = write(
        tmp_path / "new", ("data", batch("01")), ("data", batch("02", 1)), ("events", clip),
        ("events", adamw(0.99, "cc")),
    )  # fmt: skip
    reference = write(
        tmp_path / "old", ("data", batch("01")), ("data", batch("03", 1)), ("events", clip),
        ("events", adamw(0.999)),
    )  # fmt: skip
    (lane,) = lanes(tmp_path, target, reference)
    assert (lane["step"], lane["rank"]) == (0, "0")
    assert [(each["name"], each["same"]) for each in lane["data"]] == [
        ("micro batch 0", True),
        ("micro batch 1", False),
    ]
    ((where, new, old),) = lane["data"][1]["facts"]
    assert where == "input.0.ids"
    assert new == "int64[4, 8], checksum 02, max 9, min 0, batch 3 of the loader"
    assert old.startswith("int64[4, 8], checksum 03")
    assert [(each["name"], each["same"]) for each in lane["events"]] == [
        ("clip_grad_norm_", True),
        ("AdamW step", False),
    ]
    facts = lane["events"][1]["facts"]
    assert facts[:2] == [
        ["betas", "(0.9, 0.99)", "(0.9, 0.999)"],
        ["parameter after of fc.weight", "norm nan, checksum cc", "norm nan, checksum aa"],
    ]
    assert ["gradient of fc.weight", "norm 2, checksum bb", "norm 2, checksum bb"] in facts


def test_what_one_side_lacks(tmp_path):
    schedule = Schedule(class_name="torch.optim.lr_scheduler.StepLR", last_epoch=1, lr=[0.1])
    scaler = Scaler(scale=65536.0, skipped=False, new_scale=65536.0)
    target = write(tmp_path / "new", ("events", schedule), ("events", scaler))
    reference = write(tmp_path / "old", ("events", scaler), ("data", batch("01")))
    (lane,) = lanes(tmp_path, target, reference)
    assert [(each["name"], each["same"]) for each in lane["events"]] == [
        ("StepLR", False),
        ("gradient scaler", True),
    ]
    assert ["lr", "(0.1)", None] in lane["events"][0]["facts"]
    assert lane["data"][0]["facts"][0][1] is None


@pytest.mark.parametrize("damaged", [False, True])
def test_without_facts_there_are_no_lanes(tmp_path, damaged):
    target = write(tmp_path / "new", ("data", batch("01")))
    reference = write_dump(tmp_path / "old")
    if damaged:
        reference = write(tmp_path / "other", ("data", batch("01")))
        (reference / "step0" / "rank0" / "facts.json").write_text('{"version": ')
    assert lanes(tmp_path, target, reference) == []


def test_their_number_is_bounded(tmp_path):
    tensors = [
        ("data", batch("01", micro, f"input.{place}")) for micro in range(40) for place in range(50)
    ]
    steps = range(MOST_FACTS // (32 * 40) + 2)
    sides = [write(tmp_path / side, *tensors, steps=steps) for side in ("new", "old")]
    found = lanes(tmp_path, *sides)
    assert [lane["step"] for lane in found] == [*steps][:-2]
    assert all(len(lane["data"]) == 32 for lane in found)
    assert all(len(entry["facts"]) == 40 for lane in found for entry in lane["data"])
