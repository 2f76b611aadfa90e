# SPDX-License-Identifier: Apache-2.0
"""Streams of accelerators: which one computes, and how a copy to the host keeps out of its way."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, Final

import torch


def current_stream(device: torch.device) -> Any:
    """Return the current stream of an accelerator that has streams and pinned memory, else None."""
    if device.type in ("cpu", "mps"):
        return None
    current = getattr(getattr(torch, device.type, None), "current_stream", None)
    return None if current is None else current(device)


def stream_address(device: torch.device) -> int | None:
    """Return what tells the current stream of a device from others; None while it is captured.

    What runs while a graph is captured computes nothing yet, and would become a part of the graph.
    """
    if device.type != "cuda":
        stream = current_stream(device)
        return 0 if stream is None else int(stream.stream_id)
    if torch.cuda.is_current_stream_capturing():
        return None
    index = torch.cuda.current_device() if device.index is None else device.index
    return int(_raw_stream(index))


_raw_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)


def current_device(device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which a device is the current one of its kind."""
    if device.type in ("cpu", "mps"):
        return _NOTHING
    if device.type == "cuda" and device.index == torch._C._cuda_getDevice():
        return _NOTHING
    module = getattr(torch, device.type)
    return module.device(device)  # type: ignore[no-any-return]


_NOTHING: Final = nullcontext()


def stream_context(stream: Any) -> AbstractContextManager[object]:
    """Return a context in which this thread computes on `stream`."""
    enter = getattr(getattr(torch, stream.device.type), "stream", None)
    return nullcontext() if enter is None else enter(stream)


class HostCopy:
    """A copy of a tensor to the host that begins now; the program goes on."""

    __slots__ = ("_event", "_host")

    def __init__(self, tensor: torch.Tensor, stream: Any) -> None:
        """Start it.

        Args:
            tensor: the values.
            stream: on which they are computed; None where there are no streams, which waits here.
        """
        self._event: Any = None
        if stream is None:
            self._host = tensor.cpu()
            return
        self._host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
        with stream_context(stream):
            self._host.copy_(tensor, non_blocking=True)
            self._event = stream.record_event()

    def wait(self) -> torch.Tensor:
        """Return the values, on any thread; waiting leaves the GIL to others."""
        if self._event is not None:
            self._event.synchronize()
        return self._host


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
