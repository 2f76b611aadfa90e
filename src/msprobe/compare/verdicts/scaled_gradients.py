# SPDX-License-Identifier: Apache-2.0
"""Calls by which gradients alone are other ones.

They multiply the loss, or a gradient itself, or make what gradients are taken of once more.
"""

from __future__ import annotations

from collections.abc import Iterator

from msprobe.compare.causes import Cause
from msprobe.compare.model import OperationPair
from msprobe.compare.rank_comparison import RankComparison
from msprobe.compare.sides import Side
from msprobe.compare.training.gradient_factors import multiple_words
from msprobe.compare.training.losses import OtherLoss, other_loss
from msprobe.compare.training.shared_names import facts_of
from msprobe.compare.verdicts.data_flow import fingerprint
from msprobe.compare.verdicts.places import lone_words
from msprobe.compare.verdicts.ranking import Culprit
from msprobe.dump.record_names import RecordKind
from msprobe.dump.values import Role
from msprobe.operators.lookup import scale_of

_OF_SCALES = (Cause.GRADIENT_CALL, Cause.USED_CALL, Cause.ARGUMENT)


def loss_of(comparison: RankComparison) -> OtherLoss | None:
    """Return the first loss of a step and rank that differs; None where that is not known."""
    pair = facts_of(comparison)
    if pair is None:
        return None
    return other_loss(
        pair, lambda: comparison.resolution_of_losses, lambda: comparison.scale_of_losses
    )


def scaled_words(culprit: Culprit) -> str:
    """Return how a culprit scales the loss or a gradient, in words; empty if it does neither."""
    row, comparison = culprit.row, culprit.comparison
    if culprit.kind != "forward" or row.cause not in _OF_SCALES:
        return ""
    if not row.pair.is_matched and _is_in_backward(culprit):
        return _changed_gradient(culprit)
    if _ratio(comparison, row.pair) == 1:
        return ""
    loss = loss_of(comparison)
    if loss is None:
        return ""
    argument = None if not row.pair.is_matched else row.pair
    is_scaled = loss.is_scaled_by(scale_of_calls(comparison, loss.target.micro, argument))
    side = comparison.side_of(row.pair)
    is_divided = not row.pair.is_matched and abs(_scale(side, row.pair.name)) < 1
    return loss.multiple(is_divided=is_divided) if is_scaled else ""


def scale_of_calls(
    comparison: RankComparison, micro: int | None = None, argument: OperationPair | None = None
) -> float:
    """Return by what numbers the calls of one side alone multiply: the target's over the other's.

    As they do with every value that flows through them, they do with its gradient. What a hook
    multiplies is a gradient itself.

    Args:
        comparison: the step and rank.
        micro: the calls before this backward pass, from the one before it on; None for all.
        argument: a call that both make, with other arguments.
    """
    scale = 1.0
    for pair in _before(comparison, micro):
        if not pair.is_matched or pair is argument:
            scale *= _ratio(comparison, pair)
    return scale


def extra_pass(comparison: RankComparison) -> str | None:
    """Return the first call of the side that takes gradients once more, in words; None without one.

    A penalty, or another loss: calls of that side alone are what it takes them of. They do not tell
    where the other side takes none at all, nor where it computes by calls of its own.
    """
    facts = facts_of(comparison)
    target, reference = (0, 0) if facts is None else facts.passes
    if target == reference or 0 in (target, reference):
        return None
    more = comparison.side(is_target=target > reference)
    first: OperationPair | None = None
    for pair in comparison.pairs:
        parsed = comparison.parsed(pair)
        if pair.is_matched or parsed.kind is not RecordKind.FORWARD or parsed.is_module:
            continue
        side = comparison.side_of(pair)
        if not side.requires_gradient(pair.name):
            continue
        if side is not more:
            return None
        first = first or pair
    return None if first is None else lone_words(comparison, first)


def _before(comparison: RankComparison, micro: int | None) -> Iterator[OperationPair]:
    """Yield forward calls, each at its place among those of its own side."""
    begun = {"target": 0, "reference": 0}
    is_in_pass = dict.fromkeys(begun, False)
    for pair in comparison.pairs:
        kind = comparison.parsed(pair).kind
        own = [side for side in begun if getattr(pair, side) is not None]
        for side in own:
            is_backward = kind in (RecordKind.BACKWARD, RecordKind.PARAMETERS_GRAD)
            begun[side] += is_backward and not is_in_pass[side]
            is_in_pass[side] = is_backward
        if kind is RecordKind.FORWARD and micro in (None, begun[own[0]]):
            yield pair


def _ratio(comparison: RankComparison, pair: OperationPair) -> float:
    scales = [
        1.0 if name is None else _scale(side, name)
        for side, name in zip(comparison.sides, (pair.target, pair.reference), strict=True)
    ]
    return scales[0] / scales[1]


def _scale(side: Side, name: str) -> float:
    if not side.requires_gradient(name):
        return 1.0
    given = (each.value for each in side.values(name) if each.role is Role.INPUT)
    return scale_of(side.operator(name), (n for n in given if isinstance(n, int | float)))


def _is_in_backward(culprit: Culprit) -> bool:
    """Return whether a call of one side alone runs after its backward pass began."""
    pair = culprit.row.pair
    side = culprit.comparison.side_of(pair)
    before = side.names[: side.names.index(pair.name)]
    return any(side.parsed(name).kind is RecordKind.BACKWARD for name in before)


def _changed_gradient(culprit: Culprit) -> str:
    """Return which gradient a call of one side alone makes, in words; empty if it makes none."""
    comparison, name = culprit.comparison, culprit.row.pair.name
    values = comparison.side_of(culprit.row.pair).values(name)
    made = {
        fingerprint(each)
        for each in values
        if each.role is Role.OUTPUT and each.is_tensor and not each.requires_grad
    }
    for row in comparison.rows:
        is_gradient = row.pair.is_matched and comparison.is_of_backward(row.pair)
        if (
            is_gradient
            and row.status.is_difference
            and not made.isdisjoint(map(fingerprint, row.values))
        ):
            times = multiple_words(row)
            what = f"{row.value.slot} of {row.pair.name}"
            return f"{what} is {times}" if times else f"{what} is made otherwise"
    return ""
