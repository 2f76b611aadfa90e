# SPDX-License-Identifier: Apache-2.0
"""Text as it may be shown, on a terminal, in a page, in a notebook: of files, counts, sizes."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from enum import StrEnum
from html import escape
from typing import Final, Self

# Line breaks and escape sequences of a hostile name must not reach the terminal.
_CONTROLS: Final = dict.fromkeys(
    (
        *range(32),
        *range(0x7F, 0xA0),
        *(0x200E, 0x200F, 0x2028, 0x2029),
        *range(0x202A, 0x202F),
    ),
    "�",
)
_REASONS: Final = {
    errno.ENOENT: "there is no such file or folder; check the path",
    errno.EEXIST: "a file of this name is in the way; choose another path",
    errno.EISDIR: "it is a folder; name a file",
    errno.ENOTDIR: "a part of the path is a file and no folder; check the path",
    errno.EACCES: "there is no permission; choose another place, or change its rights",
    errno.EPERM: "there is no permission; choose another place, or change its rights",
    errno.ENOSPC: "no space is left on the disk; free some, or choose another place",
    errno.EFBIG: "the file becomes larger than is allowed; choose another place or format",
    errno.EROFS: "the disk is read-only; choose another place",
    errno.ELOOP: "its links lead round in a circle; name the file itself",
    errno.ENAMETOOLONG: "the name is too long; choose a shorter one",
}


class WordedEnum(StrEnum):
    """Members that are made of a value and of words for people.

    Attributes:
        words: the text; empty where it is not given.
    """

    words: str

    def __new__(cls, value: str, words: str = "") -> Self:
        """Make a member out of its value and its words."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.words = words
        return member


def plain(text: str) -> str:
    """Return text that a terminal shows as it is: no controls, no lone surrogates."""
    if text.isascii() and text.isprintable():  # nearly all
        return text
    shown = text.translate(_CONTROLS)
    return shown if shown.isascii() else shown.encode(errors="replace").decode()


def reason(error: BaseException) -> str:
    """Return why a file could not be used, without words of Python or of the system's interface."""
    if isinstance(error, OSError) and error.strerror:
        return _REASONS.get(error.errno or 0, error.strerror.lower())
    if isinstance(error, FileNotFoundError):  # of polars, whose text names a temporary file
        return _REASONS[errno.ENOENT]
    if isinstance(error, PermissionError):
        return _REASONS[errno.EACCES]
    if isinstance(error, UnicodeDecodeError):
        return f"it is no text, from byte {error.start} on"
    return str(error)


def rank_text(rank: int | str) -> str:
    """Return ``rank 3``; a rank without a number has the name of its folder."""
    name = plain(str(rank))
    return f"rank {name}" if name.isdigit() else name


def place_text(step: int, rank: int | str) -> str:
    """Return ``step 20, rank 3``; the one rank of a program without ranks is not named."""
    return f"step {step}" if rank == "rank" else f"step {step}, {rank_text(rank)}"


def number_ranges(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return sorted numbers as first and last ones of runs without a gap."""
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        is_next = bool(ranges) and number == ranges[-1][1] + 1
        first = ranges.pop()[0] if is_next else number
        ranges.append((first, number))
    return ranges


def count_text(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 record``, ``1,200 records``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def few_text(names: Sequence[str], most: int) -> str:
    """Return the first names of several, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def times_text(count: int) -> str:
    """Return how often something is done: ``"once"``, ``"3 times"``."""
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")


def size_text(size_bytes: float) -> str:
    """Return a number of bytes: ``512 B``, ``1.2 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size_bytes) < 1000:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.1f} TB"


def html_text(text: str) -> str:
    """Return text as HTML that shows it as it is."""
    return escape(plain(text))


def html_table(titles: Sequence[str], rows: Sequence[Sequence[tuple[str, str]]]) -> str:
    """Return a table for a notebook; each cell is a text and an explanation, which may be empty."""
    style = "text-align:left"  # notebooks set numbers and texts alike to the right
    heads = "".join(f'<th style="{style}">{html_text(title)}</th>' for title in titles)
    lines = ("".join(_html_cell(*cell, style) for cell in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    head = f"<thead><tr>{heads}</tr></thead>"
    return f'<table style="color:inherit">{head}<tbody>{body}</tbody></table>'


def html_small(html: str) -> str:
    """Return a line of HTML in small, faint letters."""
    return f'<div style="font-size:90%;opacity:.75">{html}</div>'


def _html_cell(text: str, meaning: str, style: str) -> str:
    title = f' title="{html_text(meaning)}"' if meaning else ""
    return f'<td style="{style}"{title}>{html_text(text)}</td>'
