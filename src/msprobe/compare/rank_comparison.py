# SPDX-License-Identifier: Apache-2.0
"""`RankComparison`: two sides compared, one step and rank."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from msprobe.compare.model import Mode, OperationPair, Row

if TYPE_CHECKING:
    from msprobe.compare.sides import Side
    from msprobe.compare.verdicts.places import Clue
    from msprobe.compare.verdicts.proof import Proof


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

    def side_of(self, pair: OperationPair) -> Side:
        """Return the side that gave an operation its name: the target, if that has it."""
        return self.reference if pair.target is None else self.target

    def set_aside(self, table: Path) -> None:
        """Release the rows, whose table is in a file, and all data read from the dumps."""
        self.table = table
        self.pairs, self.rows, self.growths = [], [], {}
        self.target.unload()
        self.reference.unload()
