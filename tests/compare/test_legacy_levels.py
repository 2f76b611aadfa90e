# SPDX-License-Identifier: Apache-2.0
"""The rules behind pass, warning and error, one by one."""

from __future__ import annotations

import json
import math

import pytest
from judging import judged

from builders import records
from builders.dumps import write_rank
from msprobe.compare.legacy.tables import legacy_table
from msprobe.compare.model import Origin, Status
from msprobe.compare.rank_comparison import RankComparison

NAME = "Torch.f.0.forward"


def tensor(norm=4.0, *, high=2.0, grad=False, dtype="float32", shape=(4,), md5=None):
    fields = {"dtype": f"torch.{dtype}", "requires_grad": grad} | ({"md5": md5} if md5 else {})
    return records.tensor(shape, Max=high, Min=-1.0, Mean=0.5, Norm=norm, **fields)


def dump(directory, name, inputs, outputs):
    return write_rank(directory, {name: records.forward(inputs, outputs)})


def compared(tmp_path, mine, theirs, name=NAME) -> RankComparison:
    target = dump(tmp_path / "target", name, *mine)
    return judged(target, dump(tmp_path / "reference", name, *theirs))


def results(comparison):
    """Return result and messages of each row."""
    table = legacy_table(comparison, "26.2.0")
    places = [table.columns.index(title) for title in ("Result", "Err_message")]
    return [(cells[places[0]], json.loads(cells[places[1]])) for cells, _ in table.rows()]


GOOD = [tensor()]


def settle(comparison, status=Status.CLOSE):
    """Let our own verdict say nothing, so that only the rules of the release speak."""
    for row in comparison.rows:
        row.status, row.origin, row.finding = status, None, ""
    return comparison


def test_equal_values_pass_without_a_message(tmp_path):
    assert results(compared(tmp_path, (GOOD, GOOD), (GOOD, GOOD))) == [("pass", []), ("pass", [])]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nonfinite_values_in_the_target_only_are_errors(tmp_path, bad):
    broken = [tensor(high=bad)]
    only_mine = settle(compared(tmp_path / "a", (GOOD, broken), (GOOD, GOOD)))
    assert results(only_mine)[1][0] == "error"
    only_theirs = settle(compared(tmp_path / "b", (GOOD, GOOD), (GOOD, broken)))
    assert results(only_theirs)[1][0] == "pass"
    both = settle(compared(tmp_path / "c", (GOOD, broken), (GOOD, broken)))
    assert results(both)[1][0] == "pass"


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (4.0, 6.2, "error"),  # nothing, then 55 %
        (4.0, 5.0, "warning"),  # nothing, then 25 %
        (4.0, 4.3, "pass"),  # nothing, then 7.5 %
        (4.04, 4.5, "warning"),  # 1 %, then 12.5 %: twelvefold
        (4.04, 4.3, "pass"),  # 1 %, then 7.5 %
        (4.5, 6.2, "pass"),  # 12.5 %, then 55 %
        (4.5, 12.0, "warning"),  # 12.5 %, then 200 %
    ],
)
def test_what_the_norm_does_from_inputs_to_outputs(tmp_path, before, after, expected):
    mine = ([tensor(before)], [tensor(after), tensor()])
    comparison = settle(compared(tmp_path, mine, (GOOD, [tensor(), tensor()])))
    # What is found of the call as a whole stands on its first output.
    assert [result for result, _ in results(comparison)] == ["pass", expected, "pass"]


def test_requires_grad_is_an_error(tmp_path):
    comparison = settle(compared(tmp_path, ([tensor(grad=True)], GOOD), (GOOD, GOOD)))
    (result, messages), _ = results(comparison)
    assert result == "error"
    assert "requires_grad" in messages[0]


def test_other_types_and_size_1_dimensions_are_mentioned_only(tmp_path):
    mine = ([tensor(dtype="bfloat16")], [tensor(shape=(1, 4))])
    found = results(compared(tmp_path, mine, (GOOD, GOOD)))
    assert [result for result, _ in found] == ["pass", "pass"]
    assert [messages[0].split(":")[0] for _, messages in found] == ["info", "info"]


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        (Origin.INTRODUCED, "error"),
        (Origin.AMPLIFIED, "error"),
        (None, "error"),
        (Origin.INHERITED, "warning"),
        (Origin.INPUT, "warning"),
    ],
)
@pytest.mark.parametrize("status", [Status.DIFFERS, Status.SHAPE, Status.DTYPE, Status.NONFINITE])
def test_differences_are_errors_where_they_begin(tmp_path, status, origin, expected):
    comparison = settle(compared(tmp_path, (GOOD, [tensor(4.1)]), (GOOD, GOOD)))
    comparison.rows[1].status, comparison.rows[1].origin = status, origin
    comparison.rows[1].finding, comparison.rows[1].cause = "because", None
    result, messages = results(comparison)[1]
    assert result == expected
    assert messages == [f"{expected}: because"]


def test_arguments_are_errors_wherever_they_come_from(tmp_path):
    mine, theirs = [{"type": "int", "value": 1}], [{"type": "int", "value": 2}]
    comparison = compared(tmp_path, (mine, GOOD), (theirs, GOOD))
    comparison.rows[0].origin = Origin.INHERITED
    assert results(comparison)[0][0] == "error"


def test_checksums_that_differ_are_errors(tmp_path):
    same, other = [tensor(md5="aaaaaaaa")], [tensor(md5="bbbbbbbb")]
    comparison = compared(tmp_path, (same, same), (same, other))
    comparison.rows[1].origin = Origin.INHERITED
    assert [result for result, _ in results(comparison)] == ["pass", "error"]


def test_values_without_counterpart_are_warnings(tmp_path):
    comparison = compared(tmp_path, (GOOD, [tensor(), tensor()]), ([tensor(), tensor()], GOOD))
    found = results(comparison)
    assert [result for result, _ in found] == ["pass", "pass", "warning", "warning"]
    assert "Bench" in found[2][1][0]
    assert "NPU" in found[3][1][0]


BAD = [tensor(40.0, high=20.0)]


@pytest.mark.parametrize("api", ["Torch.empty_like", "Tensor.to", "Tensor.__setitem__"])
def test_calls_that_say_nothing_pass(tmp_path, api):
    comparison = compared(tmp_path, (GOOD, BAD), (GOOD, GOOD), f"{api}.0.forward")
    assert [result for result, _ in results(comparison)] == ["pass", "pass"]


def test_a_module_that_is_called_like_them_does_not(tmp_path):
    comparison = compared(tmp_path, (GOOD, BAD), (GOOD, GOOD), "Module.to.Linear.forward.0")
    assert [result for result, _ in results(comparison)] == ["pass", "error"]


def test_buffers_that_are_filled_later_are_no_inputs(tmp_path):
    name = "Distributed.all_to_all_single.0.forward"
    comparison = compared(tmp_path, (BAD, GOOD), (GOOD, GOOD), name)
    assert [result for result, _ in results(comparison)] == ["pass", "pass"]
