# SPDX-License-Identifier: Apache-2.0
"""Numbers in the names of records (`dump.record_names`), and what names of a model begin with."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import count


class CallCounters:
    """Counts calls per base name within one step.

    Attributes:
        next: the number of the next call of each base.
    """

    __slots__ = ("next",)

    def __init__(self) -> None:
        """Create it; nothing is counted."""
        self.next: dict[str, int] = {}

    def take(self, base: str) -> int:
        """Return the number of this call of `base` and count it."""
        number = self.next.get(base, 0)
        self.next[base] = number + 1
        return number

    def __contains__(self, base: str) -> bool:
        """Return whether `base` was called in this step."""
        return base in self.next

    @property
    def has_counted(self) -> bool:
        """Whether a call was counted in this step."""
        return bool(self.next)

    def reset(self) -> None:
        """Begin again at 0, as every step does."""
        self.next.clear()


def found_prefixes(parts: Collection[str]) -> Iterator[str]:
    """Yield what names begin with in models that were found one after the other.

    Those of the first have no prefix, so that they stay when another model is found. The others
    are numbered, without the numbers that are names in the first, as in a ``Sequential``.

    Args:
        parts: names of the children and parameters of the first model.
    """
    yield ""
    yield from (f"{index}." for index in count(1) if str(index) not in parts)
