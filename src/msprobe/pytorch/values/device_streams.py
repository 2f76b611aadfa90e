# SPDX-License-Identifier: Apache-2.0
"""Streams of accelerators: which one computes, and how a copy to the host keeps out of its way."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch


def current_stream(device: torch.device) -> Any:
    """Return the current stream of an accelerator that has streams and pinned memory, else None."""
    if device.type in ("cpu", "mps"):
        return None
    current = getattr(getattr(torch, device.type, None), "current_stream", None)
    return None if current is None else current(device)


def stream_context(stream: Any) -> AbstractContextManager[object]:
    """Return a context in which this thread computes on `stream`."""
    enter = getattr(getattr(torch, stream.device.type), "stream", None)
    return nullcontext() if enter is None else enter(stream)


class Computed:
    """The moment at which a device has computed a value, for a thread that copies it later.

    The other thread has a current stream of its own, which knows nothing of the one that computes:
    without this it might read before the value is there.
    """

    __slots__ = ("_event", "_kind")

    def __init__(self, stream: Any) -> None:
        """Mark the work given to `stream` until now."""
        self._event = stream.record_event()
        self._kind: Any = type(stream)

    def on_own_stream(self, device: torch.device) -> AbstractContextManager[object]:
        """Wait for the value; return a context whose copies delay no computation.

        Waiting leaves the GIL to others. Copies made inside must be complete when it ends.
        """
        self._event.synchronize()
        return stream_context(_copy_stream(self._kind, device))


@cache
def _copy_stream(kind: Any, device: torch.device) -> Any:
    return kind(device=device)
