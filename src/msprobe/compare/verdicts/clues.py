# SPDX-License-Identifier: Apache-2.0
"""Calls and arguments of a step that nobody is blamed for, though they may be the cause.

A verdict asks for them where culprits and facts do not tell, or to name the call behind one.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from typing import Final

from msprobe.api_prefixes import COMPILED
from msprobe.collectives.calls import is_communication
from msprobe.compare.causes import Cause
from msprobe.compare.model import OperationPair, Row, Status
from msprobe.compare.rank_comparison import RankComparison
from msprobe.compare.sides import Side
from msprobe.compare.training.facts_pair import clip_factors
from msprobe.compare.training.gradient_distances import SAME_GRADIENT
from msprobe.compare.training.module_settings import changed_values
from msprobe.compare.training.outline_differences import OutlineDifference
from msprobe.compare.training.outlines import (
    difference_before,
    difference_inside,
    difference_of_casts,
    difference_of_writes,
)
from msprobe.compare.verdicts.data_flow import fingerprint
from msprobe.compare.verdicts.origin_state import is_lacking
from msprobe.compare.verdicts.places import Clue, Place, Size, lone_around, lone_words
from msprobe.compare.verdicts.program_flow import Content, content_of
from msprobe.compare.verdicts.statistics_error import distance_of
from msprobe.compare.verdicts.verdict_classes import VerdictClass
from msprobe.compare.verdicts.written_parameters import writes_updated
from msprobe.dump.facts import Facts
from msprobe.dump.record_names import RecordKind, backward_name
from msprobe.dump.values import Role, Value
from msprobe.numerics.number_types import epsilon_of
from msprobe.operators.lookup import is_in_place
from msprobe.operators.operator import Family, InPlace, Operator

# What follows, or an earlier step, shows that nothing comes of it.
_CLEARED: Final = (Cause.HARMLESS, Cause.SAME_GRADIENTS, Cause.HARMLESS_BEFORE)
# Types of arguments that follow from no data.
_TOLD: Final = ("float", "str")
_Extent = tuple[tuple[int, ...], float]
# Where a result is written changes no number.
_IN_PLACE_FLAG: Final = ".inplace"
_IN_PLACE: Final = re.compile(r"[^_]_$")
# Functions that change what they are given only where their name or an argument says so.
_MAKING: Final = frozenset(("Torch", "Tensor", "Functional"))
_WRITING: Final = ("out", "inplace")
# What a call in place writes, and what it reads.
_WRITTEN: Final = "input.0"
_READ: Final = "input.1"


def compiled_call(comparison: RankComparison, inexact: Sequence[Row]) -> Clue | None:
    """Return the first compiled function whose result alone is not exactly equal."""
    given = {row.pair.name for row in inexact if not _is_result(row)}
    for row in inexact:
        name = row.pair.name
        is_compiled = name.startswith(f"{COMPILED}.") and row.pair.is_matched
        if is_compiled and _is_result(row) and name not in given:
            place = Place.of(comparison, row.pair)
            distance = distance_of(row)
            size = "" if distance is None else f" by {distance}"
            words = f"{row.name}{place.line} differs{size} though all it is given is equal"
            return Clue(words, place)
    return None


def late_call(comparison: RankComparison) -> Clue | None:
    """Return the first call of one side alone after its backward pass began.

    One that sends gradients to other ranks comes before others.
    """
    first: Clue | None = None
    for pair in _late_calls(comparison):
        side = comparison.side_of(pair)
        is_sent = is_communication(side.parsed(pair.name))
        if first is None or is_sent:
            dtype = next((each.dtype for each in side.values(pair.name) if each.dtype), "")
            whole = lone_around(comparison, pair)
            words = lone_words(comparison, whole, f" of {dtype}" if is_sent and dtype else "")
            first = Clue(
                f"{words} after the backward pass began",
                Place.of(comparison, whole),
                VerdictClass.PRECISION if _coarsens(side.values(pair.name)) else VerdictClass.CALL,
            )
        if is_sent:
            break
    return first


def _late_calls(comparison: RankComparison) -> Iterator[OperationPair]:
    """Yield the calls of one side alone after its backward pass began."""
    begun: set[str] = set()  # in the order of each side: calls of one alone stand anywhere between
    for pair in comparison.pairs:
        if pair.position >= comparison.asked_again:
            return  # an optimizer asks for the loss as often as it likes
        kind = comparison.parsed(pair).kind
        own = [name for name in ("target", "reference") if getattr(pair, name) is not None]
        if kind is RecordKind.BACKWARD:
            begun.update(own)
        elif kind is RecordKind.FORWARD and not pair.is_matched and own[0] in begun:
            yield pair


def is_only_read(comparison: RankComparison) -> bool:
    """Return whether calls of one side alone behind backward leave gradients as they are.

    They are functions that make a tensor of results of the forward pass, or of what they make. A
    hook that is given a gradient may hand on what it makes.
    """
    late = {pair.position for pair in _late_calls(comparison)}
    known: tuple[set[Content], set[Content]] = (set(), set())
    for pair in comparison.pairs if late else ():
        if comparison.parsed(pair).kind is not RecordKind.FORWARD:
            continue
        for side, name, seen in zip(
            comparison.sides, (pair.target, pair.reference), known, strict=True
        ):
            if name is None:
                continue
            values = side.values(name)
            given = {content_of(v) for v in values if v.role is Role.INPUT and epsilon_of(v.dtype)}
            if pair.position in late and (_may_write(side, name) or not given <= seen):
                return False
            seen.update(content_of(value) for value in values if value.is_tensor)
    return True


def _may_write(side: Side, record: str) -> bool:
    """Return whether a call may change a tensor that it is given: not a function that makes one."""
    parsed = side.parsed(record)
    if parsed.prefix not in _MAKING or is_in_place(parsed.path):
        return True
    return any(value.argument.partition(".")[0] in _WRITING for value in side.values(record))


def _coarsens(values: Sequence[Value]) -> bool:
    """Return whether a call gives the elements that it is given in a coarser type."""
    tensors = [each for each in values if each.is_tensor]
    coming, made = (
        [epsilon_of(each.dtype) for each in tensors if each.role is role]
        for role in (Role.INPUT, Role.OUTPUT)
    )
    return len(coming) == len(made) == 1 and made[0] > coming[0] > 0


def lone_users(comparison: RankComparison) -> dict[str, Clue]:
    """Return parameter that gets a gradient on one side alone → a call with it by this side alone.

    Its result may show no difference, where the parameter begins with zeros.
    """
    sides = [facts for facts in comparison.facts if facts is not None]
    trained = [
        {
            name
            for step in facts.optimizer_steps()
            for name in itertools.compress(step.parameters.name, step.parameters.has_gradient)
        }
        for facts in sides
    ]
    users: dict[str, Clue] = {}
    if not all(trained) or len(trained) < len(comparison.facts):
        return users
    for is_target, facts, alone in (
        (True, sides[0], trained[0] - trained[1]),
        (False, sides[1], trained[1] - trained[0]),
    ):
        columns = facts.parameters
        if columns is None or not alone:
            continue
        # Several may hold the same numbers: ones.
        keys: defaultdict[Hashable, list[str]] = defaultdict(list)
        for name, shape, norm in zip(columns.name, columns.shape, columns.norm, strict=False):
            if name in alone:
                keys[tuple(shape), norm].append(name)
        for row in comparison.rows:
            is_lone = not row.pair.is_matched and (row.pair.reference is None) is is_target
            if not is_lone or row.value.role is Role.OUTPUT:
                continue
            # The first call with these numbers tells for all parameters that hold them.
            names = keys.pop((row.value.shape, row.value.norm), ())
            if names:
                clue = Clue(lone_words(comparison, row.pair), Place.of(comparison, row.pair))
                users.update(dict.fromkeys(names, clue))
    return users


def lone_readers(comparison: RankComparison) -> dict[str, Clue]:
    """Return parameter → the call of one side alone that is given it and hands a gradient back.

    Those whose numbers tell them apart from all others, or where such calls are given each of those
    that hold the same: ones, say.
    """
    lone = [
        row
        for row in comparison.rows
        if not row.pair.is_matched and row.value.role is Role.INPUT and row.value.requires_grad
    ]
    names = _names_by_size(comparison) if lone else {}
    counts = Counter((r.pair.target is None, r.value.shape, r.value.norm) for r in lone)
    readers: dict[str, Clue] = {}
    for row in lone:
        numbers = row.value.shape, row.value.norm
        held = names.get(numbers, set())
        is_told = len(held) <= counts[row.pair.target is None, *numbers]
        if held and is_told and not held & readers.keys():
            side, backward = (
                comparison.side_of(row.pair),
                backward_name(comparison.parsed(row.pair)),
            )
            if backward in side.names:
                clue = Clue(lone_words(comparison, row.pair), Place.of(comparison, row.pair))
                readers.update(dict.fromkeys(held, clue))
    return readers


def _names_by_size(comparison: RankComparison) -> dict[Hashable, set[str]]:
    """Return shape and norm → the parameters and buffers of both sides that have these."""
    names: defaultdict[Hashable, set[str]] = defaultdict(set)
    for facts in comparison.facts:
        columns = None if facts is None else facts.parameters
        if columns is not None:
            for name, shape, norm in zip(columns.name, columns.shape, columns.norm, strict=False):
                names[tuple(shape), norm].add(name)
    return names


def small_argument(comparison: RankComparison) -> Clue | None:
    """Return the first argument or draw that differs, and may change results within tolerance."""
    # An optimizer's own calls follow its settings, which facts compare.
    has_steps = all(each is not None and each.optimizer_steps() for each in comparison.facts)
    end = comparison.end_of_backward if has_steps else math.inf
    for _, group in itertools.groupby(comparison.rows, key=lambda row: row.pair.position):
        rows = list(group)
        pair = rows[0].pair
        side = comparison.side_of(pair)
        if pair.position > end:
            return None
        if side.parsed(pair.name).kind is not RecordKind.FORWARD:
            continue
        tensors = [row for row in rows if row.holds_tensor]
        if not pair.is_matched and _makes_random(side.operator(pair.name), tensors):
            return Clue(lone_words(comparison, pair), Place.of(comparison, pair))
        is_alone = all(r.status is Status.EQUAL or _is_result(r) for r in tensors)
        # What one side goes on to compute by itself, of a result of another shape, tells no size.
        is_small = is_alone and not any(r.status.is_difference for r in tensors)
        idle = [
            row
            for row in rows
            if (row.cause is Cause.NO_EFFECT and not row.value.slot.endswith(_IN_PLACE_FLAG))
            or (is_small and row.cause is Cause.HARMLESS and row.value.type in _TOLD)
        ]
        # Where what a call is given differs as well, its effect hides in the rounding of that. That
        # of a module's argument is in the calls inside.
        if side.parsed(pair.name).is_module:
            is_seen_inside = side.view.head.level != "L0"
            is_made = not is_seen_inside and all(
                (row.status is Status.EQUAL) is not _is_result(row) for row in tensors
            )
        else:
            is_made = any(_is_result(row) and row.status is not Status.EQUAL for row in tensors)
        # One that asks for a further result has its effect in that. What follows may show that a
        # call that is given other numbers is part of another way to compute the same.
        is_made = is_made and not any(
            (_is_result(row) and is_lacking(row)) or _is_cleared(row) for row in tensors
        )
        if idle and tensors and is_made and side.operator(pair.name).family is not Family.MOVING:
            place = Place.of(comparison, pair)
            size = Size.SMALL if is_small and idle[0].value.type in _TOLD else Size.WITHIN
            return Clue(_argument_words(idle[0], place), place, VerdictClass.ARGUMENT, size)
    return None


def small_option(comparison: RankComparison) -> Clue | None:
    """Return the first module whose options differ, with results apart within their tolerance.

    Calls inside it have no records to show the argument. Where all that it is given is equal, no
    rounding of what comes before makes its results differ.
    """
    target, reference = comparison.facts
    if target is None or reference is None or not comparison.has_modules_only:
        return None
    changed = changed_values((target.settings, reference.settings))
    for row in comparison.rows if changed else ():
        parsed = comparison.parsed(row.pair)
        is_made = _is_result(row) and row.pair.is_matched and parsed.kind is RecordKind.FORWARD
        if is_made and parsed.path in changed and row.status is not Status.EQUAL:
            place = Place.of(comparison, row.pair)
            taken_in = (r for r in comparison.rows if r.pair is row.pair and not _is_result(r))
            is_alone = all(each.status is Status.EQUAL for each in taken_in)
            size = _size_of(row) if is_alone else Size.WITHIN
            words = f"{place.words}: {changed[parsed.path]}"
            return Clue(words, place, VerdictClass.ARGUMENT, size)
    return None


def small_call(comparison: RankComparison) -> Clue | None:
    """Return the call without a record that is given another number, before anything differs.

    Rounding makes nothing of calls that are the same.
    """
    found = _early_call(comparison)
    if found is None or not found[1].is_told:
        return None
    return _of_early_call(comparison, *found)


def early_cast(comparison: RankComparison) -> Clue | None:
    """Return the cast without a record to another floating type, before anything differs."""
    found = _early_call(comparison)
    if found is None or found[1].verdict is not VerdictClass.PRECISION:
        return None
    is_felt = difference_of_casts(*comparison.facts) is not None
    return _of_early_call(comparison, *found) if is_felt else None


def _early_call(comparison: RankComparison) -> tuple[Row, OutlineDifference] | None:
    """Return the first value that differs, of a forward pass, with the call that makes it so."""
    row = next((r for r in comparison.rows if r.status is not Status.EQUAL), None)
    is_early = row is not None and row.pair.position < comparison.end_of_forward
    if row is None or not (is_early and row.pair.is_matched and comparison.has_modules_only):
        return None
    if not row.holds_tensor or row.value.role is Role.PARAMETER:
        return None
    if row.cause is Cause.SAME_GRADIENTS:
        return None
    made_by = difference_inside if _is_result(row) else difference_before
    call = made_by(comparison.sides, (row.pair.target, row.pair.reference))
    return None if call is None else (row, call)


def _of_early_call(comparison: RankComparison, row: Row, call: OutlineDifference) -> Clue:
    place = Place.of(comparison, row.pair)
    words = f"{row.name}{place.line} differs though all before it agrees; {call.words}"
    return Clue(words, place, call.verdict, _size_of(row))


def _size_of(row: Row) -> Size:
    return Size.LARGE if row.status.is_difference else Size.SMALL


def _makes_random(operator: Operator, tensors: Sequence[Row]) -> bool:
    """Return whether a call makes random numbers of its own.

    What changes the tensors that it is given (dropout, attention) has a large effect where it
    draws; one as small as rounding tells that its probability is 0.
    """
    is_new = operator.reads_shape_only or operator.in_place is InPlace.OVERWRITES
    return operator.draws_random and (is_new or all(map(_is_result, tensors)))


def evened(comparison: RankComparison, inexact: Sequence[Row]) -> Clue | None:
    """Return what makes a module's result differ on the way to results that agree; the first."""
    reasons: dict[str, Row] = {}  # path of a module around it -> the first
    taken_in: set[str] = set()  # calls that are given other tensors
    for row in inexact:
        if row.status.is_difference and _is_taken_in(row):
            taken_in.add(row.pair.name)
        if row.cause is Cause.HARMLESS and (not row.pair.is_matched or row.is_argument):
            module = comparison.side_of(row.pair).module(row.pair.name)
            for path in itertools.accumulate(module.split("."), "{}.{}".format):
                reasons.setdefault(path, row)
    for row in inexact if reasons else ():
        if row.origin is not None or row.status is not Status.DIFFERS or row.error is None:
            continue
        parsed = comparison.parsed(row.pair)
        is_made = _is_result(row) and parsed.is_module and parsed.kind is RecordKind.FORWARD
        if is_made and row.pair.name not in taken_in and parsed.path in reasons:
            reason = reasons[parsed.path]
            place = Place.of(comparison, reason.pair)
            words = _argument_words(reason, place)
            if not reason.pair.is_matched:
                words = lone_words(comparison, reason.pair)
            return Clue(f"module {parsed.path} by {distance_of(row)}: {words}", place)
    return None


def _is_taken_in(row: Row) -> bool:
    return row.value.role is Role.INPUT and row.holds_tensor


def _argument_words(row: Row, place: Place) -> str:
    return f"{row.value.slot} of {place.words} is {row.finding}"


def _is_cleared(row: Row) -> bool:
    """Return whether what is made of a value that differs shows it to be without consequence."""
    return row.status.is_difference and row.cause in _CLEARED


def _is_result(row: Row) -> bool:
    return row.value.role is Role.OUTPUT


def unused_change(comparison: RankComparison) -> Clue | None:
    """Return the first call of one side alone that changes a tensor which no other record holds.

    Of the shape of a parameter, after the backward pass: an average of weights, say, and no log.
    """
    facts, end = comparison.facts[0], comparison.end_of_backward
    columns = None if facts is None else facts.parameters
    lone = {pair.name for pair in comparison.pairs if pair.position > end and not pair.is_matched}
    if columns is None or not lone:
        return None
    shapes = {tuple(shape) for shape in columns.shape if math.prod(shape) > 1}
    found = [
        row
        for row in comparison.rows
        if row.pair.name in lone
        and not row.pair.is_matched
        and row.value.shape in shapes
        and _is_result(row)
        and (parsed := comparison.parsed(row.pair)).kind is RecordKind.FORWARD
        and _IN_PLACE.search(parsed.path)
    ]
    if not found:
        return None
    held = Counter(key for row in comparison.rows for key in {*map(fingerprint, row.values)})
    given = [each for side in comparison.facts for each in _given_to(side)]
    # What is made of a gradient reaches its optimizer, perhaps with a limit of its elements.
    gradients = {
        key
        for row in comparison.rows
        if row.value.role is Role.PARAMETER_GRAD
        for key in map(fingerprint, row.values)
    } - {None}
    changed = {
        row.pair.position
        for row in comparison.rows
        if row.pair.name in lone
        and row.value.role is Role.INPUT
        and not gradients.isdisjoint(map(fingerprint, row.values))
    }
    # Another call of the other side may make the same: `lerp_` what `mul_` and `add_` do.
    made: tuple[list[_Extent], list[_Extent]] = ([], [])
    for row in comparison.rows:
        if row.pair.name in lone and not row.pair.is_matched and _is_result(row):
            size = row.value.shape or (), row.value.norm or 0.0
            made[row.pair.target is not None].append(size)
    for row in found:
        if row.pair.position in changed or held[fingerprint(row.value)] > 1:
            continue
        norm = row.value.norm
        if norm is None or not any(
            shape == row.value.shape and math.isclose(norm, other, rel_tol=SAME_GRADIENT)
            for shape, other in (*given, *made[row.pair.target is None])
        ):
            return Clue(lone_words(comparison, row.pair), Place.of(comparison, row.pair))
    return None


def unseen_write(comparison: RankComparison) -> Clue | None:
    """Return the call that writes a tensor with another number, where no value shows it.

    That of an average of weights, say, which is no model of the step.
    """
    call = difference_of_writes(*comparison.facts) if comparison.has_modules_only else None
    if call is None or not call.is_told:
        return None
    return Clue(call.words, Place(comparison.step, "", "", call.source), call.verdict)


def written_parameter(comparison: RankComparison, inexact: Sequence[Row]) -> Clue | None:
    """Return the first call that writes a parameter after its update, on one side alone.

    Or that the other side makes as well, but writes there what it reads here.
    """
    # In order of the rows, each once: a call has several, and its parameters are looked up.
    found = {
        row.pair.position: row.pair
        for row in inexact
        if not row.pair.is_matched or row.value.slot == _WRITTEN
    }
    end = comparison.end_of_backward if found else math.inf
    for pair in found.values():
        if pair.is_matched and not _is_interchanged(comparison, pair):
            continue
        if writes_updated(comparison, pair, end):
            place = Place.of(comparison, pair)
            words = f"{_WRITTEN} and {_READ} of {place.record}{place.line} are interchanged"
            return Clue(words if pair.is_matched else lone_words(comparison, pair), place)
    return None


def _is_interchanged(comparison: RankComparison, pair: OperationPair) -> bool:
    """Return whether a call writes in place what it is given on the other side, and the reverse."""
    if not is_in_place(comparison.parsed(pair).path):
        return False
    target, reference = (
        {each.slot: fingerprint(each) for each in side.values(name or "")}
        for side, name in zip(comparison.sides, (pair.target, pair.reference), strict=True)
    )
    own, other = target.get(_WRITTEN), target.get(_READ)
    is_known = None not in (own, other) and own != other
    return is_known and (other, own) == (reference.get(_WRITTEN), reference.get(_READ))


def _given_to(facts: Facts | None) -> Iterator[tuple[tuple[int, ...], float]]:
    """Yield shapes and norms of the gradients that optimizers got: facts compare these.

    And those that they had before they were clipped, which no record holds again.
    """
    factors = {} if facts is None else clip_factors(facts)
    for step in () if facts is None else facts.optimizer_steps():
        factor = factors.get((step.number, step.call), 1.0)
        columns = step.parameters
        for shape, norm in zip(columns.shape, columns.gradient.norm, strict=False):
            if norm is not None:
                yield tuple(shape), norm
                yield tuple(shape), norm / factor
