# SPDX-License-Identifier: Apache-2.0
"""Rows of what collectives send and receive: ``all_reduce.pre_0``, ``all_reduce.post_0``."""

from __future__ import annotations

import logging
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, Final

from msprobe.capture.values import Found
from msprobe.log import warn_once
from msprobe.monitor.collecting.step_rows import Key, StepRows
from msprobe.monitor.rows import Stream
from msprobe.monitor.settings import CommunicationKeys
from msprobe.yaml_nodes import nearest

logger = logging.getLogger(__name__)

CHECKSUM: Final = "checksum"
_OWN_FILES: Final = re.compile(r"[/\\](msprobe|torch|mindspore)[/\\]")
_SHOWN_FRAMES: Final = 6


class Transfers:
    """Chooses calls of collectives, and measures their tensors.

    Besides the operations of the stream, each row has the CRC-32 of the bytes, as a number: where
    all ranks must have received the same, it is equal.

    Attributes:
        rows: of the step; None while nothing is collected.
    """

    def __init__(
        self,
        keys: CommunicationKeys,
        tensors_in: Callable[[Any, Any, Found], object],
        checksum: Callable[[Any], str | None],
        known: Iterable[str],
    ) -> None:
        """Create it.

        Args:
            keys: which calls, and whether their inputs are measured.
            tensors_in: appends the tensors of arguments and keywords, with their positions.
            checksum: returns the CRC-32 of a tensor in hexadecimal digits; None if it lies on an
                accelerator.
            known: names of the functions that can be measured.
        """
        self._keys = keys
        self._chosen = frozenset(keys.distributed_ops)
        for name in sorted(self._chosen.difference(known)):
            text = "cc_distribution.distributed_ops: %r is no collective that is seen here %s"
            warn_once(logger, ("distributed_ops", name), text, name, nearest(name, known))
        self._lines = [re.compile(pattern) for pattern in keys.cc_codeline]
        self._hidden = [re.compile(pattern) for pattern in keys.stack_blacklist]
        self._tensors_in = tensors_in
        self._checksum = checksum
        self._calls: Counter[str] = Counter()
        self.rows: StepRows | None = None

    def begin_step(self, rows: StepRows | None) -> None:
        """Begin a step, or stop with None."""
        self.rows = rows
        self._calls.clear()

    @property
    def is_collecting(self) -> bool:
        """Whether the step that runs collects this."""
        return self.rows is not None and Stream.OTHER in self.rows.streams

    @property
    def wants_inputs(self) -> bool:
        """Whether what is sent is measured, too."""
        return self._keys.cc_pre_hook

    def number(self, api: str) -> int | None:
        """Return the number of a call in the step; None for one that is not measured."""
        if self.rows is None or not self.rows.streams[Stream.OTHER].wants(api):
            return None
        if self._chosen and api not in self._chosen:
            return None
        frames = [
            frame
            for frame in _frames(sys._getframe(1))
            if not any(one.search(frame) for one in self._hidden)
        ]
        if self._lines and not any(one.search(frame) for one in self._lines for frame in frames):
            return None
        if self._keys.cc_log_only:
            shown = " <- ".join(frames[:_SHOWN_FRAMES])
            warn_once(logger, (api, shown), "%s called at %s", api, shown)
            return None
        self._calls[api] += 1
        return self._calls[api] - 1

    def put(
        self, api: str, call: int, tag: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        """Measure all tensors among the arguments.

        Args:
            api: name of the function.
            call: its number, from `number`.
            tag: ``pre`` or ``post``.
            args: positional arguments.
            kwargs: keyword arguments.
        """
        rows = self.rows
        if rows is None:
            return
        found: Found = []
        self._tensors_in(args, kwargs, found)
        tensors = [tensor for tensor, _ in found]
        if not tensors:
            return
        keys = [Key(f"{api}.{tag}_{place}", 0, call) for place in range(len(tensors))]
        rows.batch(Stream.OTHER).add(keys, tensors)
        for key, tensor in zip(keys, tensors, strict=True):
            checksum = self._checksum(tensor)
            if checksum is not None:
                rows.put_number(key, float(int(checksum, 16)), stream=Stream.OTHER, op=CHECKSUM)


def _frames(frame: FrameType | None) -> Iterator[str]:
    """Yield ``path[line]`` of the frames of the user's program, innermost first."""
    while frame is not None:
        path = frame.f_code.co_filename
        if not _OWN_FILES.search(path):
            yield f"{path}[{frame.f_lineno}]"
        frame = frame.f_back
