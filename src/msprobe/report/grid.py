# SPDX-License-Identifier: Apache-2.0
"""Columns of text that fit a given width, and the lines of trees.

Not `rich.table`: it measures every cell of every row first and cuts names at their end, where
records differ most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.text import Span, Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column.

    Attributes:
        title: its heading.
        width: its width in terminal cells.
        right: whether text is aligned right, as numbers are.
    """

    title: str
    width: int
    right: bool = False


class Cell(NamedTuple):
    """A piece of text with a style, between a dimmed `lead` and `tail`.

    Where room is short the tail is cut first, at its end, and the lead never.
    """

    text: str
    style: str = ""
    lead: str = ""
    tail: str = ""

    @property
    def width(self) -> int:
        """Its width in terminal cells, where nothing is cut."""
        return text_width(self.lead + self.text + self.tail)


def text_width(text: str) -> int:
    """Return the width of a text in terminal cells."""
    return len(text) if text.isascii() else cell_len(text)


class Guides(NamedTuple):
    """Line characters that connect a node of a tree with its children."""

    branch: str
    last: str
    bar: str
    blank: str


def guides(*, unicode: bool, wide: bool = False) -> Guides:
    """Return the lines of trees; without `unicode` those that every terminal shows."""
    if not unicode:
        return Guides("|- ", "`- ", "|  ", "   ")
    return Guides("├─ ", "└─ ", "│  ", "   ") if wide else Guides("├ ", "└ ", "│ ", "  ")


def columns_of(
    titles: Sequence[str], lines: Sequence[Sequence[Cell]], *, right: Sequence[str] = ()
) -> list[Column]:
    """Return columns as wide as their longest cell; those titled `right` are aligned right."""
    return [
        Column(
            title=title,
            width=max([cell_len(title), *(line[place].width for line in lines)]),
            right=title in right,
        )
        for place, title in enumerate(titles)
    ]


def heading(columns: Sequence[Column], gap: int = 2) -> Text:
    """Return the line with the titles of the columns."""
    return row(columns, [Cell(column.title, "bold dim") for column in columns], gap)


def row(columns: Sequence[Column], cells: Sequence[Cell], gap: int = 2) -> Text:
    """Return one line; cells that are too long are cut in the middle."""
    parts: list[str] = []
    spans: list[Span] = []
    end = 0
    for position, (column, cell) in enumerate(zip(columns, cells, strict=True)):
        text, tail = cell.text, cell.tail
        room = max(column.width - text_width(cell.lead), 1) if cell.lead else column.width
        width = text_width(text + tail)
        if width > room:
            left = room - text_width(text)
            tail = set_cell_size(tail, left - 1).rstrip() + "…" if left > 3 else ""
            text = cut_middle(text, room)
            width = text_width(text + tail)
        padding = " " * (room - width)
        blank = " " * gap if position else ""
        front = f"{blank}{cell.lead}{padding}" if column.right else blank + cell.lead
        start, stop = end + len(front), end + len(front) + len(text)
        if cell.lead:
            spans.append(Span(end + len(blank), end + len(blank) + len(cell.lead), "dim"))
        if cell.style and text:
            spans.append(Span(start, stop, cell.style))
        if tail:
            spans.append(Span(stop, stop + len(tail), "dim"))
        part = front + text + tail if column.right else front + text + tail + padding
        parts.append(part)
        end += len(part)
    line = Text("".join(parts).rstrip(), no_wrap=True, overflow="crop", end="")
    line.spans = [span for span in spans if span.start < len(line)]
    return line


def plain_row(columns: Sequence[Column], texts: Sequence[str], gap: int = 2) -> str | None:
    """Return one line without styles, in a third of the time of `row`; None if a text is cut."""
    are_plain = "".join(texts).isascii()  # mostly: then length is width
    parts: list[str] = []
    for column, text in zip(columns, texts, strict=True):
        padding = column.width - (len(text) if are_plain else text_width(text))
        if padding < 0:
            return None
        parts.append(" " * padding + text if column.right else text + " " * padding)
    return (" " * gap).join(parts).rstrip()


def cut_middle(text: str, width: int) -> str:
    """Return text cut in the middle to at most `width` cells."""
    if text_width(text) <= width:
        return text
    if width < 4:
        return set_cell_size(text, width).rstrip()
    keep = width - 1
    front = set_cell_size(text, keep // 3)
    back = text[-(keep - keep // 3) :]
    while cell_len(back) > keep - keep // 3:
        back = back[1:]
    return f"{front}…{back}"


def fitted(
    columns: Sequence[Column], width: int, gap: int, *, shrink: Sequence[str], least: int = 8
) -> list[Column]:
    """Return the columns, the widest of those titled `shrink` made narrower until all fit.

    None becomes narrower than `least`, so that the line may still be too long.
    """
    widths = [column.width for column in columns]
    places = [place for place, column in enumerate(columns) if column.title in shrink]
    while places and sum(widths) + gap * (len(widths) - 1) > width:
        widest = max(places, key=widths.__getitem__)
        if widths[widest] <= least:
            break
        widths[widest] -= 1
    return [replace(column, width=wide) for column, wide in zip(columns, widths, strict=True)]
