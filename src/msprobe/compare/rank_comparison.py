# SPDX-License-Identifier: Apache-2.0
"""`RankComparison`: two sides compared, one step and rank."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from msprobe.compare.model import Mode, OperationPair, Row, Status
from msprobe.compare.rounding import resolution_of
from msprobe.dump.record_names import RecordKind, forward_name
from msprobe.dump.stack_frames import first_of_optimizer
from msprobe.dump.values import Role

if TYPE_CHECKING:
    from msprobe.compare.ranks import ViewPair
    from msprobe.compare.sides import Side
    from msprobe.compare.verdicts.places import Clue
    from msprobe.compare.verdicts.proof import Proof
    from msprobe.dump.facts import Facts
    from msprobe.dump.record_names import RecordName
    from msprobe.dump.stack_frames import Frame


@dataclass(frozen=True, slots=True)
class NoiseJudgement:
    """Differences held against measured noise.

    Attributes:
        recordings: how many it was measured by.
        within: values that differ by no more than the noise allows.
        loose: those of them that are beyond the tolerance of their types.
        beyond: values that differ by more.
    """

    recordings: int
    within: int
    loose: int
    beyond: int


@dataclass(slots=True, kw_only=True)
class RankComparison:
    """Two sides compared: one step and rank.

    Attributes:
        step: the target's step.
        rank: the target's rank number, or its folder's name where it has none.
        target: the side under test.
        reference: the trusted side.
        mode: the data by which values are judged.
        pairs: all operations, in order of execution.
        rows: all values, grouped by operation in the order of `pairs`.
        growths: error relative to that of the inputs, of rows where this is too much; by `id`.
        proof: whether the differences are rounding; None before the summary was made.
        kept: positions of operations that change a buffer or a parameter in another way.
        lone_call: a call of an earlier step without a partner, whose result this one uses.
        noise: what was found by measured noise; None where it was not measured.
        table: file of the table of `rows`, where they were set aside.
        later: the same rank in later steps, whose records are not compared yet.
    """

    step: int
    rank: int | str
    target: Side
    reference: Side
    mode: Mode
    pairs: list[OperationPair]
    rows: list[Row]
    growths: dict[int, float] = field(default_factory=dict)
    proof: Proof | None = None
    kept: frozenset[int] = frozenset()
    lone_call: Clue | None = None
    noise: NoiseJudgement | None = None
    table: Path | None = None
    later: Sequence[ViewPair] = ()
    _asked_again: float | None = field(default=None, init=False, repr=False)

    def side_of(self, pair: OperationPair) -> Side:
        """Return the side that gave an operation its name: the target, if that has it."""
        return self.reference if pair.target is None else self.target

    def side(self, *, is_target: bool) -> Side:
        """Return one of the sides."""
        return self.target if is_target else self.reference

    @property
    def sides(self) -> tuple[Side, Side]:
        """The target and the reference."""
        return self.target, self.reference

    @property
    def facts(self) -> tuple[Facts | None, Facts | None]:
        """What each side recorded of its training."""
        return self.target.view.facts, self.reference.view.facts

    @property
    def places(self) -> dict[str | None, int]:
        """Name of a record of the target → its place."""
        return {pair.target: pair.position for pair in self.pairs}

    def parsed(self, pair: OperationPair) -> RecordName:
        """Return an operation's name taken apart."""
        return self.side_of(pair).parsed(pair.name)

    def is_of_backward(self, pair: OperationPair) -> bool:
        """Return whether a backward pass makes an operation."""
        return self.parsed(pair).kind in (RecordKind.BACKWARD, RecordKind.PARAMETERS_GRAD)

    @property
    def resolution(self) -> float:
        """Resolution of the coarsest type of results of both sides; 0 where all calls are the same.

        Other calls make other roundings.
        """
        if all(pair.target == pair.reference for pair in self.pairs):
            return 0.0
        made = [row for row in self.rows if row.value.role is Role.OUTPUT and row.holds_tensor]
        return min(
            resolution_of(row.target for row in made), resolution_of(row.reference for row in made)
        )

    @property
    def resolution_of_losses(self) -> float:
        """The same of what may have made losses differ: of calls before the first backward one.

        Those whose results are equal to the bit make no roundings.
        """
        resolution = self.resolution
        if not resolution:
            return 0.0
        end = self.end_of_forward
        made = [
            value
            for row in self.rows
            if row.pair.position < end and row.value.role is Role.OUTPUT and row.holds_tensor
            if not (row.pair.is_matched and row.status is Status.EQUAL)
            for value in row.values
        ]
        return min(resolution, resolution_of(made))

    @property
    def scale_of_losses(self) -> float:
        """How large the terms are that losses are made of; 0 where no model has a record.

        They are as large as results times their gradients: where they cancel, a loss is smaller.
        """
        squares: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for row in self.rows:
            parsed = self.parsed(row.pair)
            is_result = parsed.kind is RecordKind.FORWARD and row.value.role is Role.OUTPUT
            if is_result and self.side_of(row.pair).is_model_call(row.pair.name):
                squares[row.pair.name][0] += float(row.value.norm or 0.0) ** 2
            elif parsed.kind is RecordKind.BACKWARD and row.value.role is Role.INPUT:
                squares[forward_name(parsed) or ""][1] += float(row.value.norm or 0.0) ** 2
        return max((math.sqrt(made * given) for made, given in squares.values()), default=0.0)

    @property
    def end_of_forward(self) -> float:
        """Place of the first backward record."""
        backward = (p for p in self.pairs if self.parsed(p).kind is RecordKind.BACKWARD)
        return next((pair.position for pair in backward), math.inf)

    @property
    def asked_again(self) -> float:
        """Place of the first call behind an optimizer's first evaluation of the loss.

        What it computes then, L-BFGS say, hangs on its own state and settings. The line of it from
        which the program is called tells; infinite where none does.
        """
        if self._asked_again is None:
            self._asked_again = self._find_asked_again()
        return self._asked_again

    def _find_asked_again(self) -> float:
        facts = self.facts[0]
        if facts is None or not 0 < len(facts.optimizer_steps()) < len(facts.loss):
            return math.inf
        first: Frame | None = None
        for pair in self.pairs:
            frames = () if pair.target is None else self.target.view.frames(pair.target)
            asking = first_of_optimizer(tuple(frames))
            if asking is None:
                continue
            if first is None:
                first = asking.frame if asking.is_of_user else None
            elif asking.frame != first:
                return pair.position
        return math.inf

    @property
    def has_modules_only(self) -> bool:
        """Whether both sides were recorded at level L0: no call inside of modules has a record."""
        return all(side.view.head.level == "L0" for side in self.sides)

    @property
    def end_of_backward(self) -> float:
        """Place of the last record that a backward pass makes."""
        return max((p.position for p in self.pairs if self.is_of_backward(p)), default=math.inf)

    def passes_before(self, position: float) -> int:
        """Return how many backward passes begin before a place."""
        return sum(start < position for start in self.starts_of_passes(self.pairs))

    def starts_of_passes(self, pairs: Iterable[OperationPair]) -> Iterator[int]:
        """Yield the places where backward passes begin among some operations, in their order."""
        last: OperationPair | None = None
        for pair in pairs:
            is_first = last is None or not self.is_of_backward(last)
            if is_first and self.parsed(pair).kind is RecordKind.BACKWARD:
                yield pair.position
            last = pair

    def set_aside(self, table: Path) -> None:
        """Release the rows, whose table is in a file, and all data read from the dumps."""
        self.table = table
        self.pairs, self.rows, self.growths = [], [], {}
        self.target.unload()
        self.reference.unload()
