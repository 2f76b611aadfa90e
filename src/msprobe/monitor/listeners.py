# SPDX-License-Identifier: Apache-2.0
"""Listeners that get the rows of a run: while it trains, or as they were stored."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from msprobe.monitor.rows import Rows


class RowListener(Protocol):
    """Sees rows as they are made; of a training on the recorder's thread only."""

    def take(self, rows: Rows) -> None:
        """Take a block of rows."""

    def end_step(self, step: int, time: float) -> None:
        """Note that all rows of a step came; of a training they are on disk.

        Args:
            step: its number.
            time: now; of a stored run when the rows were collected. Seconds since 1970 UTC.
        """

    def close(self) -> None:
        """Note that no more rows come."""


def tell(blocks: Iterable[Rows], listener: RowListener) -> None:
    """Let a listener see stored blocks, ordered by step, as if they came now."""
    last: Rows | None = None
    for rows in blocks:
        if last is not None and rows.step != last.step:
            listener.end_step(last.step, last.time)
        last = rows
        listener.take(rows)
    if last is not None:
        listener.end_step(last.step, last.time)
    listener.close()
