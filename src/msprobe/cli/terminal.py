# SPDX-License-Identifier: Apache-2.0
"""Where verbs print: one console, as wide as the terminal, and wide where there is none."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from msprobe.dump.records import JsonTree

# A pipe or a file has no width; nothing should be cut there.
_WIDTH_OF_PIPES: Final = 240


def make_console() -> Console:
    """Return a console on stdout."""
    from rich.console import Console

    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # names may hold what the terminal cannot show

    class Screen(Console):
        def on_broken_pipe(self) -> None:
            raise  # rich would end with 1, which has a meaning here

    made = Screen(highlight=False, markup=False, emoji=False, soft_wrap=True)
    if not made.is_terminal and "COLUMNS" not in made._environ:
        made.width = _WIDTH_OF_PIPES
    return made


def print_lines(screen: Console, lines: Iterable[Text]) -> None:
    """Print lines that were made for the console's width."""
    for line in lines:
        line.end = "\n"
        screen.print(line)


def print_json(tree: JsonTree, *, indent: int | None = 1) -> None:
    """Print a tree as strict JSON, in characters that stdout has."""
    from msprobe.json_text import strict_json

    is_utf = (sys.stdout.encoding or "").lower().startswith("utf")
    sys.stdout.write(strict_json(tree, indent=indent, ensure_ascii=not is_utf))


@contextmanager
def reader_may_leave() -> Iterator[None]:
    """Let whoever reads stdout (head, a pager) stop early; the exit code stays the same."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # What is still buffered would raise again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
