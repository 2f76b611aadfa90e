# SPDX-License-Identifier: Apache-2.0
"""NaN and Inf of one record, by what the call read and what it made."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from msprobe.dump.record_names import RecordKind, RecordName
from msprobe.dump.record_views import Record
from msprobe.dump.records import JsonTree
from msprobe.dump.stored_values import statistic_of
from msprobe.dump.values import PartPath, Value
from msprobe.operators.lookup import is_in_place, operator_of
from msprobe.operators.nonfinite import has_overflowed, is_asked_for
from msprobe.operators.operator import Flow, InPlace, Operator
from msprobe.report.value_text import nonfinite_text

_ARGUMENT_PARTS: Final = ("input_args", "input_kwargs")


class Badness(IntEnum):
    """Badness of a value. NaN is worse than Inf: Inf turns into NaN."""

    FINITE = 0
    INF = 1
    NAN = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """A record's tensors, divided into what the call read and what it made.

    Attributes:
        record: the record.
        arguments: inputs and parameters of a forward call, gradients of outputs of a backward one.
        results: outputs, gradients of inputs, gradients of parameters, saved values.
        worst_argument: the worst of all elements of the arguments.
        worst_result: the worst of all elements of the results.
        has_bad_number: whether a number among the arguments is NaN or Inf.
        is_deliberate: whether the call was told to make NaN or Inf (`is_asked_for`).
        is_mask: whether the results hold -Inf alone, as in an attention mask (`has_overflowed`).
    """

    record: Record
    arguments: tuple[Value, ...]
    results: tuple[Value, ...]
    worst_argument: Badness
    worst_result: Badness
    has_bad_number: bool
    is_deliberate: bool
    is_mask: bool

    @property
    def name(self) -> RecordName:
        """The record's name."""
        return self.record.name

    @property
    def bad_arguments(self) -> list[Value]:
        """The arguments that are not finite."""
        return [value for value in self.arguments if badness_of(value)]

    @property
    def bad_results(self) -> list[Value]:
        """The results that are not finite."""
        return [value for value in self.results if badness_of(value)]

    @property
    def makes_worse(self) -> bool:
        """Whether results are worse than every argument: NaN from Inf, or either from nothing."""
        return self.worst_result > self.worst_argument


def badness_of(tensor: Value) -> Badness:
    """Return how bad the worst element of a tensor is."""
    if tensor.has_nan:
        return Badness.NAN
    return Badness.INF if tensor.has_inf else Badness.FINITE


def holds_only_negative_inf(tensor: Value) -> bool:
    """Return whether -Inf is all that is not finite, as in an attention mask."""
    if badness_of(tensor) is not Badness.INF:
        return False
    return tensor.max != math.inf and not tensor.pos_inf_count


def worst(values: Sequence[Value]) -> Badness:
    """Return the worst of these values."""
    return max(map(badness_of, values), default=Badness.FINITE)


def contents_text(values: list[Value]) -> str:
    """Return the non-finite contents as text: ``3 NaN``, ``NaN, Inf``; each text once."""
    return ", ".join(dict.fromkeys(map(nonfinite_text, values)))


def examine(record: Record) -> Examined:
    """Return a record's tensors, graded and divided into arguments and results.

    Receive buffers, the first argument of calls that overwrite it, and memory that was never
    written are left out: their contents mean nothing.

    Raises:
        DumpFormatError: the record is damaged.
    """
    name = record.name
    operator = _operator(name)
    is_unwritten = operator.allocates or _in_place(name, operator) is InPlace.EXTENDS
    arguments: list[Value] = []
    results: list[Value] = []
    numbers: list[float] = []
    for value in record.values():
        if not value.is_tensor:
            if value.path[0] in _ARGUMENT_PARTS:
                numbers += _number(value.value)
        elif is_unwritten or value.undefined or value.note == "uninitialized":
            continue
        elif _is_result(name, value.path):
            results.append(value)
        elif not _is_written_over(name, operator, value.path):
            arguments.append(value)
    bad = list(filter(badness_of, results))
    lows = [float(one.min) for one in arguments if one.min is not None] + numbers
    is_mask = all(map(holds_only_negative_inf, bad))
    return Examined(
        record=record,
        arguments=tuple(arguments),
        results=tuple(results),
        worst_argument=worst(arguments),
        worst_result=worst(results),
        has_bad_number=not all(map(math.isfinite, numbers)),
        is_deliberate=not name.is_module
        and is_asked_for(operator, numbers, only_minus_inf=is_mask),
        is_mask=is_mask
        and name.kind is RecordKind.FORWARD
        and not any(has_overflowed(operator, one.dtype, lows) for one in bad),
    )


def _operator(name: RecordName) -> Operator:
    """Return what a forward call computes; nothing is known of what else makes records."""
    is_call = name.kind is RecordKind.FORWARD and not name.is_module
    return operator_of(name.prefix, name.path) if is_call else Operator(name="")


def _in_place(name: RecordName, operator: Operator) -> InPlace | None:
    return operator.in_place if is_in_place(name.path) else None


def _is_result(name: RecordName, path: PartPath) -> bool:
    if name.kind in (RecordKind.FORWARD, RecordKind.BACKWARD):
        return str(path[0]).startswith("output")
    return True


def _is_written_over(name: RecordName, operator: Operator, path: PartPath) -> bool:
    if _in_place(name, operator) is InPlace.OVERWRITES:
        return path[:2] == ("input_args", 0)
    sent = operator.communication
    if sent is None or len(path) < 2:
        return False
    # Which messages of a batch are received is said beside their tensors.
    return sent.flow is Flow.MESSAGES or operator.fills(path[1])


def _number(value: JsonTree) -> list[float]:
    """Return a number as a list of one; nothing of anything else."""
    try:
        number = statistic_of(value)
    except ValueError:
        return []
    return [] if number is None else [float(number)]
