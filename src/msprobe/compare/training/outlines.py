# SPDX-License-Identifier: Apache-2.0
"""Calls that have no records: where those of two sides differ, by the outlines in their facts.

At level L0 only modules are recorded. Which calls a module is made of, in which order and with
which arguments, is known; what they computed is not. So a difference of outlines is no cause by
itself: it names the call where values have shown that something inside of a module differs.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from msprobe.compare.sides import Side
from msprobe.compare.training.fed_calls import OtherFeed, Wanted, feeding_of
from msprobe.compare.training.fingerprints import change_of, of_data
from msprobe.compare.training.gradient_factors import SAME_FACTOR
from msprobe.compare.training.outline_differences import (
    UNSEEN,
    OutlineDifference,
    differences,
    fed_otherwise,
    first_difference,
    has_same_calls,
    other_call,
    stretches_apart,
    types_of,
    written,
)
from msprobe.compare.training.outlined_calls import (
    CASTS,
    COPIES,
    CUTS,
    MadeCalls,
    calls_in,
    content_of,
    is_ahead_of,
    is_before,
    is_behind,
    is_by,
    is_inside,
    is_of_model,
    is_outside,
    line_of,
    made_calls,
    operator_name,
    shown,
    slot_words,
    words_of,
)
from msprobe.compare.verdicts.verdict_classes import VerdictClass
from msprobe.dump.facts import OUTLINED_TENSOR, Facts
from msprobe.dump.formats.dtypes import normal_dtype
from msprobe.numerics.number_types import epsilon_of
from msprobe.operators.lookup import is_in_place, operator_of
from msprobe.plain_text import times_text

# Which parts of the data are taken is data.
_TAKES: Final = frozenset(("gather", "getitem", "index_select", "take"))
# Tensors that a loss is given as options, not with the data.
_WEIGHTS: Final = frozenset(("pos_weight", "weight"))
# How much is padded follows from what is loaded.
_PADDING: Final = frozenset(("constant_pad_nd", "pad", "pad_sequence"))


def difference_inside(
    sides: Sequence[Side], names: Sequence[str | None]
) -> OutlineDifference | None:
    """Return in which of the calls that are made within a module it differs from its partner.

    Where they agree, those before it may have made another input of it, or it may return the same
    in another order: then the first call behind it that is fed with another result of it tells.

    Args:
        sides: the target and the reference.
        names: the forward records of the module.

    Returns: None where the calls agree, or are not known, here and below.
    """
    facts = [side.view.facts for side in sides]
    inside = made_calls(facts, *map(is_inside, sides, names))
    return (
        first_difference(inside)
        or difference_before(sides, names)
        or _other_feed(made_calls(facts), Wanted(inside.places, are_results=True))
    )


def difference_around(
    sides: Sequence[Side], names: Sequence[str | None]
) -> OutlineDifference | None:
    """Return in which call the module around a module differs, before or after it calls it.

    What comes after it makes the gradient that it is given. Arguments as above.
    """
    facts = [side.view.facts for side in sides]
    outer = [side.parent(name or "") for side, name in zip(sides, names, strict=True)]
    return first_difference(made_calls(facts, *map(is_inside, sides, outer)))


def difference_before(
    sides: Sequence[Side], names: Sequence[str | None]
) -> OutlineDifference | None:
    """Return in which call of their own the modules around a module differ before they call it.

    That makes what it is given: its input, a mask, a table of angles. Around the outermost module
    is the program. Arguments as above.
    """
    facts = [side.view.facts for side in sides]
    inner, found = names, None
    while found is None and all(inner):
        outer = [side.parent(name or "") for side, name in zip(sides, inner, strict=True)]
        if all(outer) or not any(outer):
            found, whole = (
                first_difference(made_calls(facts, *map(is_chosen, sides, outer, inner)))
                for is_chosen in (is_before, partial(is_before, has_parts=True))
            )
            # What one side calls by itself may be in a part of the other.
            kinds = [each and each.verdict for each in (found, whole)]
            if kinds[0] is VerdictClass.CALL and kinds[1] is not VerdictClass.CALL:
                found = whole
            inside = made_calls(facts, *map(is_inside, sides, inner))
            found = found or _other_feed(inside, Wanted(inside.places, are_results=False))
            if found is not None and found.verdict is VerdictClass.CALL:
                found = _moved_across(facts, sides, outer, inner) or found
        inner = outer
    return found


def _moved_across(
    facts: Sequence[Facts | None],
    sides: Sequence[Side],
    outer: Sequence[str | None],
    inner: Sequence[str | None],
) -> OutlineDifference | None:
    """Return the call that is made more often before a module on one side, as it comes behind it.

    None if the sides do not make the same calls in all around it.
    """
    around = map(is_inside, sides, outer) if all(outer) else iter((is_outside, is_outside))
    if not has_same_calls(*made_calls(facts, *around)):
        return None
    before = made_calls(facts, *map(is_before, sides, outer, inner))
    counts = [Counter(map(shown, calls)) for calls in before]
    for call in (*before.target, *before.reference):
        own, other = (times_text(each[shown(call)]) for each in counts)
        if own != other and operator_name(call) not in UNSEEN:
            words = (
                f"{shown(call)} is called {own} in the target, {other} in the reference before "
                f"{inner[0]} in {outer[0] or 'the program'}"
            )
            takes = OUTLINED_TENSOR in words_of(call)
            return OutlineDifference(VerdictClass.ORDER, words, line_of(call), takes)
    return None


def _other_feed(made: MadeCalls, wanted: Wanted) -> OutlineDifference | None:
    """Return which call is fed with another tensor, of those that are wanted."""
    feeding = feeding_of(made)
    feed = feeding.difference(wanted) if feeding else None
    return fed_otherwise(feed) if isinstance(feed, OtherFeed) else None


def difference_of_models(target: Facts | None, reference: Facts | None) -> OutlineDifference | None:
    """Return in which call the models of two steps differ."""
    return first_difference(made_calls((target, reference), is_of_model, is_of_model))


def difference_of_module(
    target: Facts | None, reference: Facts | None, module: str
) -> OutlineDifference | None:
    """Return in which call of its own the modules of a path differ."""
    return first_difference(made_calls((target, reference), is_by(module), is_by(module)))


def difference_behind(target: Facts | None, reference: Facts | None) -> OutlineDifference | None:
    """Return in which call after those of the models, as one of a loss, two steps differ."""
    return first_difference(made_calls((target, reference), is_behind, is_behind))


def limiting_call(target: Facts, reference: Facts) -> str:
    """Return how two steps limit gradients otherwise, in words; empty if no call shows it."""
    found = difference_behind(target, reference)
    return found.words if found is not None and found.verdict is VerdictClass.CLIPPING else ""


def difference_outside(target: Facts, reference: Facts) -> OutlineDifference | None:
    """Return in which call outside of the models two steps differ, by another program if it tells.

    Which calls put a batch together may depend on what is loaded, each of them on either side: one
    that the other side never makes is of another program. Any other may be of either.
    """
    calls = made_calls((target, reference), is_outside, is_outside)
    told = _lone_operator(calls) or _put_between(calls) or _other_at_line(calls)
    other = None if told else first_difference(calls)
    if other is not None and other.is_of_flow and _are_lines_moved(calls):
        return replace(other, verdict=VerdictClass.ORDER)
    is_open = other is not None and not other.is_computed
    return replace(other, verdict=VerdictClass.UNEXPLAINED) if other and is_open else told


def _lone_operator(made: MadeCalls) -> OutlineDifference | None:
    """Return the first call by an operator of one side alone; None if others differ as well.

    Or with a number that a person wrote, which no call of the other side is given.
    """
    own, other = ({*map(written, calls)} for calls in made)
    apart = own ^ other
    if first_difference(made.only(lambda call: written(call) not in apart)):
        return None
    return first_difference(made.only(lambda call: written(call) in apart))


def _put_between(made: MadeCalls) -> OutlineDifference | None:
    """Return the first call by an operator of one side alone, which makes all of the other's too.

    None if the other side makes calls of its own, but for those in place of it.
    """
    parts = stretches_apart(*made)
    if len(parts) != 1 and all(map(any, zip(*parts, strict=True))):
        return None
    for is_target in (True, False):
        known = {*map(operator_name, [*made][is_target]), *_PADDING}
        for sides in parts:
            more, others = sides[not is_target], sides[is_target]
            place = next(
                (i for i, call in enumerate(more) if operator_name(call) not in known), None
            )
            if place is not None:
                both = more[place], next(iter(others[place:]), None)
                return other_call(*both) if is_target else other_call(*reversed(both))
    return None


def _other_at_line(made: MadeCalls) -> OutlineDifference | None:
    """Return the first call by which one line of both sides makes other calls, if no other does.

    What is loaded decides which lines run, and how often, not what each of them says. Which parts
    of the data a line takes is data.
    """
    parts = stretches_apart(*made)
    lines = {line_of(call) for sides in parts for call in itertools.chain(*sides)}
    line = lines.pop() if len(lines) == 1 else None
    if line is None:
        return None
    said = [Counter(operator_name(c) for c in calls if line_of(c) == line) for calls in made]
    if not all(said):
        return None
    # However often it runs.
    once = [{(name, n // math.gcd(*each.values())) for name, n in each.items()} for each in said]
    apart = {name for name, _ in once[0] ^ once[1]}
    if not apart or apart & (_PADDING | _TAKES):
        return None
    own, other = (next(iter(calls), None) for calls in parts[0])
    return other_call(own, other)


def _are_lines_moved(made: MadeCalls) -> bool:
    """Return whether both sides run lines in another order, each of them once.

    What is loaded decides how often lines of a loop run, and in which order.
    """
    apart = itertools.chain.from_iterable(stretches_apart(*made))
    moved = {line_of(call) for calls in apart for call in calls}
    runs = [[line for line, _ in itertools.groupby(map(line_of, calls))] for calls in made]
    counts = [Counter(lines) for lines in runs]
    once = [[line for line in lines if all(n[line] == 1 for n in counts)] for lines in runs]
    return moved <= {*once[0]} and once[0] != once[1] and has_same_calls(*made)


def difference_of_writes(target: Facts | None, reference: Facts | None) -> OutlineDifference | None:
    """Return in which call outside of the models two steps write a tensor otherwise."""
    made = made_calls((target, reference), is_outside, is_outside)
    return first_difference(made.only(lambda call: is_in_place(call.name)))


def moved_write(target: Facts | None, reference: Facts | None) -> OutlineDifference | None:
    """Return the program's call that writes a tensor at another place among those of optimizers.

    Outside of modules, and in place; all of them are made on both sides. Those of an optimizer are
    known where it is given a closure.
    """
    outlines = made_calls((target, reference)).outlines
    writes = [[c for c in calls_in(each, is_outside) if is_in_place(c.name)] for each in outlines]
    keys = [[(content_of(call), call.source is None) for call in calls] for calls in writes]
    if not keys or Counter(keys[0]) != Counter(keys[1]):
        return None
    pairs = zip(*writes, *keys, strict=True)
    own, other = next(((a, b) for a, b, *both in pairs if both[0] != both[1]), (None, None))
    if own is None or other is None or (own.source is None) is (other.source is None):
        return None
    early, late = ("target", "reference") if own.source else ("reference", "target")
    call, behind = (own, other) if own.source else (other, own)
    words = (
        f"{shown(call)} is called before {behind.name} of the framework in the {early}, after it "
        f"in the {late}"
    )
    return OutlineDifference(VerdictClass.ORDER, words, call.source, takes_tensor=True)


def difference_ahead(
    facts: Sequence[Facts | None], names: Sequence[str | None], *, has_same_sizes: bool = False
) -> OutlineDifference | None:
    """Return which call of the program, before it calls a model, is given another number.

    Or which one side alone makes, as it does none of its operator. Or which is fed with another
    tensor, a result of a model at least on one side: that is no data.

    Args:
        facts: of the target and the reference.
        names: the forward records of the model, which is given another batch.
        has_same_sizes: it is of the same size, so that noise of another size does not follow, nor
            another axis.
    """
    calls = made_calls(facts, *map(is_ahead_of, names))
    few = calls.only(lambda call: operator_name(call) not in COPIES)  # the same data
    told = (
        each
        for each in differences(*calls)
        if each.is_real or (has_same_sizes and (each.is_of_noise or each.is_of_axis))
    )
    models = made_calls(facts, is_of_model, is_of_model)
    return (
        next(told, None)
        or _lone_operator(few)
        or _put_between(few)
        or _other_at_line(few)
        or _other_feed(calls, Wanted(models.places, are_results=None))
    )


def difference_of_casts(target: Facts | None, reference: Facts | None) -> OutlineDifference | None:
    """Return the first cast to a floating type that two steps do not share.

    None where both compute in one type alone: a cast to it changes nothing.
    """
    made = made_calls((target, reference))
    casts = [[c for c in calls if operator_name(c) in CASTS and any(types_of(c))] for calls in made]
    used = {epsilon for calls in casts for each in calls for epsilon in types_of(each) if epsilon}
    used |= {epsilon for side in (target, reference) if side for epsilon in _resolutions(side)}
    return next(differences(*casts), None) if len(used) > 1 else None


def gives_other_numbers(target: Facts | None, reference: Facts | None) -> bool:
    """Return whether a call that two steps share is given another real number, or another word.

    Numbers that a program computed follow from others.
    """
    found = differences(*made_calls((target, reference)))
    return any(each.is_real and not each.is_computed for each in found)


def _resolutions(facts: Facts) -> Iterator[float]:
    """Yield the resolutions of the floating types of models, of their inputs and of autocast."""
    types = [each.dtype for each in facts.data]
    types += facts.parameters.dtype if facts.parameters else ()
    types += facts.autocast_types().values()
    return filter(None, (epsilon_of(normal_dtype(each)) for each in types))


def difference_of_gradients(
    target: Facts | None, reference: Facts | None
) -> OutlineDifference | None:
    """Return in which call that no result shows gradients begin to differ.

    It cuts the graph, or comes behind the models. A number that a program computed, as it does to
    limit gradients by code of its own, follows from them.
    """
    found = difference_of_cuts(target, reference) or difference_behind(target, reference)
    return None if found and found.is_computed else found


def difference_of_cuts(target: Facts | None, reference: Facts | None) -> OutlineDifference | None:
    """Return the first call that cuts the graph, of one side alone or in another way."""
    made = made_calls((target, reference))
    cuts = ([call for call in calls if operator_name(call) in CUTS] for calls in made)
    return next(differences(*cuts), None)


def difference_by_factor(
    target: Facts | None, reference: Facts | None, factor: float, tolerance: float = SAME_FACTOR
) -> OutlineDifference | None:
    """Return the call that is given another number by which gradients grow by a factor.

    Of several that do so together it is the first; each micro batch makes them again.
    """
    is_near = partial(math.isclose, factor, rel_tol=min(tolerance, SAME_FACTOR))
    if is_near(1.0):
        return None
    found = {
        each.words: (each, each.ratio)
        for each in differences(*made_calls((target, reference)))
        if each.ratio is not None
    }
    for each, ratio in found.values():
        if is_near(ratio):
            return each
    whole = math.prod(ratio for _, ratio in found.values())
    return replace(next(iter(found.values()))[0], ratio=whole) if found and is_near(whole) else None


def other_labels(target: Facts, reference: Facts) -> str | None:
    """Return which labels differ, in words; None where they agree, or other calls are given them.

    Labels that a program computes may round otherwise.
    """
    places = [[(each.where, each.shape) for each in facts.labels] for facts in (target, reference)]
    if places[0] != places[1]:
        return None
    met = Counter[str]()
    for own, other in zip(target.labels, reference.labels, strict=True):
        change = change_of(of_data(own), of_data(other))
        if not change.may_be_rounding:
            name, _, slot = own.where.rpartition(".")
            line = _line_of_label(target, reference, own.where, met[own.where])
            call = f"{name} ({line})" if line else name
            return (
                f"{slot_words(slot)} of {call}, a tensor without a gradient, differs{change.ending}"
            )
        met[own.where] += 1
    return None


def _line_of_label(target: Facts, reference: Facts, where: str, before: int) -> str | None:
    """Return the line of the call that is given a label of the target; None where it is not known.

    Args:
        target: its facts.
        reference: the other side's.
        where: the label's function and place in its arguments.
        before: how many labels come before it there.
    """
    prefix, _, api = where.rpartition(".")[0].partition(".")
    kind = operator_of(prefix, api).name
    behind = made_calls((target, reference), is_behind, is_behind).target
    lines = [line_of(call) for call in behind if operator_name(call) == kind]
    if len({*lines}) == 1:
        return lines[0]
    is_of_all = len(lines) == sum(each.where == where for each in target.labels)
    return lines[before] if is_of_all else None


def difference_of_labels(target: Facts | None, reference: Facts | None) -> OutlineDifference | None:
    """Return which labels differ, with the call outside of the models that makes them otherwise."""
    labels = other_labels(target, reference) if target and reference else None
    if labels is None or target is None or reference is None:
        return None
    call = difference_outside(target, reference)
    if call is None:
        is_option = labels.partition(" ")[0] in _WEIGHTS
        verdict = VerdictClass.ARGUMENT if is_option else VerdictClass.DATA
        return OutlineDifference(verdict, labels, None, takes_tensor=True)
    # They differ by more than a cast rounds.
    is_cast = call.verdict is VerdictClass.PRECISION
    verdict = VerdictClass.CALL if is_cast else call.verdict
    return replace(call, verdict=verdict, words=f"{labels}; {call.words}")
