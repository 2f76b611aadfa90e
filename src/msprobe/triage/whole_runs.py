# SPDX-License-Identifier: Apache-2.0
"""`WholeRuns`: the rungs of the ladder that signatures of whole runs can judge."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from msprobe.compare.training.differences import Phase as StepPhase
from msprobe.compare.verdicts.next_steps import CLIP_ALIKE
from msprobe.compare.verdicts.verdict import Where
from msprobe.compare.verdicts.verdict_classes import Confidence, VerdictClass
from msprobe.dump.signature_file import OPTIMIZER_STEPS, find_signatures
from msprobe.triage.bisect import Bisection, bisect_runs
from msprobe.triage.bisect_lines import recording, sentence, to_record
from msprobe.triage.parted_step import RankParting
from msprobe.triage.parting import Phase
from msprobe.triage.rungs import (
    Answer,
    FoundStep,
    Rung,
    RungResult,
    agrees,
    make_verdict,
    unknown,
)

_OF_START: Final = {Rung.DATA: Phase.DATA, Rung.START: Phase.PARAMETER, Rung.RANDOM: Phase.RANDOM}
_OF_STEP: Final = (
    (Rung.FORWARD, Phase.LOSS, "losses"),
    (Rung.BACKWARD, Phase.GRADIENT, "gradients that the optimizer gets"),
    (Rung.REDUCE, Phase.GRADIENT, "gradients that the optimizer gets"),
    (Rung.CLIP, Phase.GRADIENT, "gradients that the optimizer gets"),
    (Rung.OPTIMIZER, Phase.UPDATE, "updates"),
)
_LATER: Final = (Phase.LOSS, Phase.GRADIENT, Phase.SETTINGS, Phase.UPDATE)
_PLACES: Final = {
    Phase.PARAMETER: StepPhase.START,
    Phase.DATA: StepPhase.DATA,
    Phase.RANDOM: StepPhase.START,
    Phase.LOSS: StepPhase.FORWARD,
    Phase.GRADIENT: StepPhase.BACKWARD,
    Phase.SETTINGS: StepPhase.OPTIMIZER,
    Phase.UPDATE: StepPhase.OPTIMIZER,
}
_NEXT: Final = {
    VerdictClass.DATA: "feed both runs with the same batches in the same order",
    VerdictClass.PARAMETERS: "begin both runs with the same parameters",
    VerdictClass.RANDOM: "seed both runs alike",
    VerdictClass.CLIPPING: CLIP_ALIKE,
    VerdictClass.OPTIMIZER_SETTING: "set up the optimizers alike in both runs",
    VerdictClass.UPDATE: "look at the training loop: the optimizer takes another number of steps",
    VerdictClass.SCHEDULE: "look at the scheduler: its settings, its state after a resume, where "
    "step() is called",
}
_ANY_STEP: Final = 'record a step of both runs in full ("task": "statistics")'


class WholeRuns:
    """Findings from the signatures of two whole runs.

    Attributes:
        found: the step in which they part.
        notes: what was not compared.
    """

    def __init__(self, bisection: Bisection) -> None:
        self._bisection = bisection
        self._first = bisection.first
        self.notes = bisection.notes
        step = None if self._first is None else self._first.step
        self.found = FoundStep(
            step,
            sentence(bisection),
            confidence=Confidence.LIKELY if bisection.is_sampled else Confidence.PROVED,
        )

    @property
    def step(self) -> int | None:
        """The step in which the runs part; None if no common step does."""
        return self.found.step

    @property
    def jumps(self) -> bool:
        """Whether the runs part by more than may be rounding."""
        return self._first is not None and self._first.parting.jump is not None

    @property
    def only_drifts(self) -> bool:
        """Whether the runs part by no more than recordings of one program do."""
        first, bisection = self._first, self._bisection
        return first is not None and bisection.knows_noise and first.parting.jump is None

    def of_start(self, rung: Rung) -> RungResult:
        """Return what the signatures say of settings, data, start state or random numbers."""
        phase = _OF_START.get(rung)
        if phase is None:
            return unknown(rung, "signatures hold no versions and switches", self.advice)
        first = self._first
        if first is not None and first.parting.jump is not None and first.phase is phase:
            return self._parting(rung)
        if phase in self._bisection.unknown:
            return unknown(rung, "the signatures hold nothing about it", self.advice)
        if first is None:
            return agrees(rung, self.found.words)
        if first.parting.drifts and phase in (Phase.PARAMETER, first.parting.phase):
            words = (
                f"the parameters drift apart from step {first.parting.step} on"
                if phase is Phase.PARAMETER
                else f"in step {first.parting.step}, with results that only drift"
            )
            return RungResult(rung=rung, answer=Answer.DIFFERS, words=words)
        idle = [step for step, each in first.parting.idle if each is phase]
        if idle:
            return agrees(rung, f"without effect: it differs in step {idle[0]}")
        return agrees(rung, f"{self._what} agree up to step {first.step}")

    @property
    def _what(self) -> str:
        return "norms and sampled elements" if self._bisection.is_sampled else "checksums"

    def of_step(self) -> Iterator[RungResult]:
        """Yield what the signatures say of the parts of the step in which the runs part."""
        first = self._first
        if first is None or first.parting.jump is None or first.phase not in _LATER:
            return
        place = _LATER.index(first.phase)
        for rung, phase, what in _OF_STEP:
            if place <= _LATER.index(phase):
                yield self._parting(rung)
                return
            if phase in self._bisection.unknown:
                yield unknown(rung, f"the signatures hold no {what}", self.advice)
            elif first.parting.drifts:
                yield agrees(rung, f"in step {first.step} the {what} only drift")
            else:
                yield agrees(rung, f"in step {first.step} {self._what} of the {what} agree")

    def _parting(self, rung: Rung) -> RungResult:
        """Return that the runs part there."""
        is_cause = self.verdict["class"] != VerdictClass.UNEXPLAINED
        answer = Answer.EXPLAINS if is_cause else Answer.DIFFERS
        return RungResult(rung=rung, answer=answer, words=self.found.words)

    @property
    def advice(self) -> str:
        """Return settings of a recording that would tell more."""
        bisection = self._bisection
        if self._first is None:
            return _ANY_STEP
        config = json.dumps(recording(bisection, self._first))
        return f"{to_record(bisection, self._first)}: {config}"

    @property
    def verdict(self) -> Mapping[str, Any]:
        """The verdict that the signatures alone justify."""
        first = self._first
        if first is None:
            return make_verdict(VerdictClass.EQUAL, self.found.words, self.found.confidence)
        kind, confidence = self._cause(first)
        return make_verdict(
            kind,
            self.found.words,
            confidence,
            where=self.where,
            next_steps=[*([_NEXT[kind]] if kind in _NEXT else []), self.advice],
        )

    @property
    def where(self) -> Where | None:
        """The place where the runs part; None if they do not."""
        return None if self._first is None else _where(self._first)

    def _cause(self, first: RankParting) -> tuple[VerdictClass, Confidence]:
        """Return the class of the cause, where the first phase that differs is one."""
        likely = Confidence.LIKELY
        is_sure = not first.parting.drifts and self.found.confidence is Confidence.PROVED
        if first.parting.jump is None:
            return VerdictClass.UNEXPLAINED, Confidence.POSSIBLE
        match first.phase:
            case Phase.DATA:
                return VerdictClass.DATA, Confidence.PROVED if is_sure else likely
            case Phase.SETTINGS if first.has_other_rule:
                return self._setting(first), Confidence.PROVED if is_sure else likely
            case Phase.RANDOM:  # a call may not draw from them
                return VerdictClass.RANDOM, likely
            case Phase.PARAMETER if first.is_precision:
                return VerdictClass.PRECISION, Confidence.PROVED if is_sure else likely
            case Phase.LOSS if first.is_precision:
                return VerdictClass.PRECISION, likely
            case Phase.GRADIENT if first.factor is not None:
                is_limited = bool(first.clipping)
                return VerdictClass.CLIPPING if is_limited else VerdictClass.GRADIENT, likely
            case Phase.LOSS if first.has_scaled_loss:
                return VerdictClass.GRADIENT, likely
            case Phase.PARAMETER if first.step == self._bisection.begin:
                return VerdictClass.PARAMETERS, Confidence.PROVED if is_sure else likely
        return VerdictClass.UNEXPLAINED, Confidence.POSSIBLE

    def _setting(self, first: RankParting) -> VerdictClass:
        """Return the class of settings that differ: a learning rate that agreed is scheduled."""
        option = first.settings[0][0].rpartition(".")[2]
        if option == OPTIMIZER_STEPS:
            return VerdictClass.UPDATE
        if option == "lr" and first.step > self._bisection.begin:
            return VerdictClass.SCHEDULE
        return VerdictClass.OPTIMIZER_SETTING


def _where(first: RankParting) -> Where:
    rank = first.rank.removeprefix("rank")
    return Where(
        step=first.step,
        rank=int(rank) if rank.isdecimal() else first.rank,
        parameter=first.changes[0].name if first.changes else None,
        phase=_PLACES[first.phase],
    )


def whole_runs(target: Path, reference: Path, again: Path | None) -> WholeRuns | None:
    """Compare the signatures of two runs; None where a side has none.

    Args:
        target: a dump path, or a file of signatures.
        reference: the same of the run to compare with.
        again: a second recording of the reference's program.

    Raises:
        DumpFormatError: a file is damaged, or the runs have no rank or step in common.
    """
    if not (find_signatures(target) and find_signatures(reference)):
        return None
    noise = again if again is not None and find_signatures(again) else None
    return WholeRuns(bisect_runs(target, reference, noise))
