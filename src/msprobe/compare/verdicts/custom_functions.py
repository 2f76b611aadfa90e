# SPDX-License-Identifier: Apache-2.0
"""Calls inside a custom function (`autograd.Function`), which tell why its results differ.

Its record stands before those of the calls that its `forward` or `backward` makes.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Final

from msprobe.compare.verdicts.places import lone_words
from msprobe.compare.verdicts.verdict_classes import VerdictClass
from msprobe.dump.record_names import RecordKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from msprobe.compare.model import OperationPair
    from msprobe.compare.sides import Side
    from msprobe.compare.verdicts.ranking import Culprit
    from msprobe.dump.record_names import RecordName

MAY_BE_INSIDE: Final = (VerdictClass.KERNEL, VerdictClass.GRADIENT, VerdictClass.UNEXPLAINED)
"""Classes of a record whose cause may be a call inside it."""


def is_custom_function(parsed: RecordName) -> bool:
    """Return whether a record is that of an `autograd.Function` of the program."""
    return parsed.prefix == "Autograd"


def lone_call_inside(culprit: Culprit) -> tuple[OperationPair, str] | None:
    """Return the first call inside a custom function that one side alone makes, and words of it.

    None where the culprit is another call, or both sides make the same ones.
    """
    comparison, own = culprit.comparison, culprit.row.pair
    if not own.is_matched or not is_custom_function(comparison.parsed(own)):
        return None
    lone = {pair.name: pair for pair in comparison.pairs if not pair.is_matched}
    for side, name in zip(comparison.sides, (own.target, own.reference), strict=True):
        for each in _inside(side, name or ""):
            pair = lone.get(each)
            if pair is not None and comparison.side_of(pair) is side:
                return pair, f"{lone_words(comparison, pair)} inside a custom function"
    return None


def culprit_inside(culprit: Culprit, culprits: Sequence[Culprit]) -> Culprit:
    """Return the call to blame that a custom function makes, if there is one; else the culprit."""
    comparison, own = culprit.comparison, culprit.row.pair
    others = [each for each in culprits if each.comparison is comparison and each is not culprit]
    if not others or not own.is_matched or not is_custom_function(comparison.parsed(own)):
        return culprit
    names = set(_inside(comparison.target, own.target or ""))
    return next((each for each in others if each.row.pair.target in names), culprit)


def _inside(side: Side, function: str) -> list[str]:
    """Return the records of the calls that a custom function makes."""
    names = list(side.names)
    behind = names[names.index(function) + 1 :]
    if side.parsed(function).kind is RecordKind.BACKWARD:
        return list(takewhile(lambda each: side.parsed(each).kind is RecordKind.FORWARD, behind))
    around = list(side.view.frames(function))
    return list(takewhile(lambda each: _is_called_from(side, each, around), behind))


def _is_called_from(side: Side, name: str, around: list[str]) -> bool:
    frames = list(side.view.frames(name))
    return len(frames) > len(around) > 0 and frames[-len(around) :] == around
