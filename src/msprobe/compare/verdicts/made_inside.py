# SPDX-License-Identifier: Apache-2.0
"""`MadeInside`: which inputs of a model are no data, because recorded calls made them.

One network is given the results of another, or noise that was drawn for it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable
from functools import cached_property
from typing import Final

from msgspec.structs import replace

from msprobe.collectives.calls import is_communication
from msprobe.compare.causes import Cause
from msprobe.compare.model import Origin, Status
from msprobe.compare.rank_comparison import RankComparison
from msprobe.compare.training.data import Made, is_split
from msprobe.compare.training.facts_pair import FactsPair
from msprobe.compare.verdicts.data_flow import fingerprint
from msprobe.dump.facts import Data, Facts
from msprobe.dump.values import Role, Value
from msprobe.operators.lookup import operator_of
from msprobe.operators.operator import Flow, Operator

_RESULT: Final = "result"
_CULPRIT: Final = "culprit"
_OTHER_DRAW: Final = "other_draw"
_OUTSIDE: Final = "outside"


class MadeInside(Made):
    """Values that modules, parameters or generators made within a step."""

    def __init__(self, comparison: RankComparison) -> None:
        self._comparison = comparison
        # To calls to blame, or by the other side's partners of what follows from them.
        self._given: set[Hashable] = set()

    def __contains__(self, both: object) -> bool:
        """Return whether the inputs of both sides were made by calls that were recorded.

        Or those of one side by calls to blame, of what is the other side's input.
        """
        assert isinstance(both, tuple)
        sides = list(zip(self._made, both, strict=True))
        made = [_key(data) in made and not _encloses(data, made) for made, data in sides]
        if all(made) or not any(made):
            return made[0]
        (found, own), (_, other) = sides if made[0] else reversed(sides)
        return _CULPRIT in found[_key(own)] and _key(other) in self._given

    def makes(self, data: Data, *, is_target: bool) -> bool:
        """Return whether recorded calls made an input that the other side does not take from them.

        One that needs no gradient any more, say: the detached result of another model.
        """
        made = self._made[not is_target]
        return _key(data) in made and not _encloses(data, made)

    def is_faulty(self, both: tuple[Data, Data]) -> bool:
        """Return whether a call to blame, or numbers that differ, made the inputs of the data."""
        keys = zip(self._made, both, strict=True)
        found = [made[_key(data)] for made, data in keys if _key(data) in made]
        return both in self and all(
            _CULPRIT in each or {_OTHER_DRAW, _OUTSIDE} <= each for each in found
        )

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
                    and (_RESULT not in made.get(_key(each), ()) or _encloses(each, made))
                ],
            )
            for facts, made, besides in zip(pair.sides, self._made, lone, strict=True)
        )
        is_even = 0 < _micro_batches(target) == _micro_batches(reference)
        return dataclasses.replace(pair, target=target, reference=reference) if is_even else pair

    @cached_property
    def _made(self) -> tuple[dict[Hashable, set[str]], dict[Hashable, set[str]]]:
        return self._made_by(is_target=True), self._made_by(is_target=False)

    def _made_by(self, *, is_target: bool) -> dict[Hashable, set[str]]:
        """Return key → the records around the calls that made such a value.

        `_RESULT` is among them if it hangs on a module or a parameter, not on drawn numbers alone;
        `_CULPRIT` if it hangs on a call to blame, `_OTHER_DRAW` on drawn numbers that differ,
        `_OUTSIDE` on what no call made.
        """
        comparison = self._comparison
        side = comparison.side(is_target=is_target)
        found: dict[Hashable, set[str]] = {}
        position, name = -1, ""
        seen: set[Hashable] = set()
        outside: set[Hashable] = set()  # what calls were given before any call made it
        of_data: set[Hashable] = set()  # what was made of it, of tensors without a gradient
        keys: set[Hashable] = set()
        depends = is_blamed = draws = is_module = picks = has_other_draw = takes_data = False
        for row in comparison.rows:
            own, other = (row.target, row.reference)[:: 1 if is_target else -1]
            if own is None:
                continue
            if row.pair.position != position:
                position, depends = row.pair.position, False
                keys, is_blamed = set(), False
                name = (row.pair.target if is_target else row.pair.reference) or ""
                draws, is_module = side.operator(name).draws_random, side.parsed(name).is_module
                picks = has_other_draw = takes_data = False
            # Numbers that both sides draw by the same call, with the same arguments, are data.
            # A batch may be put together from lengths and other numbers that follow from it.
            # Which sample of a data set a call takes is data, too.
            is_sample = own.slot == "input.1" and own.type == "int"
            picks = picks or (is_sample and side.parsed(name).path == "__getitem__")
            is_data = picks or (draws and row.pair.is_matched) if own.is_tensor else not draws
            # What code that was not recorded changed comes from outside.
            is_data = is_data or row.cause is Cause.CHANGED_BETWEEN
            is_own = row.origin is Origin.INTRODUCED and not is_data
            is_blamed = is_blamed or is_own
            if not own.is_tensor:
                continue
            mark = fingerprint(own)
            if own.role is not Role.OUTPUT:
                if mark not in seen:
                    outside.add(mark)
                    takes_data = takes_data or not own.requires_grad
                keys.add(_key(own))
                known = found.get(_key(own), ())
                depends = depends or bool(own.requires_grad) or _RESULT in known
                is_blamed = is_blamed or _CULPRIT in known
                has_other_draw = has_other_draw or _OTHER_DRAW in known
                takes_data = takes_data or _key(own) in of_data
                continue
            seen.add(mark)
            of_data |= {_key(own)} if takes_data else set()
            if mark is not None and mark in outside:
                continue  # it is only handed on, as lengths are by a packed sequence
            is_result = depends or own.requires_grad or is_module
            is_drawn = draws and mark is not None
            has_other_draw = has_other_draw or (is_drawn and row.status.is_difference)
            # Of two calls that draw in place of each other, one is blamed.
            is_blamed = is_blamed or (is_drawn and not row.pair.is_matched)
            # Of calls that one side alone makes, those that follow from the first take more in.
            if is_own or (is_blamed and not row.pair.is_matched):
                self._given |= keys
            # Another number of samples is no consequence of a call.
            if is_blamed and other is not None and row.status is not Status.SHAPE:
                self._given.add(_key(other))
            if not (is_result or is_blamed or is_drawn or has_other_draw):
                continue
            around = found.setdefault(_key(own), set())
            outer = None if around else name  # else it is only handed on
            around.update([_RESULT] * is_result + [_CULPRIT] * is_blamed)
            around.update([_OTHER_DRAW] * has_other_draw + [_OUTSIDE] * takes_data)
            while outer is not None:
                around.add(outer)
                outer = side.parent(outer)
        return found


def without_received(comparison: RankComparison, pair: FactsPair) -> FactsPair:
    """Return facts without the inputs of models that came from another rank: they are no data."""
    found = []
    for side, facts in zip(comparison.sides, pair.sides, strict=True):
        sizes = {
            call.elements
            for call in facts.communication
            if _receives(operator_of("Distributed", call.api))
        }
        for name in side.names:
            parsed = side.parsed(name)
            if is_communication(parsed) and _receives(side.operator(name)):
                sizes.update(
                    math.prod(each.shape or ())
                    for each in side.values(name)
                    if each.role is Role.OUTPUT
                )
        data = [each for each in facts.data if math.prod(each.shape) not in sizes]
        found.append(replace(facts, data=data) if sizes else facts)
    return dataclasses.replace(pair, target=found[0], reference=found[1])


def _receives(operator: Operator) -> bool:
    """Return whether a communication hands out what another rank has."""
    communication = operator.communication
    return communication is not None and communication.flow in (Flow.RECEIVE, Flow.FROM_ROOT)


def _micro_batches(facts: Facts) -> int:
    return len({data.micro for data in facts.data})


def _encloses(data: Data, made: dict[Hashable, set[str]]) -> bool:
    """Return whether the model itself hands on what it was given."""
    return data.record is not None and data.record in made[_key(data)]


def _key(value: Data | Value) -> Hashable:
    return tuple(value.shape or ()), value.max, value.min, value.mean, value.norm
