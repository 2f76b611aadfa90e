# SPDX-License-Identifier: Apache-2.0
"""`climb`: why two runs part, asked from the cheapest question to the dearest.

The first rungs read only ``facts.json`` of all steps. Where these do not explain, the calls of the
first step that parts are compared in full, and of no other one, unless that is rounding.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

from msprobe.compare.options import CompareOptions
from msprobe.compare.ranks import ViewPair, pair_views
from msprobe.compare.run import run_comparison
from msprobe.compare.training.differences import FactDifference, Moment, Phase
from msprobe.compare.verdicts.verdict import Verdict, Where
from msprobe.compare.verdicts.verdict_classes import Confidence, VerdictClass
from msprobe.dump.facts import Clip, Facts
from msprobe.dump.reader import open_dump
from msprobe.errors import DumpFormatError, UsageError
from msprobe.triage.run_facts import RunFacts, Seen

# The reference's own noise may be so much smaller and still be all there is.
_OF_ONE_SIZE: Final = 4.0
_SMALL: Final = (VerdictClass.EQUAL, VerdictClass.ROUNDING, VerdictClass.PRECISION)
_WITHOUT_REASON: Final = (VerdictClass.KERNEL, VerdictClass.UNEXPLAINED)
_WITH_FACTS: Final = 'record {} with msprobe and "facts": true, which is the default'
_WITH_MODEL: Final = "give the model to debugger.start(model), and record {} again"
_WITH_CALLS: Final = 'record step {} of both runs with "level": "mix"'


class Rung(StrEnum):
    """A question of the ladder, in the order in which they are asked.

    Attributes:
        words: the question in a few words.
    """

    words: str

    def __new__(cls, value: str, words: str) -> Rung:
        """Make a member out of its value and its words."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.words = words
        return member

    SETTINGS = "settings", "settings, versions"
    DATA = "data", "data"
    START = "start", "start state, modes"
    RANDOM = "random", "random numbers"
    ITSELF = "itself", "reference by itself"
    STEP = "step", "first step that parts"
    FORWARD = "forward", "forward"
    BACKWARD = "backward", "backward"
    REDUCE = "reduce", "reduced gradients"
    CLIP = "clip", "clipping"
    OPTIMIZER = "optimizer", "optimizer"
    MODULE = "module", "module"
    CALL = "call", "call"
    OWN_ERROR = "own_error", "own error of the call"


class Answer(StrEnum):
    """Answer of a rung."""

    AGREES = "agrees"
    DIFFERS = "differs"
    """The sides differ, and that alone does not explain why they part."""
    EXPLAINS = "explains"
    UNKNOWN = "cannot_be_judged"


@dataclass(frozen=True, slots=True, kw_only=True)
class RungResult:
    """What a rung found.

    Attributes:
        rung: the question.
        answer: the kind of answer.
        words: the answer in words.
        record: what to record so that it can be judged; None where it could be.
        elapsed_s: how long it took.
    """

    rung: Rung
    answer: Answer
    words: str
    record: str | None = None
    elapsed_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Triage:
    """Why two runs part.

    Attributes:
        verdict: as in ``summary.json`` of a comparison.
        step: the first step that parts; None if none does, or if it was not needed.
        rungs: the rungs that were asked, in order.
        notes: what else one must know.
        elapsed_s: how long it took.
    """

    verdict: Mapping[str, Any]
    step: int | None
    rungs: Sequence[RungResult]
    notes: Sequence[str]
    elapsed_s: float

    @property
    def verdict_class(self) -> VerdictClass:
        """Class of the cause."""
        return VerdictClass(self.verdict["class"])


class FoundStep(NamedTuple):
    """The step in which two runs part, found by something else than their recorded steps.

    Attributes:
        step: its number; None if the runs do not part.
        words: how they part there.
        is_known: whether they are known to; else nothing of the step can be compared.
    """

    step: int | None
    words: str
    is_known: bool = True


StepFinder = Callable[[Path, Path, Path | None], FoundStep | None]
"""Finds the step that parts: target, reference, second recording of the reference or None → the
step; None where these recordings do not tell."""


def climb(
    target: Path, reference: Path, again: Path | None = None, find_step: StepFinder | None = None
) -> Triage:
    """Ask why two runs part, and stop at the first answer that explains it.

    Args:
        target: path of the dump under test.
        reference: path of the trusted one.
        again: a second recording of the reference's program, to tell whether it is deterministic.
        find_step: finds the step that parts in recordings of whole runs; None asks the facts and
            the calls of the recorded steps.

    Raises:
        DumpFormatError: there is no dump at a path, or it is damaged.
        UsageError: the two hold no common step or rank.
    """
    began = time.perf_counter()
    ladder = _Ladder(target, reference, again, find_step)
    verdict = ladder.climb()
    return Triage(
        verdict=verdict,
        step=ladder.step,
        rungs=ladder.rungs,
        notes=list(dict.fromkeys(ladder.notes)),
        elapsed_s=time.perf_counter() - began,
    )


class _Runs:
    """Two recordings: their facts, and comparisons of their steps, made when asked for."""

    def __init__(self, target: Path, reference: Path) -> None:
        self._paths = target, reference
        pairing = pair_views(open_dump(target), open_dump(reference))
        self.views: Sequence[ViewPair] = pairing.pairs
        self.notes = list(pairing.notes)
        self.numbers = list(dict.fromkeys(view.step for view in self.views))
        self._compared: dict[tuple[int, ...], Mapping[str, Any]] = {}

    @cached_property
    def facts(self) -> RunFacts:
        """The facts of all steps and ranks, compared."""
        facts = RunFacts(self.views)
        self.notes += facts.notes
        return facts

    def compare(self, *steps: int) -> Mapping[str, Any]:
        """Return the summary of a full comparison of some steps.

        Raises:
            UsageError: no value of one side can be compared with the other.
            DumpFormatError: a file is damaged.
        """
        found = self._compared.get(steps)
        if found is None:
            found = run_comparison(*self._paths, CompareOptions(steps=steps)).summary
            self._compared[steps] = found
            self.notes += found["notes"]
        return found

    @cached_property
    def parting(self) -> FoundStep:
        """The first step that parts, by the facts, or by comparing step after step."""
        known = self.facts.parting
        if known is not None:
            return FoundStep(known.step, f"in step {known.step} {known.words}")
        values = 0
        for seen in self.facts.steps:
            if seen.seen is Seen.EQUAL:
                continue
            summary = self.compare(seen.step)
            if not summary["rows"]:
                words = f"nothing of step {seen.step} can be compared"
                return FoundStep(seen.step, words, is_known=False)
            values += summary["rows"]
            if _class_of(summary["verdict"]) is not VerdictClass.EQUAL:
                first = summary["first_difference"]
                name = "" if first is None else f": the first value that differs is {first['name']}"
                return FoundStep(seen.step, f"step {seen.step} differs{name}")
        steps = _steps_words(self.numbers)
        if values:
            return FoundStep(None, f"{values} values of {steps} agree")
        return FoundStep(None, f"losses, gradients and parameters of {steps} are equal to the bit")


class _Ladder:
    """One climb.

    Attributes:
        rungs: the answers so far.
        step: the first step that parts, once it was asked for.
    """

    def __init__(
        self, target: Path, reference: Path, again: Path | None, find_step: StepFinder | None
    ) -> None:
        self._paths = target, reference, again
        self._find_step = find_step
        self._runs = _Runs(target, reference)
        self._verdict: Mapping[str, Any] | None = None
        self._own_notes: list[str] = []
        self.rungs: list[RungResult] = []
        self.step: int | None = None

    @property
    def notes(self) -> list[str]:
        """Notes on the recordings."""
        return [*self._runs.notes, *self._own_notes]

    def climb(self) -> Mapping[str, Any]:
        """Ask one rung after the other; return the verdict."""
        began = time.perf_counter()
        for result in self._answers():
            now = time.perf_counter()
            self.rungs.append(
                RungResult(
                    rung=result.rung,
                    answer=result.answer,
                    words=result.words,
                    record=result.record,
                    elapsed_s=now - began,
                )
            )
            began = now
            if result.answer is Answer.EXPLAINS:
                break
        assert self._verdict is not None
        return self._verdict

    def _answers(self) -> Iterator[RungResult]:
        """Yield answers; the reader stops at the first one that explains."""
        for rung in _OF_FACTS:
            yield self._of_facts(rung)
        yield self._itself()
        found = self._first_step()
        self.step = found.step
        if found.step is None:
            self._verdict = _verdict(VerdictClass.EQUAL, found.words, Confidence.PROVED)
            yield _agrees(Rung.STEP, found.words)
        elif not found.is_known or found.step not in self._runs.numbers:
            yield self._not_recorded(found)
        else:
            yield RungResult(rung=Rung.STEP, answer=Answer.DIFFERS, words=found.words)
            cause = self._runs.facts.cause
            if cause is None:
                yield from self._by_calls(found.step)
            else:
                yield from self._by_facts(cause)

    # --- rungs that read facts

    def _of_facts(self, rung: Rung) -> RungResult:
        facts = self._runs.facts
        cause = facts.cause
        if cause is not None and _RUNGS[cause.moment] is rung:
            return self._explained(rung)
        found = [each for each in facts.differences if _RUNGS[each.moment] is rung]
        effective = [each for each in found if facts.has_effect(each)]
        if effective:
            return RungResult(
                rung=rung,
                answer=Answer.DIFFERS,
                words=f"{effective[0].words} ({self._why_not(effective[0], cause)})",
            )
        parts, advice = _OF_FACTS[rung]
        held, lacking = zip(*(facts.holding(part) for part in parts), strict=True)
        if not max(held):
            return _unknown(rung, *_lack(facts, max(lacking, key=len), advice))
        words = f"{max(held)} of {len(self._runs.views)} steps and ranks agree"
        if found:
            words += f"; without effect: {found[0].words}"
        return _agrees(rung, words)

    def _why_not(self, fact: FactDifference, cause: FactDifference | None) -> str:
        """Return why a difference is not taken for the cause."""
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
        pairs = [pair for pair in self._runs.facts.pairs if pair.step == cause.step]
        seen = self._runs.facts.seen(cause.step)
        is_exact = seen is not None and seen.is_exact
        for rung in _PHASES.values():
            if _RUNGS[cause.moment] is rung:
                yield self._explained(rung)
            elif rung is Rung.FORWARD and not any(pair.target.loss for pair in pairs):
                yield _unknown(
                    rung,
                    "no loss was recorded",
                    "call loss.backward() between start() and stop()",
                )
            elif rung is Rung.CLIP:
                clips = sum(isinstance(e, Clip) for pair in pairs for e in pair.target.events)
                yield _agrees(rung, "clips alike" if clips else "no side clips")
            elif is_exact:
                what = "losses" if rung is Rung.FORWARD else "gradients that the optimizer gets"
                yield _agrees(rung, f"the {what} are equal to the bit (step {cause.step})")
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
            return _unknown(
                Rung.ITSELF,
                "there is no second recording of the reference",
                "record the reference twice, and give the second recording with --again",
            )
        twice = _Runs(self._paths[1], again)
        self._own_notes += twice.notes
        cause = twice.facts.cause
        if cause is not None:
            return _unknown(
                Rung.ITSELF,
                f"the second recording was made otherwise: {cause.words}",
                "record the reference again with the same settings, data and seeds",
            )
        try:
            own = twice.parting
            if not own.is_known:
                return _unknown(Rung.ITSELF, own.words, _WITH_FACTS.format("the reference twice"))
            if own.step is None:
                return _agrees(Rung.ITSELF, own.words)
            return self._of_itself(twice, own.step, own.words)
        except UsageError as exc:
            return _unknown(Rung.ITSELF, str(exc), "record the reference twice in the same way")

    def _of_itself(self, twice: _Runs, step: int, words: str) -> RungResult:
        differs = RungResult(rung=Rung.ITSELF, answer=Answer.DIFFERS, words=words)
        parting = self._first_step().step
        if parting is None or step > parting:
            return differs
        sizes = [_size(runs, step) for runs in (self._runs, twice)]
        if None not in sizes:
            if sizes[0] > _OF_ONE_SIZE * sizes[1]:  # type: ignore[operator]
                return differs
        elif _class_of(twice.compare(step)["verdict"]) in _SMALL:
            return differs
        said = f"two recordings of the reference part, too: {words}"
        self.step = parting
        self._verdict = _verdict(
            VerdictClass.NONDETERMINISTIC,
            said,
            Confidence.POSSIBLE if None in sizes else Confidence.LIKELY,
            where=Where(step=step, rank=twice.views[0].rank),
            next_steps=[
                "make the program deterministic (seed_all(mode=True)), and record both runs again"
            ],
        )
        return RungResult(rung=Rung.ITSELF, answer=Answer.EXPLAINS, words=said)

    # --- the step that parts, and its calls

    @cached_property
    def _found(self) -> FoundStep | None:
        return None if self._find_step is None else self._find_step(*self._paths)

    def _first_step(self) -> FoundStep:
        return self._found or self._runs.parting

    def _not_recorded(self, found: FoundStep) -> RungResult:
        advice = _WITH_CALLS.format(found.step)
        words = f"{found.words}; that step was not recorded in full"
        self._verdict = _verdict(
            VerdictClass.UNEXPLAINED, words, Confidence.POSSIBLE, next_steps=[advice]
        )
        return _unknown(Rung.STEP, words, advice)

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
        where, kind = verdict["where"] or {}, _class_of(verdict)
        phase = Phase.FORWARD if where.get("phase") is None else Phase(where["phase"])
        last = _PHASES.get(phase, Rung.FORWARD)
        for rung in _PHASES.values():
            if rung is last:
                break
            yield _agrees(rung, "no difference begins there")
        has_call = phase in (Phase.FORWARD, Phase.BACKWARD) and where.get("module") is not None
        if not has_call and kind is not VerdictClass.UNEXPLAINED:
            yield RungResult(rung=last, answer=Answer.EXPLAINS, words=verdict["sentence"])
            return
        yield RungResult(rung=last, answer=Answer.DIFFERS, words=_first_words(summary))
        if has_call:
            yield from self._module_and_call(step, verdict, kind)

    def _compare_from(self, step: int) -> Mapping[str, Any]:
        """Return the comparison of a step; with later ones if it differs by rounding alone."""
        numbers = self._runs.numbers
        place = numbers.index(step)
        # Without facts a parameter is told to be updated otherwise by the step before.
        first = place if self._runs.facts.pairs else max(place - 1, 0)
        summary = self._runs.compare(*numbers[first : place + 1])
        if _class_of(summary["verdict"]) in _SMALL and place + 1 < len(numbers):
            summary = self._runs.compare(*numbers[first:])
        return summary

    def _checked(self, summary: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the verdict of a comparison; equal only if the facts agree, too."""
        verdict: Mapping[str, Any] = summary["verdict"]
        known = self._runs.facts.parting
        is_far = known is not None and known.seen is Seen.FAR and known.size is not None
        if known is not None and is_far and _class_of(verdict) is VerdictClass.EQUAL:
            return _verdict(
                VerdictClass.UNEXPLAINED,
                f"in step {known.step} {known.words}, and the recorded calls agree",
                Confidence.POSSIBLE,
                next_steps=[_WITH_CALLS.format(known.step)],
            )
        return verdict

    def _not_compared(self, step: int, why: str) -> RungResult:
        advice = _WITH_CALLS.format(step)
        known = self._runs.facts.parting
        words = why if known is None else f"in step {known.step} {known.words}; {why}"
        self._verdict = _verdict(
            VerdictClass.UNEXPLAINED, words, Confidence.POSSIBLE, next_steps=[advice]
        )
        return _unknown(Rung.FORWARD, why, advice)

    def _module_and_call(
        self, step: int, verdict: Mapping[str, Any], kind: VerdictClass
    ) -> Iterator[RungResult]:
        levels = {
            view.head.level
            for pair in self._runs.views
            if pair.step == step
            for view in (pair.target, pair.reference)
        }
        where, sentence = verdict["where"], verdict["sentence"]
        answer = Answer.DIFFERS if kind in _WITHOUT_REASON else Answer.EXPLAINS
        source = f" ({where['source']})" if where["source"] else ""
        if "L1" in levels:
            yield _unknown(Rung.MODULE, "level L1 records no modules", _WITH_CALLS.format(step))
        elif "L0" in levels:
            yield RungResult(rung=Rung.MODULE, answer=answer, words=sentence)
            yield _unknown(Rung.CALL, "level L0 records no calls", _WITH_CALLS.format(step))
            return
        else:
            module = where["module"] or "the model itself"
            words = f"the difference begins in {module}{source}"
            yield RungResult(rung=Rung.MODULE, answer=Answer.DIFFERS, words=words)
        yield RungResult(rung=Rung.CALL, answer=answer, words=sentence)
        yield _unknown(
            Rung.OWN_ERROR,
            "whether the call errs by itself needs it to be computed again, which msprobe cannot "
            "do yet",
            "compute the call in higher precision from its recorded inputs (task tensor)",
        )


def _verdict(
    kind: VerdictClass,
    words: str,
    confidence: Confidence,
    *,
    where: Where | None = None,
    next_steps: Sequence[str] = (),
) -> Mapping[str, Any]:
    return Verdict(
        verdict=kind, words=words, confidence=confidence, where=where, next=next_steps
    ).as_json()


def _class_of(verdict: Mapping[str, Any]) -> VerdictClass:
    return VerdictClass(verdict["class"])


def _agrees(rung: Rung, words: str) -> RungResult:
    return RungResult(rung=rung, answer=Answer.AGREES, words=words)


def _unknown(rung: Rung, words: str, record: str) -> RungResult:
    return RungResult(rung=rung, answer=Answer.UNKNOWN, words=words, record=record)


def _lack(facts: RunFacts, lacking: Sequence[str], advice: str) -> tuple[str, str]:
    """Return why the facts of a rung are not there, and what to record."""
    sides = "both runs" if len(lacking) > 1 else f"the {lacking[0]}"
    verb = "hold" if len(lacking) > 1 else "holds"
    if facts.lacking:
        return f"{sides} {verb} no facts about the training", _WITH_FACTS.format(sides)
    return f"{sides} {verb} nothing about it", advice.format(sides)


def _steps_words(numbers: Sequence[int]) -> str:
    return f"step {numbers[0]}" if len(numbers) == 1 else f"{len(numbers)} steps"


def _size(runs: _Runs, step: int) -> float | None:
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
    Moment.REDUCE: Rung.REDUCE,
    Moment.CLIP: Rung.CLIP,
    Moment.OPTIMIZER_SETTING: Rung.OPTIMIZER,
    Moment.SCHEDULE: Rung.OPTIMIZER,
    Moment.OPTIMIZER_STATE: Rung.OPTIMIZER,
    Moment.UPDATE: Rung.OPTIMIZER,
}
"""The rung that asks for differences of each moment of a training step."""

_PHASES: Final = {
    Phase.FORWARD: Rung.FORWARD,
    Phase.BACKWARD: Rung.BACKWARD,
    Phase.REDUCE: Rung.REDUCE,
    Phase.CLIP: Rung.CLIP,
    Phase.OPTIMIZER: Rung.OPTIMIZER,
}

_Part = Callable[[Facts], object]
_OF_FACTS: Final[Mapping[Rung, tuple[Sequence[_Part], str]]] = {
    Rung.SETTINGS: ((lambda facts: facts.settings,), _WITH_FACTS),
    Rung.DATA: ((lambda facts: facts.data,), _WITH_MODEL),
    Rung.START: ((lambda facts: facts.parameters, lambda facts: facts.modes), _WITH_MODEL),
    Rung.RANDOM: ((lambda facts: facts.random,), _WITH_FACTS),
}
"""Rungs that only read facts → their parts, and what to do where these are missing."""
