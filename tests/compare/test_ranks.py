# SPDX-License-Identifier: Apache-2.0
"""Which steps and ranks are compared with each other, and the worst rank of every value."""

from __future__ import annotations

import polars as pl
import pytest

import msprobe
from builders.csv_files import csv_rows
from builders.networks import write_dump
from msprobe.compare.ranks import pair_views, worst_ranks
from msprobe.errors import UsageError

FAULT = "Functional.linear.1.forward"


def paired(target, reference, **choices):
    pairing = pair_views(msprobe.open_dump(target), msprobe.open_dump(reference), **choices)
    found = [
        (pair.step, pair.rank, pair.reference.step, pair.reference.name) for pair in pairing.pairs
    ]
    return found, list(pairing.notes)


@pytest.fixture
def make(tmp_path):
    def write(name, steps=(0,), ranks=("rank0",)):
        return write_dump(tmp_path / name, steps=steps, ranks=ranks, layers=1)

    return write


def test_steps_and_ranks_pair_by_number(make):
    new = make("new", (0, 2), ("rank0", "rank1"))
    old = make("old", (0, 2), ("rank0", "rank1"))
    assert paired(new, old) == (
        [(0, 0, 0, "rank0"), (0, 1, 0, "rank1"), (2, 0, 2, "rank0"), (2, 1, 2, "rank1")],
        [],
    )


def test_what_only_one_side_has_is_noted(make):
    new = make("new", (0, 1, 2), ("rank0",))
    old = make("old", (1, 2, 5), ("rank0", "rank1"))
    found, notes = paired(new, old)
    assert [(step, rank) for step, rank, *_ in found] == [(1, 0), (2, 0)]
    assert "only in the target: step 0" in notes
    assert "only in the reference: step 5" in notes


def test_more_ranks_on_one_side(make):
    new, old = make("new", ranks=("rank0", "rank1", "rank2")), make("old", ranks=("rank0", "rank2"))
    found, notes = paired(new, old)
    assert [rank for _, rank, *_ in found] == [0, 2]
    assert notes == ["only in the target: rank 1"]


def test_single_ones_pair_whatever_their_number(make):
    new, old = make("new", (7,), ("rank3",)), make("old", (0,), ("rank",))
    assert paired(new, old) == (
        [(7, 3, 0, "rank")],
        ["step 7 was compared with step 0 of the reference"],
    )
    assert paired(new / "step7/rank3/dump.json", old / "step0/rank") == paired(new, old)


def test_a_process_without_a_rank_pairs_with_another(make):
    found, notes = paired(make("new", ranks=("proc11",)), make("old", ranks=("proc12",)))
    assert (found, notes) == ([(0, "proc11", 0, "proc12")], [])


def test_several_processes_without_ranks_pair_in_order(make):
    new, old = make("new", ranks=("proc11", "proc12")), make("old", ranks=("proc5", "proc6"))
    found, notes = paired(new, old)
    assert [(rank, name) for _, rank, _, name in found] == [
        ("proc11", "proc5"),
        ("proc12", "proc6"),
    ]
    assert "order of their names" in notes[0]


def test_choice_of_steps_and_ranks(make):
    new = make("new", (0, 1, 2), ("rank0", "rank1", "rank2"))
    found, _ = paired(new, new, steps=[1, 2], ranks=[2])
    assert [(step, rank) for step, rank, *_ in found] == [(1, 2), (2, 2)]


@pytest.mark.parametrize(
    ("choices", "text"),
    [
        ({"steps": [9]}, "holds none of the steps 9; it has 0"),
        ({"ranks": [4]}, "ranks 4; it has 0"),
    ],
)
def test_choosing_what_is_not_there_is_an_error(make, choices, text):
    with pytest.raises(UsageError, match=text):
        paired(make("new"), make("old"), **choices)


def test_nothing_in_common_is_an_error_that_names_both(make):
    new, old = make("new", (0, 1)), make("old", (2, 3))
    with pytest.raises(UsageError) as refusal:
        paired(new, old)
    assert str(new) in str(refusal.value)
    assert str(old) in str(refusal.value)
    assert "0, 1" in str(refusal.value)
    assert "2, 3" in str(refusal.value)


def frame_of(*rows):
    """Return a table of (step, rank, order, name, status, error)."""
    columns = ["step", "rank", "order", "name", "status", "error"]
    frame = pl.DataFrame(rows, schema=columns, orient="row")
    return frame.with_columns(module=pl.lit("m"), origin=pl.lit(None, pl.String), reason=pl.lit(""))


def test_worst_rank_by_status_then_error():
    frame = frame_of(
        (0, "0", 0, "a", "equal", 0.0),
        (0, "0", 1, "b", "differs", 0.5),
        (0, "1", 0, "a", "close", 1e-7),
        (0, "1", 1, "b", "differs", 0.7),
        (0, "2", 0, "a", "equal", None),
        (0, "2", 1, "b", "nonfinite", None),
        (1, "0", 1, "b", "close", float("nan")),
        (1, "1", 1, "b", "close", 0.1),
    )
    worst = worst_ranks(frame).select("step", "name", "ranks", "differing", "worst_rank", "status")
    assert worst.rows() == [
        (0, "a", 3, 0, "1", "close"),
        (0, "b", 3, 3, "2", "nonfinite"),
        (1, "b", 2, 0, "1", "close"),
    ]


def test_files_of_several_ranks_and_steps(tmp_path):
    for side in ("new", "old"):
        for step in (0, 1):
            for rank in (0, 1):
                scale = 1.5 if side == "new" and (step, rank) == (1, 1) else 1.0
                write_dump(tmp_path / side, steps=[step], ranks=[f"rank{rank}"], scale=scale)
    out = tmp_path / "out"
    result = msprobe.compare_dumps(tmp_path / "new", tmp_path / "old", output=out, table="csv")
    names = {path.relative_to(out).as_posix().rpartition("_")[0] for path in out.rglob("*.csv")}
    assert names == {
        "worst_ranks",
        *(f"step{s}/compare_result_rank{r}" for s in (0, 1) for r in (0, 1)),
    }
    first = result.summary["first_difference"]
    assert (first["name"], first["step"], first["rank"]) == (f"{FAULT}.output.0", 1, 1)
    rows = [
        row
        for row in csv_rows(next(out.glob("worst_ranks_*.csv")))
        if row["name"] == f"{FAULT}.output.0"
    ]
    assert [(row["step"], row["worst_rank"], row["status"]) for row in rows] == [
        ("0", "0", "equal"),
        ("1", "1", "differs"),
    ]
    assert {row["differing"] for row in rows} == {"0", "1"}


def test_steps_of_one_rank_have_no_worst_rank(tmp_path):
    for side in ("new", "old"):
        for step in (0, 1):
            write_dump(tmp_path / side, steps=[step], ranks=["rank0"])
    out = tmp_path / "out"
    msprobe.compare_dumps(tmp_path / "new", tmp_path / "old", output=out, table="csv")
    assert {path.relative_to(out).parts[0] for path in out.rglob("*.csv")} == {"step0", "step1"}


def test_files_of_several_ranks_of_one_step_have_no_folder(tmp_path):
    for side in ("new", "old"):
        write_dump(tmp_path / side, ranks=("rank0", "rank1"), layers=1)
    msprobe.compare_dumps(tmp_path / "new/step0", tmp_path / "old/step0", output=tmp_path / "out")
    names = {path.name.rpartition("_")[0] for path in (tmp_path / "out").glob("*.xlsx")}
    assert names == {"compare_result_rank0", "compare_result_rank1"}
