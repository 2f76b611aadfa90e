# SPDX-License-Identifier: Apache-2.0
"""Backward records: the gradients of one call in one backward pass.

``input[i]`` is the gradient of the forward's output i, ``output[i]`` the gradient of its positional
input i, ``output_kwargs`` those of keyword inputs. A gradient that never arrives stays null.
"""

from __future__ import annotations

from typing import Final

from msgspec import Raw

from msprobe.capture.backward import SIDE_INPUT, SIDE_OUTPUT, Gradients, Layout
from msprobe.capture.call import Draft
from msprobe.capture.values import Position
from msprobe.config import DataMode
from msprobe.dump.records import JsonTree, TensorRecord, with_text

_KEYWORDS: Final = "output_kwargs"
_FEW: Final = 16
# Those that nearly all calls need, made once.
_PATHS: Final = {
    side: tuple(f"{side}.{index}" for index in range(_FEW)) for side in (SIDE_INPUT, SIDE_OUTPUT)
}


def begin_parts(parts: JsonTree, gradients: Gradients, mode: DataMode) -> None:
    """Fill a new record with null for every gradient that may arrive and is wanted."""
    if mode.input:
        parts[SIDE_INPUT] = [None] * gradients.outputs
    if not mode.output:
        return
    arguments = gradients.arguments
    parts[SIDE_OUTPUT] = [None] * arguments if type(arguments) is int else _copy(arguments)
    if gradients.keywords:
        parts[_KEYWORDS] = dict.fromkeys(gradients.keywords)


def _copy(layout: Layout) -> Layout:
    if type(layout) is list:
        return [_copy(item) for item in layout]
    if type(layout) is dict:
        return {key: _copy(item) for key, item in layout.items()}
    return None


def place(parts: JsonTree, side: str, position: Position, value: JsonTree) -> None:
    """Put a described gradient at the position of its tensor in the call."""
    if type(position) is int:
        parts[side][position] = value
        return
    assert type(position) is tuple
    if type(position[0]) is str:
        parts[_KEYWORDS][".".join(map(str, position))] = value
        return
    target = parts[side]
    for key in position[:-1]:
        target = target[key]
    target[position[-1]] = value


def write_remarks(draft: Draft, gradients: Gradients) -> None:
    """Note in the record why a gradient is missing, or which other gradients it includes."""
    parts = draft.parts
    for side, position, text, only_null in gradients.remarks or ():
        if side not in parts:
            continue
        entry = _entry(parts, side, position)
        if isinstance(entry, TensorRecord) and is_waiting(draft, entry):
            if not only_null:
                entry.note = text
        elif isinstance(entry, TensorRecord | Raw):
            if not only_null:  # a copy: other records may share the description
                place(parts, side, position, with_text(entry, "note", text))
        else:
            parts.setdefault("remarks", {})[gradient_path(side, position)] = text


def is_waiting(draft: Draft, entry: JsonTree) -> bool:
    """Return whether a device has yet to deliver its statistics, into this very object."""
    return any(record is entry for record, _ in draft.waiting or ())


def _entry(parts: JsonTree, side: str, position: Position) -> JsonTree:
    if type(position) is int:
        return parts[side][position]
    assert type(position) is tuple
    if type(position[0]) is str:
        return parts[_KEYWORDS].get(".".join(map(str, position)))
    entry = parts[side]
    for key in position:
        entry = entry[key]
    return entry


def gradient_path(side: str, position: Position) -> str:
    """Return the part of a gradient's file name: ``input.0``, ``output.1.a``, ``kwargs.mask``."""
    if type(position) is int:
        return _PATHS[side][position] if position < _FEW else f"{side}.{position}"
    assert type(position) is tuple
    joined = ".".join(map(str, position))
    return f"kwargs.{joined}" if type(position[0]) is str else f"{side}.{joined}"
