# SPDX-License-Identifier: Apache-2.0
"""`judge`: one recorded result against its reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from msprobe.checks.budgets import RESULT_ROUNDINGS, Budget, largest_of, layout_of
from msprobe.dump.tensor_files import StoredTensor
from msprobe.numerics.number_types import Kind, kind_of

# Elements judged at once: they stay in the processor's cache.
_BLOCK: Final = 16_384
SUSPICIOUS: Final = 1.0
"""Ratio of own to allowed error beyond which a result is suspicious."""
WRONG: Final = 4.0
"""Ratio beyond which it is wrong."""
# Probes: first a few, then more for results that these do not explain. Of a million elements, some
# are hardly changed by 16 draws; by 64, none. They decide only about what is nearly explained.
_PROBES: Final = (3, 16, 64)

Probes = Callable[[int], Sequence[StoredTensor]]
"""Returns so many references with random errors in each step."""
Array = NDArray[Any]


class Verdict(StrEnum):
    """How good a result is."""

    EXACT = "exact"
    ROUNDING = "rounding"
    OVERFLOW = "overflow"
    SUSPICIOUS = "suspicious"
    WRONG = "wrong"

    @property
    def severity(self) -> int:
        """Rank among the verdicts; larger is worse."""
        return list(Verdict).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Result of holding one tensor against its reference.

    Attributes:
        verdict: the conclusion.
        ratio: the largest own error in parts of the allowed one: the number that decided.
        ulps: the largest error in units in the last place of the recorded type.
        error: the largest absolute error.
        relative: the same in parts of the largest reference.
        index: of the element that decided, in C order; None for an empty tensor.
        found: this element as recorded.
        expected: this element of the reference.
        allowed: its allowed error.
        mismatches: elements of which one side alone is NaN or infinite.
        overflows: infinite and NaN elements because a number is beyond the type's range: the true
            result, or one on the way to it.
        count: number of elements.
        histogram: elements by error: up to half a unit in the last place, 1, 2, 4 … (18 classes).
        factor: constant by which all elements differ from the reference, where that explains them.
        remark: the conclusion's reason in a few words.
    """

    verdict: Verdict
    ratio: float = 0.0
    ulps: float = 0.0
    error: float = 0.0
    relative: float = 0.0
    index: int | None = None
    found: float | complex | None = None
    expected: float | complex | None = None
    allowed: float = 0.0
    mismatches: int = 0
    overflows: int = 0
    count: int = 0
    histogram: tuple[int, ...] = ()
    factor: float | None = None
    remark: str = ""


def judge(
    recorded: StoredTensor,
    reference: StoredTensor,
    budget: Budget,
    probes: Probes,
    slack: Callable[[], Array | float | None] = lambda: None,
) -> Judgement:
    """Judge one tensor.

    Args:
        recorded: the tensor in question.
        reference: the same in higher precision, of the same shape.
        budget: what decides about the allowed error.
        probes: makes references with random errors; asked only where the reference alone does not
            explain the tensor.
        slack: returns the error that numbers inside of the function may leave in each element;
            asked as the probes are.
    """
    found, expected = recorded.values().reshape(-1), reference.values().reshape(-1)
    if found.shape != expected.shape:
        text = f"shape {list(recorded.array.shape)}, reference {list(reference.array.shape)}"
        return Judgement(verdict=Verdict.WRONG, ratio=math.inf, count=found.size, remark=text)
    if found.size == 0:
        return Judgement(verdict=Verdict.EXACT)
    judgement = None
    for count in (0, *_PROBES):
        changed = [one.values().reshape(-1) for one in probes(count)] if count else []
        changed = [one for one in changed if one.shape == expected.shape]
        if kind_of(recorded.dtype) in (Kind.FLOAT, Kind.COMPLEX):
            inner = slack() if count else None
            judgement = _Tally(budget).judgement(found, expected, changed, inner)
        else:
            judgement = _judge_integers(found, expected, changed)
        if judgement.ratio <= SUSPICIOUS or budget.exact:
            break
        if count == _PROBES[-2] and judgement.ratio > WRONG:
            break
    assert judgement is not None
    if judgement.verdict is Verdict.WRONG and found.size > 1:
        return _with_factor(judgement, found, expected, budget)
    return judgement


def _judge_integers(found: Array, expected: Array, changed: Sequence[Array]) -> Judgement:
    """Judge integers and truth values: equal, unless a change of the last bits changes them."""
    differing = found != expected
    unstable = np.zeros(found.shape, bool)
    for one in changed:
        unstable |= one != expected
    wrong = differing & ~unstable
    if not differing.any():
        return Judgement(verdict=Verdict.EXACT, count=found.size)
    place = int(np.argmax(wrong if wrong.any() else differing))
    with np.errstate(all="ignore"):
        error = np.abs(found.astype(np.float64) - expected.astype(np.float64))
    return Judgement(
        verdict=Verdict.WRONG if wrong.any() else Verdict.ROUNDING,
        ratio=math.inf if wrong.any() else 1.0,
        error=float(error.max()),
        index=place,
        found=float(found[place]),
        expected=float(expected[place]),
        mismatches=int(wrong.sum()),
        count=found.size,
        remark=f"{int(wrong.sum() or differing.sum())} of {found.size} elements differ"
        + ("" if wrong.any() else ", all where a change of the last bit decides"),
    )


@dataclass(slots=True)
class _Tally:
    """Judges floating-point elements block by block."""

    budget: Budget
    ratio: float = -1.0
    index: int = 0
    allowed: float = 0.0
    ulps: float = 0.0
    error: float = 0.0
    scale: float = 0.0
    mismatches: int = 0
    overflows: int = 0

    def judgement(
        self, found: Array, expected: Array, changed: Sequence[Array], slack: Array | float | None
    ) -> Judgement:
        """Return the judgement of all elements."""
        histogram = np.zeros(18, np.int64)
        with np.errstate(all="ignore"):
            for start in range(0, found.size, _BLOCK):
                block = slice(start, start + _BLOCK)
                self._add(
                    start,
                    _wide(found[block]),
                    _wide(expected[block]),
                    [_wide(one[block]) for one in changed],
                    slack[block] if isinstance(slack, np.ndarray) else slack or 0.0,
                    histogram,
                )
        place = self.index
        return Judgement(
            verdict=self._verdict(),
            ratio=self.ratio,
            ulps=self.ulps,
            error=self.error,
            relative=self.error / self.scale if self.scale else (math.inf if self.error else 0.0),
            index=place,
            found=_plain(found[place]),
            expected=_plain(expected[place]),
            allowed=self.allowed,
            mismatches=self.mismatches,
            overflows=self.overflows,
            count=found.size,
            histogram=tuple(int(one) for one in histogram),
            remark=self._remark(),
        )

    def _verdict(self) -> Verdict:
        if self.ratio > WRONG:
            return Verdict.WRONG
        if self.ratio > SUSPICIOUS:
            return Verdict.SUSPICIOUS
        if self.overflows:
            return Verdict.OVERFLOW
        return Verdict.EXACT if self.ulps <= 0.5 else Verdict.ROUNDING

    def _remark(self) -> str:
        if self.mismatches:
            return f"{self.mismatches} elements are NaN or infinite on one side only"
        if self.overflows:
            return f"{self.overflows} elements are beyond the range of {self.budget.dtype}"
        return ""

    def _add(
        self,
        start: int,
        a: Array,
        b: Array,
        changed: Sequence[Array],
        slack: Array | float,
        histogram: Array,
    ) -> None:
        """Judge one block."""
        error = np.abs(a - b)
        size = np.abs(b)
        allowed = size * self.budget.result_factor
        allowed += self.budget.floor
        if changed and self.budget.step_factor:
            allowed += self.budget.step_factor * (_change(b, changed) + self.budget.unit * size)
            allowed += RESULT_ROUNDINGS * slack
        highest = float(error.max())
        if not math.isfinite(highest):
            error, allowed = self._without_nonfinite(a, b, error, allowed, changed)
            size = np.where(np.isfinite(size), size, 0.0)
            highest = float(error[np.isfinite(error)].max(initial=0.0))
        self.error = max(self.error, highest)
        self.scale = max(self.scale, float(size.max()))
        ratios = error / allowed
        worst = int(np.argmax(ratios))
        if float(ratios[worst]) > self.ratio:
            self.ratio, self.index = float(ratios[worst]), start + worst
            self.allowed = float(allowed[worst])
        ulps = error / _ulp(size, self.budget)
        rough = ulps[ulps > 0.5]
        histogram[0] += a.size - rough.size
        if rough.size:
            self.ulps = max(self.ulps, float(rough.max(initial=0.5, where=np.isfinite(rough))))
            classes = np.clip(np.ceil(np.log2(rough)) + 1, 1, 17).astype(np.int64)
            histogram += np.bincount(classes, minlength=18)
        elif self.ulps < 0.5:
            self.ulps = max(self.ulps, float(ulps.max()))

    def _without_nonfinite(
        self, a: Array, b: Array, error: Array, allowed: Array, changed: Sequence[Array]
    ) -> tuple[Array, Array]:
        """Return errors in which NaN and infinities that agree count as none."""
        equal = (a == b) | (np.isnan(a) & np.isnan(b))
        odd = ~np.isfinite(a) | ~np.isfinite(b)
        largest = largest_of(self.budget.dtype)
        unstable = np.zeros(a.shape, bool)
        for one in changed:
            unstable |= np.isfinite(one) != np.isfinite(b)
        beyond = np.isinf(a) & np.isfinite(b) & (np.abs(b) + allowed >= largest)
        beyond |= odd & ~equal & unstable
        mismatched = odd & ~equal & ~beyond
        self.overflows += int(np.count_nonzero(beyond))
        self.mismatches += int(np.count_nonzero(mismatched))
        error = np.where(odd, 0.0, error)
        allowed = np.where(np.isfinite(allowed), allowed, np.finfo(np.float64).max)
        return np.where(mismatched, np.inf, error), allowed


def _change(expected: Array, changed: Sequence[Array]) -> Array:
    """Return the largest finite change of each element in any probe; Inf where none is finite.

    At the edge of a function's domain, as of `acos` at 1, some probes are NaN: they tell nothing of
    how large an error may be.
    """
    found: Array = np.full(expected.shape, np.nan)
    for one in changed:
        change = np.abs(one - expected)
        if not math.isfinite(float(change.max())):
            change[np.isinf(change)] = np.nan
        np.fmax(found, change, out=found)
    found[np.isnan(found)] = np.inf
    return found


def _ulp(size: Array, budget: Budget) -> Array:
    """Return the unit in the last place of the recorded type at each size."""
    layout = layout_of(budget.dtype)
    assert layout is not None
    power = (np.ascontiguousarray(size).view(np.int64) & 0x7FF0_0000_0000_0000).view(np.float64)
    smallest = math.ldexp(1.0, max(layout.min_exponent, -1022))
    return np.maximum(power, smallest) * layout.epsilon


def _wide(values: Array) -> Array:
    return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64, copy=False)


def _plain(value: Any) -> float | complex:
    return complex(value) if np.iscomplexobj(value) else float(value)


def _with_factor(judgement: Judgement, found: Array, expected: Array, budget: Budget) -> Judgement:
    """Return the judgement with the constant that explains the difference, if there is one."""
    from dataclasses import replace

    a, b = _wide(found), _wide(expected)
    sound = np.isfinite(a) & np.isfinite(b)
    a, b = a[sound], b[sound]
    square = float(np.vdot(b, b).real)
    if not square or (budget.exact and not a.any()):
        return judgement
    factor = float(np.vdot(b, a).real) / square
    rest = float(np.linalg.norm(a - factor * b))
    tolerance = 16 * budget.unit * math.sqrt(square) * abs(factor)
    if not factor or rest > tolerance or abs(factor - 1) < 16 * budget.unit:
        return judgement
    simple = _simple(factor, 16 * budget.unit)
    return replace(
        judgement, factor=simple, remark=f"all elements are off by the factor {simple:g}"
    )


def _simple(factor: float, tolerance: float) -> float:
    """Return the whole number, or its inverse, that is meant by a factor."""
    for candidate in (round(factor), 1 / round(1 / factor) if abs(factor) < 1 else 0.0):
        if candidate and abs(candidate - factor) <= tolerance * abs(candidate):
            return float(candidate)
    return factor
