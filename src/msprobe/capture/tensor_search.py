# SPDX-License-Identifier: Apache-2.0
"""Find the tensors in arguments and results; the adapter says which type is a tensor."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msprobe.capture.values import Found, key_texts

_DEPTH_LIMIT: Final = 50


def tensors_in(
    kind: type, args: Sequence[Any], kwargs: Mapping[str, Any] | None, found: Found
) -> None:
    """Append every instance of `kind` in the arguments with its position to `found`."""
    for index, value in enumerate(args):
        if isinstance(value, kind):
            found.append((value, index))
        elif value is not None and not isinstance(value, int | float | str):
            _search(kind, value, (index,), found)
    for key, value in (kwargs or {}).items():
        _search(kind, value, (key,), found)


def _search(kind: type, value: Any, position: tuple[int | str, ...], found: Found) -> None:
    if isinstance(value, kind):
        found.append((value, position))
        return
    if len(position) > _DEPTH_LIMIT:
        return
    for key, child in _children(value):
        _search(kind, child, (*position, key), found)


def _children(value: Any) -> Sequence[tuple[int | str, Any]]:
    if isinstance(value, Mapping):
        items = list(value.items())
        return list(zip(key_texts([key for key, _ in items]), [v for _, v in items], strict=True))
    if isinstance(value, tuple | list):
        names: Sequence[int | str] = getattr(value, "_fields", range(len(value)))
        return list(zip(names, value, strict=True))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field.name for field in dataclasses.fields(value)]
        return [(name, getattr(value, name, None)) for name in fields]
    return ()


def output_slots(kind: type, result: Any) -> list[Any]:
    """Return a result as a flat list for gradients.

    Every element of a tuple has a place, None when it is no tensor; a nested container gives the
    places of its tensors.
    """
    if isinstance(result, kind):
        return [result]
    elements = result if type(result) in (tuple, list) else [result]
    slots: list[Any] = []
    for element in elements:
        if isinstance(element, kind):
            slots.append(element)
            continue
        found: Found = []
        _search(kind, element, (), found)
        slots.extend([tensor for tensor, _ in found] or [None])
    return slots
