# SPDX-License-Identifier: Apache-2.0
"""A progress bar on stderr for work that is counted in bytes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.progress import Progress

_SECONDS_BEFORE_SHOWN: Final = 0.4
_UPDATES_PER_S: Final = 8


@contextmanager
def byte_progress(
    total_bytes: int, description: str, *, enabled: bool
) -> Iterator[Callable[[int], None]]:
    """Show how far work has come: part, size, rate and time left.

    The bar appears when the work takes longer than a moment, goes when it is done, and does not
    exist where stderr is no terminal.

    Args:
        total_bytes: how much there is to do.
        description: the work, in a word or two.
        enabled: whether there is a bar at all.

    Yields:
        A function to be called with the bytes that have been done since its last call.
    """
    if not enabled or total_bytes <= 0 or not sys.stderr.isatty():
        yield _ignore
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    progress = Progress(
        TextColumn("{task.description}", style="bold"),
        BarColumn(bar_width=None),
        TaskProgressColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(compact=True),
        TextColumn("left"),
        console=Console(stderr=True, highlight=False),
        refresh_per_second=_UPDATES_PER_S,
        transient=True,
        expand=True,
    )
    bar = _LateBar(progress, total_bytes, description)
    try:
        yield bar.advance
    finally:
        progress.stop()


class _LateBar:
    """A bar that appears only for work that takes a while."""

    def __init__(self, progress: Progress, total_bytes: int, description: str) -> None:
        self._progress = progress
        self._task = progress.add_task(description, total=total_bytes)
        self._begin = progress.get_time()
        self._is_shown = False

    def advance(self, size_bytes: int) -> None:
        self._progress.advance(self._task, size_bytes)
        waited = self._progress.get_time() - self._begin
        if not self._is_shown and waited > _SECONDS_BEFORE_SHOWN:
            self._is_shown = True
            self._progress.start()


def _ignore(_: int) -> None:
    """Do nothing."""
