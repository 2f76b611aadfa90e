# SPDX-License-Identifier: Apache-2.0
"""The verdicts of release 8.3.3, rule by rule."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from judging import judged

from builders.dumps import write_rank
from builders.peer_pairs import plain_tensor, write_tensors
from builders.records import forward
from msprobe.compare.legacy.columns import Generation
from msprobe.compare.legacy.tables import legacy_table
from msprobe.compare.model import Match, Status
from msprobe.numerics.element_metrics import ElementMetrics


def verdicts(comparison):
    """Return verdict and message of each row."""
    table = legacy_table(comparison, Generation.V8_3_3, highlight=False)
    title = "Accuracy Reached or Not"
    places = [table.columns.index(title if title in table.columns else "Result")]
    places.append(table.columns.index("Err_message"))
    return [tuple(cells[place] for place in places) for cells, _ in table.rows()]


def pair(tmp_path, mine, theirs):
    target = write_tensors(tmp_path / "target" / "rank0", [mine])
    return judged(target, write_tensors(tmp_path / "reference" / "rank0", [theirs]))


ONES = np.ones(4, "float32")


def write_statistics(folder, largest):
    """Write one call whose arguments have these largest values."""
    record = forward([plain_tensor(number) for number in largest])
    return write_rank(folder, {"Torch.cat.0.forward": record}, level="L1")


@pytest.mark.parametrize(
    ("cosine", "error", "expected"),
    [
        (0.995, 0.5, "Yes"),
        (0.985, 0.0005, "Yes"),
        (0.985, 0.002, "No"),
        (0.95, 0.002, "No"),
        (0.89, 0.0, "No"),
        (1.0, 1.0, "Yes"),
        (1.0, 1.01, "No"),
    ],
)
def test_cosine_and_largest_error_decide(tmp_path, cosine, error, expected):
    comparison = pair(tmp_path, ONES, ONES)
    row = comparison.rows[0]
    row.status = Status.CLOSE
    row.metrics = ElementMetrics(
        count=4,
        is_equal=False,
        cosine=cosine,
        max_abs_err=error,
        target_norm=2.0,
        reference_norm=2.0,
        legacy_max_rel_err=0.1,
        ratio_1e3=0.5,
        ratio_5e3=0.5,
    )
    assert verdicts(comparison)[0][0] == expected
    # What our own status calls different is never called reached.
    row.status, row.finding = Status.DIFFERS, "because"
    verdict, message = verdicts(comparison)[0]
    assert verdict == "No"
    assert message.startswith("because")


def test_shapes_are_unmatched(tmp_path):
    ((verdict, message),) = verdicts(pair(tmp_path, np.ones(4, "float32"), np.ones(5, "float32")))
    assert verdict == "Unmatched"
    assert message


def test_nan_in_another_place_is_no(tmp_path):
    broken = np.float32([np.nan, 1, 1, 1])
    assert verdicts(pair(tmp_path / "a", broken, ONES))[0][0] == "No"
    assert verdicts(pair(tmp_path / "b", broken, broken))[0][0] == "Yes"


def test_a_scalar_that_differs_is_no(tmp_path):
    assert verdicts(pair(tmp_path / "a", np.float32(1.5), np.float32(1.0)))[0][0] == "No"
    assert verdicts(pair(tmp_path / "b", np.float32(1.5), np.float32(1.5)))[0][0] == "None"


def test_a_file_that_is_gone_is_said(tmp_path):
    comparison = pair(tmp_path, ONES, ONES)
    row = comparison.rows[0]
    row.metrics, row.problem = None, "x.pt: there is no such tensor file"
    ((verdict, message),) = verdicts(comparison)
    assert verdict == "None"
    assert "no such tensor file" in message


EMPTY = np.zeros((0, 3), "float32")


@pytest.mark.parametrize(
    ("mine", "theirs", "said"),
    [
        (EMPTY, EMPTY, "The tensor is empty"),
        (ONES, np.ones(5, "float32"), "The shapes of NPU and Bench differ"),
        (np.float32([np.nan, 1, 1, 1]), ONES, "NaN or infinite values"),
        (np.float32(1.5), np.float32(1.5), "A tensor without dimensions"),
        (ONES, np.ones(4, "float16"), "The dtypes of NPU and Bench differ"),
    ],
)
def test_messages_say_why_elements_were_not_compared(tmp_path, mine, theirs, said):
    ((_, message),) = verdicts(pair(tmp_path, mine, theirs))
    assert said in message


def test_rows_of_one_shape_type_and_value_have_no_message(tmp_path):
    assert verdicts(pair(tmp_path, ONES, ONES)) == [("Yes", "")]


@pytest.mark.parametrize("side", ["NPU", "Bench"])
def test_a_side_without_a_file_or_a_partner_is_named(tmp_path, side):
    comparison = pair(tmp_path, ONES, ONES)
    row = comparison.rows[0]
    # Values of records that are the same are one object on both sides.
    name = "target" if side == "NPU" else "reference"
    setattr(row, name, msgspec.structs.replace(getattr(row, name), data_name=None))
    row.metrics = None
    assert verdicts(comparison)[0][1] == f"{side} has no file of the values."
    two, one = (
        write_tensors(tmp_path / "two", [ONES, ONES]),
        write_tensors(tmp_path / "one", [ONES]),
    )
    alone = judged(*((one, two) if side == "NPU" else (two, one)))
    assert verdicts(alone)[-1][1].startswith(f"No counterpart in {side}.")


def test_values_that_are_paired_by_likeness_say_so(tmp_path):
    comparison = pair(tmp_path, ONES, ONES)
    comparison.rows[0].pair.match = Match.ALIGNED
    assert "by order and likeness" in verdicts(comparison)[0][1]


def test_a_statistic_that_is_half_off_asks_for_a_look(tmp_path):
    target, reference = (
        write_statistics(tmp_path / name, [2.0, largest])
        for name, largest in (("target", 1.0), ("reference", 2.1))
    )
    (first, first_message), (verdict, message) = verdicts(judged(target, reference))
    assert (first, first_message) == ("", "")
    assert verdict == "Warning"
    assert message.startswith("Check this value: a statistic is off by more than half.")
