# SPDX-License-Identifier: Apache-2.0
"""`climb`: why two runs part, asked from the cheapest question to the dearest.

The first rungs read only ``facts.json`` of all steps, and signatures of whole runs where there are
some. Where these do not explain, the calls of the first step that parts are compared in full: of
later ones only if that is rounding, of the one before only if something differs that comes in.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Final

from msprobe.compare.training.differences import (
    SET_FOR_LATER,
    Effect,
    FactDifference,
    Moment,
    Phase,
)
from msprobe.compare.training.facts_pair import FactsPair
from msprobe.compare.verdicts.verdict import Where
from msprobe.compare.verdicts.verdict_classes import Confidence, VerdictClass
from msprobe.dump.facts import Clip
from msprobe.errors import DumpFormatError, UsageError
from msprobe.triage.recorded_runs import RecordedRuns
from msprobe.triage.run_facts import Part, RunFacts, Seen
from msprobe.triage.rungs import (
    Answer,
    FoundStep,
    Rung,
    RungResult,
    Triage,
    agrees,
    class_of,
    make_verdict,
    unknown,
)
from msprobe.triage.whole_runs import WholeRuns, whole_runs

# The reference's own noise may be so much smaller and still be all there is.
_OF_ONE_SIZE: Final = 4.0
_SMALL: Final = (VerdictClass.EQUAL, VerdictClass.ROUNDING, VerdictClass.PRECISION)
# What an earlier step left, without effect in it, is one of these.
_MAY_COME_IN: Final = (VerdictClass.DATA, VerdictClass.ARGUMENT, VerdictClass.UNEXPLAINED)
# What makes another batch of the same data.
_MAKES_DATA: Final = (VerdictClass.ARGUMENT, VerdictClass.CALL, VerdictClass.ORDER)
_WITHOUT_REASON: Final = (VerdictClass.KERNEL, VerdictClass.UNEXPLAINED)
_WITH_FACTS: Final = 'record {} with msprobe and "facts": true, which is the default'
_WITH_MODEL: Final = "give the model to debugger.start(model), and record {} again"
_WITH_CALLS: Final = 'record step {} of both runs with "level": "mix"'
_DETERMINISTIC: Final = (
    "make the program deterministic (seed_all(mode=True)), and record both runs again"
)


def climb(target: Path, reference: Path, again: Path | None = None) -> Triage:
    """Ask why two runs part, and stop at the first answer that explains it.

    Args:
        target: path of the run under test: its dump, its signatures, or both in one dump path.
        reference: path of the trusted one.
        again: a second recording of the reference's program, to tell whether it is deterministic.

    Raises:
        DumpFormatError: there is no dump and no signature at a path, or it is damaged.
        UsageError: the two hold no common step or rank.
    """
    began = time.perf_counter()
    ladder = _Ladder(target, reference, again)
    verdict = ladder.climb()
    return Triage(
        verdict=verdict,
        step=ladder.step,
        rungs=ladder.rungs,
        notes=list(dict.fromkeys(ladder.notes)),
        elapsed_s=time.perf_counter() - began,
    )


class _Ladder:
    """One climb.

    Attributes:
        rungs: the answers so far.
        step: the first step that parts, once it was asked for.
    """

    def __init__(self, target: Path, reference: Path, again: Path | None) -> None:
        self._paths = target, reference, again
        self._own_notes: list[str] = []
        self._whole, self._runs = self._found()
        self._verdict: Mapping[str, Any] | None = None
        self.rungs: list[RungResult] = []
        self.step: int | None = None

    def _found(self) -> tuple[WholeRuns | None, RecordedRuns]:
        """Return signatures and recorded steps; one of them may be missing or damaged."""
        target, reference, _ = self._paths
        try:
            whole = whole_runs(*self._paths)
        except DumpFormatError as damage:
            try:
                recorded = RecordedRuns.open(target, reference)
            except (DumpFormatError, UsageError):
                raise damage from None
            self._own_notes.append(f"signatures are not compared: {damage}")
            return None, recorded
        if whole is None:
            return None, RecordedRuns.open(target, reference)
        try:
            return whole, RecordedRuns.open(target, reference, whole.step)
        except (DumpFormatError, UsageError) as exc:
            note = f"only signatures are compared: {exc}"
            return whole, RecordedRuns(target, reference, notes=[note])

    @property
    def notes(self) -> list[str]:
        """Notes on the recordings."""
        whole = () if self._whole is None else self._whole.notes
        return [*whole, *self._runs.notes, *self._own_notes]

    def climb(self) -> Mapping[str, Any]:
        """Ask one rung after the other; return the verdict."""
        began = time.perf_counter()
        for result in self._answers():
            now = time.perf_counter()
            self.rungs.append(replace(result, elapsed_s=now - began))
            began = now
            if result.answer is Answer.EXPLAINS:
                break
        assert self._verdict is not None
        return self._verdict

    def _answers(self) -> Iterator[RungResult]:
        """Yield answers; the reader stops at the first one that explains."""
        for rung in _OF_FACTS:
            yield self._of_start(rung)
        yield self._itself()
        found = self._first_step()
        self.step = found.step
        if found.step is None:
            self._verdict = make_verdict(VerdictClass.EQUAL, found.words, found.confidence)
            later = (
                one.words for one in self._runs.facts.differences if one.moment in SET_FOR_LATER
            )
            unfelt = "".join(f"; without effect so far: {words}" for words in islice(later, 1))
            yield agrees(Rung.STEP, found.words + unfelt)
        elif self._is_only_signed:
            yield from self._by_signatures()
        elif not found.is_known:
            yield self._not_recorded(found)
        else:
            yield RungResult(rung=Rung.STEP, answer=Answer.DIFFERS, words=found.words)
            cause = self._runs.facts.cause
            if cause is None or self._is_made:
                yield from self._by_calls(found.step)
            else:
                yield from self._by_facts(cause)

    # --- rungs that read signatures

    @property
    def _is_only_signed(self) -> bool:
        """Whether signatures tell the step that parts, and nothing else was recorded of it."""
        step = None if self._whole is None else self._whole.step
        return step is not None and step not in self._runs.numbers

    def _of_start(self, rung: Rung) -> RungResult:
        """Return what facts say, or signatures where facts do not."""
        own = self._of_facts(rung)
        whole = self._whole
        is_open = own.answer is Answer.UNKNOWN or (
            own.answer is Answer.AGREES and self._is_only_signed
        )
        if whole is None or not is_open:
            return own
        found = whole.of_start(rung)
        if found.answer is Answer.UNKNOWN and own.answer is Answer.AGREES:
            return own
        if found.answer is Answer.EXPLAINS:
            self.step, self._verdict = whole.step, whole.verdict
        return found

    def _by_signatures(self) -> Iterator[RungResult]:
        whole = self._whole
        assert whole is not None
        self._verdict = whole.verdict
        yield RungResult(rung=Rung.STEP, answer=Answer.DIFFERS, words=whole.found.words)
        yield from whole.of_step()

    # --- rungs that read facts

    def _of_facts(self, rung: Rung) -> RungResult:
        facts = self._runs.facts
        cause = facts.cause
        if cause is not None and _RUNGS[cause.moment] is rung and not self._is_made:
            return self._explained(rung)
        found = [each for each in facts.differences if _RUNGS[each.moment] is rung]
        effective = [each for each in found if facts.has_effect(each)]
        if effective:
            return RungResult(
                rung=rung,
                answer=Answer.DIFFERS,
                words=f"{effective[0].words} ({self._why_not(effective[0], cause)})",
            )
        if not self._runs.views:
            return unknown(rung, "no step was recorded in full", _WITH_FACTS.format("both runs"))
        parts, advice = _OF_FACTS[rung]
        held, lacking = zip(*(facts.holding(part) for part in parts), strict=True)
        if not max(held):
            return unknown(rung, *_lack(facts, max(lacking, key=len), advice))
        words = f"{max(held)} of {len(self._runs.views)} steps and ranks agree"
        if found:
            is_open = rung is Rung.SETTINGS and found[0].effect is Effect.NONE
            other = (
                "other settings differ and are judged by the calls" if is_open else "without effect"
            )
            words += f"; {other}: {found[0].words}"
        return agrees(rung, words)

    @cached_property
    def _is_made(self) -> bool:
        """Whether the batch that facts take for the cause is made by recorded calls, otherwise."""
        cause = self._runs.facts.cause
        if cause is None or cause.moment is not Moment.DATA or "L0" in self._levels(cause.step):
            return False
        try:
            verdict = self._runs.compare(cause.step)["verdict"]
        except (UsageError, DumpFormatError):
            return False
        return class_of(verdict) in _MAKES_DATA

    def _why_not(self, fact: FactDifference, cause: FactDifference | None) -> str:
        """Return why a difference is not taken for the cause."""
        if fact is cause:
            return "recorded calls make it"
        if cause is not None and (fact.step, fact.moment) > (cause.step, cause.moment):
            return "it comes after another one"
        parting = self._runs.facts.parting
        if parting is not None and fact.step > parting.step:
            return f"the runs part in step {parting.step}, before it"
        return "the calls tell whether it has an effect"

    def _explained(self, rung: Rung) -> RungResult:
        """Return that the facts explain why the runs part."""
        verdict = self._runs.facts.verdict()
        assert verdict is not None
        parting = self._runs.facts.parting
        self.step = None if parting is None else parting.step
        self._verdict = verdict.as_json()
        return RungResult(rung=rung, answer=Answer.EXPLAINS, words=verdict.sentence)

    def _by_facts(self, cause: FactDifference) -> Iterator[RungResult]:
        """Yield the parts of a step up to the one in which facts show the cause."""
        pairs = self._runs.facts.pairs(cause.step)
        seen = self._runs.facts.seen(cause.step)
        is_exact = seen is not None and seen.is_exact
        for rung in _PHASES.values():
            if _RUNGS[cause.moment] is rung:
                yield self._explained(rung)
            elif rung is Rung.FORWARD and not any(pair.target.loss for pair in pairs):
                yield unknown(
                    rung,
                    "no loss was recorded",
                    "call loss.backward() between start() and stop()",
                )
            elif rung is Rung.CLIP:
                clips = sum(isinstance(e, Clip) for pair in pairs for e in pair.target.events)
                yield agrees(rung, "clips alike" if clips else "no side clips")
            elif is_exact or (rung is Rung.FORWARD and all(map(_has_same_losses, pairs))):
                what = "losses" if rung is Rung.FORWARD else "gradients that the optimizer gets"
                yield agrees(rung, f"the {what} are equal to the bit (step {cause.step})")
            else:
                yield RungResult(
                    rung=rung,
                    answer=Answer.DIFFERS,
                    words=f"in step {cause.step} {seen.words if seen else 'values differ'}; the "
                    "facts tell by what",
                )

    # --- is the reference equal to itself?

    def _itself(self) -> RungResult:
        again = self._paths[2]
        if again is None:
            return unknown(
                Rung.ITSELF,
                "there is no second recording of the reference",
                "record the reference twice, and give the second recording with --again",
            )
        own = None if self._whole is None else whole_runs(self._paths[1], again, None)
        if own is not None:
            return self._itself_by(own)
        twice = RecordedRuns.open(self._paths[1], again)
        self._own_notes += twice.notes
        cause = twice.facts.cause
        if cause is not None:
            return unknown(
                Rung.ITSELF,
                f"the second recording was made otherwise: {cause.words}",
                "record the reference again with the same settings, data and seeds",
            )
        try:
            found = twice.parting
            if not found.is_known:
                return unknown(Rung.ITSELF, found.words, _WITH_FACTS.format("the reference twice"))
            if found.step is None:
                return agrees(Rung.ITSELF, found.words)
            return self._of_itself(twice, found.step, found.words)
        except UsageError as exc:
            return unknown(Rung.ITSELF, str(exc), "record the reference twice in the same way")

    def _of_itself(self, twice: RecordedRuns, step: int, words: str) -> RungResult:
        differs = RungResult(rung=Rung.ITSELF, answer=Answer.DIFFERS, words=words)
        parting = self._first_step().step
        if parting is None or step > parting:
            return differs
        sizes = [_size(runs, step) for runs in (self._runs, twice)]
        if None not in sizes:
            if sizes[0] > _OF_ONE_SIZE * sizes[1]:  # type: ignore[operator]
                return differs
        elif class_of(twice.compare(step)["verdict"]) in _SMALL:
            return differs
        self.step = parting
        return self._nondeterministic(
            words,
            Confidence.POSSIBLE if None in sizes else Confidence.LIKELY,
            Where(step=step, rank=twice.views[0].rank),
        )

    def _nondeterministic(
        self, words: str, confidence: Confidence, where: Where | None
    ) -> RungResult:
        said = f"two recordings of the reference part, too: {words}"
        self._verdict = make_verdict(
            VerdictClass.NONDETERMINISTIC,
            said,
            confidence,
            where=where,
            next_steps=[_DETERMINISTIC],
        )
        return RungResult(rung=Rung.ITSELF, answer=Answer.EXPLAINS, words=said)

    def _itself_by(self, twice: WholeRuns) -> RungResult:
        """Return what signatures of two recordings of the reference tell."""
        assert self._whole is not None
        words = twice.found.words
        if twice.step is None:
            return agrees(Rung.ITSELF, words)
        if class_of(twice.verdict) is not VerdictClass.UNEXPLAINED:
            return unknown(
                Rung.ITSELF,
                f"the second recording was made otherwise: {words}",
                "record the reference again with the same settings, data and seeds",
            )
        if not self._whole.only_drifts:
            return RungResult(rung=Rung.ITSELF, answer=Answer.DIFFERS, words=words)
        self.step = self._whole.step
        return self._nondeterministic(words, Confidence.LIKELY, twice.where)

    # --- the step that parts, and its calls

    def _first_step(self) -> FoundStep:
        whole = self._whole
        if whole is None:
            return self._runs.parting
        # Equal signatures may end before the recorded steps do.
        is_covered = whole.step is not None or self._runs.facts.parting is None
        return whole.found if is_covered else self._runs.parting

    def _not_recorded(self, found: FoundStep) -> RungResult:
        advice = _WITH_CALLS.format(found.step)
        words = f"{found.words}; that step was not recorded in full"
        self._verdict = make_verdict(
            VerdictClass.UNEXPLAINED, words, Confidence.POSSIBLE, next_steps=[advice]
        )
        return unknown(Rung.STEP, words, advice)

    def _by_calls(self, step: int) -> Iterator[RungResult]:
        try:
            summary = self._compare_from(step)
        except (UsageError, DumpFormatError) as exc:
            yield self._not_compared(step, str(exc))
            return
        if not summary["rows"]:
            yield self._not_compared(step, f"no calls of step {step} were recorded")
            return
        verdict = self._verdict = self._checked(summary)
        where, kind = verdict["where"] or {}, class_of(verdict)
        phase = Phase.FORWARD if where.get("phase") is None else Phase(where["phase"])
        last = _PHASES.get(phase, Rung.FORWARD)
        for rung in _PHASES.values():
            if rung is last:
                break
            yield agrees(rung, "no difference begins there")
        if kind is VerdictClass.EQUAL:
            yield agrees(last, str(summary["verdict"]["sentence"]))
            return
        has_call = phase in (Phase.FORWARD, Phase.BACKWARD) and where.get("module") is not None
        if not has_call and kind is not VerdictClass.UNEXPLAINED:
            yield RungResult(rung=last, answer=Answer.EXPLAINS, words=verdict["sentence"])
            return
        yield RungResult(rung=last, answer=Answer.DIFFERS, words=_first_words(summary))
        if has_call:
            yield from self._module_and_call(step, verdict, kind)
            if "L0" not in self._levels(step):
                yield _own_error(summary)

    def _compare_from(self, step: int) -> Mapping[str, Any]:
        """Return the comparison of a step.

        With later ones if it differs by rounding alone, and with the one before, which may have
        left it, if something differs that comes in.
        """
        numbers = self._runs.numbers
        place = numbers.index(step)
        # Without facts a parameter is told to be updated otherwise by the step before.
        first = place if self._runs.facts.count else max(place - 1, 0)
        summary = self._runs.compare(*numbers[first : place + 1])
        if class_of(summary["verdict"]) in _SMALL and place + 1 < len(numbers):
            summary = self._runs.compare(*numbers[first:])
        elif class_of(summary["verdict"]) in _MAY_COME_IN and first:
            summary = self._runs.compare(*numbers[first - 1 : place + 1])
        return summary

    def _checked(self, summary: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the verdict of a comparison; equal only if the facts agree, too."""
        verdict: Mapping[str, Any] = summary["verdict"]
        known = self._runs.facts.parting
        if class_of(verdict) is not VerdictClass.EQUAL:
            return verdict
        if self._whole is not None and self._whole.step is not None:
            step, words = self._whole.step, self._whole.found.words
            is_rounding = not self._whole.jumps
        elif known is not None and known.seen is Seen.FAR and known.size is not None:
            step, words = known.step, f"in step {known.step} {known.words}"
            is_rounding = known.is_amplified
        else:
            return verdict
        if is_rounding:
            words = f"{words}, and the recorded calls agree within the tolerance of their types"
            return make_verdict(VerdictClass.ROUNDING, words, Confidence.LIKELY)
        return make_verdict(
            VerdictClass.UNEXPLAINED,
            f"{words}, and the recorded calls agree",
            Confidence.POSSIBLE,
            next_steps=[_WITH_CALLS.format(step)],
        )

    def _not_compared(self, step: int, why: str) -> RungResult:
        advice = _WITH_CALLS.format(step)
        known = self._runs.facts.parting
        words = why if known is None else f"in step {known.step} {known.words}; {why}"
        self._verdict = make_verdict(
            VerdictClass.UNEXPLAINED, words, Confidence.POSSIBLE, next_steps=[advice]
        )
        return unknown(Rung.FORWARD, why, advice)

    def _module_and_call(
        self, step: int, verdict: Mapping[str, Any], kind: VerdictClass
    ) -> Iterator[RungResult]:
        levels = self._levels(step)
        where, sentence = verdict["where"], verdict["sentence"]
        answer = Answer.DIFFERS if kind in _WITHOUT_REASON else Answer.EXPLAINS
        source = f" ({where['source']})" if where["source"] else ""
        if "L1" in levels:
            yield unknown(Rung.MODULE, "level L1 records no modules", _WITH_CALLS.format(step))
        elif "L0" in levels:
            yield RungResult(rung=Rung.MODULE, answer=answer, words=sentence)
            if answer is Answer.DIFFERS:
                yield unknown(Rung.CALL, "level L0 records no calls", _WITH_CALLS.format(step))
            return
        else:
            module = where["module"] or "the model itself"
            words = f"the difference begins in {module}{source}"
            yield RungResult(rung=Rung.MODULE, answer=Answer.DIFFERS, words=words)
        yield RungResult(rung=Rung.CALL, answer=answer, words=sentence)

    def _levels(self, step: int) -> set[str]:
        return {
            view.head.level
            for pair in self._runs.views
            if pair.step == step
            for view in (pair.target, pair.reference)
        }


def _has_same_losses(pair: FactsPair) -> bool:
    target, reference = (
        [loss.value for loss in facts.loss] for facts in (pair.target, pair.reference)
    )
    return bool(target) and target == reference


def _own_error(summary: Mapping[str, Any]) -> RungResult:
    """Return whether the call that is blamed errs by itself."""
    own = summary["introduced"][0]["own_error"] if summary["introduced"] else None
    if own is not None and own["is_judged"]:
        answer = Answer.EXPLAINS if own["at_fault"] else Answer.DIFFERS
        return RungResult(rung=Rung.OWN_ERROR, answer=answer, words=own["words"])
    if own is not None:
        return unknown(Rung.OWN_ERROR, own["words"], "try msprobe verify on both recordings")
    if class_of(summary["verdict"]) in _WITHOUT_REASON and summary["mode"] != "tensor":
        words = "its tensors were not recorded"
    else:
        words = "no call is blamed that can be computed again"
    return unknown(Rung.OWN_ERROR, words, "record the call with task tensor in both runs")


def _lack(facts: RunFacts, lacking: Sequence[str], advice: str) -> tuple[str, str]:
    """Return why the facts of a rung are not there, and what to record."""
    sides = "both runs" if len(lacking) > 1 else f"the {lacking[0]}"
    verb = "hold" if len(lacking) > 1 else "holds"
    if facts.lacking:
        return f"{sides} {verb} no facts about the training", _WITH_FACTS.format(sides)
    return f"{sides} {verb} nothing about it", advice.format(sides)


def _size(runs: RecordedRuns, step: int) -> float | None:
    seen = runs.facts.seen(step)
    return None if seen is None else seen.size


def _first_words(summary: Mapping[str, Any]) -> str:
    first = summary["first_difference"]
    if first is None:
        return str(summary["verdict"]["sentence"])
    return f"the first value that differs is {first['name']} (step {first['step']})"


_RUNGS: Final = {
    Moment.SETTINGS: Rung.SETTINGS,
    Moment.DATA: Rung.DATA,
    Moment.PARAMETERS: Rung.START,
    Moment.RANDOM: Rung.RANDOM,
    Moment.MODES: Rung.START,
    Moment.FORWARD: Rung.FORWARD,
    Moment.LOSS: Rung.BACKWARD,
    Moment.FROZEN: Rung.START,
    Moment.BACKWARD: Rung.BACKWARD,
    Moment.COMMUNICATION: Rung.REDUCE,
    Moment.REDUCE: Rung.REDUCE,
    Moment.CLIP: Rung.CLIP,
    Moment.OPTIMIZER_SETTING: Rung.OPTIMIZER,
    Moment.LOST_STATE: Rung.OPTIMIZER,
    Moment.SCHEDULE: Rung.OPTIMIZER,
    Moment.OPTIMIZER_STATE: Rung.OPTIMIZER,
    Moment.UPDATE: Rung.OPTIMIZER,
    Moment.ASKED_AGAIN: Rung.OPTIMIZER,
}
"""The rung that asks for differences of each moment of a training step."""

_PHASES: Final = {
    Phase.FORWARD: Rung.FORWARD,
    Phase.BACKWARD: Rung.BACKWARD,
    Phase.REDUCE: Rung.REDUCE,
    Phase.CLIP: Rung.CLIP,
    Phase.OPTIMIZER: Rung.OPTIMIZER,
}

_OF_FACTS: Final[Mapping[Rung, tuple[Sequence[Part], str]]] = {
    Rung.SETTINGS: ((Part.SETTINGS,), _WITH_FACTS),
    Rung.DATA: ((Part.DATA,), _WITH_MODEL),
    Rung.START: ((Part.PARAMETERS, Part.MODES), _WITH_MODEL),
    Rung.RANDOM: ((Part.RANDOM,), _WITH_FACTS),
}
"""Rungs that only read facts → their parts, and what to do where these are missing."""
