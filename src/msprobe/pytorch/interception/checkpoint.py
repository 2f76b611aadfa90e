# SPDX-License-Identifier: Apache-2.0
"""Recognise the recomputation of activation checkpoints, both modes, by their frames."""

from __future__ import annotations

from types import FrameType
from typing import Any, Final

import torch
from torch.utils import checkpoint as _checkpoint

from msprobe.capture.recomputation import Owner, Recomputations, Surroundings
from msprobe.capture.session import Session

_FILE: Final = _checkpoint.__file__
_graph_task: Final = torch._C._current_graph_task_id
_ENTRIES: Final = frozenset({"checkpoint", "_checkpoint_impl"})  # the second since PyTorch 2.14
# torch makes an object for each execution of a region.
_ONCE: Final = 0


def recomputations(session: Session) -> Recomputations:
    """Return the map of repeated calls to their originals, for the calls of `session`."""
    return Recomputations(session, _regions_around, _graph_task)


def _regions_around(frame: FrameType | None) -> Surroundings:
    entered: list[Owner] = []
    while frame is not None:
        code = frame.f_code
        if code.co_filename == _FILE:
            name = code.co_name
            if name == "unpack_hook":
                owner = frame.f_locals.get("frame")
                if owner is not None:
                    return Surroundings(entered, (owner, _ONCE), is_reentrant=False)
            elif name == "backward" and "ctx" in frame.f_locals:
                return Surroundings(entered, (frame.f_locals["ctx"], _ONCE), is_reentrant=True)
            elif name == "forward" and "ctx" in frame.f_locals:
                entered.append((frame.f_locals["ctx"], _ONCE))
            elif name in _ENTRIES:
                owner = _frame_of(frame.f_locals.get("gen"))
                if owner is not None:
                    entered.append((owner, _ONCE))
        frame = frame.f_back
    return Surroundings(entered)


def _frame_of(generator: Any) -> Any:
    """Return torch's object of a non-reentrant region, from the generator that runs it."""
    inner = getattr(generator, "gi_frame", None)
    return inner.f_locals.get("new_frame") if inner is not None else None
