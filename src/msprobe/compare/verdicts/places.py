# SPDX-License-Identifier: Apache-2.0
"""`Place`: a record and where its call was made; `Clue`: a finding at such a place, in words."""

from __future__ import annotations

from collections import Counter
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from msprobe.compare.model import Matched, OperationPair
from msprobe.compare.training.differences import Phase
from msprobe.compare.value_pairs import pair_values
from msprobe.compare.verdicts.verdict_classes import VerdictClass
from msprobe.dump.record_names import RecordKind, parse_record_name
from msprobe.operators.operator import Family

if TYPE_CHECKING:
    from msprobe.compare.rank_comparison import RankComparison

# Types of arguments that follow from what else a call is given.
_SIZES: Final = ("int", "slice", "torch.Size")


class Place(NamedTuple):
    """A record, and where its call was made.

    Attributes:
        step: number of the step.
        record: name of the record.
        module: path of the innermost module around it.
        source: line of the user's code, None if not recorded.
    """

    step: int
    record: str
    module: str
    source: str | None

    @classmethod
    def of(cls, comparison: RankComparison, pair: OperationPair) -> Place:
        """Return the place of an operation."""
        side, record = comparison.side_of(pair), pair.name
        return cls(comparison.step, record, side.module(record), side.source_line(record))

    @property
    def words(self) -> str:
        """The place in words."""
        return self.record + self.line

    @property
    def line(self) -> str:
        """The line in brackets; empty if not recorded."""
        return f" ({self.source})" if self.source else ""

    @property
    def next(self) -> list[str]:
        """The next step; empty where no line was recorded."""
        return [f"look at {self.source}"] if self.source else []

    @property
    def phase(self) -> Phase:
        """The part of the training step."""
        is_forward = parse_record_name(self.record).kind is RecordKind.FORWARD
        return Phase.FORWARD if is_forward else Phase.BACKWARD


class Size(Enum):
    """How large the effect of a clue is beside rounding.

    `WITHIN`: rounding may be all of it. `SMALL`: it is as small, and rounding does not explain it.
    """

    WITHIN = "within"
    SMALL = "small"
    LARGE = "large"


class Clue(NamedTuple):
    """A finding, and the call that shows it.

    Attributes:
        words: the finding in words.
        place: the call.
        verdict: class of the cause that it is, if it is one.
        size: how large its effect is.
    """

    words: str
    place: Place
    verdict: VerdictClass = VerdictClass.CALL
    size: Size = Size.WITHIN


def lone_words(comparison: RankComparison, pair: OperationPair, detail: str = "") -> str:
    """Return that only one side makes a call, in words."""
    side, place = ("reference", "target")[pair.reference is None], Place.of(comparison, pair)
    return f"only the {side} calls {place.record}{detail}{place.line}"


def lone_around(comparison: RankComparison, pair: OperationPair) -> OperationPair:
    """Return the outermost module around a call of one side alone that this side alone calls.

    Or the call itself.
    """
    side = comparison.side_of(pair)
    around = {*side.around(pair.name)}
    return next(
        (
            each
            for each in reversed(comparison.pairs)
            if not each.is_matched and each.name in around and comparison.side_of(each) is side
        ),
        pair,
    )


def is_alone(comparison: RankComparison, module: OperationPair) -> bool:
    """Return whether no call within a module of one side alone has a partner on the other side."""
    side, is_target = comparison.side_of(module), module.reference is None
    names = (p.target if is_target else p.reference for p in comparison.pairs if p.is_matched)
    return not any(name and module.name in side.around(name) for name in names)


def moved_call(comparison: RankComparison, pair: OperationPair) -> tuple[VerdictClass, str] | None:
    """Return that both sides make a call, but before another one and after it, as a cause.

    Then neither of the two has a partner, and neither is without consequence: in the order of calls
    one comes too early. It may be given another argument as well, which is the cause then, if it is
    no size or place: these follow from other samples.
    """
    function, shapes = _function(comparison, pair), _shapes(comparison, pair)
    lone = [p for p in comparison.pairs if not p.is_matched]
    lone = [p for p in lone if _function(comparison, p) == function]
    other = [p for p in lone if (p.target is None) is not (pair.target is None)]
    felt = {row.pair.position for row in comparison.rows if row.origin is not None}
    alike = (p for p in other if p.position in felt and _shapes(comparison, p) == shapes)
    partner = min(alike, key=lambda each: each.name != pair.name, default=None)
    if partner is None or len(lone) != 2 * len(other):
        return None
    first, last = sorted((pair, partner), key=lambda each: each.position)
    between = (p for p in comparison.pairs if first.position < p.position < last.position)
    crossed = next((p for p in between if p.is_matched), None)
    if crossed is None:
        return None
    added = _added_between(comparison, first, last)
    if added is not None:
        return VerdictClass.CALL, f"{lone_words(comparison, added)}, step {comparison.step}"
    place = Place.of(comparison, first)
    target, reference = (pair, partner) if pair.reference is None else (partner, pair)
    both = OperationPair(
        position=pair.position, target=target.name, reference=reference.name, match=pair.match
    )
    for row in pair_values(*comparison.sides, both):
        if not isinstance(row, Matched) or not row.is_argument or row.target.type in _SIZES:
            continue
        if row.target.value != row.reference.value:
            where = f"{row.value.slot} of {place.words}, step {comparison.step}"
            words = f"{row.target.value!r} instead of {row.reference.value!r}"
            return VerdictClass.ARGUMENT, f"{where}: {words}"
    early, late = ("target", "reference") if first.reference is None else ("reference", "target")
    number = "" if first.name == last.name else f", as {last.name}"
    return VerdictClass.ORDER, (
        f"{place.words} is called before {crossed.name} in the {early}, after it in the {late}"
        f"{number}, step {comparison.step}"
    )


def crossed_lines(comparison: RankComparison, pair: OperationPair) -> str:
    """Return that a call of one line is paired with that of another, which comes first, in words.

    Empty where both sides do not call the function from the same lines, as often. Then what these
    calls are given differs as they come in another order.
    """
    function, places, said = _function(comparison, pair), [], []
    for side, name in zip(comparison.sides, (pair.target, pair.reference), strict=True):
        parsed = {each: side.parsed(each) for each in side.names}
        alike = [each for each, of in parsed.items() if (of.base, of.kind) == function]
        # Lines move where a program is edited, and most keep their text.
        lines = {each: side.source_code(each) or side.source_line(each) for each in alike}
        said.append((lines.get(name or ""), Counter(lines.values())))
        places.append(side.source_line(name or ""))
    (own, lines_here), (other, lines_there) = said
    if not own or not other or own == other or lines_here != lines_there:
        return ""
    return (
        f"{function[0]} of {places[0]} is called before that of {places[1]} in the target, after "
        f"it in the reference, step {comparison.step}"
    )


def _added_between(
    comparison: RankComparison, first: OperationPair, last: OperationPair
) -> OperationPair | None:
    """Return a call that one side adds between two others, by a function it calls more often.

    Values that differ show it, and it does more than to hand on what it is given.
    """
    felt = {row.pair.position for row in comparison.rows if row.origin is not None}
    functions = [
        Counter(side.parsed(name).base for name in side.names) for side in comparison.sides
    ]
    for pair in comparison.pairs:
        if not first.position < pair.position < last.position or pair.is_matched:
            continue
        base, is_reference = comparison.parsed(pair).base, pair.target is None
        is_more = functions[is_reference][base] > functions[not is_reference][base]
        moves = comparison.side_of(pair).operator(pair.name).family is Family.MOVING
        if is_more and not moves and pair.position in felt:
            return pair
    return None


def _function(comparison: RankComparison, pair: OperationPair) -> tuple[str, RecordKind]:
    parsed = comparison.parsed(pair)
    return parsed.base, parsed.kind


def _shapes(comparison: RankComparison, pair: OperationPair) -> object:
    """Return the shapes of what a call is given and makes."""
    values = comparison.side_of(pair).values(pair.name)
    return [(each.role, each.shape) for each in values if each.is_tensor]
