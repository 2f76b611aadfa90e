# SPDX-License-Identifier: Apache-2.0
"""What the calls of cells in compiled graphs receive and return, put together from its tensors.

A graph gives one tensor at a time. How the arguments and the result are built, and what else stands
in them, is known while the graph is compiled: it is kept under the number of a *site*, a cell with
arguments of one kind. A call is complete when all its tensors have come.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from msprobe.mindspore.compiled import sink
from msprobe.mindspore.compiled.delivery import Delivered, deliver_all, deliver_mark, receiver
from msprobe.mindspore.compiled.sink import GraphCall
from msprobe.mindspore.compiled.values import GraphValue, empty_value
from msprobe.mindspore.compiled.walk import (
    CONSTANT,
    EMPTY,
    LIST,
    MAPPING,
    SEQUENCE,
    TENSOR,
    at_compile_time,
    compiled,
    describe,
)

_ARGUMENTS, _RESULT = 0, 1
# In place of a leaf: the end of a call whose result has no tensor that could be handed over.
_END: Final = -1
# A description as `walk.describe` makes it.
_Description = tuple[Any, ...]


@dataclass(slots=True)
class _Call:
    """A call that has begun, and the tensors that have come, by leaf."""

    arguments: dict[int, GraphValue] = field(default_factory=dict)
    result: dict[int, GraphValue] = field(default_factory=dict)


@dataclass(slots=True)
class _Site:
    """A cell called with arguments of one kind.

    Attributes:
        cell: its name.
        arguments: description of (positional arguments, keyword arguments, parameters).
        calls: calls that are not complete, by number.
        arrived: how many values have come for each (side, leaf).
    """

    cell: str
    arguments: _Description
    calls: dict[int, _Call] = field(default_factory=dict)
    arrived: defaultdict[tuple[int, int], int] = field(default_factory=lambda: defaultdict(int))

    def next_call(self, side: int, leaf: int) -> tuple[int, _Call]:
        """Return the call that a value belongs to."""
        number = self.arrived[side, leaf]
        self.arrived[side, leaf] += 1
        return number, self.calls.setdefault(number, _Call())


@dataclass(frozen=True, slots=True)
class _Result:
    """A kind of result that a site gives."""

    site: _Site
    description: _Description
    count: int


class _Sites:
    """All sites and results of this process; a graph knows their numbers."""

    def __init__(self) -> None:
        self.sites: list[_Site] = []
        self.results: list[_Result] = []
        self.numbers: dict[str, int] = {}
        self.lock = threading.Lock()

    def site(self, cell: str, arguments: _Description) -> int:
        key = repr((cell, arguments))
        if key not in self.numbers:
            self.numbers[key] = len(self.sites)
            self.sites.append(_Site(cell, arguments))
        return self.numbers[key]

    def result(self, site: int, description: _Description) -> int:
        key = repr((site, description))
        if key not in self.numbers:
            self.numbers[key] = len(self.results)
            self.results.append(_Result(self.sites[site], description, _count(description)))
        return self.numbers[key]


_sites: Final = _Sites()


def begin_anew() -> None:
    """Forget calls that are not complete: a step is over."""
    with _sites.lock:
        for site in _sites.sites:
            site.calls.clear()
            site.arrived.clear()


def _receive_argument(number: int, side: int, leaf: int, value: Delivered) -> None:
    if sink.is_open():
        with _sites.lock:
            _, call = _sites.sites[number].next_call(side, leaf)
            call.arguments[leaf] = value.copy()


def _receive_result(number: int, side: int, leaf: int, value: Delivered) -> None:
    if not sink.is_open():
        return
    kind = _sites.results[number]
    site = kind.site
    with _sites.lock:
        which, call = site.next_call(side, leaf)
        if leaf != _END:
            call.result[leaf] = value.copy()
        if len(call.result) < kind.count:
            return
        del site.calls[which]
    args, kwargs, parameters = _rebuilt(site.arguments, call.arguments)
    result = _rebuilt(kind.description, call.result)
    sink.forward(GraphCall(site.cell, args, kwargs, parameters, result))


_ARGUMENT_RECEIVER: Final = receiver(_receive_argument)
_RESULT_RECEIVER: Final = receiver(_receive_result)


def _marks(description: _Description) -> Iterator[_Description]:
    """Yield the descriptions of the leaves."""
    if description[0] in (SEQUENCE, LIST, MAPPING):
        for part in description[1]:
            yield from _marks(part)
    else:
        yield description


def _count(description: _Description) -> int:
    return sum(mark[0] == TENSOR for mark in _marks(description))


def _rebuilt(description: _Description, tensors: dict[int, GraphValue]) -> Any:
    """Return a value as it was described; None for what is not known."""
    leaves = iter(range(1 << 30))

    def build(part: _Description) -> Any:
        mark = part[0]
        if mark in (SEQUENCE, LIST):
            items = [build(one) for one in part[1]]
            return items if mark == LIST else tuple(items)
        if mark == MAPPING:
            return {key: build(one) for key, one in zip(part[2], part[1], strict=True)}
        leaf = next(leaves)
        if mark == TENSOR:
            return tensors.get(leaf)
        if mark == EMPTY:
            return empty_value(part[1], str(part[2]))
        return part[1] if mark == CONSTANT else None

    return build(description)


# -- compiled ----------------------------------------------------------------------------------


@at_compile_time
def _site_number(cell: str, arguments: _Description) -> int:
    return _sites.site(cell, arguments)


@at_compile_time
def _result_number(site: int, description: _Description) -> int:
    return _sites.result(site, description)


@compiled
def site_in_graph(cell, args, kwargs, parameters):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Return, compiled, the site of a call."""
    return _site_number(cell, describe((args, kwargs, parameters)))


@compiled
def deliver_arguments(site, args, kwargs, parameters):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Hand over what a cell's call begins with; returns what the graph has to wait for."""
    begin = (args, kwargs, parameters)
    found, _ = deliver_all((_ARGUMENT_RECEIVER, site, _ARGUMENTS), begin, 0)
    return found


@compiled
def deliver_result(site, result):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Hand over a cell's result; returns what the graph has to wait for."""
    number = _result_number(site, describe(result))
    found, _ = deliver_all((_RESULT_RECEIVER, number, _RESULT), result, 0)
    if len(found) == 0:
        return (deliver_mark((_RESULT_RECEIVER, number, _RESULT), _END),)
    return found
