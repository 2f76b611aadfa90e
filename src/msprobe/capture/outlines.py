# SPDX-License-Identifier: Apache-2.0
"""Which calls a step is made of, where calls have no records: at level L0.

No tensor is read. A call is its name, its line and those of its arguments that are no tensors, so a
call that was made before, at the same place with the same arguments, is one number more in a list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import CodeType, FrameType
from typing import Any, Final

from msgspec import Raw

from msprobe.capture.call import Call
from msprobe.capture.session import Session
from msprobe.dump.facts import (
    OUTLINED_TENSOR,
    Outline,
    OutlinedCall,
    OutlineRun,
    encode_fact,
)

MOST_CALLS: Final = 100_000
"""Calls of a step that are noted, so that a loop without end does not fill the memory."""
_MOST_KINDS: Final = 10_000
_UNKNOWN: Final = -1  # number of a call beyond these
_MOST_ELEMENTS: Final = 64  # of a list that is an argument
_MOST_LETTERS: Final = 80
_NUMBERS: Final = frozenset({int, float, bool, complex, type(None)})

_Run = tuple[str | None, str | None, tuple[int, ...]]  # see `OutlineRun`


class Outlines:
    """Takes calls in order, and puts the outline of a step into its facts."""

    def __init__(
        self,
        session: Session,
        tensors: tuple[type, ...],
        words: tuple[type, ...],
        framework: str,
    ) -> None:
        """Create it without a call.

        Args:
            session: tells which modules are open, and takes the facts.
            tensors: the classes of tensors.
            words: classes of arguments that are told by their text, as types of elements.
            framework: folder of the framework; of calls made there no line is told.
        """
        self._session = session
        self._tensors, self._words = tensors, words
        self._framework = framework
        # What is known of calls serves later steps as well.
        self._known: dict[tuple[object, ...], int] = {}
        self._codes: set[CodeType] = set()  # others may make keys of their addresses
        self._calls: list[OutlinedCall] = []
        self._last: list[_Run] = []
        self._encoded = Raw(encode_fact(Outline()))
        self._runs: list[tuple[Call | None, str | None, list[int]]] = []

    def begin_step(self) -> bool:
        """Forget the calls of the step that is over; return whether all numbers are new ones."""
        self._runs = []
        # A program may pass new numbers in each step.
        is_new = len(self._calls) > _MOST_KINDS // 2
        if is_new:
            for table in (self._known, self._codes, self._calls, self._last):
                table.clear()
        return is_new

    def note(
        self, name: str, frame: FrameType, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        """Take a call that begins.

        Args:
            name: that of its record, without number and direction.
            frame: makes the call.
            args: its arguments.
            kwargs: those given by name.
        """
        calls = self._session.calls
        module = calls.modules[-1] if calls.modules else None
        last = self._runs[-1] if self._runs else None
        if last is None or last[0] is not module or last[1] != calls.last_record:
            self.begin_run(module, calls.last_record)
        run = self._runs[-1][-1]
        if len(run) >= MOST_CALLS:
            return
        named = tuple((each, self._word(kwargs[each])) for each in kwargs)
        key = (frame.f_code, frame.f_lasti, name, *map(self._word, args), named)
        if key not in self._known:
            self._known[key] = self.add(name, frame, args, kwargs)
        run.append(self._known[key])

    def begin_run(self, module: Call | None, after: str | None) -> list[int]:
        """Return the list for the numbers of the calls of a module after another one ended."""
        run: list[int] = []
        self._runs.append((module, after, run))
        return run

    def add(
        self, name: str, frame: FrameType, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> int:
        """Return the number of a call that was not made before, at this place and of these."""
        if len(self._calls) >= _MOST_KINDS:
            return _UNKNOWN
        self._codes.add(frame.f_code)
        file = frame.f_code.co_filename
        source = None if file.startswith(self._framework) else f"{file}:{frame.f_lineno}"
        arguments = tuple(map(self._word, args))
        named = {key: self._word(value) for key, value in kwargs.items()}
        call = OutlinedCall(name=name, source=source, arguments=arguments, named=named)
        self._calls.append(call)
        return len(self._calls) - 1

    def put(self) -> int:
        """Put the outline into the facts; return how many calls it has."""
        runs = [
            (None if module is None else module.forward_name, after, tuple(run))
            for module, after, run in self._runs
        ]
        if runs != self._last:  # most steps are like the one before
            self._last, self._encoded = runs, Raw(encode_fact(self._outline(runs)))
        self._session.facts.put("outline", self._encoded)
        return sum(len(run) for *_, run in runs)

    def _outline(self, runs: Sequence[_Run]) -> Outline:
        used = sorted({number for *_, run in runs for number in run} - {_UNKNOWN})
        places = {number: place for place, number in enumerate(used)}
        bodies: dict[tuple[int, ...], int] = {}
        for *_, run in runs:
            bodies.setdefault(run, len(bodies))
        total = sum(len(run) for *_, run in runs)
        return Outline(
            calls=[self._calls[number] for number in used],
            bodies=[[places[n] for n in body if n != _UNKNOWN] for body in bodies],
            runs=[
                OutlineRun(parent=parent, after=after, body=bodies[run])
                for parent, after, run in runs
            ],
            is_whole=total < MOST_CALLS and not any(_UNKNOWN in body for body in bodies),
        )

    def _word(self, value: Any) -> str:
        """Return an argument as text; of a tensor no more than that it is one."""
        kind = type(value)
        if isinstance(value, self._tensors):
            return OUTLINED_TENSOR
        if kind in _NUMBERS:
            return repr(value)
        if kind is str:
            return repr(value[:_MOST_LETTERS])
        if isinstance(value, self._words):
            return str(value)
        if isinstance(value, tuple | list):
            words = ", ".join(map(self._word, value[:_MOST_ELEMENTS]))
            return f"[{words}, …]" if len(value) > _MOST_ELEMENTS else f"[{words}]"
        if kind is slice:
            return ":".join(map(self._word, (value.start, value.stop, value.step)))
        return kind.__name__
