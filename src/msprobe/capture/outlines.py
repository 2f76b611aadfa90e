# SPDX-License-Identifier: Apache-2.0
"""Which calls a step is made of, where calls have no records: at level L0.

No tensor is read. A call is its name, its line and those of its arguments that are no tensors, so a
call that was made before, at the same place with the same arguments, is one number more in a list.
Of each tensor one number tells which earlier call returned it. A tensor is known by its object,
and none is kept alive: a weak reference tells it from a later one at the same address.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType, FrameType
from typing import Any, Final

from msgspec import Raw

from msprobe.capture.call import Call
from msprobe.capture.session import Session
from msprobe.dump.facts import (
    OUTLINED_ITEM,
    OUTLINED_TENSOR,
    OUTLINED_TURNED,
    Outline,
    OutlinedCall,
    OutlineRun,
    encode_fact,
    transposed,
)

MOST_CALLS: Final = OUTLINED_ITEM
"""Calls of a step that are noted, so that a loop without end does not fill the memory."""
_MOST_KINDS: Final = 10_000
_UNKNOWN: Final = -1  # number of a call beyond these
_MOST_ELEMENTS: Final = OUTLINED_TURNED  # of a list that is an argument, or a result
_MOST_LETTERS: Final = 80
_NUMBERS: Final = frozenset({int, float, bool, complex, type(None)})

_Run = tuple[str | None, str | None, tuple[int, ...]]  # see `OutlineRun`


class Outlines:
    """Takes calls in order, and puts the outline of a step into its facts.

    Attributes:
        fed: see `Outline.fed`.
    """

    def __init__(
        self,
        session: Session,
        tensors: tuple[type, ...],
        words: tuple[type, ...],
        framework: str,
        name_of: Callable[[Any], str | None] = lambda _: None,
    ) -> None:
        """Create it without a call.

        Args:
            session: tells which modules are open, and takes the facts.
            tensors: the classes of tensors.
            words: classes of arguments that are told by their text, as types of elements.
            framework: folder of the framework; of calls made there no line is told.
            name_of: returns the name of a tensor that no call made, as of a parameter.
        """
        self._session = session
        self._tensors, self._words = tensors, words
        self._framework, self._name_of = framework, name_of
        # What is known of calls serves later steps as well.
        self._known: dict[tuple[object, ...], int] = {}
        self._codes: set[CodeType] = set()  # others may make keys of their addresses
        self._calls: list[OutlinedCall] = []
        self._last: list[_Run] = []
        self._encoded = Raw(encode_fact(Outline()))
        self._runs: list[tuple[Call | None, str | None, list[int]]] = []
        self._given: dict[str, int] = {}
        self.fed: list[int] = []
        self._last_fed: list[int] = []
        self._loses_track = False
        self._noted = 0
        # Identity -> the tensor and where it comes from: the number of the call that returned it
        # and the place among its results, or what is written where no call did.
        self._origins: dict[int, tuple[weakref.ref[Any], tuple[int, int] | int]] = {}

    @property
    def count(self) -> int:
        """How many calls the step has made so far."""
        return sum(len(run) for *_, run in self._runs)

    def begin_step(self) -> bool:
        """Forget the calls of the step that is over; return whether all numbers are new ones."""
        self._runs, self.fed, self._origins = [], [], {}
        self._noted, self._loses_track = 0, False
        # A program may pass new numbers in each step.
        is_new = len(self._calls) > _MOST_KINDS // 2
        if is_new:
            for table in (self._known, self._codes, self._calls, self._last):
                table.clear()
        return is_new

    def note(
        self, name: str, frame: FrameType, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> int | None:
        """Take a call that begins.

        Args:
            name: that of its record, without number and direction.
            frame: makes the call.
            args: its arguments.
            kwargs: those given by name.

        Returns: its number in the step, for `note_result`; None if it is not noted.
        """
        calls = self._session.calls
        module = calls.modules[-1] if calls.modules else None
        last = self._runs[-1] if self._runs else None
        if last is None or last[0] is not module or last[1] != calls.last_record:
            self.begin_run(module, calls.last_record)
        run = self._runs[-1][-1]
        if self._noted >= MOST_CALLS:
            return None
        named = tuple((each, self._word(kwargs[each])) for each in kwargs)
        key = (frame.f_code, frame.f_lasti, name, *map(self._word, args), named)
        if key not in self._known:
            self._known[key] = self.add(name, frame, args, kwargs)
        run.append(self._known[key])
        self.fed += map(self._written_origin, self._tensors_in((*args, *kwargs.values())))
        self._noted += 1
        return self._noted - 1

    def note_result(self, number: int, result: Any) -> None:
        """Note what a call returned; tensors that it was given stay what they are."""
        is_one = not isinstance(result, tuple | list)
        for place, each in enumerate((result,) if is_one else result[:_MOST_ELEMENTS]):
            if isinstance(each, self._tensors) and self._known_origin(each) is None:
                self._origins[id(each)] = (weakref.ref(each), (number, place))

    def note_view(self, tensor: Any, view: Any, is_turned: bool) -> None:
        """Note that a tensor shows the numbers of another one, perhaps transposed."""
        if not isinstance(view, self._tensors):
            return
        origin = self._origin_of(tensor)
        if is_turned:
            if isinstance(origin, tuple):
                origin = origin[0], origin[1] ^ OUTLINED_TURNED
            else:
                origin = self.turned(origin)
        self._origins[id(view)] = (weakref.ref(view), origin)

    def turned(self, outside: int) -> int:
        """Return what is written for the transpose of a tensor that no call returned."""
        if outside == 0:
            return 0
        name = transposed([*self._given][~outside])
        return -1 - self._given.setdefault(name, len(self._given))

    def outside(self, tensor: Any) -> int:
        """Return what is written for a tensor that no call returned."""
        name = self._name_of(tensor)
        return 0 if name is None else -1 - self._given.setdefault(name, len(self._given))

    def lose_track(self) -> None:
        """Write of no tensor in this step where it comes from: a call was noted elsewhere."""
        self._loses_track = True

    def _written_origin(self, tensor: Any) -> int:
        origin = self._origin_of(tensor)
        if isinstance(origin, int):
            return origin
        number, place = origin
        return self._noted - number + place * OUTLINED_ITEM

    def _origin_of(self, tensor: Any) -> tuple[int, int] | int:
        origin = self._known_origin(tensor)
        if not origin:  # a model may be given one that was unknown before
            origin = self.outside(tensor)
            self._origins[id(tensor)] = (weakref.ref(tensor), origin)
        return origin

    def _known_origin(self, tensor: Any) -> tuple[int, int] | int | None:
        known = self._origins.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else None

    def _tensors_in(self, values: Sequence[Any]) -> Iterator[Any]:
        """Yield the tensors that `_word` tells as such, in its order."""
        for value in values:
            if isinstance(value, self._tensors):
                yield value
            elif isinstance(value, tuple | list):
                yield from self._tensors_in(value[:_MOST_ELEMENTS])
            elif type(value) is slice:
                yield from self._tensors_in((value.start, value.stop, value.step))

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
        fed = [] if self._loses_track else self.fed
        if runs != self._last or fed != self._last_fed:  # most steps are like the one before
            self._last, self._last_fed = runs, [*fed]
            self._encoded = Raw(encode_fact(self._outline(runs)))
        self._session.facts.put("outline", self._encoded)
        return self.count

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
            fed=self._last_fed,
            given=[*self._given],
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
