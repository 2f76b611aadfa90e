# SPDX-License-Identifier: Apache-2.0
"""Judge what a perturbation of a call does to its results.

The number that decides is the amplification: the change of a result in parts of the change that
was put in, or of the unit roundoff of the result's type where that is larger. It is a condition
number of the call as it ran; one rounding of the result makes it 2 at most. A result in `p` bits
that amplifies an error of its last bit by 2^(p/2) has fewer than half of its digits left. That is a
warning; from 2^(p/4) on it is a note.
"""

from __future__ import annotations

import math
from enum import StrEnum
from functools import cache
from typing import Final

import msgspec

from msprobe.checks.judging import Judgement, Verdict
from msprobe.config import Perturbation
from msprobe.numerics.number_types import epsilon_of

# The largest of many elements is that much above their root mean square, for normal numbers and
# then some.
WORST_ELEMENT: Final = 8.0
"""An element counts as its tensor does when it changes this many times as much."""


class SkippedError(Exception):
    """A call is not perturbed; the message is the reason."""


class Severity(StrEnum):
    """How much a finding matters."""

    NONE = "none"
    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


SEVERITIES: Final = {one: rank for rank, one in enumerate(Severity)}
"""How much each matters: the larger, the worse."""


class Change(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How a result differs from that of the perturbed call.

    Attributes:
        output_index: which output, or which argument's gradient.
        dtype: normal name of the type of the result.
        shape: of the result.
        relative: norm of the change in parts of the norm of the result.
        worst_ulp: largest change of an element in units in the last place
            of the result's type, at the element's size or the root mean square of all, whichever
            is larger; 0 where it is too small to matter.
        ratio: largest ratio of two elements minus 1; None where a sign differs or it is not known.
        flips: whether an element that matters has another sign.
        nonfinite: elements that are NaN or infinite on one side only.
        differing: elements that differ in any bit; None where they were not counted.
        first: place of the first of these, or of those, in C order; None without one.
        count: number of elements.
        size: root mean square of the result; None where it is not known.
        cancels: whether the result is zero, or nothing but roundings of what it was made of.
        reshaped: shape of the perturbed result, where it is another one.
    """

    output_index: int
    dtype: str
    shape: tuple[int, ...]
    relative: float = 0.0
    worst_ulp: float = 0.0
    ratio: float | None = None
    flips: bool = False
    nonfinite: int = 0
    differing: int | None = None
    first: int | None = None
    count: int = 0
    size: float | None = None
    cancels: bool = False
    reshaped: tuple[int, ...] | None = None


class Judged(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The judgement of one result.

    Attributes:
        change: the change that was judged.
        input_change: relative size of what was put in; 0 where nothing was.
        amplification: change of the result in parts of it; for a reference, the error in parts of
            the result type's unit roundoff.
        severity: how much it matters.
        detail: why, in a few words.
    """

    change: Change
    input_change: float
    amplification: float
    severity: Severity
    detail: str = ""


@cache
def digits_limits(unit: float) -> tuple[float, float]:
    """Return the amplifications that lose a quarter and half of the digits.

    Args:
        unit: unit roundoff of the coarsest type involved.
    """
    return unit**-0.25, unit**-0.5


def judged_change(
    change: Change, *, input_change: float, unit: float, learned: float = 1.0
) -> Judged:
    """Judge a result of a call with changed inputs.

    Args:
        change: of the result.
        input_change: relative size of what was put in.
        unit: unit roundoff of the coarsest type involved.
        learned: amplification that a sound run of this API had; less is no finding.
    """
    size = max(input_change, unit)
    amplification = change.relative / size
    worst = change.worst_ulp * epsilon_of(change.dtype) / size / WORST_ELEMENT
    decisive = max(amplification, worst)
    quarter, half = digits_limits(unit)
    note, warning = max(quarter, 2 * learned), max(half, 2 * learned)
    severity, detail = Severity.NONE, ""
    if change.reshaped is not None:
        severity = Severity.WARNING
        detail = f"the result has another shape: {list(change.reshaped)}"
    elif change.nonfinite:
        severity = Severity.ERROR
        detail = f"{change.nonfinite} elements are NaN or infinite on one side only"
    elif change.cancels and change.relative:
        severity, detail = Severity.NOTE, "the result is no more than rounding: its inputs cancel"
    elif decisive >= note:
        severity = Severity.WARNING if decisive >= warning else Severity.NOTE
        lost = math.log2(decisive) / -math.log2(unit) if math.isfinite(decisive) else 1.0
        detail = f"loses {min(lost, 1.0):.0%} of the digits"
        if worst > amplification:
            detail += " in single elements"
    return Judged(
        change=change,
        input_change=input_change,
        amplification=decisive,
        severity=severity,
        detail=detail,
    )


def judged_rerun(change: Change) -> Judged:
    """Judge a result of a call that ran again with the same inputs: the bits must be the same."""
    if change.reshaped is not None:
        return judged_change(change, input_change=1.0, unit=0.5)
    severity, detail = Severity.NONE, ""
    if change.differing:
        severity = Severity.WARNING
        detail = (
            f"not deterministic: {change.differing} of {change.count} elements differ, first at "
            f"{change.first}"
        )
    return Judged(
        change=change, input_change=0.0, amplification=0.0, severity=severity, detail=detail
    )


_OF_VERDICTS: Final = {Verdict.SUSPICIOUS: Severity.WARNING, Verdict.WRONG: Severity.ERROR}


def judged_reference(change: Change, judgement: Judgement | None, mode: Perturbation) -> Judged:
    """Judge a result against that of the same call in higher precision.

    Args:
        change: the error.
        judgement: what `judge` says of it; None where the error is too small to ask.
        mode: the perturbation.
    """
    unit = epsilon_of(change.dtype) / 2
    severity, detail = Severity.NONE, ""
    if change.reshaped is not None:
        severity, detail = Severity.ERROR, f"the reference has shape {list(change.reshaped)}"
    elif judgement is not None:
        severity = _OF_VERDICTS.get(judgement.verdict, Severity.NONE)
        if judgement.verdict is Verdict.OVERFLOW:
            severity = Severity.NOTE
        if severity is not Severity.NONE:
            where = "on the CPU" if mode is Perturbation.CPU_REFERENCE else "in higher precision"
            detail = judgement.remark or (
                f"{judgement.ratio:.3g} times the error that its type explains; at "
                f"{judgement.index} {judgement.found:.6g}, {where} {judgement.expected:.6g}"
            )
    return Judged(
        change=change,
        input_change=unit,
        amplification=change.relative / unit,
        severity=severity,
        detail=detail,
    )


def judged_replacement(change: Change) -> Judged:
    """Return how a result differs from the one that took its place."""
    unit = epsilon_of(change.dtype) / 2
    return Judged(
        change=change,
        input_change=unit,
        amplification=change.relative / unit,
        severity=Severity.NONE,
        detail="replaced",
    )
