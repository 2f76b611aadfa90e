# SPDX-License-Identifier: Apache-2.0
"""Origins that one step and rank alone cannot tell.

A step begins with the state after the earlier ones: parameters, running averages, states of the
optimizer. A collective hands out the values of other ranks.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property, partial
from typing import Final

from msprobe.collectives.calls import communication_calls, is_communication
from msprobe.collectives.matching import connect
from msprobe.compare.call_differences import value_key
from msprobe.compare.causes import Cause
from msprobe.compare.matching.signatures import signature_of
from msprobe.compare.model import Matched, OperationPair, Origin, Row
from msprobe.compare.rank_comparison import RankComparison
from msprobe.compare.rounding import FINE, is_far_apart, resolution_of
from msprobe.compare.training.facts_pair import FactsPair, StepPair
from msprobe.compare.training.gradient_distances import farthest_told, gradient_distances
from msprobe.compare.training.history import TrainingHistory
from msprobe.compare.training.same_training import adds_up_alike, has_same_training
from msprobe.compare.training.shared_names import later_facts
from msprobe.compare.verdicts.calls import Calls
from msprobe.compare.verdicts.computed_before import ComputedBefore, is_of_structure
from msprobe.compare.verdicts.data_flow import DataFlow, fingerprints
from msprobe.compare.verdicts.history import UPDATE_GROWTH, History, is_other_argument, parameter_of
from msprobe.compare.verdicts.origin_state import mark
from msprobe.compare.verdicts.precision_policy import is_in_other_precision
from msprobe.compare.verdicts.proof import prove
from msprobe.compare.verdicts.retract_harmless import retract_without_effect
from msprobe.dump.facts import Facts
from msprobe.dump.record_names import RecordKind
from msprobe.dump.values import Role, Value
from msprobe.operators.operator import RUNNING

# Causes of values that were there before the step, and differ.
_OUTSIDE: Final = (
    Cause.PARAMETER,
    Cause.OTHER_UPDATE,
    Cause.STEP_GROWTH,
    Cause.OUTSIDE,
    Cause.MODEL_INPUT,
)
# Causes of values that no call of the step made: without modules parameters are among them.
_FROM_OUTSIDE: Final = (Cause.UNRECORDED_VALUE, Cause.PARAMETER, Cause.CHANGED_STATE)
_OF_NO_CALL: Final = (*_FROM_OUTSIDE, Cause.OUTSIDE)
# The same, if something differed in the steps before.
_LEFT: Final = (Cause.LEFT_BEHIND, Cause.STEP_GROWTH)

_Update = tuple[int, Collection[str]]


class Across:
    """Lets rows inherit from earlier steps and from other ranks where these explain them."""

    def __init__(self) -> None:
        self._histories: dict[int | str, History] = {}

    def settle(
        self,
        ranks: Sequence[RankComparison],
        training: TrainingHistory,
        facts: Sequence[FactsPair],
    ) -> None:
        """Revise the origins of one step.

        Args:
            ranks: all of its ranks, with the origins of single ones. Steps come in their order.
            training: the optimizer steps before, and the batches of this step.
            facts: the facts of its ranks, where both sides have them.
        """
        for comparison in ranks:
            own = [each for each in facts if each.rank == comparison.rank]
            history = self._histories.get(comparison.rank)
            if history is None:
                history = self._histories[comparison.rank] = History()
            else:
                is_updated = any(training.updated(comparison.rank).values())
                updates = _Updates(
                    own,
                    training.distances(comparison.rank),
                    history.worst_close,
                    training.told(comparison.rank),
                )
                if is_updated:
                    _clear_as_before(comparison, history)
                outside = [row for row in comparison.rows if row.cause is Cause.OUTSIDE]
                turned = {fingerprints(row)[::-1] for row in outside}
                for row in comparison.rows:
                    if _is_left_unused(row, history) and updates.outgrow(comparison):
                        mark(row, Origin.INHERITED, Cause.LEFT_BEHIND)
                    elif row.origin is Origin.INTRODUCED:
                        _revise(comparison, row, history, updates)
                    elif row.cause is Cause.OTHER_USERS and row.name in history.summed_alike:
                        step = history.summed_alike[row.name]
                        row.cause, row.subject = Cause.HARMLESS_BEFORE, str(step)
                    elif row.cause is Cause.OUTSIDE:
                        _revise_outside(comparison, row, history, turned)
                if is_updated:
                    _inherit_structure(comparison, history)
            _inherit_updates(comparison, training)
            _inherit_own_updates(comparison, own, history)
            history.add(comparison)
            _clear_same_training(comparison, own, training.same_gradient(comparison.rank))
            history.add_harmless(comparison)
        if len(ranks) > 1:
            _settle_ranks(ranks)
        for comparison in ranks:
            comparison.proof = prove(comparison)


def _clear_as_before(comparison: RankComparison, history: History) -> None:
    """Clear what differed in an earlier step, too, without consequence."""
    rewritten: set[int] = set()  # places of calls with another argument
    for row in comparison.rows:
        if row.origin is None:
            continue
        is_result = row.pair.position in rewritten
        step = history.harmless_step(comparison, row, is_result=is_result)
        if step is None:
            continue
        row.origin, row.cause, row.subject = None, Cause.HARMLESS_BEFORE, str(step)
        if is_other_argument(row):
            rewritten.add(row.pair.position)


def _inherit_structure(comparison: RankComparison, history: History) -> None:
    """Explain calls of one side alone inside modules that an earlier step shows to be the same."""
    if history.same_inside is None:
        return
    step, modules = history.same_inside
    inside = ComputedBefore(comparison)
    for row in comparison.rows:
        is_inherited = row.origin is Origin.INHERITED and is_of_structure(row)
        if is_inherited and inside.explains(row, modules):
            row.cause, row.subject = Cause.HARMLESS_BEFORE, str(step)


class _Updates:
    """Parameters and buffers that were updated before a step, for calls that do not name them."""

    def __init__(
        self,
        facts: Sequence[FactsPair],
        distances: Mapping[str, float],
        worst: float,
        told: float,
    ) -> None:
        self._facts = facts
        self._distances = distances
        self._worst = worst
        self._told = told

    def outgrow(self, comparison: RankComparison) -> bool:
        """Return whether gradients of the step are further apart than rounding before it grows to.

        The same in another order, as both programs hand it on, leaves them near each other.
        """
        made = (row for row in comparison.rows if row.value.role is Role.OUTPUT)
        resolution = max(FINE, resolution_of(value for row in made for value in row.values))
        is_known = UPDATE_GROWTH * self._told < self._farthest < math.inf
        return is_known and is_far_apart(self._farthest, resolution)

    @cached_property
    def _farthest(self) -> float:
        """How far gradients of the step are apart at most, but for noise."""
        steps = (step for pair in self._facts for step in pair.steps)
        return max((farthest_told(each, gradient_distances(each)) for each in steps), default=0.0)

    def likely_error(self, comparison: RankComparison, row: Row) -> float | None:
        """Return the relative error that the steps before make likely in a value, at most.

        Returns:
            None where it is no parameter and no buffer, or nothing is known of its gradients.
        """
        argument = signature_of(comparison.parsed(row.pair).base).name_of(row.value.argument)
        if argument in RUNNING:  # earlier calls of the step have written it, too
            return UPDATE_GROWTH * self._worst
        for target, reference in self._names:
            name, is_buffer = target.get(_key(row.target), ("", False))
            if name and name == reference.get(_key(row.reference), ("", False))[0]:
                distance = self._worst if is_buffer else self._distances.get(name)
                return None if distance is None else UPDATE_GROWTH * distance
        return None

    @cached_property
    def _names(self) -> list[list[dict[Hashable, tuple[str, bool]]]]:
        return [[*map(_by_size, each.sides)] for each in self._facts]


def _by_size(facts: Facts) -> dict[Hashable, tuple[str, bool]]:
    """Return shape and norm → the parameter or buffer that has these, and whether it is one."""
    columns = facts.parameters
    if columns is None:
        return {}
    places = zip(columns.name, columns.kind, columns.shape, columns.norm, strict=False)
    return {
        (tuple(shape), norm): (name, kind == "buffer") for name, kind, shape, norm in places if norm
    }


def _key(value: Value | None) -> Hashable:
    return None if value is None else (value.shape, value.norm)


def _is_left_unused(row: Row, history: History) -> bool:
    """Return whether a row's values come from a step before, which had no use for them."""
    return row.cause in _OF_NO_CALL and history.left_unused(row)


def _revise(comparison: RankComparison, row: Row, history: History, updates: _Updates) -> None:
    """Let a value that came from outside inherit from the step before."""
    role = row.value.role
    if row.cause is Cause.CHANGED_STATE:
        return  # in this step
    if role is Role.PARAMETER:
        key = parameter_of(comparison, row)
        if history.explains(key):
            is_frozen = all(value.requires_grad is False for value in row.values)
            limit = history.likely_error(key, is_frozen=is_frozen)
            is_likely = history.handed_on(row) or (row.error is not None and row.error <= limit)
            mark(row, Origin.INHERITED, Cause.EARLIER_STEP if is_likely else Cause.STEP_GROWTH)
        else:
            row.cause = Cause.OTHER_UPDATE
    elif role is not Role.INPUT or row.cause not in _FROM_OUTSIDE:
        return
    elif not _let_inherit_of_lone_call(comparison, row, history) and history.inexact:
        likely = updates.likely_error(comparison, row)
        if history.handed_on(row):
            mark(row, Origin.INHERITED, Cause.EARLIER_RESULT)
        elif likely is None or row.error is None:
            mark(row, Origin.INHERITED, Cause.LEFT_BEHIND)
        else:
            is_likely = row.error <= likely
            mark(row, Origin.INHERITED, Cause.EARLIER_STEP if is_likely else Cause.STEP_GROWTH)


def _revise_outside(
    comparison: RankComparison, row: Row, history: History, turned: Container[Hashable]
) -> None:
    """Let a value from outside inherit from the step before, or be another result of that.

    Args:
        comparison: the step.
        row: the value.
        history: the steps before.
        turned: pairs of values from outside that a call is given, the other way round.
    """
    if history.handed_on(row):
        mark(row, Origin.INHERITED, Cause.EARLIER_RESULT)
        return
    exchanged = history.exchanged(row)
    if exchanged is not None:
        cause = Cause.OTHER_ORDER if fingerprints(row) in turned else Cause.OTHER_VALUE
        mark(row, Origin.INTRODUCED, cause, exchanged)
        return
    _let_inherit_of_lone_call(comparison, row, history)


def _let_inherit_of_lone_call(comparison: RankComparison, row: Row, history: History) -> bool:
    """Let a row inherit from a call of an earlier step that one side alone makes, if there is one.

    Returns: whether there is.
    """
    maker = history.maker_of(row, comparison.step)
    if maker is None:
        return False
    mark(row, Origin.INHERITED, Cause.LEFT_BEHIND)
    comparison.lone_call = comparison.lone_call or maker
    return True


def _inherit_updates(comparison: RankComparison, training: TrainingHistory) -> None:
    """Let parameters inherit from the optimizer steps before, where these were recorded."""
    updated = training.updated(comparison.rank)
    if not any(updated.values()):
        return
    has_same_data = training.has_same_data(comparison.rank)
    for row in comparison.rows:
        if row.cause not in _OUTSIDE or row.origin is None:
            continue
        # At level L1 a parameter is a value from outside, as the data are. APIs do not tell which
        # parameter they are given.
        is_input = row.origin is Origin.INPUT
        if has_same_data if is_input else updated.get(_name(comparison, row), True):
            mark(row, Origin.INHERITED, Cause.OPTIMIZER_STEP)


def _name(comparison: RankComparison, row: Row) -> str:
    """Return the name that facts have for a parameter in the record of its module."""
    path, (_, argument) = comparison.parsed(row.pair).path, parameter_of(comparison, row)
    return f"{path}.{argument}" if path else argument


def _inherit_own_updates(
    comparison: RankComparison, facts: Sequence[FactsPair], history: History
) -> None:
    """Let parameters that are read after an optimizer of the same step inherit from it."""
    for pair in facts:
        updates = list(_own_updates(comparison, pair))
        if not updates:
            continue
        behind = min(_next_forward(comparison, place) for place, _ in updates)
        asked = math.inf
        if pair.evaluates_loss:
            is_told = comparison.asked_again < math.inf
            asked = comparison.asked_again if is_told else comparison.end_of_forward
        asks_again = pair.asks_otherwise
        is_asked_anew = False  # with parameters that the optimizer has made others of
        for row in comparison.rows:
            is_asked_anew |= row.pair.position > asked and (
                row.status.is_difference and not comparison.is_of_backward(row.pair)
            )
            position, cause = row.pair.position, row.cause
            # Not of the step before: the optimizer has made it in this one.
            is_left = cause in _LEFT and history.maker_of(row, comparison.step) is None
            # Nor do calls without modules tell a parameter from data.
            is_left |= cause is Cause.OUTSIDE and position >= asked
            if row.origin is not Origin.INTRODUCED and not is_left:
                continue
            if cause is Cause.ACCUMULATED:
                is_after = position > behind
            else:
                is_later = cause is Cause.GRADIENT_CALL or position > asked
                is_after = (
                    (asks_again and is_later and not row.pair.is_matched)
                    or (is_asked_anew and comparison.is_of_backward(row.pair))
                    or (
                        (is_left or cause in _FROM_OUTSIDE)
                        and comparison.parsed(row.pair).kind is RecordKind.FORWARD
                        and _is_updated(comparison, row, updates, asked)
                    )
                )
            if is_after:
                mark(row, Origin.INHERITED, Cause.OPTIMIZER_STEP)


def _is_updated(
    comparison: RankComparison, row: Row, updates: Sequence[_Update], asked: float
) -> bool:
    """Return whether an optimizer of the step ran before a value that may be its parameter."""
    since = asked if row.cause in (Cause.PARAMETER, Cause.OUTSIDE, *_LEFT) else math.inf
    is_any = row.value.role is not Role.PARAMETER
    return any(
        row.pair.position > min(place, since)
        and (is_any or not names or _name(comparison, row) in names)
        for place, names in updates
    )


def _next_forward(comparison: RankComparison, place: int) -> float:
    """Return the place of the target's first forward call after one: an optimizer ran before it."""
    after = (
        pair.position
        for pair in comparison.pairs
        if pair.position > place >= 0
        and pair.target is not None
        and comparison.parsed(pair).kind is RecordKind.FORWARD
    )
    return next(after, math.inf)


def _own_updates(comparison: RankComparison, pair: FactsPair) -> Iterator[_Update]:
    """Yield optimizer steps that leave other parameters: their places, and names if known."""
    places = comparison.places
    for step in pair.steps:
        changed = {name for name, one in step.changes("after").items() if not one.is_equal}
        if changed and (step.target.record is None or step.target.record in places):
            yield places.get(step.target.record, -1), changed
    both = {id(each) for step in pair.steps for each in step.sides}
    steps = (step for facts in pair.sides for step in facts.optimizer_steps())
    alone = {step.record for step in steps if id(step) not in both}
    if None in alone:  # it steps before the first call
        yield -1, ()
    alone.discard(None)
    for each in comparison.pairs if alone else ():
        if not alone.isdisjoint((each.target, each.reference)):
            yield each.position, ()


def _clear_same_training(
    comparison: RankComparison, facts: Sequence[FactsPair], tolerance: float
) -> None:
    """Clear all origins of a step that trains in the same way, however its calls differ.

    Not where the noise of each value was measured: that is finer than what the facts tell.
    """
    if comparison.noise is not None:
        return
    for pair in facts:
        if all(row.origin is None for row in comparison.rows):
            return
        steps = pair.steps
        is_one_sided = is_in_other_precision(comparison)
        resolutions = _resolutions(comparison, is_one_sided=is_one_sided)
        if has_same_training(pair, steps, tolerance, resolutions, is_one_sided=is_one_sided):
            updates = (comparison.places.get(step.target.record, -1) for step in steps)
            updated: float = max(updates)
        elif adds_up_alike(pair, later_facts(comparison), tolerance):
            updated = comparison.end_of_backward
        else:
            continue
        names = comparison.reference.names
        flow = cache(partial(DataFlow, comparison.rows, names))  # few steps need it
        retract_without_effect(Calls(comparison), flow, updated, _apart(steps))


def _apart(steps: Sequence[StepPair]) -> dict[tuple[int, ...], float]:
    """Return shape → how far optimizers leave a parameter of it apart, relative to its norm."""
    found: dict[tuple[int, ...], float] = defaultdict(float)
    for step in steps:
        columns, changes = step.columns[0], step.changes("after")
        for name, shape in zip(columns.name, columns.shape, strict=False):
            change = changes.get(name)
            error = 0.0 if change is None else change.relative
            found[tuple(shape)] = max(found[tuple(shape)], error)
    return found


def _resolutions(comparison: RankComparison, *, is_one_sided: bool) -> tuple[float, float]:
    """Return to which resolutions gradients and losses may be apart; 0 without other calls.

    Where one side computes as a whole in a coarser type, that is the one which counts.
    """
    found = comparison.resolution, comparison.resolution_of_losses
    if not found[0] or not is_one_sided:
        return found
    made = (r for r in comparison.rows if r.value.role is Role.OUTPUT and r.holds_tensor)
    coarsest = resolution_of(value for row in made for value in row.values)
    return coarsest, coarsest


def _settle_ranks(comparisons: Sequence[RankComparison]) -> None:
    blamed = []
    linked = _Linked(comparisons)
    for comparison in comparisons:
        rows = [row for row in comparison.rows if row.origin is Origin.INTRODUCED]
        inside = _communications_inside(comparison, linked) if rows else {}
        for row in rows:
            key = _handed_out(comparison, row, linked)
            if key is None and row.value.role is Role.OUTPUT:
                key = inside.get(row.pair.name)
            if key is not None:
                blamed.append((comparison, row, key))
    put_in = _put_in(comparisons, linked) if blamed else {}
    for comparison, row, key in blamed:
        others = [rank for rank in put_in.get(key, ()) if rank != comparison.rank]
        if others:
            mark(row, Origin.INHERITED, Cause.OTHER_RANK, str(others[0]))
    for comparison in comparisons:
        for row in comparison.rows:
            is_blamed = row.cause is Cause.CHANGED_STATE and row.origin is Origin.INTRODUCED
            if is_blamed and isinstance(row, Matched):
                shares = [_is_shared(comparisons, comparison, row, side) for side in range(2)]
                if shares[0] != shares[1]:
                    subject = "target" if shares[0] else "reference"
                    mark(row, Origin.INTRODUCED, Cause.OTHER_RANKS_STATE, subject)


def _is_shared(
    comparisons: Sequence[RankComparison], comparison: RankComparison, row: Row, side: int
) -> bool:
    """Return whether another rank of a side holds a value of a row: ranks do that broadcast it."""
    own = value_key(row.values[side])
    return any(
        value_key(each.values[side]) == own
        for other in comparisons
        if other is not comparison
        for each in other.rows
        if each.name == row.name and len(each.values) == len(row.values)
    )


class _Linked:
    """The calls of several ranks that are one communication."""

    def __init__(self, comparisons: Sequence[RankComparison]) -> None:
        self._comparisons = comparisons

    def key(self, comparison: RankComparison, pair: OperationPair) -> Hashable:
        """Return a key that all calls of a communication share."""
        number = self._numbers.get((comparison.rank, pair.target))
        # Where the ranks of a message are not known, calls of one name belong together.
        return (pair.target, pair.reference) if number is None else number

    @cached_property
    def _numbers(self) -> dict[tuple[int | str, str | None], int]:
        calls = {}
        for comparison in self._comparisons:
            if isinstance(comparison.rank, int):
                records = comparison.target.view.records
                names = {name: records.parsed(name) for name in records}
                calls[comparison.rank] = communication_calls(records, names, comparison.rank)
        return {
            (call.rank, call.name): number
            for number, match in enumerate(connect(calls))
            for call in match.calls
        }


def _communications_inside(comparison: RankComparison, linked: _Linked) -> dict[str, Hashable]:
    """Return a call → the last communication that both sides make inside it."""
    found: dict[str, Hashable] = {}
    for pair in comparison.pairs:
        side = comparison.side_of(pair)
        if pair.is_matched and is_communication(side.parsed(pair.name)):
            for parent in side.around(pair.name):
                if side.parsed(parent).is_module:
                    break
                found[parent] = linked.key(comparison, pair)
    return found


def _handed_out(comparison: RankComparison, row: Row, linked: _Linked) -> Hashable:
    """Return the collective or the parameter by which a row depends on other ranks, or None."""
    parsed = comparison.parsed(row.pair)
    if parsed.kind is RecordKind.PARAMETERS_GRAD_REDUCED:
        return parameter_of(comparison, row)
    return linked.key(comparison, row.pair) if is_communication(parsed) else None


def _put_in(
    comparisons: Iterable[RankComparison], linked: _Linked
) -> dict[Hashable, list[int | str]]:
    """Return collective or parameter → the ranks whose own share differs."""
    found: dict[Hashable, list[int | str]] = defaultdict(list)
    for comparison in comparisons:
        for row in comparison.rows:
            # A communication that one side alone makes is a difference, and puts in none.
            if not row.status.is_difference or not row.pair.is_matched:
                continue
            parsed = comparison.parsed(row.pair)
            if parsed.kind is RecordKind.PARAMETERS_GRAD:
                found[parameter_of(comparison, row)].append(comparison.rank)
            elif row.value.role is Role.INPUT and row.holds_tensor and is_communication(parsed):
                found[linked.key(comparison, row.pair)].append(comparison.rank)
    return found
