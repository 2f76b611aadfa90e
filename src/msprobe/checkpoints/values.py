# SPDX-License-Identifier: Apache-2.0
"""Entries that are no tensors, compared exactly: numbers, text, names of classes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Final

import msgspec
import numpy as np

from msprobe.checkpoints.changes import Change
from msprobe.checkpoints.matching import pair_by_path
from msprobe.checkpoints.parameters import Checkpoint, Parameter, Value
from msprobe.dump.formats.dtypes import PACKED_TYPES, widen
from msprobe.dump.formats.pickle import GlobalName
from msprobe.numerics.elementwise import Tolerance

_SHOWN: Final = 60


class ValueDifference(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One value of two checkpoints.

    Attributes:
        target: that of the checkpoint under test, None where it has none.
        reference: that of the trusted one, None where it has none.
        change: kind of change.
    """

    target: Value | None
    reference: Value | None
    change: Change

    @property
    def value(self) -> Value:
        """The target's value, or the reference's where the target has none."""
        value = self.target or self.reference
        assert value is not None
        return value

    @property
    def name(self) -> str:
        """The target's name, or the reference's where the target has none."""
        return self.value.name


def compare_values(
    target: Checkpoint, reference: Checkpoint, tolerance: Tolerance
) -> list[ValueDifference]:
    """Return every value of two checkpoints, those that only the reference has last."""
    partners = pair_by_path(target.values.values(), reference.values.values())
    found: list[ValueDifference] = []
    for name, item in target.values.items():
        other = reference.values[partners[name]] if name in partners else None
        change = Change.ADDED
        if other is not None:
            change = _change(item.content, other.content, tolerance)
        found.append(ValueDifference(target=item, reference=other, change=change))
    taken = set(partners.values())
    found += [
        ValueDifference(target=None, reference=item, change=Change.REMOVED)
        for name, item in reference.values.items()
        if name not in taken
    ]
    return found


def with_numbers_as_values(checkpoint: Checkpoint, other: Checkpoint) -> Checkpoint:
    """Return a checkpoint whose 0-d tensors are values where the other checkpoint has values.

    Optimizers count steps in tensors or in numbers, depending on their version.
    """
    wanted = {item.path for item in other.values.values() if _is_number(item.content)}
    moved = [
        item
        for item in checkpoint.parameters.values()
        if item.shape == () and item.path in wanted and item.dtype not in PACKED_TYPES
    ]
    if not moved:
        return checkpoint
    values = {item.name: _as_value(item) for item in moved}
    kept = {name: item for name, item in checkpoint.parameters.items() if name not in values}
    return replace(checkpoint, parameters=kept, values={**checkpoint.values, **values})


def value_texts(difference: ValueDifference) -> tuple[str, str]:
    """Return both sides of a value as text, from the first place on where they differ."""
    target, reference = (
        None if side is None else side.content for side in (difference.target, difference.reference)
    )
    if isinstance(target, tuple) and isinstance(reference, tuple):
        place = _first_difference(target, reference)
        if place is not None and max(len(target), len(reference)) > 8:
            texts = [repr(side[place])[:_SHOWN] if place < len(side) else "nothing"
                     for side in (target, reference)]  # fmt: skip
            return f"[{place}]: {texts[0]}", texts[1]
    if isinstance(target, (str, bytes)) and isinstance(reference, (str, bytes)):
        start = _first_difference(target, reference) or 0
        if max(len(target), len(reference)) > _SHOWN and start > _SHOWN // 2:
            start -= _SHOWN // 2
            return f"… {target[start:]!r:.{_SHOWN}}", f"… {reference[start:]!r:.{_SHOWN}}"
    return _text(difference.target), _text(difference.reference)


def _text(value: Value | None) -> str:
    if value is None:
        return "nothing"
    content = value.content
    text = content.name if isinstance(content, GlobalName) else repr(content)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} …"


def _change(target: Any, reference: Any, tolerance: Tolerance) -> Change:
    if _is_same(target, reference):
        return Change.EQUAL
    if not (_is_number(target) and _is_number(reference)):
        return Change.CHANGED
    if target == reference:
        return Change.DTYPE
    try:
        is_close = abs(target - reference) <= tolerance.atol + tolerance.rtol * abs(reference)
    except OverflowError:  # integers beyond the range of float64
        return Change.CHANGED
    return Change.CLOSE if is_close else Change.CHANGED


def _is_same(one: Any, other: Any) -> bool:
    """Whether two values are equal and of one type; NaN equals NaN."""
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if type(one) is not type(other):
        return False
    both_nan = isinstance(one, float) and math.isnan(one) and math.isnan(other)
    return both_nan or bool(one == other)


def _first_difference(one: Any, other: Any) -> int | None:
    for place, (left, right) in enumerate(zip(one, other, strict=False)):
        if not _is_same(left, right):
            return place
    return None if len(one) == len(other) else min(len(one), len(other))


def _is_number(content: Any) -> bool:
    return isinstance(content, (int, float, complex))


def _as_value(item: Parameter) -> Value:
    array = widen(item.array(), item.dtype)
    content = np.asarray(array).reshape(-1)[0].item()
    return Value(name=item.name, path=item.path, content=content, file=item.file)
