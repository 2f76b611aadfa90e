# SPDX-License-Identifier: Apache-2.0
"""Tensors that a call is given and does not read: they are recorded without their values.

- A tensor that a call overwrites (``x.normal_()``, ``out=``) is no input of it. Its previous
  content would make two identical runs differ.
- Memory of ``torch.empty`` is undefined until one call has filled all of it. A call that only hands
  it on (a view: ``out[1:]``), asks for its shape, or writes a part of it (``out[0] = 0``) is
  recorded without the values of the whole: nothing tells which of these mean something. A call
  that computes something from it is recorded with values: the program relies on having filled the
  memory, and if it has not, that is the fault to be seen. No difference gets lost: a value written
  into a part is an input of the call that writes it, and the whole is an input of the calls that
  use it.

Memory that was made before recording began, or elsewhere than by a call that is observed, counts as
filled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from msprobe.capture.values import Unread
from msprobe.operators.operator import InPlace
from msprobe.pytorch.apis.api_rules import ApiEntry
from msprobe.pytorch.values.adapter import TorchAdapter

Arguments = tuple[Sequence[Any], Mapping[str, Any]]
# The arguments by position or by name, and an index or a key of them.
_Slot = tuple[Any, Any]


class UnreadTensors:
    """Finds the arguments and results of a call that are described without values."""

    __slots__ = ("_adapter", "_undefined")

    def __init__(self, adapter: TorchAdapter) -> None:
        """Create it; the adapter makes the records, and knows which memory is undefined."""
        self._adapter = adapter
        self._undefined = adapter.undefined

    def in_arguments(
        self, entry: ApiEntry, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Arguments:
        """Return the arguments of a call as they are to be described."""
        args, kwargs = list(args), dict(kwargs)
        overwritten = _overwritten(entry, args, kwargs)
        for place, key in overwritten:
            place[key] = self._without_values(place[key], written=True)
        if not self._undefined.storages:
            return args, kwargs
        if entry.leaves_unread and not overwritten:
            for place, key in _first(args, kwargs):
                place[key] = self._without_undefined(place[key], written=False)
        for index, name in entry.foreign_writes:
            for place, key in _at(index, name, args, kwargs):
                place[key] = self._without_undefined(place[key], written=True)
        return args, kwargs

    def in_result(
        self, entry: ApiEntry, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
    ) -> Any:
        """Return the result of a call as it is to be described."""
        is_filled = _overwritten(entry, args, kwargs)
        return result if is_filled else self._without_undefined(result, written=False)

    def note_writes(
        self, entry: ApiEntry, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        """Note which memory is undefined after a call, and which no longer."""
        if entry.allocates:
            _each(self._undefined.add, result)
        for place, key in _overwritten(entry, args, kwargs):
            _each(self._undefined.fill, place[key])

    def _without_undefined(self, value: Any, *, written: bool) -> Any:
        if type(value) in (tuple, list):
            return type(value)(self._without_undefined(one, written=written) for one in value)
        if issubclass(type(value), Tensor) and self._undefined.holds(value):
            return self._without_values(value, written=written)
        return value

    def _without_values(self, value: Any, *, written: bool) -> Any:
        if issubclass(type(value), Tensor):
            return Unread(value, self._adapter.outline(value, written=written))
        if type(value) in (tuple, list):
            return type(value)(self._without_values(one, written=written) for one in value)
        return value


def _each(action: Callable[[Tensor], None], value: Any) -> None:
    """Do something with a tensor, or with each in a list."""
    if type(value) in (tuple, list):
        for one in value:
            _each(action, one)
    elif issubclass(type(value), Tensor):
        action(value)


def _overwritten(entry: ApiEntry, args: Any, kwargs: Any) -> list[_Slot]:
    """Return the positions of arguments that a call overwrites in full, without reading them."""
    found: list[_Slot] = [(kwargs, name) for name in entry.outs if name in kwargs]
    if entry.in_place is InPlace.OVERWRITES or (
        entry.in_place is InPlace.ASSIGNS and _is_whole(args[1])
    ):
        found += _first(args, kwargs)
    return found


def _first(args: Any, kwargs: Any) -> list[_Slot]:
    """Return the position of the first argument; functions name it ``input`` or ``tensor``."""
    return _at(0, "input", args, kwargs) or _at(0, "tensor", args, kwargs)


def _at(index: int, name: str, args: Any, kwargs: Any) -> list[_Slot]:
    """Return the positions of the argument of a position and a name; none if it was not passed."""
    if index < len(args):
        return [(args, index)]
    return [(kwargs, name)] if name in kwargs else []


def _is_whole(index: Any) -> bool:
    """Return whether an index means every element: ``[:]``, ``[...]``, ``[..., :]``."""
    if type(index) is tuple:
        return all(map(_is_whole, index))
    if type(index) is slice:
        return index.start is None and index.stop is None and index.step is None
    return index is Ellipsis
