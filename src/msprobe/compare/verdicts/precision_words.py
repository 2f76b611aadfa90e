# SPDX-License-Identifier: Apache-2.0
"""In which precisions the sides compute, in words."""

from __future__ import annotations

from collections import Counter

from msprobe.compare.verdicts.verdict import Findings, Where
from msprobe.compare.verdicts.verdict_classes import VerdictClass


def precisions_in(findings: Findings) -> str:
    """Return the floating types that differ most often, in words; empty if none do."""
    total: Counter[tuple[str, str]] = Counter()
    for each in findings.steps:
        total.update(each.precisions)
    if not total:
        return ""
    (types, count), *_ = total.most_common(1)
    words = f"{count} values are {types[0]} in the target, {types[1]} in the reference"
    first = next((each.first_precision for each in findings.steps if each.first_precision), None)
    return words if first is None else f"{words}, first in {first.words}"


def casts_in(findings: Findings) -> str:
    """Return the first cast of one side alone that rounds, in words; empty without one.

    Behind a model no value shows in which type a loss is computed. More micro batches make more
    casts.
    """
    if findings.is_divided:
        return ""
    return next((each.cast for each in findings.steps if each.cast), "")


def precisions_of_agreeing(findings: Findings, close: int, inside: int) -> str:
    """Return what makes precisions of results that agree; those of one type agree to the bit."""
    found = precisions_in(findings) or (casts_in(findings) if close else "")
    return found or (lone_cast(findings) if inside else "")


def lone_cast(findings: Findings) -> str:
    """Return the first cast to a coarser type by one side alone, in words; empty without one.

    Or if every update leaves the same parameters.
    """
    if not findings.changed_steps:
        return ""
    noticed = (each.unnoticed for each in findings.steps if each.unnoticed is not None)
    return next((each.words for each in noticed if each.verdict is VerdictClass.PRECISION), "")


def where_of_precision(findings: Findings) -> Where | None:
    """Return the first value whose floating types differ; None if none do."""
    places = ((each.first_precision, each.rank) for each in findings.steps)
    return next((Where.at(place, rank) for place, rank in places if place is not None), None)
