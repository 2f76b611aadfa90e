# SPDX-License-Identifier: Apache-2.0
"""`MadeInside`: which inputs of a model are no data, because recorded calls made them.

Each is followed back to what enters the step from outside. Where both sides take the same, a call
that makes something else of it is to blame: it is given another argument, left out, or its result
is not the one that the model is given. So it is where one network is given the results of another,
or noise that was drawn for it.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Container, Sequence
from functools import cached_property

from msgspec.structs import replace

from msprobe.collectives.calls import is_communication
from msprobe.compare.model import Origin
from msprobe.compare.rank_comparison import RankComparison
from msprobe.compare.sides import Side
from msprobe.compare.training.batches import Made
from msprobe.compare.training.facts_pair import FactsPair
from msprobe.compare.training.micro_batches import is_split
from msprobe.compare.verdicts.carried import Carried
from msprobe.compare.verdicts.program_flow import Content, ProgramFlow, content_of
from msprobe.dump.facts import Data, Facts
from msprobe.dump.formats.dtypes import normal_dtype
from msprobe.dump.values import Role, Value
from msprobe.numerics.number_types import epsilon_of
from msprobe.operators.lookup import operator_of
from msprobe.operators.operator import Flow, Operator


class MadeInside(Made):
    """Inputs of models that calls of the step made of what enters it alike on both sides."""

    def __init__(self, comparison: RankComparison, carried: Carried) -> None:
        """Take in a step, and what the one before left."""
        self._comparison = comparison
        self._carried = carried

    def __contains__(self, both: object) -> bool:
        """Return whether calls make the inputs of both sides differ, not what these are made of.

        Something else enters the step, if each side has what the other one lacks.
        """
        assert isinstance(both, tuple)
        if any(self.carried(both)):
            return True
        makers = self._makers_of(both)
        if not any(makers):
            return False
        found: list[dict[Content, Value | Data]] = [
            {**flow.entering(calls)} if calls else {content_of(data): data}
            for flow, calls, data in zip(self._flows, makers, both, strict=True)
        ]
        in_other_order = {
            key
            for key in found[0].keys() & found[1]
            if _is_other_order(found[0][key], found[1][key])
        }
        lone = [
            {k: value for k, value in own.items() if k in in_other_order or not other.holds(k)}
            for own, other in zip(found, reversed(self._flows), strict=True)
        ]
        # Beside samples that both sides take, a window or a table is an argument.
        both_take = [found[0][key] for key in found[0].keys() & found[1]]
        samples = [value for value in both_take if self._is_of_samples(value)]
        if samples:
            # A data set has as many rows as the order in which its samples come.
            rows = {value.shape[0] for value in samples if value.shape}
            lone = [{k: v for k, v in own.items() if self._is_of_samples(v, rows)} for own in lone]
        # Samples that one side puts into a batch, the other may put into another one of the step.
        apart = found[0].keys() - found[1].keys(), found[1].keys() - found[0].keys()
        are_other_samples = min(map(len, found)) > 1 and all(apart) and any(lone)
        return not (all(lone) or are_other_samples)

    def carried(self, both: tuple[Data, Data]) -> tuple[bool, bool]:
        """Return for both sides whether an input is made of results of the step before."""
        return self._carried.of(both)

    def makes(self, data: Data, *, is_target: bool) -> bool:
        """Return whether recorded calls made an input that the other side does not take from them.

        One that needs no gradient any more, say: the detached result of another model. What the
        other side makes as well, and gives to no model, is an argument that it leaves out.
        """
        content, other = content_of(data), int(is_target)
        facts = self._comparison.facts[other]
        given = () if facts is None else map(content_of, facts.data)
        if self._flows[other].holds(content) and content not in given:
            return False
        return any(self._flows[1 - other].makers_of(data))

    def are_made(self, both: tuple[Data, Data]) -> bool:
        """Return whether recorded calls made an input on both sides."""
        return all(self._makers_of(both))

    def is_faulty(self, both: tuple[Data, Data]) -> bool:
        """Return whether calls make inputs differ that are made of data, and of no results."""
        makers = self._makers_of(both)
        is_result = any(map(self._are_results, self._flows, makers))
        return not is_result and not self.is_drawn(both) and both in self

    def is_drawn(self, both: tuple[Data, Data]) -> bool:
        """Return whether inputs are made of drawn numbers alone, by calls that both sides make."""
        makers = self._makers_of(both)
        return not any(
            self._are_results(flow, calls) or flow.entering(calls) or not calls
            for flow, calls in zip(self._flows, makers, strict=True)
        ) and self._lone.isdisjoint(itertools.chain(*makers))

    def _makers_of(self, both: tuple[Data, Data]) -> list[list[str]]:
        return [[*flow.makers_of(data)] for flow, data in zip(self._flows, both, strict=True)]

    @staticmethod
    def _are_results(flow: ProgramFlow, calls: Sequence[str]) -> bool:
        return any(map(flow.is_result, calls))

    def given(self, pair: FactsPair) -> FactsPair:
        """Return facts without results of models, if these alone make the counts differ.

        A call that both sides make takes such a result, perhaps, where the other one takes data.
        """
        counts = {*map(_micro_batches, pair.sides)}
        if len(counts) == 1 or is_split(pair.target.data, pair.reference.data):
            return pair
        records = [{each.record for each in facts.data} for facts in pair.sides]
        names = [set(side.names) for side in self._comparison.sides]
        lone = [(records[0] & names[1]) - records[1], (records[1] & names[0]) - records[0]]
        target, reference = (
            replace(
                facts,
                data=[
                    each
                    for each in facts.data
                    if each.record not in besides
                    and not self._are_results(flow, [*flow.makers_of(each)])
                ],
            )
            for facts, flow, besides in zip(pair.sides, self._flows, lone, strict=True)
        )
        is_even = 0 < _micro_batches(target) == _micro_batches(reference)
        return dataclasses.replace(pair, target=target, reference=reference) if is_even else pair

    @cached_property
    def _flows(self) -> tuple[ProgramFlow, ProgramFlow]:
        target, reference = map(ProgramFlow, self._comparison.sides)
        return target, reference

    @cached_property
    def _lone(self) -> set[str | None]:
        """The records of calls that one side alone makes, or gives another argument."""
        pairs = (
            row.pair
            for row in self._comparison.rows
            if not row.pair.is_matched or (row.is_argument and row.origin is Origin.INTRODUCED)
        )
        return {name for pair in pairs for name in (pair.target, pair.reference)}

    @cached_property
    def _batches(self) -> set[int]:
        """The numbers of samples that models are given."""
        facts = self._comparison.facts
        return {each.shape[0] for side in facts if side for each in side.data if each.shape}

    def _is_of_samples(self, value: Value | Data, rows: Container[int] = ()) -> bool:
        """Return whether a tensor holds integers, or something for each sample."""
        is_whole = not epsilon_of(normal_dtype(value.dtype))
        return is_whole or bool(
            value.shape and (value.shape[0] in self._batches or value.shape[0] in rows)
        )


def without_received(comparison: RankComparison, pair: FactsPair) -> FactsPair:
    """Return facts without the inputs of models that came from another rank: they are no data."""
    target, reference = (
        replace(facts, data=[each for each in facts.data if not received.has(each)])
        for side, facts in zip(comparison.sides, pair.sides, strict=True)
        for received in (_Received(side, facts),)
    )
    return dataclasses.replace(pair, target=target, reference=reference)


class _Received:
    """How large the tensors are that a side gets from other ranks, and when in its step."""

    def __init__(self, side: Side, facts: Facts) -> None:
        self._order = {name: place for place, name in enumerate(side.names)}
        self._unrecorded = [
            (call.elements, call.passes)
            for call in facts.communication
            if _receives(operator_of("Distributed", call.api))
        ]
        self._recorded = [
            (math.prod(each.shape or ()), self._order[name])
            for name in side.names
            if is_communication(side.parsed(name)) and _receives(side.operator(name))
            for each in side.values(name)
            if each.role is Role.OUTPUT
        ]

    def has(self, data: Data) -> bool:
        """Return whether a model's input may have come so: not what an optimizer shares later."""
        size, end = math.prod(data.shape), self._order.get(data.record or "", math.inf)
        return any(own == size and passes <= data.micro for own, passes in self._unrecorded) or any(
            own == size and place < end for own, place in self._recorded
        )


def _receives(operator: Operator) -> bool:
    """Return whether a communication hands out what another rank has."""
    communication = operator.communication
    return communication is not None and communication.flow in (Flow.RECEIVE, Flow.FROM_ROOT)


def _is_other_order(target: Value | Data, reference: Value | Data) -> bool:
    """Return whether two tensors that share their content hold the same integers otherwise."""
    both = target.projections, reference.projections
    is_known = None not in both and not epsilon_of(normal_dtype(target.dtype))
    return is_known and tuple(both[0] or ()) != tuple(both[1] or ())


def _micro_batches(facts: Facts) -> int:
    return len({data.micro for data in facts.data})
