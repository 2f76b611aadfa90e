# SPDX-License-Identifier: Apache-2.0
"""Which rows are coloured, against release 8.3.3 and rule by rule; and the advice on them."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judging import judged

from builders import records
from builders.dumps import write_rank
from builders.peer_pairs import write_pair
from msprobe.compare.legacy.advisor import advise, write_advice
from msprobe.compare.legacy.cells import SideCells
from msprobe.compare.legacy.columns import REACHED, RESULT, Generation
from msprobe.compare.legacy.highlight import highlight_operation
from msprobe.compare.legacy.levels import JudgedRow
from msprobe.compare.legacy.tables import legacy_table, rows_in_order
from msprobe.compare.model import Added, Match, Matched, Mode, OperationPair
from msprobe.dump.values import Role, Value
from msprobe.report.tables import Colour, Table

DATA = Path(__file__).parent / "data"
# NaN is coloured by its rule; what 8.3.3 takes apart is one row, judged by its values.
CORRECTED = {
    "Torch.div.0.forward.output.0": Colour.RED,
    "Torch.rsub.0.forward.input.0": Colour.RED,
    "Torch.mean.0.forward.output.1.0": None,
}


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_colours_are_those_of_the_release(task, tmp_path):
    lines = (DATA / "mindstudio_8.3.3_colours.csv").read_text(encoding="utf-8").splitlines()
    theirs = {
        row["name"]: Colour[row["colour"].upper()]
        for row in csv.DictReader(lines)
        if row["task"] == task
    }
    table = legacy_table(judged(*write_pair(tmp_path, task)), Generation.V8_3_3)
    ours = {str(cells[0]): colour for cells, colour in table.rows() if cells[0] != "N/A"}
    # Values of another kind of type are compared, not taken apart.
    ours.pop("Torch.mul.0.forward.output.0")
    for name, colour in ours.items():
        assert colour is CORRECTED.get(name, theirs.get(name)), name


def tensor(high, low=-1.0, *, grad=False, shape=(4,)):
    statistics = {"Max": high, "Min": low, "Mean": high / 2, "Norm": abs(high)}
    return records.tensor(shape, requires_grad=grad, **statistics)


def dump(directory, inputs, outputs):
    return write_rank(
        directory, {"Torch.f.0.forward": records.forward(inputs, outputs)}, level="L1"
    )


def colours(tmp_path, mine, theirs, generation=Generation.V8_3_3):
    """Return colour and message of each row; sides are (inputs, outputs)."""
    target = dump(tmp_path / "target", *mine)
    comparison = judged(target, dump(tmp_path / "reference", *theirs))
    assert comparison.mode is Mode.STATISTICS
    table = legacy_table(comparison, generation)
    message = table.columns.index("Err_message")
    return [(colour, str(cells[message])) for cells, colour in table.rows()]


SAME = [tensor(2.0)]


def test_equal_values_have_no_colour(tmp_path):
    found = colours(tmp_path, (SAME, SAME), (SAME, SAME))
    assert found == [(None, ""), (None, "")]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_are_red_wherever_they_stand(tmp_path, bad):
    found = colours(tmp_path, ([tensor(bad, bad)], SAME), ([tensor(bad, bad)], SAME))
    assert [colour for colour, _ in found] == [Colour.RED, None]


def test_huge_errors_are_red(tmp_path):
    found = colours(tmp_path, ([tensor(3e10)], SAME), ([tensor(1.0)], SAME))
    assert [colour for colour, _ in found] == [Colour.RED, None]
    found = colours(tmp_path / "not", ([tensor(0.9e10)], SAME), ([tensor(1.0)], SAME))
    assert [colour for colour, _ in found] == [None, None]


def test_an_output_that_is_half_off_is_red(tmp_path):
    found = colours(tmp_path, (SAME, [tensor(3.1)]), (SAME, [tensor(2.0)]))
    assert found[1][0] is Colour.RED
    found = colours(tmp_path / "yellow", (SAME, [tensor(2.9)]), (SAME, [tensor(2.0)]))
    assert found[1][0] is Colour.YELLOW
    assert "0.1" in found[1][1]
    found = colours(tmp_path / "not", (SAME, [tensor(2.1)]), (SAME, [tensor(2.0)]))
    assert found[1][0] is None


def test_an_error_that_grows_tenfold_is_yellow(tmp_path):
    reference = ([tensor(1000.0)], [tensor(1000.0)])
    found = colours(tmp_path, ([tensor(1002.0)], [tensor(1020.0)]), reference)
    assert [colour for colour, _ in found] == [None, Colour.YELLOW]
    found = colours(tmp_path / "not", ([tensor(1002.0)], [tensor(1019.0)]), reference)
    assert [colour for colour, _ in found] == [None, None]


def test_requires_grad_and_shape_are_yellow(tmp_path):
    mine = ([tensor(2.0, grad=True)], [tensor(2.0, shape=(2, 2))])
    found = colours(tmp_path, mine, (SAME, SAME))
    assert [colour for colour, _ in found] == [Colour.YELLOW, Colour.YELLOW]


def test_without_highlighting_there_are_no_colours_and_the_reasons_stay(tmp_path):
    target = dump(tmp_path / "target", SAME, [tensor(30.0)])
    comparison = judged(target, dump(tmp_path / "reference", SAME, SAME))
    for generation in Generation:
        plain, coloured = (
            legacy_table(comparison, generation, highlight=highlight) for highlight in (False, True)
        )
        assert {colour for _, colour in plain.rows()} == {None}
        assert [colour for _, colour in coloured.rows()] == [None, Colour.RED]
        assert [cells for cells, _ in plain.rows()] == [cells for cells, _ in coloured.rows()]


def advice(*lines, column=RESULT):
    """Return the advice on lines of record, slot, role and verdict."""
    rows = [
        Added(
            pair=OperationPair(position=0, target=record, reference=None, match=Match.UNMATCHED),
            target=Value((slot,), slot, role, is_tensor=True, type="torch.Tensor"),
        )
        for record, slot, role, _ in lines
    ]
    cells = [[row.name, "N/A", line[-1]] for row, line in zip(rows, lines, strict=True)]
    return advise(Table.of(("NPU Name", "Bench Name", column), cells), rows)


def test_the_first_bad_row_gets_the_advice():
    found = advice(
        ("Functional.linear.0.forward", "input.0", Role.INPUT, "pass"),
        ("Functional.linear.0.forward", "output.0", Role.OUTPUT, "error"),
        ("Functional.relu.0.forward", "output.0", Role.OUTPUT, "error"),
    )
    assert (found.line, found.name) == (1, "Functional.linear.0.forward.output.0")
    assert found.lines()[:2] == ["Line: 1", "Suspect Nodes: Functional.linear.0.forward.output.0"]


def test_no_bad_row_no_suspect():
    good = ("Functional.linear.0.forward", "input.0", Role.INPUT, "Yes")
    assert advice(good, column=REACHED).lines()[:2] == ["Line: NA", "Suspect Nodes: NA"]


def test_advice_depends_on_what_the_row_is():
    texts = [
        advice((record, slot, role, "No"), column=REACHED).text
        for record, slot, role in (
            ("Functional.linear.0.forward", "input.0", Role.INPUT),
            ("Functional.linear.0.forward", "output.0", Role.OUTPUT),
            ("Functional.linear.0.backward", "input.0", Role.INPUT),
            ("Functional.linear.0.backward", "output.0", Role.OUTPUT),
            ("Module.fc.Linear.forward.0", "parameters.weight", Role.PARAMETER),
            ("Functional.conv2d.0.forward", "output.0", Role.OUTPUT),
            ("Functional.batch_norm.0.forward", "input.1", Role.INPUT),
        )
    ]
    assert len(set(texts)) == len(texts)
    assert "determin" in texts[5]


@pytest.mark.parametrize("path", ["output", "parameters", "backward"])
def test_advice_does_not_depend_on_what_a_module_is_called(path):
    records = (f"Module.layer.0.{path}.Linear.forward.0", "Module.fc.Linear.forward.0")
    texts = {advice((record, "input.0", Role.INPUT, "error")).text for record in records}
    assert len(texts) == 1


def test_advice_is_a_file_of_three_lines(tmp_path):
    comparison = judged(*write_pair(tmp_path, "md5"))
    table = legacy_table(comparison, Generation.V8_3_3)
    path = write_advice(table, rows_in_order(comparison), tmp_path / "out" / "a.txt")
    first, second, third = path.read_text(encoding="utf-8").splitlines()
    # The row that mindstudio-probe names for the same dumps.
    assert (first, second) == ("Line: 1", "Suspect Nodes: Functional.linear.0.forward.input.1")
    assert third.startswith("Expert Advice: ")


def test_gradients_that_only_one_side_knows_of_are_no_finding(tmp_path):
    unknown = [{**tensor(2.0), "requires_grad": None}]
    found = colours(tmp_path, (unknown, SAME), (SAME, SAME))
    assert found == [(None, ""), (None, "")]


def test_values_without_counterpart_are_yellow(tmp_path):
    found = colours(tmp_path, (SAME, [tensor(2.0), tensor(2.0)]), (SAME, SAME))
    assert [colour for colour, _ in found] == [None, None, Colour.YELLOW]


NUMBERS = st.one_of(
    st.sampled_from([0.0, 0.5, 1.0, 1.5, 20.0, 1e11, -3.0, "N/A", "unsupported", "Nan"]),
    st.floats(-100, 100, allow_nan=False),
)
SHARES = st.one_of(st.sampled_from([0.0, 0.5, 0.59, 0.61, 0.91, 1.0, "N/A"]), st.floats(0, 1))
VALUES = st.tuples(
    st.sampled_from([Role.INPUT, Role.PARAMETER, Role.OUTPUT]), NUMBERS, SHARES, SHARES
)


def row_of_values(role, error, share, cosine):
    pair = OperationPair(position=0, target="f", reference="f", match=Match.EXACT)
    value = Value(("x",), "x", role, is_tensor=True, type="torch.Tensor")
    side = SideCells("torch.float32", "[4]", "False", 2.0, -1.0, 0.5, 3.0)
    metrics = [cosine, 0.0, error, 0.0, share, 1.0]
    return JudgedRow(Matched(pair=pair, target=value, reference=value), side, side, metrics)


def colour_by_pairs(row, others):
    """Apply the rules as they are written: to every pair of an input and this output."""
    cosine, _, error, _, share, _ = row.metrics
    is_red = isinstance(error, float) and abs(error) > 1e10
    is_yellow = False
    if row.row.value.role is Role.OUTPUT and isinstance(error, float):
        for other in others:
            cosine_in, _, error_in, _, share_in, _ = other.metrics
            if other.row.value.role is Role.OUTPUT or not isinstance(error_in, float):
                continue
            both_shares = isinstance(share_in, float) and isinstance(share, float)
            is_red |= both_shares and share_in > 0.9 and share < 0.6
            is_yellow |= error_in > 1 and error > 1 and error >= 10 * error_in
            is_yellow |= both_shares and share_in - share > 0.1
            both_cosines = isinstance(cosine_in, float) and isinstance(cosine, float)
            is_yellow |= both_cosines and cosine_in - cosine > 0.1
    return Colour.RED if is_red else Colour.YELLOW if is_yellow else None


@settings(deadline=None)
@given(st.lists(VALUES, max_size=8))
def test_one_look_at_the_inputs_is_as_good_as_all_pairs(values):
    rows = [row_of_values(*value) for value in values]
    found = [colour for colour, _ in highlight_operation(rows, Mode.TENSOR)]
    assert found == [colour_by_pairs(row, rows) for row in rows]
