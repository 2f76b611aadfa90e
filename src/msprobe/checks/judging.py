# SPDX-License-Identifier: Apache-2.0
"""`judge`: one recorded result against its reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from msprobe.checks.budgets import RESULT_ROUNDINGS, Budget, largest_of, layout_of
from msprobe.dump.formats.dtypes import FloatFormat
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

# Expected largest of three normal numbers of unit variance, without their signs.
_LARGEST_OF_THREE: Final = 1.326

Probes = Callable[[int], Sequence[StoredTensor]]
"""Returns so many references with random errors in each step."""
Array = NDArray[Any]
_NONE: Final = np.empty(0, np.int64)
_EXPONENT: Final = 0x7FF0_0000_0000_0000
Spread = Callable[[Array], Array | None]


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

    @property
    def is_fault(self) -> bool:
        """Whether the error is more than type, sums and condition explain."""
        return self in (Verdict.SUSPICIOUS, Verdict.WRONG)


@dataclass(frozen=True, slots=True)
class _Held:
    """Elements held against their allowed errors: the worst of them, and odd ones."""

    ratio: float = -1.0
    index: int = 0
    allowed: float = 0.0
    mismatches: int = 0
    overflows: int = 0


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
    spread: Spread = lambda _: None,
) -> Judgement:
    """Judge one tensor.

    Args:
        recorded: the tensor in question.
        reference: the same in higher precision, of the same shape.
        budget: what decides about the allowed error.
        probes: makes references with random errors; asked only where nothing else explains all
            elements.
        slack: returns the error that numbers inside of the function may leave in each element;
            asked only where the sizes of the elements do not explain their errors.
        spread: returns the root mean square of the change that rounding errors make in the
            elements of some places, where that is known without probes; asked as `slack` is.
    """
    found, expected = recorded.values().reshape(-1), reference.values().reshape(-1)
    if found.shape != expected.shape:
        text = f"shape {list(recorded.array.shape)}, reference {list(reference.array.shape)}"
        return Judgement(verdict=Verdict.WRONG, ratio=math.inf, count=found.size, remark=text)
    if found.size == 0:
        return Judgement(verdict=Verdict.EXACT)
    is_float = kind_of(recorded.dtype) in (Kind.FLOAT, Kind.COMPLEX)
    tally = _Tally(budget, found, expected, cache(slack), spread) if is_float else None
    judgement = tally.judgement() if tally else _judge_integers(found, expected, ())
    for count in _PROBES:
        if judgement.ratio <= SUSPICIOUS or budget.exact:
            break
        if count == _PROBES[-1] and judgement.ratio > WRONG:
            break
        changed = [one.values().reshape(-1) for one in probes(count)]
        changed = [one for one in changed if one.shape == expected.shape]
        if tally:
            tally.explain(changed)
        judgement = tally.judgement() if tally else _judge_integers(found, expected, changed)
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


class _Tally:
    """The elements of a floating-point tensor, and those among them that nothing explains yet."""

    def __init__(
        self,
        budget: Budget,
        found: Array,
        expected: Array,
        slack: Callable[[], Array | float | None],
        spread: Spread,
    ) -> None:
        """Go through all elements once, block by block."""
        self._budget = budget
        self._found, self._expected = found, expected
        self._slack = slack
        self._factor, self._floor = budget.known_factor, budget.floor
        layout = layout_of(budget.dtype)
        assert layout is not None
        self._layout = layout
        # Allowed error of any element, in its power of two, rounded down.
        least = min(self._factor, self._floor / _smallest_normal(layout))
        self._least = least * (1 - 2.0**-40)
        self._ulps = self._error = self._scale = 0.0
        self._histogram = np.zeros(18, np.int64)
        self._explained = _Held()
        # New arrays for each block would be new pages, which cost more than the arithmetic.
        self._scratch = np.empty((3, min(found.size, _BLOCK)))
        starts = range(0, found.size, _BLOCK)
        with np.errstate(all="ignore"):
            self._places = np.concatenate([self._add(start) for start in starts])
        self._left = _Held()
        self._computed: Array | None = None
        if self._places.size:
            self._computed = spread(self._places) if budget.step_factor else None
            self.explain(())

    def explain(self, changed: Sequence[Array]) -> None:
        """Hold the elements that are left against their changes in references with errors."""
        with np.errstate(all="ignore"):
            self._left = self._held([one[self._places] for one in changed])

    def judgement(self) -> Judgement:
        """Return the judgement of all elements."""
        left = self._left
        worst = max(self._explained, left, key=lambda one: one.ratio)
        histogram = self._histogram.tolist()
        histogram[0] += left.overflows
        histogram[-1] += left.mismatches
        return Judgement(
            verdict=self._verdict(worst.ratio),
            ratio=max(worst.ratio, 0.0),  # below zero while no element is off
            ulps=self._ulps,
            error=self._error,
            relative=self._error / self._scale if self._scale else (math.inf if self._error else 0),
            index=worst.index,
            found=_plain(self._found[worst.index]),
            expected=_plain(self._expected[worst.index]),
            allowed=worst.allowed,
            mismatches=left.mismatches,
            overflows=left.overflows,
            count=self._found.size,
            histogram=tuple(histogram),
            remark=self._remark(),
        )

    def _verdict(self, ratio: float) -> Verdict:
        if ratio > WRONG:
            return Verdict.WRONG
        if ratio > SUSPICIOUS:
            return Verdict.SUSPICIOUS
        if self._left.overflows:
            return Verdict.OVERFLOW
        return Verdict.EXACT if self._ulps <= 0.5 else Verdict.ROUNDING

    def _remark(self) -> str:
        if self._left.mismatches:
            return f"{self._left.mismatches} elements are NaN or infinite on one side only"
        if self._left.overflows:
            return f"{self._left.overflows} elements are beyond the range of {self._budget.dtype}"
        return ""

    def _add(self, start: int) -> Array:
        """Add a block; return the places of elements that their own sizes do not explain."""
        block = slice(start, start + _BLOCK)
        a, b = self._found[block], self._expected[block]
        error, size, steps = self._scratch[:, : a.size]
        if a.dtype.kind == "c" or b.dtype.kind == "c":
            np.abs(_wide(a) - b, out=error)
        else:
            np.copyto(error, a)
            error -= b
            np.abs(error, out=error)
        np.abs(b, out=size)
        highest = float(error.max())
        odd = None
        if not math.isfinite(highest):  # NaN and infinities that agree count as no error
            odd = _is_odd(a, b)
            error[~np.isfinite(error)] = 0.0
            size[~np.isfinite(size)] = 0.0
            highest = float(error.max())
        self._error = max(self._error, highest)
        self._scale = max(self._scale, float(size.max()))
        # Units in the last place, times the epsilon: in parts of the power of two below each size.
        np.bitwise_and(size.view(np.int64), _EXPONENT, out=steps.view(np.int64))
        np.maximum(steps, _smallest_normal(self._layout), out=steps)
        np.divide(error, steps, out=steps)
        top = int(steps.argmax())
        self._ulps = max(self._ulps, float(steps[top]) / self._layout.epsilon)
        # No other element can be worse than the worst so far, or need explaining.
        bar = self._explained.ratio
        ratio = float(error[top] / (size[top] * self._factor + self._floor))
        if ratio <= SUSPICIOUS:
            bar = max(bar, ratio)
        if odd is not None:
            steps[odd] = np.inf
        (near,) = (steps > bar * self._least).nonzero()
        places = _NONE
        if near.size:
            allowed = size[near] * self._factor + self._floor
            ratios = error[near] / allowed
            unexplained = ~(ratios <= SUSPICIOUS)
            if odd is not None:
                unexplained |= odd[near]
            places = near[unexplained]
            ratios[unexplained] = -1.0
            worst = int(ratios.argmax())
            if float(ratios[worst]) > self._explained.ratio:
                self._explained = _Held(
                    float(ratios[worst]), start + int(near[worst]), float(allowed[worst])
                )
        if odd is not None:
            steps = steps[~odd]
        self._count(steps)
        return places + start

    def _count(self, steps: Array) -> None:
        """Add elements to the histogram: up to half a unit, 1, 2, 4 …; `steps` is overwritten."""
        # One less, the exponent of a power of two is that of the class below.
        bits = steps.view(np.int64)
        bits -= 1
        bits >>= 52
        exponents = bits.astype(np.int16)
        left, edge = steps.size, math.frexp(self._layout.epsilon)[1] + 1021
        for place in range(self._histogram.size - 1):
            count = int(np.count_nonzero(exponents >= edge + place))
            self._histogram[place] += left - count
            left = count
            if not left:
                return
        self._histogram[-1] += left

    def _held(self, changed: Sequence[Array]) -> _Held:
        """Return what is left, in parts of all that may be allowed."""
        budget, places = self._budget, self._places
        a, b = _wide(self._found[places]), _wide(self._expected[places])
        size = np.abs(b)
        allowed = size * self._factor
        allowed += self._floor
        if budget.step_factor:
            slack = self._slack()
            if slack is not None:
                allowed += RESULT_ROUNDINGS * (
                    slack[places] if isinstance(slack, np.ndarray) else slack
                )
            change = _change(b, changed) if changed else np.zeros(places.shape)
            if self._computed is not None:
                np.fmax(change, _LARGEST_OF_THREE * self._computed, out=change)
            allowed += budget.step_factor * change
        error, odd = np.abs(a - b), _is_odd(a, b)
        # Infinite because a number, the result or one on the way to it, is beyond the range.
        beyond = np.isinf(a) & np.isfinite(b) & (size + allowed >= largest_of(budget.dtype))
        for one in changed:
            beyond |= odd & (np.isfinite(one) != np.isfinite(b))
        error[odd] = np.where(beyond[odd], 0.0, np.inf)
        allowed[~np.isfinite(allowed)] = np.finfo(np.float64).max
        ratios = error / allowed
        worst = int(np.argmax(ratios))
        return _Held(
            ratio=float(ratios[worst]),
            index=int(places[worst]),
            allowed=float(allowed[worst]),
            mismatches=int(np.count_nonzero(odd & ~beyond)),
            overflows=int(np.count_nonzero(odd & beyond)),
        )


def _is_odd(a: Array, b: Array) -> Array:
    """Return where NaN or infinities are on one side only, or differ."""
    odd: Array = ~(np.isfinite(a) & np.isfinite(b) | (a == b) | np.isnan(a) & np.isnan(b))
    return odd


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


def _smallest_normal(layout: FloatFormat) -> float:
    return math.ldexp(1.0, max(layout.min_exponent, -1022))


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
