# SPDX-License-Identifier: Apache-2.0
"""Measure the tensors of collectives: an observer of the calls that capture sees, too."""

from __future__ import annotations

import logging
import re
import sys
from collections import Counter
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from msprobe.capture.session import Session
from msprobe.log import warn_once
from msprobe.monitor.collecting.step_rows import Key, StepRows
from msprobe.monitor.rows import Stream
from msprobe.monitor.settings import CommunicationKeys
from msprobe.pytorch.distributed.collectives import opened, without
from msprobe.pytorch.distributed.process_groups import Collective
from msprobe.pytorch.interception.guard import quietly
from msprobe.pytorch.interception.tracing import is_tracing
from msprobe.pytorch.values.checksum import crc32_hex
from msprobe.pytorch.values.tensor_search import tensors_in

logger = logging.getLogger(__name__)

CHECKSUM: Final = "checksum"
_OWN_FILES: Final = re.compile(r"[/\\](msprobe|torch)[/\\]")


class _Token(NamedTuple):
    collective: Collective
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    call: int


class Communication:
    """Measures what collectives send and receive: rows ``all_reduce.pre_0``, ``all_reduce.post_0``.

    Besides the operations of the stream, each row has the CRC-32 of the bytes, as a number: where
    all ranks must have received the same, it is equal.

    Attributes:
        rows: of the step; None while nothing is collected.
    """

    def __init__(self, session: Session, keys: CommunicationKeys) -> None:
        """Create it.

        Args:
            session: learns of exceptions.
            keys: which calls, and whether their inputs are measured.
        """
        self._session = session
        self._keys = keys
        self._lines = [re.compile(pattern) for pattern in keys.cc_codeline]
        self._calls: Counter[str] = Counter()
        self.rows: StepRows | None = None

    def begin_step(self, rows: StepRows | None) -> None:
        """Begin a step, or stop with None."""
        self.rows = rows
        self._calls.clear()

    def begin(
        self, collective: Collective, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> object | None:
        """Measure the inputs if they are wanted; None when the call is of no interest."""
        if self.rows is None or Stream.OTHER not in self.rows.streams or is_tracing():
            return None
        return quietly(self._session, "collective", self._begin, collective, args, kwargs)

    def end(
        self,
        token: Any,
        result: object,
        *,
        completed: bool,
        error: BaseException | None = None,
    ) -> None:
        """Measure the buffers if they hold the result."""
        if completed and error is None:
            quietly(self._session, "collective", self._end, token, result)

    # -- inside ----------------------------------------------------------------------------------

    def _begin(
        self, collective: Collective, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> _Token | None:
        frames = list(_frames(sys._getframe(1)))
        if self._lines and not any(one.search(frame) for one in self._lines for frame in frames):
            return None
        if self._keys.cc_log_only:
            shown = " <- ".join(frames[:6])
            warn_once(logger, (collective.api, shown), "%s called at %s", collective.api, shown)
            return None
        token = _Token(collective, args, kwargs, self._calls[collective.api])
        self._calls[collective.api] += 1
        if self._keys.cc_pre_hook:
            sent = opened(*without(collective.communication.fills, args, kwargs), hides="irecv")
            self._put(token, "pre", *sent)
        return token

    def _end(self, token: _Token, result: object) -> None:
        collective = token.collective
        if collective.returns:
            self._put(token, "post", (result() if callable(result) else result,), {})
            return
        filled = without(collective.communication.sends, token.args, token.kwargs)
        self._put(token, "post", *opened(*filled, hides="isend"))

    def _put(self, token: _Token, tag: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        rows = self.rows
        if rows is None:
            return
        found: list[tuple[Tensor, Any]] = []
        tensors_in(args, kwargs, found)
        tensors = [tensor for tensor, _ in found]
        api = token.collective.api
        keys = [Key(f"{api}.{tag}_{place}", 0, token.call) for place in range(len(tensors))]
        rows.batch(Stream.OTHER).add(keys, tensors)
        for key, tensor in zip(keys, tensors, strict=True):
            checksum = crc32_hex(tensor) if tensor.is_cpu else None
            if checksum is not None:
                rows.put_number(key, float(int(checksum, 16)), stream=Stream.OTHER, op=CHECKSUM)


def _frames(frame: FrameType | None) -> Iterator[str]:
    """Yield ``path[line]`` of the frames of the user's program, innermost first."""
    while frame is not None:
        path = frame.f_code.co_filename
        if not _OWN_FILES.search(path):
            yield f"{path}[{frame.f_lineno}]"
        frame = frame.f_back


def may_communicate() -> bool:
    """Return whether this process belongs to a process group."""
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized()
