# SPDX-License-Identifier: Apache-2.0
"""Repeated calls of checkpointed code: which earlier call each of them repeats.

A checkpointed region runs again inside the backward pass. A repeated call is the same call: it
keeps its number, and the gradients that its graph delivers (reentrant mode) belong to it. The n-th
call of a recomputation repeats the n-th call of its region. Which region a call lies in, the
framework's room reads from the frames on the stack.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from msprobe.capture.call import Call
from msprobe.capture.session import Session
from msprobe.capture.stacks import Stack

Owner = tuple[Any, int]
"""The framework's own object for a region, and which of its executions is meant."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Facts about a call from the frames around it.

    Attributes:
        entered: the regions that were entered since the innermost recomputation began.
        repeated: the region that is being recomputed; None in a first run.
        is_reentrant: whether the recomputation makes the graph that delivers the gradients.
    """

    entered: Sequence[Owner] = ()
    repeated: Owner | None = None
    is_reentrant: bool = False


@dataclass(slots=True)
class _Region:
    """One execution of checkpointed code.

    Attributes:
        owner: the framework's own object for it, by weak reference where it allows one.
        calls: the calls in it, in order.
        position: per backward pass, how many calls were repeated.
    """

    owner: Any
    calls: list[Call] = field(default_factory=list)
    position: dict[int, int] = field(default_factory=dict)


class Recomputations:
    """Maps repeated calls to their originals, within one step."""

    __slots__ = ("_around", "_backward_pass", "_keeps_records", "_regions", "_session")

    def __init__(
        self,
        session: Session,
        around: Callable[[FrameType | None], Surroundings],
        backward_pass: Callable[[], int],
    ) -> None:
        """Create it.

        Args:
            session: whose calls these are.
            around: reads the frames.
            backward_pass: returns a number for the backward pass that runs now.
        """
        self._around = around
        self._backward_pass = backward_pass
        self._session = session
        self._keeps_records = session.config.record_recompute
        self._regions: dict[tuple[int, int], _Region] = {}

    def next_step(self) -> None:
        """Forget all regions."""
        self._regions.clear()

    def begin(
        self, base: str, stack: Stack, frame: FrameType | None, *, is_module: bool
    ) -> Call | None:
        """Begin a call, which may lie in checkpointed code.

        Args:
            base: the call's name without its number.
            stack: where it was called.
            frame: the frame that called it.
            is_module: see `Calls.begin`.

        Returns:
            The call; None when it repeats none that was observed, and repetitions make no records.
        """
        calls = self._session.calls
        if not stack.traits.checkpointed:
            return calls.begin(base, stack, is_module=is_module)
        around = self._around(frame)
        repeated = around.repeated
        if repeated is None:
            call = calls.begin(base, stack, is_module=is_module, is_checkpointed=True)
            original = call
        else:
            found = self._original(base, repeated)
            if found is not None:
                original = found
                call = calls.begin_again(original, keeps_record=self._keeps_records)
            elif self._keeps_records:
                original = call = calls.begin(base, stack, is_module=is_module, is_recompute=True)
            else:
                self._session.account.skipped["recomputation of an unrecorded call"] += 1
                return None
            if not around.is_reentrant:
                call.keeps_gradients = False  # the first run's own graph delivers them
        for owner in around.entered:
            self._region(owner).calls.append(original)
        return call

    def _original(self, base: str, owner: Owner) -> Call | None:
        region = self._regions.get((id(owner[0]), owner[1]))
        if region is None or _target(region.owner) is not owner[0]:
            return None
        task = self._backward_pass()
        position = region.position.get(task, 0)
        if position >= len(region.calls):
            return None
        original = region.calls[position]
        if not original.forward_name.startswith(f"{base}."):
            return None  # something extra, which the first run did not call
        region.position[task] = position + 1
        return original

    def _region(self, owner: Owner) -> _Region:
        key = (id(owner[0]), owner[1])
        region = self._regions.get(key)
        if region is None or _target(region.owner) is not owner[0]:
            region = self._regions[key] = _Region(_weakly(owner[0]))
        return region


def _weakly(owner: Any) -> Any:
    try:
        return weakref.ref(owner)
    except TypeError:
        return owner


def _target(reference: Any) -> Any:
    return reference() if isinstance(reference, weakref.ref) else reference
