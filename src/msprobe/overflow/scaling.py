# SPDX-License-Identifier: Apache-2.0
"""Steps that a gradient scaler skipped: a scale too large, or a fault that no scale mends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msprobe.dump.dump_steps import RankKey
from msprobe.dump.facts import Scaler
from msprobe.dump.rank_view import RankView
from msprobe.dump.record_names import PARAMETER_GRADIENTS, RecordKind, RecordName
from msprobe.errors import DumpFormatError
from msprobe.operators.lookup import operator_of
from msprobe.operators.operator import Family
from msprobe.overflow.findings import Finding, ScalerSkip, Source
from msprobe.overflow.one_rank import RankExamination

_GRADIENTS: Final = (RecordKind.BACKWARD, *PARAMETER_GRADIENTS)
# A scale begins at 65,536 and is halved: after so many steps the scale is not the reason.
_MANY: Final = 8


def scaler_skip(
    ranks: Mapping[RankKey, RankExamination],
    findings: tuple[Finding, ...],
    views: Mapping[int, RankView],
    step: int,
) -> ScalerSkip | None:
    """Return the skip of a step by its gradient scaler; None if it skipped nothing.

    Args:
        ranks: the ranks of the step.
        findings: where NaN and Inf begin, first ones first.
        views: one rank's dump of each step.
        step: the step.
    """
    event = _last_update(views[step])
    if event is None or not event.skipped:
        return None
    numbers = sorted(views)
    earlier = [number for number in numbers if number <= step]
    in_a_row = 0
    for number in reversed(earlier[-_MANY:]):
        update = _last_update(views[number])
        if update is None or not update.skipped:
            break
        in_a_row += 1
    later = (
        update for number in numbers if number > step if (update := _last_update(views[number]))
    )
    following = next(later, None)
    is_cured = following is not None and following.skipped is False
    unmeant = [finding for finding in findings if not finding.is_deliberate]
    return ScalerSkip(
        scale=event.scale,
        new_scale=event.new_scale,
        in_a_row=in_a_row,
        is_expected=bool(unmeant)
        and all(_is_of_scale(ranks, finding, event.scale) for finding in unmeant)
        and in_a_row < _MANY
        and (is_cured or not any(_is_singular(_name(ranks, finding)) for finding in unmeant[:1])),
    )


def _last_update(view: RankView) -> Scaler | None:
    try:
        events = view.facts.events if view.facts else []
    except DumpFormatError:
        return None
    return next((event for event in reversed(events) if isinstance(event, Scaler)), None)


def _is_of_scale(
    ranks: Mapping[RankKey, RankExamination], finding: Finding, scale: float | None
) -> bool:
    """Whether NaN and Inf begin in a gradient or a product with the scale, or were received."""
    if finding.source is Source.RECEIVED:
        return True
    name = _name(ranks, finding)
    if finding.source is not Source.OPERATION or name.kind in _GRADIENTS:
        return finding.source is Source.OPERATION
    if name.is_module or operator_of(name.prefix, name.path).family is not Family.MULTIPLYING:
        return False
    values = ranks[finding.place.rank].view.records.values_of(name.full)
    return scale is not None and any(
        value.is_tensor and value.max == value.min == scale and not value.shape for value in values
    )


def _is_singular(name: RecordName) -> bool:
    return not name.is_module and operator_of(name.prefix, name.path).is_singular


def _name(ranks: Mapping[RankKey, RankExamination], finding: Finding) -> RecordName:
    return ranks[finding.place.rank].view.records.parsed(finding.place.name)
