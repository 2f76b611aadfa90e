# SPDX-License-Identifier: Apache-2.0
"""Parts of a module that one side alone calls, or calls in another order.

Where calls between the parts have no records, that is what makes a module's own code differ.
"""

from __future__ import annotations

from collections.abc import Iterator

from msprobe.compare.model import OperationPair
from msprobe.compare.rank_comparison import RankComparison
from msprobe.compare.training.outline_differences import OutlineDifference
from msprobe.compare.verdicts.places import Place, lone_words
from msprobe.compare.verdicts.verdict_classes import VerdictClass
from msprobe.dump.record_names import RecordKind


def other_parts(
    comparison: RankComparison, module: OperationPair, end: OperationPair | None = None
) -> OutlineDifference | None:
    """Return the first part that one side alone calls, or that comes in another order.

    Args:
        comparison: the step and rank.
        module: the forward call of the module; both sides make it.
        end: the first part that is given something else; None if that is not known.
    """
    own = list(_parts(comparison, module.target, is_target=True))
    other = list(_parts(comparison, module.reference, is_target=False))
    lone = [part for part in (*own, *other) if not part.is_matched]
    first = min(lone, key=lambda part: part.position, default=None)
    if first is not None and (end is None or first.position < end.position):
        place = Place.of(comparison, first)
        words = lone_words(comparison, first)
        return OutlineDifference(VerdictClass.CALL, words, place.source, takes_tensor=True)
    shared = ([part for part in side if part.is_matched] for side in (own, other))
    moved = next((both for both in zip(*shared, strict=False) if both[0] is not both[1]), None)
    if lone or moved is None:
        return None
    early, late = moved
    words = (
        f"{Place.of(comparison, early).words} is called before {late.name} in the target, after "
        "it in the reference"
    )
    source = Place.of(comparison, early).source
    return OutlineDifference(VerdictClass.ORDER, words, source, takes_tensor=True, is_of_flow=True)


def _parts(
    comparison: RankComparison, module: str | None, *, is_target: bool
) -> Iterator[OperationPair]:
    """Yield the modules that a module calls on one side, in order."""
    side = comparison.side(is_target=is_target)
    pairs = {pair.target if is_target else pair.reference: pair for pair in comparison.pairs}
    for name in side.names:
        parsed = side.parsed(name)
        is_call = parsed.is_module and parsed.kind is RecordKind.FORWARD
        if is_call and name in pairs and side.parent(name) == module:
            yield pairs[name]
