# SPDX-License-Identifier: Apache-2.0
"""Find the tensors in arguments and results; the adapter says which type is a tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msprobe.capture.nested import FLAT, MOST_VALUES, Place, Walk
from msprobe.capture.values import Found


def tensors_in(
    kind: type | tuple[type, ...],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    found: Found,
) -> None:
    """Append every instance of `kind` in the arguments with its position to `found`.

    They are the tensors, at the positions, that describing the arguments finds.
    """
    search = None
    for index, value in enumerate(args):
        if issubclass(type(value), kind):
            found.append((value, index))
        elif type(value) not in FLAT:
            search = search or _Search(kind, found)
            search.value(value, (index,), "")
    for key, value in (kwargs or {}).items():
        if search is None and type(value) in FLAT:
            continue
        if search is None and issubclass(type(value), kind):
            found.append((value, (key,)))
            continue
        search = search or _Search(kind, found)  # which counts from here on
        search.value(value, (key,), "")


class _Search(Walk):
    """A walk that finds tensors and looks at nothing else."""

    __slots__ = ("_found", "_kind")

    def __init__(self, kind: type | tuple[type, ...], found: Found) -> None:
        super().__init__()
        self._kind = kind
        self._found = found

    def is_tensor(self, value: object) -> bool:
        return issubclass(type(value), self._kind)

    def tensor(self, tensor: Any, place: Place, _path: str) -> None:
        self._found.append((tensor, place))

    def scalar(self, _value: Any) -> None:
        return None

    def leaf(self, _value: Any, _place: Place, _path: str) -> None:
        return None


def output_slots(kind: type, result: Any) -> list[Any]:
    """Return a result as a flat list for gradients.

    Every element of a tuple has a place, None when it is no tensor; a nested container gives the
    places of its tensors.
    """
    if issubclass(type(result), kind):
        return [result]
    elements = result[:MOST_VALUES] if type(result) in (tuple, list) else [result]
    slots: list[Any] = []
    for element in elements:
        if issubclass(type(element), kind):
            slots.append(element)
            continue
        found: Found = []
        _Search(kind, found).value(element, (), "")
        slots.extend([tensor for tensor, _ in found] or [None])
    return slots
