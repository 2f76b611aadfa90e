# SPDX-License-Identifier: Apache-2.0
"""Lists of step or rank numbers, and the token range of `start()`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from msprobe.errors import ConfigError

MAX_NUMBER: Final = 1_000_000
MAX_ENTRIES: Final = 1_000_000

LIST_RULE: Final = 'a list of numbers and ranges, such as [0, 5, "10-12"]'
_ENTRY_RULE: Final = f'a whole number or a range such as "3-5", from 0 to {MAX_NUMBER}'
_ENTRY: Final = re.compile(r"\s*([0-9]{1,20})\s*(?:-\s*([0-9]{1,20})\s*)?")


def parse_number_list(
    values: object, key: str, *, source: str | Path = "config.json"
) -> tuple[int, ...]:
    """Return the numbers that a `rank` or `step` list names, sorted and without repeats.

    Args:
        values: a list of ints, ``"N"`` and ``"A-B"`` (inclusive, either end first,
            blanks allowed); None is empty.
        key: name of the list in error messages.
        source: where the list came from, for error messages.

    Raises:
        ConfigError: not a list, too many entries, or an entry that is not a number or range.
    """
    if values is None:
        return ()
    if not isinstance(values, list | tuple | range):
        raise ConfigError(key, values, LIST_RULE, source=source)
    if len(values) > MAX_ENTRIES:
        found = f"a list of {len(values)} entries"
        raise ConfigError(key, found, f"at most {MAX_ENTRIES} entries", source=source)
    spans = [
        _parse_entry(value, f"{key}[{place}]", source=source) for place, value in enumerate(values)
    ]
    return _merge(spans)


def _parse_entry(value: object, key: str, *, source: str | Path) -> tuple[int, int]:
    if isinstance(value, int) and not isinstance(value, bool):
        first = last = int(value)
    elif isinstance(value, str) and (match := _ENTRY.fullmatch(value)):
        first = int(match[1])
        last = int(match[2]) if match[2] else first
    else:
        raise ConfigError(key, value, _ENTRY_RULE, source=source)
    if first < 0 or max(first, last) > MAX_NUMBER:
        raise ConfigError(key, value, _ENTRY_RULE, source=source)
    return min(first, last), max(first, last)


def _merge(spans: list[tuple[int, int]]) -> tuple[int, ...]:
    # Spans are merged before they are spread out: a million overlapping ranges must not take
    # a million times a million steps.
    numbers: list[int] = []
    following = 0
    for first, last in sorted(spans):
        numbers.extend(range(max(first, following), last + 1))
        following = max(following, last + 1)
    return tuple(numbers)


def parse_token_range(value: object) -> tuple[int, int] | None:
    """Return the checked `token_range` of `start()`: first and last token, both included.

    Raises:
        ConfigError: not two whole numbers with 0 <= first <= last.
    """
    if value is None:
        return None
    rule = "two whole numbers [first, last] with 0 <= first <= last"
    if isinstance(value, list | tuple) and len(value) == 2:
        first, last = value
        if _is_whole(first) and _is_whole(last) and 0 <= first <= last:
            return int(first), int(last)
    raise ConfigError("token_range", value, rule, source="start()")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
