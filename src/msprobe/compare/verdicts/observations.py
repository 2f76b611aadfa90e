# SPDX-License-Identifier: Apache-2.0
"""`StepObservations`: what a verdict needs of the rows of one step and rank.

The rows themselves may be set aside once a step is finished.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from msprobe.api_prefixes import COMPILED
from msprobe.compare.causes import Cause
from msprobe.compare.matching.signatures import signature_of
from msprobe.compare.model import Matched, OperationPair, Origin, Row, Status
from msprobe.compare.rank_comparison import RankComparison
from msprobe.compare.sides import Side
from msprobe.compare.training.data_pairing import keys_of
from msprobe.compare.training.differences import Moment
from msprobe.compare.training.fingerprints import Fingerprint
from msprobe.compare.training.gradient_factors import Factor, common_factor, factor_of_row
from msprobe.compare.training.loaders import holds_otherwise
from msprobe.compare.training.outline_differences import OutlineDifference
from msprobe.compare.training.outlines import (
    difference_before,
    difference_behind,
    difference_by_factor,
    difference_of_labels,
    gives_other_numbers,
)
from msprobe.compare.training.random_calls import draws_numbers, draws_within
from msprobe.compare.training.shared_names import facts_of
from msprobe.compare.verdicts.cleared_gradients import (
    cleared_elsewhere,
    cleared_gradients,
    left_over,
    name_of_gradient,
)
from msprobe.compare.verdicts.clues import (
    compiled_call,
    early_cast,
    evened,
    is_only_read,
    late_call,
    lone_readers,
    lone_users,
    small_argument,
    small_call,
    small_option,
    unseen_write,
    unused_change,
    written_parameter,
)
from msprobe.compare.verdicts.data_flow import fingerprint
from msprobe.compare.verdicts.lone_draws import lone_draw
from msprobe.compare.verdicts.moved_updates import moved_update, reads_across_update
from msprobe.compare.verdicts.places import Clue, Place
from msprobe.compare.verdicts.precision_policy import autocast_alone
from msprobe.compare.verdicts.proof import Proof
from msprobe.compare.verdicts.shifts import shifted
from msprobe.compare.verdicts.turns import Turns, turns_of
from msprobe.compare.verdicts.unnoticed import other_cast, unnoticed_call
from msprobe.dump.facts import Ending
from msprobe.dump.record_names import PARAMETER_GRADIENTS, RecordKind
from msprobe.dump.values import Role
from msprobe.numerics.number_types import epsilon_of
from msprobe.operators.lookup import operator_of
from msprobe.operators.operator import Family


class GradientFactor(NamedTuple):
    """A factor that nearly all gradients of a step share.

    Attributes:
        factor: the factor.
        place: the first record in backward order that shows it.
        total: how many gradients differ.
        is_reduced: the gradients are those after a reduction over ranks.
        has_same_loss: the losses were recorded, and are equal: none was scaled.
        totals: the total norms of the gradients of parameters, where these alone differ.
        parameters: their names, where these alone differ, and others agree.
        passes: how many backward passes both sides made, where that differs.
    """

    factor: Factor
    place: Place
    total: int
    is_reduced: bool = False
    has_same_loss: bool = False
    totals: tuple[float, float] | None = None
    parameters: Sequence[str] = ()
    passes: tuple[int, int] | None = None

    @property
    def moment(self) -> Moment:
        """When in the step it takes effect."""
        return Moment.REDUCE if self.is_reduced else Moment.BACKWARD


@dataclass(frozen=True, slots=True, kw_only=True)
class StepObservations:
    """Observations from the rows of one step and rank.

    Attributes:
        step: the target's step.
        rank: the rank's number, or its folder's name.
        is_exact: every value is equal.
        is_shared_exact: every value of the calls that both sides make is equal, until the last
            backward pass ends.
        asked_exactly: every value is equal until an optimizer asks for the loss again.
        updated_exactly: parameters that both sides first step an optimizer for, if all values of
            these calls are equal until the next forward pass.
        exact_passes: backward passes that begin before a value of a forward pass is not equal;
            infinite if all are equal.
        agreeing_passes: the same before one differs.
        exact_models: calls of models before the first whose results are not equal.
        agreeing_models: calls of models that end before a value of a forward pass differs.
        forward_differs: a value of the forward pass differs.
        backward_differs: a gradient differs.
        random_input: a record whose random state differs though nothing before it does.
        given: a tensor from outside that is no parameter, if the first difference is in it.
        given_at: position of the call that is given it.
        given_samples: it holds integers, or one row for each sample: labels, masks, rewards.
        has_same_batches: both sides recorded what models are given, and it is equal.
        proof: whether the differences are rounding; None where every value is equal.
        factor: factor of the gradients, where the forward pass agrees.
        precisions: (target's type, reference's type) → values whose floating types differ.
        first_precision: the first of these values.
        idle_arguments: arguments that differ without consequence.
        fed_otherwise: paths of modules that get another input, with or without consequence; where
            no module has a record, names of the buffers of such calls.
        replaces_parameters: a module has other parameters, and comes to the same results.
        late_call: the first call that one side alone makes after its backward pass began.
        reads_only: such calls only make tensors of their own; asked where no update is known.
        lone_users: parameter that gets a gradient on one side alone → the first call that this
            side alone makes with it.
        lone_readers: parameter → the first call of one side alone that is given it and hands a
            gradient back.
        lone_draw: the first call by which one side alone draws random numbers.
        own_draw: the same from a generator of the program's own.
        lone_call: a call of an earlier step that one side alone makes, whose result this one uses.
        knows_updates: both sides recorded what the optimizer got and made of it.
        compiled: the first call of compiled code that makes another result of equal inputs, by
            little. A whole program is no single call, whose rounding would explain it.
        small: an argument, or a call that draws random numbers, of one side alone, whose effect is
            within the tolerance of its type.
        shifted: a value that moves as a whole, though within the tolerance of its type; or the call
            of one side alone that makes it.
        has_other_numbers: one side alone runs under autocast, and a call without a record is given
            another number as well.
        evened: a call or argument that makes the result of a module differ, though what is made of
            that agrees.
        ahead: the call before that of a model that differs, where calls have no records and what
            the model is given differs first.
        behind: the call after those of the models that differs, where calls have no records and
            gradients alone differ.
        cast: the cast by which one side alone rounds numbers, in words; see `other_cast`.
        unused: a call of one side alone that changes a tensor which no recorded call uses.
        written: a call of one side alone that writes a parameter after its update; or one that
            reads it before that on one side, and after it on the other.
        moved: an update that one side makes before the first call that differs, the other after it;
            or the copy that one side uses instead.
        unnoticed: a call that the flow of data alone shows; see `unnoticed_call`. Or a cast without
            a record, before anything differs.
        draws: the models of both sides draw random numbers.
        cleared: that one side clears gradients where the other does not, and what to do; in words.
        has_modules_only: both sides were recorded at level L0.
        runs_compiled: a side called compiled code, which may do anything to parameters.
        has_facts: both sides recorded the training around their calls.
        trains: gradients were taken, as far as records and facts tell.
        reads_gradients: gradients of parameters were recorded on both sides.
        turns: which optimizer steps come before each call of the step.
        broken_off: how the step ended early on both sides, in words; None if it did not.
    """

    step: int
    rank: int | str
    is_exact: bool
    exact_passes: float = math.inf
    agreeing_passes: float = math.inf
    is_shared_exact: bool = False
    asked_exactly: bool = False
    updated_exactly: frozenset[str] = frozenset()
    exact_models: int = 0
    agreeing_models: float = math.inf
    forward_differs: bool = False
    backward_differs: bool = False
    random_input: str | None = None
    given: Clue | None = None
    given_at: int = 0
    given_samples: bool = False
    has_same_batches: bool = False
    proof: Proof | None = None
    factor: GradientFactor | None = None
    precisions: Mapping[tuple[str, str], int] = field(default_factory=dict)
    first_precision: Place | None = None
    idle_arguments: int = 0
    fed_otherwise: frozenset[str] = frozenset()
    replaces_parameters: bool = False
    late_call: Clue | None = None
    reads_only: bool = False
    lone_users: Mapping[str, Clue] = field(default_factory=dict)
    lone_readers: Mapping[str, Clue] = field(default_factory=dict)
    lone_draw: Clue | None = None
    own_draw: Clue | None = None
    lone_call: Clue | None = None
    knows_updates: bool = False
    compiled: Clue | None = None
    small: Clue | None = None
    shifted: Clue | None = None
    evened: Clue | None = None
    ahead: OutlineDifference | None = None
    behind: OutlineDifference | None = None
    cast: str = ""
    has_other_numbers: bool = False
    unused: Clue | None = None
    written: Clue | None = None
    moved: Clue | None = None
    unnoticed: Clue | None = None
    cleared: tuple[str, str] | None = None
    draws: bool = False
    has_modules_only: bool = False
    runs_compiled: bool = False
    has_facts: bool = False
    trains: bool = False
    reads_gradients: bool = False
    turns: Turns = field(default_factory=Turns)
    broken_off: str | None = None

    @property
    def is_close(self) -> bool:
        """Whether every value agrees up to rounding, in the same types."""
        return not (self.forward_differs or self.backward_differs or self.precisions)


def observe(
    comparison: RankComparison,
    last_gradients: Mapping[str, tuple[Fingerprint, Fingerprint]] = MappingProxyType({}),
    left: Mapping[str, tuple[Fingerprint, Fingerprint]] = MappingProxyType({}),
) -> StepObservations:
    """Return what the rows of a comparison say; needs their origins.

    Args:
        comparison: a step and rank.
        last_gradients: parameter → what optimizers got of its gradient in the step before.
        left: parameter → the gradient that a backward pass of one side alone left behind that.
    """
    inexact = [row for row in comparison.rows if row.status is not Status.EQUAL]
    if not inexact:
        return StepObservations(
            step=comparison.step,
            rank=comparison.rank,
            is_exact=True,
            is_shared_exact=True,
            asked_exactly=True,
            unused=unseen_write(comparison),
            written=reads_across_update(comparison, inexact),
            behind=difference_behind(*comparison.facts),
            draws=draws_within(*comparison.facts),
            lone_draw=lone_draw(comparison),
            own_draw=lone_draw(comparison, is_given=True),
            **_work(comparison),
            broken_off=_broken_off(comparison),
        )
    of_types = _of_types(comparison) if next(_precisions(inexact), None) else []
    differing = [
        row
        for row in inexact
        if row.status.is_difference and row.origin is not None and not is_only_retyped(row)
    ]
    end = comparison.end_of_backward
    backward = [row for row in differing if _is_gradient(comparison, row)]
    forward_differs = len(backward) < len(differing)
    factor = behind = None
    if backward and not forward_differs:
        factor = _factor(comparison, backward)
        scaled = factor and difference_by_factor(*comparison.facts, factor.factor.value)
        facts = comparison.facts
        behind = scaled or difference_behind(*facts) or difference_of_labels(*facts)
    knows_updates = all(facts is not None and facts.optimizer_steps() for facts in comparison.facts)
    return StepObservations(
        step=comparison.step,
        rank=comparison.rank,
        is_exact=False,
        exact_passes=_passes_before(comparison, inexact),
        agreeing_passes=_passes_before(comparison, differing),
        is_shared_exact=_is_exact_until(end, inexact),
        asked_exactly=all(r.pair.position >= comparison.asked_again for r in inexact),
        updated_exactly=_updated_exactly(comparison, inexact),
        exact_models=_exact_models(comparison),
        agreeing_models=_models_before(comparison, differing),
        forward_differs=forward_differs,
        backward_differs=bool(backward),
        random_input=next(
            (
                row.pair.name
                for row in differing
                if row.origin is Origin.INPUT and row.cause is Cause.RANDOM_STATE
            ),
            None,
        ),
        given=_given(comparison, differing[0]) if differing else None,
        given_at=differing[0].pair.position if differing else 0,
        given_samples=bool(differing) and _are_samples(comparison, differing[0]),
        has_same_batches=_has_same_batches(comparison),
        proof=comparison.proof,
        factor=factor,
        precisions=Counter(_precisions(of_types)),
        first_precision=Place.of(comparison, of_types[0].pair) if of_types else None,
        idle_arguments=sum(row.cause is Cause.NO_EFFECT for row in inexact),
        fed_otherwise=_fed_otherwise(comparison, inexact),
        replaces_parameters=any(
            row.cause is Cause.HARMLESS and row.value.role is Role.PARAMETER for row in inexact
        ),
        late_call=late_call(comparison),
        lone_users=lone_users(comparison),
        lone_readers=lone_readers(comparison),
        lone_draw=lone_draw(comparison),
        own_draw=lone_draw(comparison, is_given=True),
        lone_call=comparison.lone_call,
        small=small_argument(comparison) or small_option(comparison) or small_call(comparison),
        shifted=shifted(comparison),
        evened=evened(comparison, inexact),
        ahead=_ahead(comparison, differing[0]) if forward_differs else None,
        behind=behind,
        cast=other_cast(comparison),
        has_other_numbers=comparison.has_modules_only
        and autocast_alone(comparison) > 0
        and gives_other_numbers(*comparison.facts),
        unused=unused_change(comparison),
        written=written_parameter(comparison, inexact) or reads_across_update(comparison, inexact),
        moved=moved_update(comparison, differing[0].pair) if differing else None,
        unnoticed=unnoticed_call(comparison) or early_cast(comparison),
        draws=draws_within(*comparison.facts)
        or all(any(_draws(side, name) for name in side.names) for side in comparison.sides),
        turns=turns_of(comparison),
        cleared=cleared_gradients(comparison)
        or left_over(comparison, last_gradients)
        or left_over(comparison, left)
        or cleared_elsewhere(comparison),
        broken_off=_broken_off(comparison),
        **_work(comparison),
        knows_updates=knows_updates,
        reads_only=not knows_updates and is_only_read(comparison),
        compiled=compiled_call(comparison, inexact),
    )


def _work(comparison: RankComparison) -> dict[str, Any]:
    """Return what the step does, and how much of it was recorded; see `StepObservations`."""
    kinds = {comparison.parsed(pair).kind for pair in comparison.pairs}
    read = (comparison.parsed(pair).kind for pair in comparison.pairs if pair.is_matched)
    has_loss = any(facts is not None and facts.loss for facts in comparison.facts)
    return {
        "has_modules_only": comparison.has_modules_only,
        "runs_compiled": any(p.name.startswith(f"{COMPILED}.") for p in comparison.pairs),
        "has_facts": None not in comparison.facts,
        "trains": has_loss or RecordKind.BACKWARD in kinds,
        "reads_gradients": any(kind in PARAMETER_GRADIENTS for kind in read),
    }


def _fed_otherwise(comparison: RankComparison, inexact: Sequence[Row]) -> frozenset[str]:
    differing = [
        comparison.parsed(row.pair)
        for row in inexact
        if row.status is Status.DIFFERS and row.value.role is Role.INPUT
    ]
    calls = [name for name in differing if name.kind is RecordKind.FORWARD]
    modules = frozenset(name.path for name in calls if name.is_module)
    operators = (operator_of(name.prefix, name.path) for name in calls if not name.is_module)
    return modules or frozenset(
        argument for each in operators if each.state_arguments for argument in each.arguments
    )


def _broken_off(comparison: RankComparison) -> str | None:
    """Return what an exception or a signal did to the step, if it did the same on both sides.

    Where both broke off at other places, the calls that one side alone reached tell so.
    """
    ends = [None if facts is None else facts.ended for facts in comparison.facts]
    if ends[0] is None or ends[1] is None or ends[0].words != ends[1].words:
        return None
    return ends[0].words if ends[0].how in (Ending.INTERRUPTED, Ending.KILLED) else None


def _of_types(comparison: RankComparison) -> list[Matched]:
    """Return the rows of two precisions; a type that one call chose comes to others from there."""
    return [row for row in comparison.rows if isinstance(row, Matched) and row.precisions]


def _precisions(rows: Iterable[Row]) -> Iterator[tuple[str, str]]:
    """Yield the types of rows of two precisions."""
    for row in rows:
        if isinstance(row, Matched) and (types := row.precisions):
            yield types


def is_only_retyped(row: Row) -> bool:
    """Return whether the same numbers come in as another type: truth values as integers, say."""
    return row.status is Status.DTYPE and row.origin is Origin.INPUT and row.error == 0


def _is_exact_until(end: float, inexact: Sequence[Row]) -> bool:
    return not any(row.pair.is_matched and row.pair.position <= end for row in inexact)


def _updated_exactly(comparison: RankComparison, inexact: Sequence[Row]) -> frozenset[str]:
    """Return the parameters of the first optimizer's step, if all is equal until the next pass."""
    steps = [next(iter(f.optimizer_steps()), None) for f in comparison.facts if f is not None]
    firsts = [each for each in steps if each is not None]
    both = [(frozenset(each.parameters.name), each.record) for each in firsts]
    pair = next(
        (p for p in comparison.pairs if [p.target, p.reference] == [r for _, r in both]), None
    )
    if pair is None or both[0][0] != both[1][0]:
        return frozenset()
    later = (p for p in comparison.pairs if p.position > pair.position)
    forward = (p for p in later if comparison.parsed(p).kind is RecordKind.FORWARD)
    end = next((each.position - 1 for each in forward), math.inf)
    return both[0][0] if _is_exact_until(end, inexact) else frozenset()


def _passes_before(comparison: RankComparison, rows: Sequence[Row]) -> float:
    """Return how many backward passes begin before the first row of a forward pass.

    Infinitely many if it is of a loss that an optimizer asks for again: of these no pass is told.
    """
    first = next((row for row in rows if not _is_gradient(comparison, row)), None)
    if first is None or first.pair.position >= comparison.asked_again:
        return math.inf
    return comparison.passes_before(first.pair.position)


def _model_calls(comparison: RankComparison) -> list[OperationPair]:
    return [pair for pair in comparison.pairs if comparison.side_of(pair).is_model_call(pair.name)]


def _models_before(comparison: RankComparison, rows: Sequence[Row]) -> float:
    """Return how many calls of models end before the first row of a forward pass.

    A record follows those of its parts. Where parts of a model are called, backward passes tell.
    """
    first = next((row for row in rows if not _is_gradient(comparison, row)), None)
    if first is None:
        return math.inf
    models = _model_calls(comparison)
    if not models:
        return comparison.passes_before(first.pair.position)
    return sum(pair.position < first.pair.position for pair in models)


def _exact_models(comparison: RankComparison) -> int:
    models = _model_calls(comparison)
    results: dict[int, bool] = {}
    places = {pair.position for pair in models}
    for row in comparison.rows:
        place = row.pair.position
        if place in places and row.value.role is Role.OUTPUT:
            results[place] = results.get(place, True) and row.status is Status.EQUAL
    agree = (results.get(pair.position, False) for pair in models)
    return sum(itertools.takewhile(bool, agree))


def _are_samples(comparison: RankComparison, row: Row) -> bool:
    """Return whether a value is the target of a loss, or made of integers or a row for each sample.

    What is looked up or taken out of it counts as well: a call that only moves elements hands it
    on. So does what a data set holds otherwise. One that a side leaves out is an argument, such as
    the weights of the classes.
    """
    values = list(row.values)
    if not all(value.is_tensor for value in values):
        return False
    if not any(epsilon_of(value.dtype) for value in values):
        return True
    side = comparison.side_of(row.pair)
    if side.operator(row.pair.name).family is Family.MOVING:
        values += [each for each in side.values(row.pair.name) if each.role is Role.OUTPUT]
    facts = comparison.facts[0]
    batch = {each.shape[0] if each.shape else 1 for each in facts.data} if facts else set()
    if any(value.shape and value.shape[0] in batch for value in values) or _is_target(side, row):
        return True
    if holds_otherwise(*comparison.facts, row.value):
        return True
    return side.parent(row.pair.name) is None and _is_given_anew(comparison, row)


def _is_target(side: Side, row: Row) -> bool:
    """Return whether a tensor is what a function of a loss compares with, by its name for it."""
    return signature_of(side.parsed(row.pair.name).base).name_of(row.value.argument) == "target"


def _is_given_anew(comparison: RankComparison, row: Row) -> bool:
    """Return whether the program gives calls of one kind several such tensors: one a sample.

    A table, or the weights of classes, are the same each time.
    """
    base, argument = comparison.parsed(row.pair).base, row.value.argument.partition(".")[0]
    given = {
        fingerprint(each.value)
        for each in comparison.rows
        if each.origin is Origin.INPUT
        and each.cause is Cause.OUTSIDE
        and comparison.parsed(each.pair).base == base
        and each.value.argument.partition(".")[0] == argument
    }
    return len(given - {None}) > 1


def _has_same_batches(comparison: RankComparison) -> bool:
    batches = [() if facts is None else keys_of(facts.data) for facts in comparison.facts]
    return bool(batches[0]) and batches[0] == batches[1]


def _given(comparison: RankComparison, row: Row) -> Clue | None:
    knows_parameters = all(each is not None and each.parameters for each in comparison.facts)
    is_known = knows_parameters or not any(epsilon_of(value.dtype) for value in row.values)
    is_outside = row.origin is Origin.INPUT and row.cause is Cause.OUTSIDE and row.holds_tensor
    if not is_known or not is_outside:
        return None
    place = Place.of(comparison, row.pair)
    return Clue(f"{row.value.slot} of {place.words}: {row.finding}", place)


def _ahead(comparison: RankComparison, row: Row) -> OutlineDifference | None:
    """Return the call before the model that the first difference is in, if it comes in with it."""
    side = comparison.side_of(row.pair)
    names = (row.pair.name, *side.around(row.pair.name))
    model = next((name for name in names if side.is_model_call(name)), None)
    given = next(
        (
            each.pair
            for each in comparison.rows
            if each.pair.name == model
            and each.status.is_difference
            and each.value.role is Role.INPUT
            and each.holds_tensor
        ),
        None,
    )
    if given is None:
        return None
    return difference_before(comparison.sides, (given.target, given.reference))


def _draws(side: Side, record: str) -> bool:
    """Return whether a call of a model draws random numbers: not dropout without chance."""
    return draws_numbers(side, record) and any(side.around(record))


def _is_gradient(comparison: RankComparison, row: Row) -> bool:
    kind = comparison.parsed(row.pair).kind
    return kind is RecordKind.BACKWARD or kind in PARAMETER_GRADIENTS


def _factor(comparison: RankComparison, rows: Sequence[Row]) -> GradientFactor | None:
    # An activation that one side alone has as a module has gradients that the other does not keep.
    rows = [row for row in rows if row.pair.is_matched]
    if any(row.status in (Status.ADDED, Status.MISSING) and row.origin is not None for row in rows):
        return None  # no factor takes a gradient away
    factors = [(row, factor_of_row(row)) for row in rows]
    common = common_factor(factor for _, factor in factors)
    # One that leaves much of the difference is no factor: another gradient was added, say.
    if common is None or (common.residual is not None and not common.is_proved):
        return None
    first = next(
        row for row, factor in factors if factor is not None and factor.agrees_with(common.value)
    )
    parsed = comparison.parsed(first.pair)
    return GradientFactor(
        common,
        Place.of(comparison, first.pair),
        len(factors),
        parsed.kind is RecordKind.PARAMETERS_GRAD_REDUCED,
        _has_same_loss(comparison),
        _totals(comparison, rows),
        _parameters_alone(comparison, rows),
        _other_passes(comparison),
    )


def _other_passes(comparison: RankComparison) -> tuple[int, int] | None:
    pair = facts_of(comparison)
    is_known = pair is not None and pair.ran_through and all(pair.passes)
    return pair.passes if pair is not None and is_known and len({*pair.passes}) > 1 else None


def _parameters_alone(comparison: RankComparison, differing: Sequence[Row]) -> list[str]:
    """Return the parameters whose gradients are all that differ; none if no other's agrees."""
    known: Counter[str] = Counter()  # in how many micro batches they differ
    for row in comparison.rows:
        if comparison.parsed(row.pair).kind in PARAMETER_GRADIENTS:
            known[name_of_gradient(comparison, row)] += row.status.is_difference
    is_all = not all(comparison.parsed(row.pair).kind in PARAMETER_GRADIENTS for row in differing)
    return [] if is_all or all(known.values()) else [name for name in known if known[name]]


def _totals(comparison: RankComparison, differing: Sequence[Row]) -> tuple[float, float] | None:
    """Return the total norms of the gradients of parameters; None if others differ, too."""
    if not all(comparison.parsed(row.pair).kind in PARAMETER_GRADIENTS for row in differing):
        return None
    kind = comparison.parsed(differing[0].pair).kind
    rows = [row for row in comparison.rows if comparison.parsed(row.pair).kind is kind]
    known = [row for row in rows if isinstance(row, Matched) and row.holds_tensor]
    target, reference = (
        math.hypot(*(float(row.values[side].norm or 0.0) for row in known)) for side in (0, 1)
    )
    return target, reference


def _has_same_loss(comparison: RankComparison) -> bool:
    sides = [
        [] if facts is None else [loss.value for loss in facts.loss] for facts in comparison.facts
    ]
    return bool(sides[0]) and None not in sides[0] and sides[0] == sides[1]
