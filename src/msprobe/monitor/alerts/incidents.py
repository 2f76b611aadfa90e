# SPDX-License-Identifier: Apache-2.0
"""Incidents: signals that belong together as one event, with a cause and the series that led."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from msprobe.monitor.alerts.series import Series, is_loss
from msprobe.monitor.alerts.signals import Sign, Signal
from msprobe.monitor.rows import Stream

QUIET_STEPS: Final = 10
"""Steps without a signal that end an incident."""
# Signals that begin so soon after the first belong to the cause and not to what follows from it.
_ONSET_SPAN: Final = 1


class Severity(StrEnum):
    """How bad an incident is."""

    WARNING = "warning"
    CRITICAL = "critical"


class IncidentCause(StrEnum):
    """The likely cause of an incident."""

    LEARNING_RATE_ROSE = "learning_rate_rose"
    LEARNING_RATE_ZERO = "learning_rate_zero"
    SETTING_CHANGED = "setting_changed"
    LOW_PRECISION = "low_precision"
    LOSS_SCALE = "loss_scale"
    RANKS_PART = "ranks_part"
    RANK_DIFFERS = "rank_differs"
    NOT_FINITE = "not_finite"
    STATE_RESET = "state_reset"
    DEAD_EXPERT = "dead_expert"
    DEAD_UNITS = "dead_units"
    STALE = "stale"
    BAD_BATCH = "bad_batch"
    EXPLODING = "exploding"
    VANISHING = "vanishing"


WORDS: Final = {
    IncidentCause.LEARNING_RATE_ROSE: "the learning rate rose",
    IncidentCause.LEARNING_RATE_ZERO: "the learning rate became zero",
    IncidentCause.SETTING_CHANGED: "a setting of the optimizer changed",
    IncidentCause.LOW_PRECISION: "an optimizer state is kept in too few bits",
    IncidentCause.LOSS_SCALE: "the loss scale collapsed",
    IncidentCause.RANKS_PART: "ranks part: values that were equal on all ranks differ",
    IncidentCause.RANK_DIFFERS: "one rank leaves the others: its data or its device",
    IncidentCause.NOT_FINITE: "NaN or Inf",
    IncidentCause.STATE_RESET: "the optimizer state was lost",
    IncidentCause.DEAD_EXPERT: "an expert gets no tokens any more",
    IncidentCause.DEAD_UNITS: "units died: nearly all outputs are zero",
    IncidentCause.STALE: "not updated any more",
    IncidentCause.BAD_BATCH: "the loss jumped: a bad batch, or divergence",
    IncidentCause.EXPLODING: "values explode",
    IncidentCause.VANISHING: "values vanish",
}
# The first of these signs that an incident begins with is its cause.
_CAUSE_OF_SIGN: Final = {
    Sign.RATE_ROSE: IncidentCause.LEARNING_RATE_ROSE,
    Sign.RATE_ZERO: IncidentCause.LEARNING_RATE_ZERO,
    Sign.DTYPE_CHANGED: IncidentCause.LOW_PRECISION,
    Sign.LOW_PRECISION: IncidentCause.LOW_PRECISION,
    Sign.SETTING_CHANGED: IncidentCause.SETTING_CHANGED,
    Sign.SCALE_COLLAPSED: IncidentCause.LOSS_SCALE,
    Sign.NOT_FINITE: IncidentCause.NOT_FINITE,
    Sign.RANKS_PART: IncidentCause.RANKS_PART,
    Sign.RANK_DIFFERS: IncidentCause.RANK_DIFFERS,
}
_CRITICAL: Final = frozenset({Sign.NOT_FINITE, Sign.RANKS_PART, Sign.SCALE_COLLAPSED})
_STATES: Final = frozenset({Stream.EXP_AVG, Stream.EXP_AVG_SQ, Stream.STATE})
_GRADIENTS: Final = frozenset({Stream.ACTV_GRAD, Stream.GRAD_UNREDUCED, Stream.GRAD_REDUCED})
_GONE: Final = frozenset({Sign.ZERO, Sign.ABSENT})


@dataclass(slots=True)
class Incident:
    """One event: signals from a first step to a last one.

    Attributes:
        number: of the incident within the run, from 0.
        start: the step at which the first of its signals began.
        last: the last step with a signal.
        found: the step at which it was first seen.
        count: signals so far.
        first: the first signal of each series and sign.
        is_open: whether further signals may join.
    """

    number: int
    start: int
    last: int
    found: int
    count: int = 0
    first: dict[tuple[Series, Sign], Signal] = field(default_factory=dict)
    is_open: bool = True

    def add(self, signals: Iterable[Signal]) -> None:
        """Take the signals of a step."""
        for signal in signals:
            self.count += 1
            self.last = max(self.last, signal.step)
            self.start = min(self.start, signal.onset)
            self.first.setdefault((signal.series, signal.sign), signal)

    @property
    def cause(self) -> IncidentCause:
        """The likely cause, by the signals with which it began."""
        begun = self._begun()
        signs = {signal.sign for signal in begun}
        for sign, cause in _CAUSE_OF_SIGN.items():
            if sign in signs:
                return cause
        return _cause_of_sizes(begun)

    @property
    def lead(self) -> Signal:
        """The signal that led: of those that tell the cause, the first in the order of a step."""
        telling = [one for one in self._begun() if _tells(one, self.cause)] or self._begun()
        return min(telling, key=lambda one: (one.onset, one.place))

    @property
    def severity(self) -> Severity:
        """Critical if the loss rose, if ranks part or if anything is not finite."""
        grave = any(
            signal.sign in _CRITICAL or (signal.sign is Sign.ROSE and _is_loss(signal))
            for signal in self.first.values()
        )
        return Severity.CRITICAL if grave else Severity.WARNING

    def _begun(self) -> list[Signal]:
        return [one for one in self.first.values() if one.onset <= self.start + _ONSET_SPAN]

    def sentence(self) -> str:
        """Return the incident in one sentence."""
        lead = self.lead
        where = f"{lead.series.stream} {lead.series.name}"
        if lead.series.rank:
            where += f" on rank {lead.series.rank}"
        change = "" if lead.value is None else f" is {lead.value:.4g}"
        if lead.expected is not None and lead.value is not None:
            change += f", was {lead.expected:.4g}"
        detail = f" ({lead.detail})" if lead.detail else ""
        return f"{WORDS[self.cause]}: {where} {lead.series.op}{change}{detail}"

    def as_json(self) -> dict[str, Any]:
        """Return the incident for programs; `docs/tasks/monitor-alerts.md` lists the keys."""
        lead = self.lead
        return {
            "incident": self.number,
            "state": "open" if self.is_open else "closed",
            "severity": str(self.severity),
            "cause": str(self.cause),
            "sentence": self.sentence(),
            "start": self.start,
            "found": self.found,
            "last": self.last,
            "signals": self.count,
            "series": len({series for series, _ in self.first}),
            "ranks": sorted({series.rank for series, _ in self.first}),
            "lead": {
                **lead.series._asdict(),
                "sign": str(lead.sign),
                "step": lead.onset,
                "value": lead.value,
                "expected": lead.expected,
                "deviations": lead.z,
            },
        }


def _cause_of_sizes(begun: list[Signal]) -> IncidentCause:
    """Return the cause of an incident that begins with sizes: rises, falls, zeros, stillness."""
    first = min(begun, key=lambda one: (one.onset, one.place))
    streams = {signal.series.stream for signal in begun}
    if any(_is_loss(one) and one.sign is Sign.ROSE for one in begun):
        sources = [one for one in begun if one.series.stream == Stream.PARAM_ORIGIN]
        if not sources:
            return IncidentCause.BAD_BATCH
        first = min(sources, key=lambda one: (one.onset, one.place))
        return IncidentCause.VANISHING if first.sign is Sign.FELL else IncidentCause.EXPLODING
    gone = [one for one in begun if one.sign in _GONE]
    if gone:
        is_expert = all("expert" in one.series.name for one in gone)
        if is_expert:
            return IncidentCause.DEAD_EXPERT
        if any(
            one.series.stream in _GRADIENTS or one.series.stream == Stream.UPDATE for one in gone
        ):
            return IncidentCause.STALE
        return IncidentCause.STATE_RESET if streams <= _STATES else IncidentCause.VANISHING
    if first.sign is Sign.DEAD_UNITS:
        return IncidentCause.DEAD_UNITS
    if first.sign is Sign.STUCK:
        return IncidentCause.STALE
    fallen = {one.series.stream for one in begun if one.sign is Sign.FELL}
    if fallen & _STATES and not fallen & _GRADIENTS:
        return IncidentCause.STATE_RESET
    return IncidentCause.EXPLODING if first.sign is Sign.ROSE else IncidentCause.VANISHING


def _tells(signal: Signal, cause: IncidentCause) -> bool:
    """Return whether a signal tells of this cause."""
    by_sign = _CAUSE_OF_SIGN.get(signal.sign)
    if by_sign is not None:
        return by_sign is cause
    match cause:
        case IncidentCause.BAD_BATCH:
            return _is_loss(signal)
        case IncidentCause.STATE_RESET:
            return signal.series.stream in _STATES
        case IncidentCause.DEAD_EXPERT:
            return signal.sign in _GONE
        case IncidentCause.STALE:
            return signal.sign in _GONE or signal.sign is Sign.STUCK
        case IncidentCause.EXPLODING:
            return signal.sign is Sign.ROSE
        case IncidentCause.VANISHING:
            return signal.sign is Sign.FELL or signal.sign in _GONE
        case _:
            return True


def _is_loss(signal: Signal) -> bool:
    return signal.series.stream == Stream.RUN and is_loss(signal.series.name)


class Incidents:
    """Joins the signals of a run to incidents.

    Attributes:
        all: the incidents so far.
    """

    def __init__(self) -> None:
        self.all: list[Incident] = []

    def take(self, step: int, signals: list[Signal]) -> list[Incident]:
        """Take the signals of one step; return the incidents that are new or have changed state.

        An incident whose cause or leading series has changed with the signals is returned, too.
        """
        changed = self._close(step)
        if not signals:
            return changed
        current = self.all[-1] if self.all and self.all[-1].is_open else None
        if current is None:
            current = Incident(len(self.all), step, step, step)
            self.all.append(current)
            current.add(signals)
            return [*changed, current]
        before = current.cause, current.lead.series, current.severity
        current.add(signals)
        if before != (current.cause, current.lead.series, current.severity):
            changed.append(current)
        return changed

    def _close(self, step: int) -> list[Incident]:
        is_quiet = bool(self.all) and step - self.all[-1].last > QUIET_STEPS
        return self.close() if is_quiet else []

    def close(self) -> list[Incident]:
        """End the run; return the incident that was open."""
        if not self.all or not self.all[-1].is_open:
            return []
        self.all[-1].is_open = False
        return [self.all[-1]]
