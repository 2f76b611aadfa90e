# SPDX-License-Identifier: Apache-2.0
"""`OriginState`: the state of a search for origins, in the order of execution."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from msprobe.compare.causes import Cause
from msprobe.compare.model import Matched, Missing, OperationPair, Origin, Row, Status
from msprobe.compare.rank_comparison import RankComparison
from msprobe.compare.training.buffers import kept_values
from msprobe.compare.training.facts_pair import FactsPair
from msprobe.compare.training.fingerprints import is_part
from msprobe.compare.training.shared_names import facts_of
from msprobe.compare.training.start import equal_at_start
from msprobe.compare.verdicts.calls import Call, Calls
from msprobe.compare.verdicts.data_flow import DataFlow, OutsideValues
from msprobe.dump.facts import Facts, Projections
from msprobe.dump.records import Statistic
from msprobe.dump.values import Role, Value

# Unrecorded code (views, casts, additions in a module's forward) may enlarge small errors so far.
_UNRECORDED_GROWTH: Final = 50.0


class StartState:
    """Parameters and buffers when the step starts, as far as facts tell."""

    def __init__(self, comparison: RankComparison) -> None:
        self._comparison = comparison

    def agreed(self, path: str, argument: str) -> bool:
        """Return whether facts show that a parameter or buffer agreed to the bit."""
        name = f"{path}.{argument}" if path else argument
        if path or name in self._equal:
            return self._equal.get(name, False)
        # APIs do not tell which one they are given. Weights may be those of a model that is not
        # watched; buffers are written within a step.
        of_name = [equal for each, equal in self._buffers.items() if each.endswith(f".{argument}")]
        return bool(of_name) and all(of_name)

    def exchanged_data(self, row: Row) -> str | None:
        """Return which inputs of the model a row's two values are, if they are not the same one."""
        target, reference = (
            None if value is None else places.get((value.shape, value.norm))
            for value, places in zip((row.target, row.reference), self._data, strict=True)
        )
        if target is None or reference is None or target == reference:
            return None
        return f"the model's {target} instead of its {reference}"

    def names_of(self, row: Row) -> tuple[str | None, str | None]:
        """Return which parameter or buffer each value of a row is, in words."""
        target, reference = (
            None if value is None else names.get(_key_of_value(value))
            for value, names in zip((row.target, row.reference), self._names, strict=True)
        )
        return target, reference

    def is_updated_alone(self, row: Row) -> bool:
        """Return whether a value is what an update left in a parameter, on one side alone.

        The other side's optimizers do not have it: there it is what it was.
        """
        values = row.target, row.reference
        return any(
            value is not None and _key_of_value(value) in updated
            for value, updated in zip(values, self._updated_alone, strict=True)
        )

    def exchanged_parameters(self, row: Row) -> str | None:
        """Return which parameters a row's two values are, if they are not the same one."""
        target, reference = (
            [] if value is None else names.get(_key_of_value(value), [])
            for value, names in zip((row.target, row.reference), self._shared_names, strict=True)
        )
        if not (target and reference) or not {*target}.isdisjoint(reference):
            return None
        return f"{_any_of(target)} instead of {_any_of(reference)}"

    def shows_equal(self, row: Row) -> bool:
        """Return whether facts have one checksum for both values of a row: of data, a buffer."""
        sums: set[str | None] = set()
        for value, contents in zip(row.values, self._contents, strict=True):
            sums |= contents.get(_key_of_value(value), {None})
        return len(sums) == 1 and None not in sums

    @property
    def has_kept(self) -> bool:
        """Whether calls left a buffer or parameter in another way at all."""
        return any(self._kept)

    def is_kept(self, row: Row) -> bool:
        """Return whether a row holds what calls left in a buffer or parameter in another way."""
        return any(
            value is not None and (value.shape, value.norm) in places
            for value, places in zip((row.target, row.reference), self._kept, strict=True)
        )

    @cached_property
    def _kept(self) -> tuple[set[Hashable], set[Hashable]]:
        return (set(), set()) if self._facts is None else kept_values(self._facts, self._buffers)

    @cached_property
    def _data(self) -> tuple[dict[Hashable, str], dict[Hashable, str]]:
        """Shape and norm of what the model is given → its place; empty where that differs."""
        sides: list[dict[Hashable, str]] = [
            {(tuple(each.shape), each.norm): each.where for each in facts.data} if facts else {}
            for facts in self._comparison.facts
        ]
        return (sides[0], sides[1]) if sides[0] == sides[1] else ({}, {})

    @cached_property
    def _names(self) -> list[dict[Hashable, str]]:
        """Of each side, what tells parameters apart → their names, of those with projections."""
        return [_names_by_content(facts) for facts in self._comparison.facts]

    @cached_property
    def _updated_alone(self) -> list[set[Hashable]]:
        """Of each side, what tells parameters apart that no optimizer of the other side updates."""
        both = [dict(_updates_of(facts)) for facts in self._comparison.facts]
        if not all(both):
            return [set(), set()]
        names = [{*each.values()} for each in both]
        return [
            {key for key, name in own.items() if name not in other}
            for own, other in zip(both, reversed(names), strict=True)
        ]

    @cached_property
    def _shared_names(self) -> list[dict[Hashable, list[str]]]:
        """Of each side, all that hold the same numbers, by the names that both sides know."""
        return [_alike_at_start(each) for each in self._facts.sides] if self._facts else [{}, {}]

    @cached_property
    def _contents(self) -> list[dict[Hashable, set[str | None]]]:
        """Of each side, what tells tensors of data and of the start apart → their checksums."""
        return [_contents_of(facts) for facts in self._comparison.facts]

    @cached_property
    def _facts(self) -> FactsPair | None:
        return facts_of(self._comparison)

    @cached_property
    def _equal(self) -> dict[str, bool]:
        return {} if self._facts is None else equal_at_start(self._facts)

    @cached_property
    def _buffers(self) -> dict[str, bool]:
        return {} if self._facts is None else equal_at_start(self._facts, "buffer")


@dataclass(slots=True)
class OriginState:
    """The state of a search for origins.

    Attributes:
        comparison: the comparison that is searched.
        start: its parameters and buffers when the step starts.
        calls: its operations.
        flow: which call made which value.
        outside: values that no call made.
        has_difference: whether any row before the present operation differs.
        first_different: the operation of the first such row.
        worst_close: largest relative error of a row before it that is close.
        worst_inherited: the same of rows that differ as the values do that they are made of.
        blamed_parents: modules whose own code made a difference: name → the row that shows it.
        fed: values that a call was wrongly fed with → the row that shows it.
        suspects: arguments that differ, of calls whose results so far show no effect of it; by the
            first row of the call.
        blamed_inside: records with a culprit inside, as their own side calls them.
    """

    comparison: RankComparison
    start: StartState
    calls: Calls
    flow: DataFlow
    outside: OutsideValues
    has_difference: bool = False
    first_different: OperationPair | None = None
    worst_close: float = 0.0
    worst_inherited: float = 0.0
    blamed_parents: dict[str, Row] = field(default_factory=dict)
    fed: dict[Hashable, Row] = field(default_factory=dict)
    suspects: dict[int, list[Row]] = field(default_factory=dict)
    blamed_inside: set[str] = field(default_factory=set)

    @property
    def rows(self) -> list[Row]:
        """All rows."""
        return self.comparison.rows

    def may_have_grown(self, row: Row) -> bool:
        """Return whether earlier small errors can have become this one in unrecorded code."""
        if row.status is not Status.DIFFERS or row.error is None:
            return False
        return row.error <= _UNRECORDED_GROWTH * self.worst_close

    def is_likely(self, row: Row) -> bool:
        """Return whether a difference is small enough to follow from those before it."""
        return self.may_have_grown(row) or self.is_as_far(row)

    def is_as_far(self, row: Row) -> bool:
        """Return whether a value is hardly further apart than those before it that inherit."""
        is_sized = row.status is Status.DIFFERS and row.error is not None
        return is_sized and (row.error or 0.0) <= 2 * self.worst_inherited

    def inherit_unrecorded(self, row: Row) -> None:
        """Let a row inherit from what differs before it, by code that was not recorded."""
        mark(row, Origin.INHERITED, None if self.is_likely(row) else Cause.UNTRACED)

    def may_inherit(self, row: Row) -> bool:
        """Return whether anything before a row differs that may have become its difference.

        What a module is given on one side alone comes before all that differs within it.
        """
        is_lone = row.status in (Status.MISSING, Status.ADDED) and row.value.role is Role.INPUT
        if is_lone and self.first_different is not None:
            around = self.calls.around(self.first_different)
            if row.pair.name in around:
                return False
        return self.has_difference or self.may_have_grown(row)

    def upstream(
        self,
        call: Call,
        sources: Callable[[Call], Iterable[tuple[Row, int]]],
        most: float = math.inf,
    ) -> Iterator[tuple[Row, Call]]:
        """Yield the calls that a call's values come from, each with the value that it made.

        Args:
            call: where to begin.
            sources: returns the values to follow of a call, each with the row that made it.
            most: how many calls are looked at.
        """
        seen = {call.start}
        waiting = deque([call])
        while waiting and len(seen) < most:
            for row, index in sources(waiting.popleft()):
                maker = self.calls.of(self.rows[index])
                yield row, maker
                if maker.start not in seen:
                    seen.add(maker.start)
                    waiting.append(maker)

    def convict(self, start: int) -> bool:
        """Blame the arguments of a call that were under suspicion, if there were any."""
        suspects = self.suspects.pop(start, ())
        for row in suspects:
            mark(row, Origin.INTRODUCED, Cause.ARGUMENT)
            self.note_blamed(row)
        return bool(suspects)

    def note_blamed(self, row: Row) -> None:
        """Remember the records around a culprit."""
        for parent in self.calls.around(row.pair):
            if parent in self.blamed_inside:
                break
            self.blamed_inside.add(parent)

    def explains(self, index: int) -> bool:
        """Return whether the value of an earlier row differs, so that its users must too."""
        return self.rows[index].status.is_difference


def _contents_of(facts: Facts | None) -> dict[Hashable, set[str | None]]:
    found: dict[Hashable, set[str | None]] = defaultdict(set)
    for each in () if facts is None else facts.data:
        found[_key_of(each.dtype, each.shape, each.norm, each.projections)].add(each.checksum)
    start = None if facts is None else facts.parameters
    if start is not None:
        for dtype, shape, norm, pair, checksum in zip(
            start.dtype, start.shape, start.norm, start.projections, start.checksum, strict=False
        ):
            found[_key_of(dtype, shape, norm, pair)].add(checksum)
    return found


def _names_by_content(facts: Facts | None) -> dict[Hashable, str]:
    """Return by what their elements are recognised → parameters and buffers, in words."""
    if facts is None:
        return {}
    found = {key: f"the parameter {name} after its update" for key, name in _updates_of(facts)}
    return found | {key: _any_of(names) for key, names in _alike_at_start(facts).items()}


def _updates_of(facts: Facts | None) -> Iterator[tuple[Hashable, str]]:
    """Yield by what their elements are recognised the parameters that optimizers updated."""
    for step in () if facts is None else facts.optimizer_steps():
        own, after = step.parameters, step.parameters.after
        columns = own.name, own.dtype, own.shape, after.norm, after.projections
        for name, dtype, shape, norm, pair in zip(*columns, strict=False):
            if pair is not None:
                yield _key_of(dtype, shape, norm, pair), name


def _alike_at_start(facts: Facts) -> dict[Hashable, list[str]]:
    """Return the same for all that hold the same when the step starts, a tied one once."""
    start, found = facts.parameters, defaultdict[Hashable, list[str]](list)
    if start is None:
        return found
    names = start.kind, start.name, start.same_as
    rest = start.dtype, start.shape, start.norm, start.projections
    for kind, name, tied, dtype, shape, norm, pair in zip(*names, *rest, strict=False):
        if pair is not None and not tied:
            found[_key_of(dtype, shape, norm, pair)].append(f"the {kind} {name}")
    return found


def _any_of(names: Sequence[str]) -> str:
    """Return names of which it is not known which one is meant."""
    more = len(names) - 1
    if not more:
        return names[0]
    if more == 1:
        return f"{names[0]} (or {names[1]}, which holds the same)"
    return f"{names[0]} (or one of {more} others that hold the same)"


def _key_of_value(value: Value) -> Hashable:
    return _key_of(value.dtype, value.shape or (), value.norm, value.projections)


def _key_of(
    dtype: str, shape: Sequence[int], norm: Statistic, projections: Projections
) -> Hashable:
    dtype = dtype.removeprefix("torch.").lower()
    return dtype, tuple(shape), norm, None if projections is None else tuple(projections)


def mark(row: Row, origin: Origin, cause: Cause | None = None, subject: str = "") -> None:
    """Set a row's origin and, where there is one, its cause."""
    row.origin = origin
    if cause is not None:
        row.cause, row.subject = cause, subject


def settle_as_close(row: Row, cause: Cause) -> None:
    """Call a row close after all: its difference is rounding of the operation that made it."""
    row.status, row.origin = Status.CLOSE, None
    row.finding, row.cause = "", cause


def inherit(row: Row, maker: Row) -> None:
    """Let a row share the fate of the row that made its value: it is close if that is."""
    if row.status is Status.DIFFERS and maker.status is Status.CLOSE:
        row.status, row.origin = Status.CLOSE, None
        row.finding, row.cause, row.subject = maker.finding, maker.cause, maker.subject
    else:
        mark(row, Origin.INHERITED)


def name_of(state: OriginState, index: int) -> str:
    """Return the record that a row belongs to, for messages."""
    return state.rows[index].pair.name


def lost_gradient(row: Row) -> bool:
    """Return whether a value requires a gradient on one side only."""
    flags = {value.requires_grad for value in row.values}
    return flags == {True, False}


def is_lacking(row: Row) -> bool:
    """Return whether one side alone has a value."""
    return row.status in (Status.MISSING, Status.ADDED)


def is_shard(row: Row) -> bool:
    """Return whether one side holds a part of what the other one holds."""
    if not isinstance(row, Matched):
        return False
    shapes = [value.shape for value in row.values]
    return row.status is Status.SHAPE and None not in shapes and is_part(*shapes)  # type: ignore[arg-type]


def lacking_side(row: Row) -> str:
    """Return the side that lacks a value, in words."""
    is_target = isinstance(row, Missing) or (isinstance(row, Matched) and row.target.is_null)
    return "target" if is_target else "reference"
