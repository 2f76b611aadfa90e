# SPDX-License-Identifier: Apache-2.0
"""Suggestions for misspelt words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_LONGEST: Final = 100
_MOST: Final = 5_000


def near_misses(word: str, known: Iterable[str], *, count: int = 1) -> list[str]:
    """Return the known words nearest to a misspelt one, best first; upper case does not matter.

    Args:
        word: the misspelt word.
        known: the words that exist; at most the first 5,000 are looked at.
        count: how many to return at most.
    """
    from difflib import get_close_matches  # only a mistake needs it
    from itertools import islice

    by_lower = {each.lower(): each for each in islice(known, _MOST)}
    found = get_close_matches(word.lower()[:_LONGEST], list(by_lower), n=count)
    return [by_lower[each] for each in found]


def did_you_mean(word: str, known: Iterable[str], *, count: int = 1) -> str:
    """Return ``; did you mean …?`` to end an error message with; empty if nothing is near."""
    found = near_misses(word, known, count=count)
    return f"; did you mean {' or '.join(found)}?" if found else ""
