# SPDX-License-Identifier: Apache-2.0
"""Our tables in mindstudio-probe's form against those that it made of the same dumps."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import pytest
from judging import judged

from builders.csv_files import csv_rows
from builders.peer_pairs import (
    SPECIAL_ELEMENTS,
    write_pair,
    write_special_pair,
    write_special_tensors,
)
from msprobe.compare.legacy.columns import OWN, Generation, legacy_columns
from msprobe.compare.legacy.tables import legacy_table
from msprobe.compare.model import Mode, Status
from msprobe.report.table_files import write_table
from msprobe.report.tables import Colour

DATA = Path(__file__).parent / "data"
TASKS = ("statistics", "md5", "tensor")
GENERATIONS = tuple(Generation)
VERDICTS = ("Result", "Accuracy Reached or Not")

# Rows that mindstudio-probe takes apart, or whose values it does not show. See "Where our tables
# differ" in docs/reference/compare-columns.md.
MATCHED_BY_US = {"Torch.mul.0.forward.output.0"}
MATCHED_BY_US_OLD = {"Tensor.reshape.0.forward.output.0", "Torch.mean.0.forward.output.1.0"}
SHOWN_BY_US = {"Torch.full.0.forward.input.memory_format"}
OPPOSITE_INFINITIES = {"Torch.sub.0.forward.output.0"}
# Equal up to a dimension of size 1, another float type, the device's own name.
NO_FINDING = {
    "Torch.mean.0.forward.output.1.0",
    "Torch.mul.0.forward.input.0",
    "Torch.full.0.forward.input.device",
}


@pytest.fixture(scope="module", params=[(g, t) for g in GENERATIONS for t in TASKS], ids=str)
def both(request, tmp_path_factory):
    """Return generation, task, their rows and our rows by title, and our comparison."""
    generation, task = request.param
    comparison = judged(*write_pair(tmp_path_factory.mktemp("pair"), task))
    path = tmp_path_factory.mktemp("out") / "table.csv"
    write_table(legacy_table(comparison, generation), path, "csv")
    return generation, task, read(peer_file(generation, task)), read(path), comparison


def peer_file(generation: str, task: str) -> Path:
    return DATA / f"mindstudio_{generation}_{task}.csv"


@cache
def read(path: Path) -> list[dict[str, str]]:
    return csv_rows(path)


def test_columns_are_theirs_and_ours_follow(both):
    _, _, theirs, ours, _ = both
    titles = list(theirs[0])
    assert list(ours[0]) == [*titles, *OWN]


def test_rows_are_theirs_in_their_order_and_the_references_own_follow(both):
    _, _, theirs, ours, _ = both
    names = [row["NPU Name"] for row in theirs]
    assert [row["NPU Name"] for row in ours[: len(theirs)]] == names
    assert [row["Bench Name"] for row in ours[len(theirs) :]] == [
        "Torch.log.0.forward.input.0",
        "Torch.log.0.forward.output.0",
    ]
    assert {row["NPU Name"] for row in ours[len(theirs) :]} == {"N/A"}


def test_every_cell_is_theirs_but_where_the_reference_page_says_so(both):
    generation, task, theirs, ours, _ = both
    for their, our in zip(theirs, ours, strict=False):
        for title, cell in their.items():
            if title == "Err_message" or title in VERDICTS:
                continue
            if not is_deliberate(generation, task, their["NPU Name"], title):
                assert is_same(cell, our[title]), (their["NPU Name"], title, cell, our[title])


def is_deliberate(generation: str, task: str, name: str, title: str) -> bool:
    is_old = generation is Generation.V8_3_3
    if name in MATCHED_BY_US | SHOWN_BY_US or (is_old and name in MATCHED_BY_US_OLD):
        return True
    if task != "tensor":
        return False
    if name in OPPOSITE_INFINITIES:
        return title in legacy_columns(Mode.TENSOR, generation, has_stack=True)[8:14]
    # The older release shifts zeros by a smaller number, and widens half types less.
    relative = ("MaxRelativeErr", "One Thousandth Err Ratio", "Five Thousandths Err Ratio")
    return is_old and title in relative and shifted_differently(name)


def shifted_differently(name: str) -> bool:
    return name in {
        "Torch.add.0.forward.output.0",
        "Torch.mul.0.forward.input.0",
        "Torch.ne.0.forward.output.2",
    }


def is_same(theirs: str, ours: str) -> bool:
    if theirs.strip() == ours.strip():
        return True
    one, other = as_number(theirs), as_number(ours)
    # Spreadsheets hold 15 digits; 8.3.3 computes with what it has read from one.
    return isinstance(one, float) and isinstance(other, float) and math.isclose(one, other)


def as_number(text: str) -> float | str:
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        return text


BAD = ("error", "warning", "No", "Warning", "Different", "Unmatched")


def test_no_row_that_differs_is_called_good(both):
    _, _, _, ours, _ = both
    column = next(title for title in VERDICTS if title in ours[0])
    for row in ours:
        is_paired = "N/A" not in (row["NPU Name"], row["Bench Name"])
        if (
            Status(row["Status"]).is_difference
            and is_paired
            and "Torch.empty" not in row["NPU Name"]
        ):
            assert row[column] in BAD, row


def test_verdicts_are_theirs_where_nothing_differs(both):
    _, _, theirs, ours, _ = both
    column = next(title for title in VERDICTS if title in ours[0])
    for their, our in zip(theirs, ours, strict=False):
        name = their["NPU Name"]
        if name in NO_FINDING | MATCHED_BY_US:
            continue
        if not Status(our["Status"]).is_difference:
            assert our[column] == their[column], name


def test_verdicts_are_never_milder_than_theirs(both):
    _, _, theirs, ours, _ = both
    column = next(title for title in VERDICTS if title in ours[0])
    order = ("pass", "warning", "error")
    for their, our in zip(theirs, ours, strict=False):
        if their["NPU Name"] in NO_FINDING:
            continue
        if their[column] in order:
            assert order.index(our[column]) >= order.index(their[column]), their["NPU Name"]
        elif their[column] in BAD:
            assert our[column] in BAD, their["NPU Name"]


def test_bad_rows_say_why(both):
    generation, task, _, ours, _ = both
    if (generation, task) == (Generation.V8_3_3, "md5"):
        return  # this table has no messages
    column = next(title for title in VERDICTS if title in ours[0])
    for row in ours:
        if row[column] in BAD:
            assert row["Err_message"] not in ("", "[]"), row["NPU Name"]


def test_rows_of_the_newer_release_are_coloured_by_their_results(both):
    generation, _, _, _, comparison = both
    if generation is not Generation.V26_2_0:
        return
    table = legacy_table(comparison, generation)
    result = table.columns.index("Result")
    colours = {"pass": None, "warning": Colour.YELLOW, "error": Colour.RED}
    for cells, colour in table.rows():
        assert colour is colours[str(cells[result])]


def test_a_table_without_stacks_lacks_only_that_column(both):
    generation, _, _, _, comparison = both
    with_stack = legacy_table(comparison, generation).columns
    without = legacy_table(comparison, generation, stack=False)
    assert list(without.columns) == [title for title in with_stack if title != "NPU_Stack_Info"]
    assert all(len(cells) == len(without.columns) for cells, _ in without.rows())


def test_counts_of_columns():
    def count(mode: Mode) -> int:
        return len(legacy_columns(mode, Generation.V26_2_0, has_stack=True))

    assert [count(mode) for mode in (Mode.TENSOR, Mode.STATISTICS, Mode.MD5)] == [27, 28, 14]


# As text they are different, so 26.2.0 divides one zero by the other.
SAME_NUMBERS = {("0", "0.0"), ("0.0", "0")}


@pytest.mark.parametrize("generation", GENERATIONS)
def test_special_values_are_compared_as_they_do_it(generation, tmp_path):
    table = legacy_table(judged(*write_special_pair(tmp_path)), generation)
    ours = {
        str(cells[0]): dict(zip(table.columns, map(str, cells), strict=True))
        for cells, _ in table.rows()
    }
    theirs = read(DATA / f"mindstudio_{generation}_special.csv")
    assert len(theirs) > 200
    for row in theirs:
        if (row["NPU max"], row["Bench max"]) in SAME_NUMBERS:
            continue
        for title, cell in row.items():
            assert is_same(cell, ours[row["NPU Name"]][title]), (title, row)


FLOAT32_MAX = 3.4028235e38
HALF_PRECISION = 195
"""Number of the float16 tensor, whose zeros the older release divides by each other."""


@pytest.mark.parametrize("generation", GENERATIONS)
def test_special_elements_are_compared_as_they_do_it(generation, tmp_path):
    table = legacy_table(judged(*write_special_tensors(tmp_path)), generation)
    ours = [dict(zip(table.columns, cells, strict=True)) for cells, _ in table.rows()]
    theirs = read(DATA / f"mindstudio_{generation}_special_tensors.csv")
    assert len(theirs) == len(ours) == 200
    is_old = generation is Generation.V8_3_3
    for number, (row, our) in enumerate(zip(theirs, ours, strict=True)):
        if are_opposite_infinities(number) or (is_old and number == HALF_PRECISION):
            continue
        for title, cell in row.items():
            if title != "MaxRelativeErr":
                assert is_same(cell, str(our[title])), (title, row)
            elif not is_old:
                assert is_same_ratio(cell, our[title]), row


def are_opposite_infinities(number: int) -> bool:
    """Return whether a tensor of several elements has +inf where the other side has -inf."""
    count = len(SPECIAL_ELEMENTS)
    which, pair = divmod(number, count * count)
    if which not in (1, 2):
        return False
    one, other = SPECIAL_ELEMENTS[pair // count], SPECIAL_ELEMENTS[pair % count]
    return math.isinf(one) and one == -other


def is_same_ratio(theirs: str, ours: object) -> bool:
    """Compare relative errors: they compute in float32, we in float64."""
    if is_same(theirs, str(ours)):
        return True
    number = float(theirs)
    if math.isinf(number):
        return ours > FLOAT32_MAX
    return math.isclose(number, ours, rel_tol=1e-5)
