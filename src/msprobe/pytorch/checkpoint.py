# SPDX-License-Identifier: Apache-2.0
"""Recognise the recomputation of activation checkpoints, both modes.

A checkpointed region runs again inside the backward pass. A repeated call is the same call: it
keeps its number, and the gradients that its graph delivers (reentrant mode) belong to it. Which
region a call lies in is read from the frames of `torch.utils.checkpoint` on the stack; the n-th
call of a recomputation repeats the n-th call of its region.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Final

import torch
from torch.utils import checkpoint as _checkpoint

from msprobe.capture.call import Call
from msprobe.capture.session import Session
from msprobe.capture.stacks import Stack

_FILE: Final = _checkpoint.__file__
_graph_task: Final = torch._C._current_graph_task_id


@dataclass(slots=True)
class _Region:
    """One execution of checkpointed code.

    Attributes:
        owner: torch's own object for it, by weak reference where it allows one.
        calls: what ran in it, in order.
        position: per backward pass, how many calls were repeated.
    """

    owner: Any
    calls: list[Call] = field(default_factory=list)
    position: dict[int, int] = field(default_factory=dict)


class Recomputations:
    """Maps repeated calls to their originals, within one step."""

    __slots__ = ("_keeps_records", "_regions", "_session")

    def __init__(self, session: Session) -> None:
        """Create it for the calls of `session`."""
        self._session = session
        self._keeps_records = session.config.record_recompute
        self._regions: dict[int, _Region] = {}

    def next_step(self) -> None:
        """Forget all regions."""
        self._regions.clear()

    def begin(
        self, base: str, stack: Stack, frame: FrameType | None, *, is_module: bool
    ) -> Call | None:
        """Begin a call inside checkpointed code.

        Args:
            base: the call's name without its number.
            stack: where it was called.
            frame: the frame that called it.
            is_module: see `Recorder.begin`.

        Returns:
            The call; None when it repeats one that was not observed.
        """
        entered, repeated, is_reentrant = _regions_around(frame)
        recorder = self._session.recorder
        if repeated is None:
            call = recorder.begin(base, stack, is_module=is_module)
            recorder.remember_for_recomputation(call)
            original = call
        else:
            found = self._original(base, repeated)
            if found is None:
                self._session.account.skipped["recomputation of an unrecorded call"] += 1
                return None
            original = found
            call = recorder.begin_recomputation(original, keeps_record=self._keeps_records)
            if not is_reentrant:
                call.keeps_gradients = False  # the first run's own graph delivers them
        for owner in entered:
            self._region(owner).calls.append(original)
        return call

    def _original(self, base: str, owner: Any) -> Call | None:
        region = self._regions.get(id(owner))
        if region is None or _target(region.owner) is not owner:
            return None
        task = _graph_task()
        position = region.position.get(task, 0)
        if position >= len(region.calls):
            return None
        original = region.calls[position]
        if not original.forward_name.startswith(f"{base}."):
            return None  # something extra, which the first run did not call
        region.position[task] = position + 1
        return original

    def _region(self, owner: Any) -> _Region:
        region = self._regions.get(id(owner))
        if region is None or _target(region.owner) is not owner:
            region = self._regions[id(owner)] = _Region(_weakly(owner))
        return region


def _weakly(owner: Any) -> Any:
    try:
        return weakref.ref(owner)
    except TypeError:
        return owner


def _target(reference: Any) -> Any:
    return reference() if isinstance(reference, weakref.ref) else reference


def _regions_around(frame: FrameType | None) -> tuple[list[Any], Any, bool]:
    """Return what the frames say.

    Returns:
        The owners of the regions that were entered since the innermost recomputation began; the
        owner of the region that is being recomputed, or None; whether that one is reentrant.
    """
    entered: list[Any] = []
    while frame is not None:
        code = frame.f_code
        if code.co_filename == _FILE:
            name = code.co_name
            if name == "unpack_hook":
                owner = frame.f_locals.get("frame")
                if owner is not None:
                    return entered, owner, False
            elif name == "backward" and "ctx" in frame.f_locals:
                return entered, frame.f_locals["ctx"], True
            elif name == "forward" and "ctx" in frame.f_locals:
                entered.append(frame.f_locals["ctx"])
            elif name == "checkpoint":
                owner = _frame_of(frame.f_locals.get("gen"))
                if owner is not None:
                    entered.append(owner)
        frame = frame.f_back
    return entered, None, False


def _frame_of(generator: Any) -> Any:
    """Return torch's object of a non-reentrant region, from the generator that runs it."""
    inner = getattr(generator, "gi_frame", None)
    return inner.f_locals.get("new_frame") if inner is not None else None
