# SPDX-License-Identifier: Apache-2.0
"""Collect the facts of a step: what happens in the training around the recorded calls."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Literal, Protocol

from msgspec import Raw

from msprobe.dump.facts import (
    ChangedFlags,
    Cleared,
    Communication,
    Data,
    Ended,
    Ending,
    Event,
    Loss,
    Modes,
    Parameters,
)

Entry = ChangedFlags | Cleared | Communication | Data | Loss | Event


class FactSink(Protocol):
    """Keeps the facts of a step: a dump, or the signatures of a run."""

    def put_fact(self, part: str, value: Any) -> None:
        """Take a part, or an entry of a list part."""


class FactCollector:
    """Takes the facts of the step and hands them on.

    Observers put parts from `Session.start` until the step ends, whether or not the user has called
    ``stop`` meanwhile. Everything here must be called inside the guard of the adapter.

    Attributes:
        ended: how the step ends, as far as it is known.
    """

    def __init__(self, *, is_wanted: bool) -> None:
        """Create it; it takes nothing before `begin`, nor ever if facts are not wanted."""
        self._is_wanted = is_wanted
        self._dump: FactSink | None = None
        self._waiting: deque[tuple[str, Entry | Callable[[], Entry]]] = deque()
        self.ended = Ended(how=Ending.WHOLE)

    @property
    def is_open(self) -> bool:
        """Whether facts of the current step are taken."""
        return self._dump is not None

    def begin(self, step: int, dump: FactSink) -> None:
        """Begin to take the facts of a step."""
        if not self._is_wanted:
            return
        self._dump = dump
        self._waiting.clear()
        self.ended = Ended(how=Ending.WHOLE)
        dump.put_fact("step", step)

    def put(
        self,
        part: Literal[
            "settings", "random", "undrawn", "modes", "parameters", "buffers_after", "outline"
        ],
        value: dict[str, str] | dict[str, str | None] | list[str] | Modes | Parameters | Raw,
    ) -> None:
        """Write a part that a step has once, which may be encoded; a later one replaces it."""
        if self._dump is not None:
            self._dump.put_fact(part, value)

    def append(
        self,
        part: Literal["flags", "data", "labels", "loss", "communication", "events", "cleared"],
        entry: Entry | Callable[[], Entry],
    ) -> None:
        """Add an entry to a part.

        Args:
            part: the part.
            entry: the entry. A function is called when the step ends, to return one whose numbers
                are still on their way from a device; entries after it wait for it.
        """
        if self._dump is None:
            return
        if self._waiting or callable(entry):
            self._waiting.append((part, entry))
        else:
            self._dump.put_fact(part, entry)

    def finish(self) -> None:
        """Write the entries that wait, and how the step ended; nothing is taken afterwards."""
        dump = self._dump
        if dump is None:
            return
        try:
            while self._waiting:
                part, entry = self._waiting.popleft()
                dump.put_fact(part, entry() if callable(entry) else entry)
        finally:
            dump.put_fact("ended", self.ended)
            self.forget()

    def forget(self) -> None:
        """Take nothing more of this step."""
        self._dump = None
        self._waiting.clear()
