# SPDX-License-Identifier: Apache-2.0
"""What a rank knows of the norm of gradients that lie on several ranks (`DTensor`).

Nothing is sent: the squares of the parts of all ranks are added up by who reads the run. Copies on
several ranks are divided among them.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from msprobe.dump.facts import Clip
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


def clip_of_parts(clip: Clip, norm: Tensor) -> Clip:
    """Return the record of clipping with this rank's part of the norm, which the call returned."""
    count = copies_of(norm)
    if not count or clip.norm_type not in (None, 2):
        return clip
    local: Tensor = norm.to_local()  # type: ignore[attr-defined]
    return ClipOfParts(
        function=clip.function,
        max=clip.max,
        norm_type=clip.norm_type,
        parameters=clip.parameters,
        part=float(local),
        copies=count,
    )
