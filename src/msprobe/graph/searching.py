# SPDX-License-Identifier: Apache-2.0
"""Find nodes by words and conditions, as the page's `data/graph_search.js` does."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import eq, ge, gt, le, lt
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from msprobe.graph.model import NodeFlag, NodeKind, Severity
from msprobe.graph.page_json import STATISTICS, TEXTS
from msprobe.graph.tables import Table

Mask = NDArray[np.bool_]


class Condition(NamedTuple):
    """A condition on nodes, as ``norm > 1e4``.

    Attributes:
        field: name of a column, or one of ``status``, ``kind``, ``dir``.
        operator: ``:`` (contains, for texts), ``=``, ``<``, ``>``, ``<=`` or ``>=``.
        value: what it is compared with; ``a,b`` for either.
    """

    field: str
    operator: str
    value: str | float


_COMPARE: Final[dict[str, Callable[[Any, Any], Any]]] = {
    ":": eq,
    "=": eq,
    "<": lt,
    ">": gt,
    "<=": le,
    ">=": ge,
}
_WORDS: Final = ("name", "path", "label", "class", "source", "dtype")
_ERRORS: Final = ("error", *(f"error_{name}" for name in STATISTICS))
_NUMBERS: Final = (*_ERRORS, "norm", "grad_norm", "severity", "overflow", "size")
_KINDS: Final = tuple(kind.name.lower() for kind in NodeKind)
_LEVELS: Final = ("none", "medium", "high", "critical")
_STATES: Final = {
    "error": range(Severity.INHERITED, Severity.INTRODUCED + 1),
    "unmatched": (Severity.ONE_SIDED,),
    "introduced": (Severity.INTRODUCED,),
    "pass": (Severity.EQUAL, Severity.CLOSE),
}


class NodeSearch:
    """Finds nodes of one graph."""

    def __init__(self, nodes: Table) -> None:
        self._nodes = nodes

    def _with_text(self, names: Sequence[str], operator: str, value: str) -> Mask:
        """Return which nodes have a text in one of some columns."""
        columns = [self._nodes.column(name) for name in names if name in self._nodes]
        fits = self._nodes.texts.having(value, whole=operator == "=") if columns else None
        return self._any_of(fits[column] for column in columns if fits is not None)

    def find(self, text: str, conditions: Sequence[tuple[str, str, str | float]]) -> list[int]:
        """Return the nodes whose names hold all words of a text and that meet all conditions."""
        asked = [Condition(*each) for each in conditions]
        directions = [str(each.value) for each in asked if each.field == "dir"]
        half = "" if not directions else _direction(directions[0])
        found = np.ones(self._nodes.count, bool)
        found[0] = False
        if half:
            found &= self._has_text(half) | (self._has_text(f"status_{half}"))
        for word in text.lower().split():
            found &= self._with_text(_WORDS, ":", word)
        for each in asked:
            if each.field != "dir":
                found &= self._meets(each, half)
        places: list[int] = np.flatnonzero(found).tolist()
        return places

    def _has_text(self, name: str) -> Mask:
        found: Mask = self._full(name) != 0
        return found

    def _full(self, name: str, nothing: float = 0) -> NDArray[Any]:
        if name in self._nodes:
            return self._nodes.full(name)
        return np.broadcast_to(np.float64(nothing), self._nodes.count)

    def _any_of(self, masks: Any) -> Mask:
        found = np.zeros(self._nodes.count, bool)
        for mask in masks:
            found |= mask
        return found

    def _meets(self, condition: Condition, half: str) -> Mask:
        field, operator, value = condition
        wanted = str(value).lower().split(",")
        is_text = field not in _NUMBERS or (field == "overflow" and operator == ":")
        if is_text:
            return self._any_of(self._has(field, half, operator, each) for each in wanted)
        try:
            numbers = [float(each) for each in wanted]
        except ValueError:
            return np.zeros(self._nodes.count, bool)
        column = self._number(field, half)
        compare = _COMPARE[operator]
        if field in _ERRORS and operator.startswith(">"):
            column = np.where(np.isnan(column), np.inf, column)  # no error is worse
        return self._any_of(
            np.isnan(column) if math.isnan(each) else compare(column, each) & self._known(column)
            for each in numbers
        )

    @staticmethod
    def _known(column: NDArray[Any]) -> Mask:
        return column > -np.finfo(np.float64).max

    def _number(self, field: str, half: str) -> NDArray[Any]:
        if field not in (*_ERRORS, "severity"):
            return self._full(field, _nothing(field)).astype(np.float64)
        names = [field, f"{field}_backward"]
        chosen = names[:1] if half == "forward" else names[1:] if half else names
        columns = [self._full(name, _nothing(field)) for name in chosen]
        worse: NDArray[Any] = np.maximum(columns[0], columns[-1])
        return worse.astype(np.float64)

    def _has(self, field: str, half: str, operator: str, value: str) -> Mask:
        """Return which nodes have a text."""
        if field == "status":
            return self._has_status(half, operator, value)
        if field in ("kind", "overflow"):
            names = _KINDS if field == "kind" else _LEVELS
            chosen = [number for number, name in enumerate(names) if _fits(name, operator, value)]
            numbers = self._levels() if field == "overflow" else self._full("kind")
            found: Mask = np.isin(numbers, chosen)
            return found
        if field == "listed":
            is_listed: Mask = self._number("severity", half) > Severity.INHERITED
            is_listed |= self._full("size", 1) == 1
            return is_listed
        if field == "name":
            columns = ("backward",) if half == "backward" else ("name", "forward", "backward")
            return self._with_text(columns, operator, value)
        return self._with_text((field,) if field in TEXTS else (), operator, value)

    def _levels(self) -> NDArray[Any]:
        """Return levels of overflow; NaN and Inf that were not graded count as high."""
        odd = (self._full("flags").astype(np.int64) & NodeFlag.NONFINITE) != 0
        graded = self._full("overflow")
        return np.where((graded == 0) & odd, _LEVELS.index("high"), graded)

    def _has_status(self, half: str, operator: str, value: str) -> Mask:
        endings = ("",) if half == "forward" else ("_backward",) if half else ("", "_backward")
        names = [f"{field}{ending}" for field in ("status", "origin") for ending in endings]
        masks = [self._with_text(names, operator, value)]
        severity = self._number("severity", half)
        masks += [
            np.isin(severity, [*levels])
            for word, levels in _STATES.items()
            if _fits(word, operator, value)
        ]
        if _fits("nan", operator, value) or _fits("nonfinite", operator, value):
            masks.append((self._full("flags").astype(np.int64) & NodeFlag.NONFINITE) != 0)
        return self._any_of(masks)


def _fits(word: str, operator: str, value: str) -> bool:
    return word == value if operator == "=" else value in word


def _nothing(field: str) -> float:
    return -np.finfo(np.float64).max if field in (*_ERRORS, "norm", "grad_norm") else 0


def _direction(text: str) -> str:
    return "backward" if "backward".startswith(text.lower()) else "forward"
