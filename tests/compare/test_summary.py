# SPDX-License-Identifier: Apache-2.0
"""What ``summary.json`` says of a comparison."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from judging import compare

from builders.dumps import DumpBuilder, value

RNG = np.random.default_rng(4)
X = RNG.standard_normal((4, 6)).astype(np.float32)

KEYS = [
    "schema_version",
    "msprobe_version",
    "mode",
    "noise",
    "target",
    "reference",
    "verdict",
    "equal",
    "changed_steps",
    "counts",
    "origins",
    "rows",
    "operations",
    "first_difference",
    "introduced",
    "introduced_total",
    "culprit_groups",
    "unmatched",
    "comparisons",
    "next_steps",
    "notes",
    "elapsed_s",
    "bytes_read",
]


def write(folder: Path, scales: tuple[float, ...], **about: int) -> Path:
    """Write independent calls, each scaled by a number."""
    dump = DumpBuilder(folder, **about)  # type: ignore[arg-type]
    for number, scale in enumerate(scales):
        y = value(np.sin(X) * np.float32(scale), number + 1)
        dump.call(f"Torch.sin.{number}.forward", [value(X)], [y], line=number + 10)
    return dump.write()


def test_equal_dumps(tmp_path: Path) -> None:
    dump = write(tmp_path / "t", (1, 1))

    summary = compare(dump, dump).summary

    assert list(summary) == KEYS
    assert summary["schema_version"] == 1
    assert summary["equal"] is True
    assert summary["counts"]["equal"] == summary["rows"] == 4
    assert summary["first_difference"] is None
    assert summary["introduced"] == []
    assert summary["introduced_total"] == 0
    assert summary["next_steps"] == []
    json.loads(json.dumps(summary, allow_nan=False))


def test_culprits_stand_in_the_order_of_their_causes(tmp_path: Path) -> None:
    target, reference = write(tmp_path / "t", (1, 1.1, 2)), write(tmp_path / "r", (1, 1, 1))

    summary = compare(target, reference).summary

    assert [entry["name"] for entry in summary["introduced"]] == [
        "Torch.sin.1.forward",
        "Torch.sin.2.forward",
    ]
    entry = summary["introduced"][0]
    assert entry["row"] == "Torch.sin.1.forward.output.0"
    assert entry["kind"] == "forward"
    assert entry["status"] == "differs"
    assert entry["error"] == pytest.approx(0.1, rel=1e-3)
    assert entry["source"] == "train.py:11"
    assert entry["stack"] == ["File /home/me/train.py, line 11, in forward, \n y = f(x)"]
    assert (entry["step"], entry["rank"], entry["order"]) == (0, "rank", 1)
    assert summary["first_difference"]["name"] == entry["row"]
    assert any("train.py:11" in step for step in summary["next_steps"])
    assert any("msprobe show" in step for step in summary["next_steps"])


def test_a_negligible_culprit_comes_after_a_grave_one(tmp_path: Path) -> None:
    target, reference = write(tmp_path / "t", (1.00003, 2)), write(tmp_path / "r", (1, 1))

    summary = compare(target, reference).summary

    assert [entry["name"] for entry in summary["introduced"]] == [
        "Torch.sin.1.forward",
        "Torch.sin.0.forward",
    ]
    assert summary["first_difference"]["name"] == "Torch.sin.0.forward.output.0"


def test_only_a_hundred_culprits_are_listed(tmp_path: Path) -> None:
    target, reference = write(tmp_path / "t", (2,) * 130), write(tmp_path / "r", (1,) * 130)

    summary = compare(target, reference).summary

    assert len(summary["introduced"]) == 100
    assert summary["introduced_total"] == 130


def test_nonfinite_numbers_do_not_reach_the_json(tmp_path: Path) -> None:
    def result(side: str, number: float) -> Path:
        about = {"nan_count": 1} if np.isnan(number) else {}
        y = X.copy()
        y[0, 0] = number
        dump = DumpBuilder(tmp_path / side).call(
            "Torch.op.0.forward", [value(X)], [value(y, **about)]
        )
        return dump.write()

    summary = compare(result("t", np.nan), result("r", 0.0)).summary

    assert summary["first_difference"]["error"] is None
    json.loads(json.dumps(summary, allow_nan=False))


def test_steps_stand_beside_one_another_and_the_earlier_one_is_first(tmp_path: Path) -> None:
    for side, scale in (("t", 1.5), ("r", 1.0)):
        write(tmp_path / side, (1, 1))
        write(tmp_path / side, (1, scale), step=1)

    summary = compare(tmp_path / "t", tmp_path / "r").summary

    assert [part["step"] for part in summary["comparisons"]] == [0, 1]
    assert summary["comparisons"][0]["first_difference"] is None
    assert summary["first_difference"]["step"] == 1
    assert summary["rows"] == 8
    assert summary["counts"]["differs"] == sum(
        part["counts"]["differs"] for part in summary["comparisons"]
    )


def test_a_record_that_draws_random_numbers_asks_for_seeds(tmp_path: Path) -> None:
    dumps = []
    for side, scale in (("t", 2), ("r", 1)):
        dump = DumpBuilder(tmp_path / side)
        y = value(X * np.float32(scale), 1)
        dump.call("Functional.dropout.0.forward", [value(X), 0.5], [y], rng={"cpu": None})
        dumps.append(dump.write())

    summary = compare(*dumps).summary

    assert "random numbers" in summary["introduced"][0]["reason"]
    assert any("seed" in step for step in summary["next_steps"])


def test_unmatched_calls_are_counted_and_named(tmp_path: Path) -> None:
    target = DumpBuilder(tmp_path / "t")
    target.call("Torch.sin.0.forward", [value(X)], [value(np.sin(X), 1)])
    target.call("Torch.tan.0.forward", [value(np.sin(X), 1)], [value(np.tan(X), 2)])
    reference = DumpBuilder(tmp_path / "r")
    reference.call("Torch.sin.0.forward", [value(X)], [value(np.sin(X), 1)])

    summary = compare(target.write(), reference.write()).summary

    assert summary["unmatched"] == {
        "target": 1,
        "reference": 0,
        "operations": {"added": ["Torch.tan.0.forward"], "missing": []},
    }
    assert summary["equal"] is False


def test_dumps_without_a_common_value_are_not_equal(tmp_path: Path) -> None:
    summary = compare(write(tmp_path / "t", ()), write(tmp_path / "r", (1, 1))).summary

    assert summary["equal"] is False
    assert summary["verdict"]["class"] == "unexplained"
    assert "no value" in summary["verdict"]["sentence"]
