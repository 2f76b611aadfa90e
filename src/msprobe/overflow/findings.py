# SPDX-License-Identifier: Apache-2.0
"""Result of the analysis: one `Finding` per place where NaN or Inf begin."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from msprobe.dump.dump_steps import RankKey
from msprobe.overflow.severity import Severity


class Source(StrEnum):
    """Source of NaN or Inf on a rank."""

    OPERATION = "operation"
    """The call made them: its arguments are finite."""
    PARAMETER = "parameter"
    """A parameter already holds them when its module is called."""
    INPUT = "input"
    """They came in from outside the recorded code: a model's input, a target, a gradient."""
    UNRECORDED = "unrecorded"
    """Between two recorded calls: made by code that was not recorded, or held by a buffer."""
    COMMUNICATION = "communication"
    """A communication returned them although no rank was seen to send them."""
    RECOMPUTED = "recomputed"
    """Finite in the forward pass, and no more when activation checkpointing ran it again."""
    UPDATE = "update"
    """An optimizer made them of finite parameters and gradients."""
    RECEIVED = "received"
    """Another rank sent them."""


@dataclass(frozen=True, slots=True)
class Place:
    """One record of one rank.

    Attributes:
        rank: the rank's number, or its folder's name where it has none.
        name: the record's name.
    """

    rank: RankKey
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One place where NaN or Inf begin on a rank.

    Attributes:
        place: the record; for `Source.UPDATE`, the optimizer's class, number and call.
        source: where the values come from.
        slots: the values concerned, as ``output.0``, ``parameters.weight``.
        contents: the non-finite contents: ``3 NaN``, ``Inf``.
        detail: a further hint, one sentence; may be empty.
        is_deliberate: whether the program asked for them (a mask filled with -inf).
        severity: grade of the record by itself.
        position: number of the record in its rank's order of execution, from 0.
        modules: records that it ran inside, innermost first.
        frames: user's call stack, innermost first; empty if unknown.
        sender: for `Source.RECEIVED`, the call that the values came from.
        layer: how many communications must have happened before it, over all ranks.
    """

    place: Place
    source: Source
    slots: tuple[str, ...]
    contents: str
    detail: str = ""
    is_deliberate: bool = False
    severity: Severity | None = None
    position: int
    modules: tuple[str, ...] = ()
    frames: tuple[str, ...] = ()
    sender: Place | None = None
    layer: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NearOverflow:
    """A finite result near the largest number of its type.

    Attributes:
        place: the record.
        slot: the value, as ``output.0``.
        dtype: its type.
        share: its largest element over the largest number of the type.
    """

    place: Place
    slot: str
    dtype: str
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A norm that grew over the calls before a finding.

    Attributes:
        place: the first call with a large share in it.
        module: the record that it ran inside; None for none.
        calls: over how many calls.
        modules: how many modules these ran in, of nested ones the innermost; 0 for none.
        norm_before: the norm that went into the first of them.
        norm: the norm of the largest argument of the finding's call.
    """

    place: Place
    module: str | None
    calls: int
    modules: int
    norm_before: float
    norm: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LossGrowth:
    """A loss that grew over the recorded steps.

    Attributes:
        step: the step with the smallest loss.
        last_step: the last step with a finite loss.
        loss_before: the loss of `step`.
        loss: the loss of `last_step`.
    """

    step: int
    last_step: int
    loss_before: float
    loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalerSkip:
    """An optimizer step that the gradient scaler left out.

    Attributes:
        scale: the scale of the step.
        new_scale: the scale of the next step.
        in_a_row: how many recorded steps up to this one were skipped without a break.
        is_expected: whether a scale that is too large explains all NaN and Inf of the step: they
            begin in gradients, and not where a slope is infinite by itself; or the next step, with
            a smaller scale, was not skipped.
    """

    scale: float | None
    new_scale: float | None
    in_a_row: int
    is_expected: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFindings:
    """The answer for one step.

    Attributes:
        step: number of the step.
        findings: places where NaN or Inf begin, in order of execution over all ranks.
        affected: how many records hold any, by rank.
        records: how many records there are, over all ranks.
        notes: limits of the answer (a rank that cannot be read …).
        unseen: ranks in which NaN and Inf cannot be seen: damaged, or without statistics.
        near: the first value near the end of its type, before anything that is not finite.
        growth: of the norm before the first finding.
        loss_growth: over the recorded steps up to this one.
        skip: by the gradient scaler.
    """

    step: int
    findings: tuple[Finding, ...]
    affected: dict[RankKey, int]
    records: int
    notes: tuple[str, ...] = ()
    unseen: tuple[RankKey, ...] = ()
    near: NearOverflow | None = None
    growth: Growth | None = None
    loss_growth: LossGrowth | None = None
    skip: ScalerSkip | None = None

    @property
    def first(self) -> tuple[Finding, ...]:
        """Findings to look at first: one, or several that no communication puts in an order.

        None where a scale of gradients that was too large explains all. One that the program asked
        for (a mask of -Inf) only where there is no other and an update was skipped for it.
        Received values point at their sender.
        """
        if self.skip is not None and self.skip.is_expected:
            return ()
        unmeant = [found for found in self.findings if not found.is_deliberate]
        if not unmeant and self.skip is not None:
            unmeant = list(self.findings)
        wanted = [found for found in unmeant if found.source is not Source.RECEIVED] or unmeant
        if not wanted:
            return ()
        by_rank: dict[RankKey, Finding] = {}
        for found in wanted:
            if found.layer == wanted[0].layer:
                by_rank.setdefault(found.place.rank, found)
        return tuple(by_rank.values())
