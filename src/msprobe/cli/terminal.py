# SPDX-License-Identifier: Apache-2.0
"""Where verbs print: one console, as wide as the terminal, and wide where there is none."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

# A pipe or a file has no width; nothing should be cut there.
_WIDTH_OF_PIPES: Final = 240


def make_console() -> Console:
    """Return a console on stdout."""
    from rich.console import Console

    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # names may hold what the terminal cannot show
    made = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    if not made.is_terminal and "COLUMNS" not in made._environ:
        made.width = _WIDTH_OF_PIPES
    return made


def print_lines(screen: Console, lines: Iterable[Text]) -> None:
    """Print lines that were made for the console's width."""
    for line in lines:
        line.end = "\n"
        screen.print(line)
