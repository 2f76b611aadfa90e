# SPDX-License-Identifier: Apache-2.0
"""The console that commands print to: as wide as the terminal, and wide where there is none."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any, Final, TextIO, TypeVar, cast

from msprobe.plain_text import reason

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from msprobe.dump.records import JsonTree

_T = TypeVar("_T")

# A pipe or a file has no width; nothing should be cut there.
_WIDTH_OF_PIPES: Final = 240


def make_console() -> Console:
    """Return a console on stdout."""
    from rich.console import Console

    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # for characters unknown to the terminal

    class Screen(Console):
        def on_broken_pipe(self) -> None:
            raise  # rich would end with 1, which has a meaning here

    made = Screen(highlight=False, markup=False, emoji=False, soft_wrap=True)
    if not made.is_terminal and "COLUMNS" not in made._environ:
        made.width = _WIDTH_OF_PIPES
    return made


def print_lines(screen: Console, lines: Iterable[Text | str]) -> None:
    """Print lines that were made for the console's width."""
    if screen.color_system is None:  # rich would only look for styles that it may not print
        for line in lines:
            text = line if isinstance(line, str) else line.plain
            screen.file.write(f"{text}\n".expandtabs())
        screen.file.flush()
        return
    from rich.text import Text

    for each in lines:
        line = Text(each) if isinstance(each, str) else each
        line.end = "\n"
        screen.print(line)


def print_json(tree: JsonTree, *, indent: int | None = 1) -> None:
    """Print a tree as strict JSON, in characters that stdout has."""
    from msprobe.json_text import strict_json

    is_utf = (sys.stdout.encoding or "").lower().startswith("utf")
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # half characters; JSON means the same
    sys.stdout.write(strict_json(tree, indent=indent, ensure_ascii=not is_utf))


@contextmanager
def guarded_stdout() -> Iterator[None]:
    """Turn failures of stdout into the error that other files raise.

    Raises:
        ReportWriteError: it is closed, or cannot be written.
    """
    with redirect_stdout(cast("TextIO", _Stdout(sys.stdout))):
        yield
        sys.stdout.flush()


class _Stdout:
    """A stream whose errors name standard output."""

    def __init__(self, stream: TextIO | None) -> None:
        # Python has no stream where the descriptor is closed.
        self._is_closed = stream is None
        self._stream = open(os.devnull, "w") if stream is None else stream  # noqa: PTH123, SIM115

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        from msprobe.errors import ReportWriteError

        if self._is_closed and text:
            raise ReportWriteError("standard output", "is closed")
        return self._guarded(lambda: self._stream.write(text)) if text else 0

    def flush(self) -> None:
        self._guarded(self._stream.flush)

    def _guarded(self, do: Callable[[], _T]) -> _T:
        from msprobe.errors import ReportWriteError

        try:
            return do()
        except BrokenPipeError:
            raise
        except OSError as exc:
            discard_stdout()
            problem = f"cannot be written: {reason(exc)}"
            raise ReportWriteError("standard output", problem) from exc


def discard_stdout() -> None:
    """Discard output that is still buffered: it would raise again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def reader_may_leave() -> Iterator[None]:
    """Let the reader of stdout (head, a pager) stop early; the exit code stays the same."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        discard_stdout()
