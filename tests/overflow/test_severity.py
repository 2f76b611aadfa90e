# SPDX-License-Identifier: Apache-2.0
"""Grades of single records, each rule with its edge."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from overflow_dumps import tensor

from builders.records import backward
from msprobe.dump.record_names import parse_record_name
from msprobe.dump.record_views import Record
from msprobe.dump.value_reader import ValueReader
from msprobe.overflow.severity import Severity, classify

NAN, INF = math.nan, math.inf
READER = ValueReader(Path("dump.json"), level="mix")


def grade(given: list, made: list, name: str = "Torch.add.0.forward") -> Severity | None:
    data = {"input_args": given, "output": made}
    return classify(Record(name=parse_record_name(name), data=data, reader=READER))


@pytest.mark.parametrize(
    ("given", "made", "expected"),
    [
        (1.0, 1.0, None),
        (1.0, NAN, Severity.CRITICAL),
        (1.0, INF, Severity.CRITICAL),
        (1.0, -INF, Severity.CRITICAL),
        (NAN, NAN, Severity.HIGH),
        (INF, NAN, Severity.HIGH),
        (NAN, 1.0, Severity.MEDIUM),
        (1.0, 100.0, None),
        (1.0, 100.5, Severity.HIGH),
        (0.0, 5.0, None),
    ],
)
def test_grades(given: float, made: float, expected: Severity | None) -> None:
    assert grade([tensor(given)], [tensor(made)]) is expected


def test_the_largest_norms_are_compared() -> None:
    given = [tensor(1.0), tensor(50.0)]
    assert grade(given, [tensor(150.0), tensor(2.0)]) is None
    assert grade(given, [tensor(2.0), tensor(5001.0)]) is Severity.HIGH


def test_uninitialized_memory_has_no_grade() -> None:
    assert grade([], [tensor(NAN)], "Torch.empty_like.0.forward") is None


def test_receive_buffers_do_not_count_as_given() -> None:
    given = [tensor(NAN), {"type": "int", "value": 1}]
    assert grade(given, [tensor(1.0)], "Distributed.recv.0.forward") is None
    assert grade(given, [tensor(NAN)], "Distributed.recv.0.forward") is Severity.CRITICAL
    assert grade(given, [tensor(1.0)], "Torch.recv.0.forward") is Severity.MEDIUM


def test_what_masked_fill_in_place_fills_does_not_count() -> None:
    assert grade([tensor(INF)], [tensor(1.0)], "Tensor.masked_fill_.0.forward") is None


def test_gradients_count_by_direction() -> None:
    data = backward([tensor(1.0)], [tensor(NAN)])
    name = parse_record_name("Torch.sqrt.0.backward")
    assert classify(Record(name=name, data=data, reader=READER)) is Severity.CRITICAL
