# SPDX-License-Identifier: Apache-2.0
"""The norm of gradients that are split over several ranks (`DTensor`), as far as one rank knows it.

Nothing is sent: the squares of the parts of all ranks are added up by who reads the run. Copies on
several ranks are divided among them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec.structs import asdict
from torch import Tensor

from msprobe.dump.facts import Clip, Number
from msprobe.monitor.collecting.run_numbers import ClipOfParts


def copies_of(tensor: Any) -> int:
    """Return on how many ranks each element of a tensor of several ranks is; 0 for other tensors.

    A norm of parts counts as a part itself; other sums that are not finished yet as unknown.
    """
    placements = getattr(tensor, "placements", None)
    mesh: Any = getattr(tensor, "device_mesh", None)
    if placements is None or mesh is None:
        return 0
    count = 1
    for axis, placement in enumerate(placements):
        if placement.is_replicate():
            count *= mesh.size(axis)
        elif placement.is_partial() and getattr(placement, "norm_type", None) != 2:
            return 0
    return count


def norm_in_parts(norm: Any) -> tuple[Tensor, Callable[[Clip, Number], Clip]] | None:
    """Return this rank's part of a norm, and what puts it into a record; None of a whole norm."""
    count = copies_of(norm)
    return (norm.to_local(), partial(_clip_of_parts, count)) if count else None


def _clip_of_parts(copies: int, clip: Clip, part: Number) -> Clip:
    if part is None or clip.norm_type not in (None, 2):
        return clip
    return ClipOfParts(**asdict(clip), part=part, copies=copies)
