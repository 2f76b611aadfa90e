# SPDX-License-Identifier: Apache-2.0
"""Inputs and outputs of cell calls in compiled graphs, and how a graph hands them over.

How arguments and results are built is known while the graph is compiled; the running graph gives
their tensors. A call hands over all of them when it ends, except those that it may change itself:
these it hands over when it begins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from mindspore import ops
from msprobe.mindspore.compiled.delivery import delivery
from msprobe.mindspore.compiled.gradients import ARGUMENTS, RESULT, reader
from msprobe.mindspore.compiled.sink import GraphCall, GraphEvents, Handed
from msprobe.mindspore.compiled.structure import (
    Branch,
    Leaf,
    Look,
    Place,
    Structure,
    Written,
    leaves,
    rebuilt,
    rewritten,
    tensors,
)
from msprobe.mindspore.compiled.values import empty_value


@dataclass(slots=True)
class _Site:
    """A cell that is called with arguments of one structure.

    Attributes:
        cell: its name.
        given: how ((arguments, keyword arguments), parameters) are built.
        leaves: the tensors in it.
        early: whether it is handed over when a call begins.
        begun: then, the inputs of calls that have not ended, the first one first.
    """

    cell: str
    given: Structure
    leaves: list[Leaf]
    early: bool
    begun: deque[list[Handed]] = field(default_factory=deque)

    def begin(self, _: GraphEvents, given: list[Handed]) -> None:
        """Take the inputs of a call."""
        self.begun.append([value.copy() for value in given])

    def end(self, result: Structure, events: GraphEvents, values: list[Handed]) -> None:
        """Take the rest, and hand the call over."""
        count = 0 if self.early else len(self.leaves)
        if self.early and not self.begun:  # recording has begun in between
            return
        given = self.begun.popleft() if self.early else values[:count]
        (args, kwargs), parameters = _rebuilt(self.given, given)
        returned = _rebuilt(result, values[count:])
        events.forward(GraphCall(self.cell, args, kwargs, parameters, returned))


_sites: Final[list[_Site]] = []


def begin_anew() -> None:
    """Forget calls that have not ended: a step is over."""
    for site in _sites:
        site.begun.clear()


def _rebuilt(structure: Structure, values: Iterable[Handed]) -> Any:
    return rebuilt(structure, iter(values), lambda leaf: empty_value(leaf.shape, leaf.dtype))


class CellCode:
    """Writes the functions that hand over the calls of one cell.

    Attributes:
        at_begin: compiled; for ((arguments, keyword arguments), parameters), gives a function of
            it. This returns the arguments, the number of a site, and the values left to hand over
            at the end.
        at_end: compiled; for the number of the site and the result, gives a function of the result
            and of these values. This returns the result.
    """

    def __init__(self, cell: str, *, updates: bool, backward: bool) -> None:
        """Create it.

        Args:
            cell: the cell's name.
            updates: whether a call may change parameters of the cell.
            backward: whether gradients are handed over.
        """
        self._cell = cell
        self._updates = updates
        self._backward = backward
        self._known: dict[str, Callable[..., Any]] = {}
        self.at_begin = Look(partial(self._written, self._write_begin))
        self.at_end = Look(partial(self._written, self._write_end))

    def _written(self, write: Callable[..., Any], *seen: Structure) -> Callable[..., Any]:
        key = f"{write.__name__}{seen}"
        if key not in self._known:  # MindSpore may ask again for the same
            self._known[key] = write(*seen)
        return self._known[key]

    def _write_begin(self, given: Branch) -> Callable[..., Any]:
        places = tensors(given, "given")
        arguments = given.parts[0]
        early = self._updates or any(leaf.is_parameter for leaf in leaves(arguments))
        site = _Site(self._cell, given, [place.leaf for place in places], early)
        _sites.append(site)
        code = Written("given")
        done = code.let("done", delivery(code, places, site.begin)) if early else None
        passed_on = self._passed_on(code, arguments, "given[0]", ARGUMENTS, done)
        left = "" if early else "".join(f"{place.code}, " for place in places)
        return code.returning(f"{passed_on}, {len(_sites) - 1}, ({left})")

    def _write_end(self, number: Leaf, result: Structure) -> Callable[..., Any]:
        site = _sites[number.value]
        left = [Place(i, leaf, f"left{i}") for i, leaf in enumerate(site.leaves) if not site.early]
        # One by one: MindSpore 2.10 cannot take a gradient that leads through the tuple of them.
        code = Written("result", *(place.code for place in left))
        places = left + tensors(result, "result")
        done = code.let("done", delivery(code, places, partial(site.end, result)))
        return code.returning(self._passed_on(code, result, "result", RESULT, done))

    def _passed_on(
        self, code: Written, structure: Structure, value: str, side: str, done: str | None
    ) -> str:
        """Return the code of a value whose tensors wait for `done`, and hand over gradients."""

        def change(place: Place) -> str:
            if place.leaf.is_parameter:
                return place.code
            new = place.code if done is None else code.call(ops.depend, place.code, done)
            watch = None
            if self._backward:
                watch = reader(self._cell, side, place.number, place.leaf)
            return new if watch is None else code.call(watch, new)

        return rewritten(structure, value, change)
