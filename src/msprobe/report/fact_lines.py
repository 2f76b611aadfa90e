# SPDX-License-Identifier: Apache-2.0
"""Titles, labelled facts and lists as lines of text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

from rich.text import Text

from msprobe.plain_text import plain

LABEL_WIDTH: Final = 13
COMMAND: Final = "msprobe "
"""Begin of a text that is a command, to be copied."""


def title_lines(text: str, width: int) -> Iterator[Text]:
    """Yield an empty line and a section's title."""
    yield Text()
    yield from (Text(line, "bold cyan") for line in textwrap.wrap(plain(text), max(width, 20)))


def fact_lines(
    label: str, text: str, width: int, style: str = "", *, label_width: int = LABEL_WIDTH
) -> Iterator[Text]:
    """Yield a fact beside its label; a word that is longer than a line is not broken."""
    room = max(width - label_width, 20)
    # Long names are worth a line of their own, whole: they are there to be copied.
    lines = textwrap.wrap(plain(text), room, break_long_words=False, break_on_hyphens=False)
    for place, line in enumerate(lines or ["-"]):
        label_text = "" if place else f"  {label}"
        yield Text.assemble((label_text.ljust(label_width), "dim"), (line, style))


def list_lines(texts: Sequence[str], width: int, most: int | None = None) -> Iterator[Text]:
    """Yield a list, `most` lines of each text; a command gets a whole line, for copying."""
    for text in texts:
        shown = plain(text)
        if text.startswith(COMMAND):
            yield Text(f"    {shown}", "cyan")
            continue
        lines = textwrap.wrap(
            shown, max(width - 4, 20), break_long_words=False, max_lines=most, placeholder=" …"
        )
        yield from (Text(f"  {'  ' if place else '- '}{line}") for place, line in enumerate(lines))
