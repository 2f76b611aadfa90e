# SPDX-License-Identifier: Apache-2.0
"""Differences by layer and by kind of parameter, as a summary and as a picture in characters."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from msprobe.checkpoints.alike import number_pattern
from msprobe.checkpoints.changes import Change
from msprobe.checkpoints.comparing import ParameterDifference

WITH_ERROR: Final = (Change.CLOSE, Change.CHANGED, Change.NONFINITE)
"""Changes of parameters that have an error to be shown."""
_MEASURED: Final = (*WITH_ERROR, Change.EQUAL, Change.ROUNDED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """The parameters of one layer.

    Attributes:
        number: the layer's number; None for parameters outside any.
        parameters: how many of them both sides have.
        changed: how many of them changed.
        relative_error: the largest relative L2 error; inf where NaN or Inf came or went.
    """

    number: int | None
    parameters: int
    changed: int
    relative_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerMap:
    """Relative errors by layer and kind.

    Attributes:
        numbers: the layers, in order.
        kinds: kinds of parameters: their names without the layer's number.
        errors: relative error by kind and number; parameters that are missing are left out.
    """

    numbers: tuple[int, ...]
    kinds: tuple[str, ...]
    errors: dict[tuple[str, int], float]


def layers(differences: Iterable[ParameterDifference]) -> list[Layer]:
    """Return a summary of each layer, parameters outside any layer first."""
    found: dict[int | None, list[ParameterDifference]] = defaultdict(list)
    for each in differences:
        if each.change in _MEASURED:
            found[_place(each)[1]].append(each)
    return [
        Layer(
            number=number,
            parameters=len(found[number]),
            changed=sum(_error(each) > 0.0 for each in found[number]),
            relative_error=max(map(_error, found[number])),
        )
        for number in sorted(found, key=lambda number: -1 if number is None else number)
    ]


def layer_map(differences: Sequence[ParameterDifference]) -> LayerMap:
    """Return the relative error of each kind of parameter in each layer."""
    errors: dict[tuple[str, int], float] = {}
    for each in differences:
        if each.change in _MEASURED:
            kind, number = _place(each)
            if number is not None:
                errors[kind, number] = max(_error(each), errors.get((kind, number), 0.0))
    return LayerMap(
        numbers=tuple(sorted({number for _, number in errors})),
        kinds=tuple(dict.fromkeys(kind for kind, _ in errors)),
        errors=errors,
    )


def shade(error: float | None) -> str:
    """Return a character for a relative error: ``·`` for 0, ``▁`` up to 1e-7, ``█`` from 1 on."""
    if error is None:
        return " "
    if math.isinf(error):
        return "!"
    if error == 0.0:
        return "·"
    return "▁▂▃▄▅▆▇█"[min(max(math.floor(math.log10(error)) + 7, 0), 7)]


def _error(each: ParameterDifference) -> float:
    if each.change is Change.ROUNDED:
        return 0.0
    return math.inf if each.change is Change.NONFINITE else each.relative_error


def _place(each: ParameterDifference) -> tuple[str, int | None]:
    """Return the kind of a parameter, and the number of its layer: the first one in its name."""
    pattern, numbers = number_pattern(each.name)
    if not numbers:
        return pattern, None
    kind = pattern.partition("#")[2].lstrip(".")
    return kind or pattern, numbers[0]
