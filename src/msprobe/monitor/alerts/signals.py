# SPDX-License-Identifier: Apache-2.0
"""Signals: what one rule finds remarkable about one series at one step."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from msprobe.monitor.alerts.series import Series


class Sign(StrEnum):
    """Kinds of unusual behaviour of a series."""

    NOT_FINITE = "not_finite"
    ROSE = "rose"
    FELL = "fell"
    ZERO = "zero"
    ABSENT = "absent"
    STUCK = "stuck"
    DEAD_UNITS = "dead_units"
    RATE_ROSE = "learning_rate_rose"
    RATE_ZERO = "learning_rate_zero"
    SETTING_CHANGED = "setting_changed"
    SCALE_COLLAPSED = "loss_scale_collapsed"
    LOW_PRECISION = "low_precision"
    DTYPE_CHANGED = "dtype_changed"
    RANK_DIFFERS = "rank_differs"
    RANKS_PART = "ranks_part"


@dataclass(frozen=True, slots=True)
class Signal:
    """One finding of one rule.

    Attributes:
        sign: the finding.
        series: the series concerned.
        step: the step at which it was found.
        onset: the step at which it began, as far as the rule can tell.
        place: place of the series in the order of a training step.
        value: the value at `step`; None where it is absent.
        expected: the level before; None where the rule has none.
        z: distance from the level in deviations; 0 for rules without one.
        detail: further words, such as the data type.
    """

    sign: Sign
    series: Series
    step: int
    onset: int
    place: int
    value: float | None
    expected: float | None = None
    z: float = 0.0
    detail: str = ""
