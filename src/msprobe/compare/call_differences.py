# SPDX-License-Identifier: Apache-2.0
"""Which calls begin a difference: their inputs agree, and their outputs do not."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Final, NamedTuple, Protocol

from msprobe.compare.model import Matched, Row, Status
from msprobe.compare.verdicts.status import judge_row
from msprobe.dump.values import Role, Value
from msprobe.numerics.tolerances import Tolerances

Key = tuple[Hashable, ...]

_OUTPUTS: Final = (Role.OUTPUT, Role.PARAMETER_GRAD, Role.SAVED)


class CallDifference(NamedTuple):
    """How two records of one call differ.

    Attributes:
        inputs: rows of inputs and parameters that differ.
        outputs: rows of outputs that differ.
        unjudged: tensors of which nothing shows whether they are equal.
    """

    inputs: list[Row]
    outputs: list[Row]
    unjudged: int = 0

    @property
    def begins(self) -> bool:
        """Whether a difference begins in this call."""
        return bool(self.outputs) and not self.inputs

    @property
    def differs(self) -> bool:
        """Whether anything differs."""
        return bool(self.inputs or self.outputs)

    @property
    def is_of_arguments(self) -> bool:
        """Whether inputs differ, and none of those that do is a tensor."""
        return bool(self.inputs) and not any(row.holds_tensor for row in self.inputs)


class Rule(Protocol):
    """Says which values differ."""

    def differs(self, row: Row) -> bool:
        """Return whether the two values of a row differ."""


class ExactRule:
    """Judges values to the bit, by checksums where both sides have them, else by statistics."""

    def __init__(self) -> None:
        self._tolerances = Tolerances.load()

    def differs(self, row: Row) -> bool:
        """Return whether the two values of a row differ."""
        if not isinstance(row, Matched) or not (row.target.is_tensor and row.reference.is_tensor):
            judge_row(row, self._tolerances)
            return row.status not in (Status.EQUAL, Status.UNREAD)
        if row.target.is_unread and row.reference.is_unread:
            return False
        both = row.target.md5 is not None and row.reference.md5 is not None
        return value_key(row.target, with_checksum=both) != value_key(
            row.reference, with_checksum=both
        )


class ToleranceRule:
    """Judges values by their statistics, within the tolerance of their types."""

    def __init__(self, tolerances: Tolerances) -> None:
        self._tolerances = tolerances

    def differs(self, row: Row) -> bool:
        """Return whether the two values of a row differ by more than their tolerance."""
        judge_row(row, self._tolerances)
        return row.status.is_difference


def judge_call(rows: Iterable[Row], differs: Callable[[Row], bool]) -> CallDifference:
    """Return which values of a call differ.

    Args:
        rows: its values, paired.
        differs: whether the values of a row differ.
    """
    inputs: list[Row] = []
    outputs: list[Row] = []
    unjudged = 0
    for row in rows:
        if differs(row):
            (outputs if row.value.role in _OUTPUTS else inputs).append(row)
        elif isinstance(row, Matched) and is_unjudged(row):
            unjudged += 1
    return CallDifference(inputs, outputs, unjudged)


def is_unjudged(row: Matched) -> bool:
    """Return whether no checksum shows that two tensors are equal."""
    if not row.holds_tensor or row.target.is_unread or 0 in (row.target.shape or ()):
        return False
    return row.target.md5 is None or row.reference.md5 is None


def value_key(value: Value, *, with_checksum: bool = True) -> Key:
    """Return a key that is equal for two values exactly if they are equal in all the dump has.

    Args:
        value: the value.
        with_checksum: whether checksums count, where there are some; else statistics.
    """
    if not value.is_tensor:
        return (value.type, repr(value.value))
    if with_checksum and value.md5 is not None:
        return (value.dtype, value.shape, value.md5)
    # As text, NaN is equal to itself.
    numbers = (value.max, value.min, value.mean, value.norm)
    return (value.dtype, value.shape, *map(repr, numbers))
