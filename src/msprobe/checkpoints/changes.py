# SPDX-License-Identifier: Apache-2.0
"""`Change`: kinds of changes of a parameter or value."""

from __future__ import annotations

from enum import StrEnum


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

    @property
    def is_difference(self) -> bool:
        """Whether the change counts as a difference."""
        return self not in (Change.EQUAL, Change.CLOSE)
