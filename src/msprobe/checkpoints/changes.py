# SPDX-License-Identifier: Apache-2.0
"""`Change`: kinds of changes of a parameter or value."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Change(StrEnum):
    """Kind of change of a parameter, from the reference to the target."""

    EQUAL = "equal"
    """Every element is equal; NaN equals NaN."""
    CLOSE = "close"
    """Every element is within the given tolerance."""
    NONFINITE = "nonfinite"
    """One side has NaN or an infinity where the other has none, or another one."""
    CHANGED = "changed"
    ROUNDED = "rounded"
    """One side is the other one rounded to a coarser type, every element."""
    DTYPE = "dtype"
    """The type differs, the values are equal (or close)."""
    SHAPE = "shape"
    """The shape differs; elements are compared if only dimensions of size 1 do."""
    ADDED = "added"
    """Only the target has it."""
    REMOVED = "removed"
    """Only the reference has it."""
    RENAMED = "renamed"
    """The values are equal, the name differs."""

    TRANSPOSED = "transposed"
    """The values are equal, the two dimensions are exchanged."""
    JOINED = "joined"
    """The target has several parameters of the reference as one, with equal values."""
    SPLIT = "split"
    """The target has one parameter of the reference as several, with equal values."""
    TIED = "tied"
    """One side has it once where the other has it twice, with equal values."""
    NOT_HELD = "not held"
    """Only one side has it, and the format of the other side could not hold it."""

    @property
    def is_difference(self) -> bool:
        """Whether the change counts as a difference."""
        return self not in (Change.EQUAL, Change.CLOSE, Change.NOT_HELD)


class Relation(StrEnum):
    """How a parameter of the target and one of the reference were found to belong together."""

    NAME = "name"
    VALUES = "values"
    """The values are equal."""
    ALIKE = "alike"
    """Values, order or the pattern of the names are alike."""
    TRANSPOSED = "transposed"
    JOINED = "joined"
    SPLIT = "split"
    TIED = "tied"

    @property
    def change_if_equal(self) -> Change:
        """The change that this is where all values are equal."""
        return _IF_EQUAL[self]


_IF_EQUAL: Final = {
    Relation.NAME: Change.EQUAL,
    Relation.VALUES: Change.RENAMED,
    Relation.ALIKE: Change.RENAMED,
    Relation.TRANSPOSED: Change.TRANSPOSED,
    Relation.JOINED: Change.JOINED,
    Relation.SPLIT: Change.SPLIT,
    Relation.TIED: Change.TIED,
}
