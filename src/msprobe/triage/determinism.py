# SPDX-License-Identifier: Apache-2.0
"""`judge_determinism`: whether two recordings of one program are equal to the bit, and if not, why.

The calls of both are compared in the order of execution, by their checksums. The first difference
is where the program stops being deterministic; all later ones may follow from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from msprobe.compare.call_differences import CallDifference, ExactRule, judge_call
from msprobe.compare.matching.pairing import pair_operations
from msprobe.compare.model import Match, OperationPair, Row, row_name
from msprobe.compare.options import CompareOptions
from msprobe.compare.random_logs import RandomDifference, first_other_draw
from msprobe.compare.ranks import ViewPair
from msprobe.compare.sides import Side
from msprobe.compare.training.differences import Effect, FactDifference, some_of
from msprobe.compare.training.generators import differing_generators
from msprobe.compare.value_pairs import pair_values
from msprobe.compare.verdicts.verdict_classes import VerdictClass
from msprobe.dump.facts import Facts
from msprobe.dump.layout import RANDOM_LOGS
from msprobe.dump.record_names import RecordKind
from msprobe.dump.values import Role
from msprobe.plain_text import WordedEnum
from msprobe.triage.recorded_runs import RecordedRuns
from msprobe.triage.run_facts import RunFacts, Seen

# Their states differ between any two runs that do not seed them, most of which do not use them.
_OFTEN_UNUSED: Final = ("python", "numpy")
_FURTHER: Final = 20


class Source(WordedEnum):
    """Reasons why a program gives other results when it runs again."""

    DATA = "data", "the data"
    SEED = "seed", "random numbers"
    START = "start", "the parameters it starts with"
    ENVIRONMENT = "environment", "the environment"
    KERNEL = "kernel", "a kernel"
    PROGRAM = "program", "another course of the program"


class Further(NamedTuple):
    """A later call in which a difference begins anew.

    Attributes:
        record: its name.
        source: the line that calls it; None where it is not known.
    """

    record: str
    source: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstDifference:
    """The first difference of two recordings of one program.

    Attributes:
        source: what it comes from.
        words: the same in a sentence.
        step: number of the step.
        rank: rank, or folder of the rank.
        record: name of the record; None where calls do not show it.
        value: the first value that differs.
        module: path of the module around it.
        line: the line of the program.
        draw: the first draw of random numbers that differs before it, in words; empty if none does.
        evidence: what speaks for it.
        further: calls of the same step that are not deterministic either.
        confirmed_by: the source of chance that was fixed, after which two runs were equal; empty
            where that was not tried, or none was enough.
    """

    source: Source
    words: str
    step: int
    rank: int | str
    record: str | None = None
    value: str | None = None
    module: str | None = None
    line: str | None = None
    draw: str = ""
    evidence: Sequence[str] = ()
    further: Sequence[Further] = ()
    confirmed_by: str = ""


@dataclass(slots=True, kw_only=True)
class Determinism:
    """Whether a program is deterministic.

    Attributes:
        first: the first difference; None where there is none.
        steps: numbers of the steps that were compared.
        values: how many values were compared.
        unjudged: tensors among them without a checksum.
        notes: what else one must know.
    """

    first: FirstDifference | None = None
    steps: Sequence[int] = ()
    values: int = 0
    unjudged: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def is_deterministic(self) -> bool:
        """Whether no value differs."""
        return self.first is None


def judge_determinism(first: Path, second: Path) -> Determinism:
    """Compare two recordings of one program to the bit, up to the first difference.

    Args:
        first: dump path of one recording, made with checksums. Where both hold draws of random
            numbers (`RANDOM_LOGS`), the first one that differs is named.
        second: dump path of the other one.

    Raises:
        DumpFormatError: there is no dump at a path, or it is damaged.
        UsageError: the two hold no common step or rank.
    """
    runs = RecordedRuns.open(first, second)
    found = Determinism(steps=runs.numbers)
    rule = ExactRule()
    logs = [next(path.glob(f"{RANDOM_LOGS}/random_*.csv"), None) for path in (first, second)]
    for view in runs.views:
        found.first = _Walk(view, runs.facts, rule, found, logs).first()
        if found.first is not None:
            break
    found.notes += runs.notes
    return found


class _Walk:
    """Looks for the first difference of a step and rank."""

    def __init__(
        self,
        view: ViewPair,
        facts: RunFacts,
        rule: ExactRule,
        found: Determinism,
        logs: Sequence[Path | None],
    ) -> None:
        self._view = view
        self._logs = logs
        self._facts = [each for each in facts.differences if each.step <= view.step]
        self._seen = facts.seen(view.step)
        self._rule = rule
        self._found = found
        self._target = Side(view.target, source="target")
        self._reference = Side(view.reference, source="reference")

    def first(self) -> FirstDifference | None:
        calls = self._calls()
        for pair, difference in calls:
            if not pair.is_matched:
                return self._of_lone_call(pair)
            if not difference.differs:
                continue
            if difference.begins:
                return self._of_call(pair, difference, calls)
            return self._of_input(pair, difference.inputs[0])
        seen = self._seen
        if seen is not None and seen.seen in (Seen.ROUNDING, Seen.FAR):
            words = f"{seen.words}, though all recorded calls agree: the optimizer's step"
            return self._difference(self._kernel_or_environment(), words)
        return None

    def _calls(self) -> Iterator[tuple[OperationPair, CallDifference]]:
        """Yield the calls in order; count what is looked at."""
        for pair in pair_operations(self._target, self._reference, CompareOptions()):
            rows = pair_values(self._target, self._reference, pair)
            difference = judge_call(rows, self._rule.differs)
            if self._target_allocates(pair):
                difference = CallDifference(difference.inputs, [])
            self._found.values += len(rows)
            self._found.unjudged += difference.unjudged
            yield pair, difference

    def _target_allocates(self, pair: OperationPair) -> bool:
        """Return whether the results are memory that nothing was written to."""
        return pair.target is not None and self._target.operator(pair.target).allocates

    # --- sources

    def _of_call(
        self,
        pair: OperationPair,
        difference: CallDifference,
        later: Iterator[tuple[OperationPair, CallDifference]],
    ) -> FirstDifference:
        row = difference.outputs[0]
        draws = self._target.operator(pair.name).draws_random
        source = Source.SEED if draws else self._kernel_or_environment()
        words = f"{row.name} differs though all inputs of the call are equal to the bit"
        if draws:
            words += "; it draws random numbers"
        further = [
            Further(other.name, self._target.source_line(other.name))
            for other, found in later
            if found.begins and self._is_plain_forward(other)
        ]
        draw = self._draw(while_recorded=True) if draws else None
        return self._difference(source, words, row, draw=draw, further=further)

    def _is_plain_forward(self, pair: OperationPair) -> bool:
        """Return whether nothing but its inputs decides a call: no module, no backward pass."""
        parsed = self._target.parsed(pair.name) if pair.match is Match.EXACT else None
        return parsed is not None and parsed.kind is RecordKind.FORWARD and not parsed.is_module

    def _of_input(self, pair: OperationPair, row: Row) -> FirstDifference:
        words = f"{row.name} differs before any recorded call does"
        facts = {each.verdict: each for each in self._facts if each.step == self._view.step}
        parameters, data = self._changed_parameters(), facts.get(VerdictClass.DATA)
        draw = self._draw(while_recorded=False)
        of_batch = Source.DATA if draw is None or draw.is_order else Source.SEED
        if parameters or row.value.role is Role.PARAMETER:
            source = Source.SEED if draw or self._is_unseeded else Source.START
            if parameters:
                words = f"{some_of(*parameters)} differ when the step starts"
        elif data is not None:
            source, words = of_batch, data.words
        elif pair.name.endswith("backward"):
            source = Source.PROGRAM
        elif not row.holds_tensor:
            source = Source.SEED if self._is_drawn_by_host else Source.PROGRAM
        else:
            source = of_batch
        return self._difference(source, words, row, draw=draw)

    def _draw(self, *, while_recorded: bool) -> RandomDifference | None:
        """Return the first draw that differs before a call of this step."""
        first, second = self._logs
        if first is None or second is None:
            return None
        return first_other_draw(first, second, self._view.step, while_recorded=while_recorded)

    def _changed_parameters(self) -> tuple[list[str], int] | None:
        """Return the parameters that differ when the step starts, and the number of all."""
        sides = [facts.parameters for facts in self._both_facts()]
        ours, others = sides or (None, None)
        if ours is None or others is None:
            return None
        known = dict(zip(others.name, others.checksum, strict=True))
        checksums = zip(ours.name, ours.checksum, strict=True)
        changed = [name for name, checksum in checksums if known.get(name) != checksum]
        return (changed, len(ours.name)) if changed else None

    def _of_lone_call(self, pair: OperationPair) -> FirstDifference:
        side = self._target if pair.target is not None else self._reference
        run = "first" if pair.target is not None else "second"
        return self._difference(
            Source.PROGRAM,
            f"only the {run} run calls {pair.name} here",
            record=pair.name,
            side=side,
        )

    def _kernel_or_environment(self) -> Source:
        return Source.ENVIRONMENT if self._settings() else Source.KERNEL

    def _settings(self) -> list[FactDifference]:
        return [
            each
            for each in self._facts
            if each.verdict is VerdictClass.SETTINGS and each.effect is not Effect.NONE
        ]

    def _generators(self) -> list[str]:
        """Return the generators whose states differ when the step starts."""
        facts = self._both_facts()
        return differing_generators(*facts) if facts else []

    def _both_facts(self) -> list[Facts]:
        """Return the facts of both sides, or nothing if one has none."""
        sides = self._view.target.facts, self._view.reference.facts
        return [facts for facts in sides if facts is not None] if None not in sides else []

    @property
    def _is_unseeded(self) -> bool:
        """Whether a generator of the framework is in another state when the step starts."""
        return bool(set(self._generators()).difference(_OFTEN_UNUSED))

    @property
    def _is_drawn_by_host(self) -> bool:
        """Whether the program draws from Python's or NumPy's generator, which is not seeded."""
        return any(each.is_drawn_by_host and each.step == self._view.step for each in self._facts)

    # --- results

    def _difference(
        self,
        source: Source,
        words: str,
        row: Row | None = None,
        *,
        record: str | None = None,
        side: Side | None = None,
        draw: RandomDifference | None = None,
        further: Sequence[Further] = (),
    ) -> FirstDifference:
        side = side or self._target
        record = record if row is None else row.pair.name
        evidence = [each.words for each in self._settings()]
        if source in (Source.DATA, Source.SEED) or self._is_unseeded:
            generators = ", ".join(self._generators())
            if generators:
                evidence.append(f"not seeded alike when the step starts: {generators}")
        return FirstDifference(
            source=source,
            words=words,
            step=self._view.step,
            rank=self._view.rank,
            record=record,
            value=None if row is None else row_name(row.pair.name, row.value.slot),
            module=None if record is None else side.module(record),
            line=None if record is None else side.source_line(record),
            draw="" if draw is None else draw.words,
            evidence=evidence,
            further=list(islice(further, _FURTHER)),
        )
