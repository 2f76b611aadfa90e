# SPDX-License-Identifier: Apache-2.0
"""What is said of names that a mapping file has and a dump has not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ``did you mean …?`` for a word that is nearly a known one; else an empty text."""
    import difflib  # only a faulty file needs it

    found = difflib.get_close_matches(word, list(known), n=1)
    return f'did you mean "{found[0]}"?' if found else ""


class Complaints:
    """Warns of names that a mapping file has and a dump has not, the first few of them in full.

    Args:
        path: the mapping file.
        warn: takes a message.
    """

    _SHOWN: Final = 5
    _CANDIDATES: Final = 5000

    def __init__(self, path: Path | None, warn: Callable[[str], None]) -> None:
        self._path = path
        self._warn = warn
        self._count = 0

    def unknown(self, name: str, line: int, what: str, known: Iterable[str]) -> None:
        """Say that `name` is nowhere; `known` are names that it could have been."""
        self._count += 1
        if self._count <= self._SHOWN:
            candidates = [word for _, word in zip(range(self._CANDIDATES), known, strict=False)]
            hint = nearest(name, candidates)
            self._warn(f"{self._place(line)}{what} {name!r}" + (f"; {hint}" if hint else ""))

    def close(self) -> None:
        """Say how many more there were."""
        if self._count > self._SHOWN:
            more = self._count - self._SHOWN
            self._warn(f"{self._path or 'data mapping'}: {more} more names are unknown")

    def _place(self, line: int) -> str:
        return "data mapping: " if self._path is None else f"{self._path}, line {line}: "
