# SPDX-License-Identifier: Apache-2.0
"""Progress of work that is counted in calls, on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_SECONDS_BETWEEN: Final = 0.5
# Where stderr is a file, each report is a line.
_SECONDS_BETWEEN_LINES: Final = 30.0


@contextmanager
def call_progress() -> Iterator[Callable[[int, int], None]]:
    """Show how many calls are done, how many a second, and the time left.

    Yields:
        A function to be called after each call, with the numbers of calls done and of all.
    """
    is_terminal = sys.stderr.isatty()
    between = _SECONDS_BETWEEN if is_terminal else _SECONDS_BETWEEN_LINES
    begin = last = time.monotonic()

    def advance(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= between and done < total:
            last = now
            text = _text(done, total, now - begin)
            sys.stderr.write(f"\r{text}\x1b[K" if is_terminal else f"{text}\n")
            sys.stderr.flush()

    try:
        yield advance
    finally:
        if is_terminal and last != begin:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def _text(done: int, total: int, elapsed_s: float) -> str:
    rate = done / elapsed_s
    minutes, seconds = divmod(round((total - done) / rate), 60)
    return f"{done} of {total} calls, {rate:.3g}/s, {minutes}:{seconds:02d} left"
