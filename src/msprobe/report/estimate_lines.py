# SPDX-License-Identifier: Apache-2.0
"""Cost of recording as a table, and whether a disk suffices."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from msprobe.dump.estimates import Estimate
from msprobe.errors import UsageError
from msprobe.plain_text import size_text


def estimate_lines(found: Sequence[Estimate]) -> list[str]:
    """Return a table of what recording one step costs, for each level and task."""
    lines = [f"{'level':6}{'task':12}{'records':>9}{'time':>11}{'disk':>11}{'memory':>11}"]
    for each in found:
        memory = "" if each.memory_bytes is None else size_text(each.memory_bytes)
        lines.append(
            f"{each.level:6}{each.task:12}{each.records:9,}{each.capture_s * 1e3:8.1f} ms"
            f"{size_text(each.size_bytes):>11}{memory:>11}"
        )
    return lines


def refuse_small_disk(found: Sequence[Estimate], folder: Path, steps: int) -> None:
    """Do nothing if a disk suffices for each of several recordings.

    Args:
        found: what one step of each of them costs.
        folder: the folder that they would be recorded into; it need not exist.
        steps: how many steps would be recorded.

    Raises:
        UsageError: it does not suffice.
    """
    folder = folder.absolute()
    existing = next(each for each in (folder, *folder.parents) if each.exists())
    free = shutil.disk_usage(existing).free
    too_large = [each for each in found if each.size_bytes * steps > free]
    if too_large:
        names = ", ".join(f"{each.level} {each.task}" for each in too_large)
        needed = size_text(max(each.size_bytes for each in too_large) * steps)
        raise UsageError(
            f"{existing} has {size_text(free)} left, and {steps:,} "
            f"step{'s' * (steps != 1)} of {names} need{'s' * (steps == 1)} "
            f"up to {needed}: record fewer steps, or filter with list or scope"
        )
