# SPDX-License-Identifier: Apache-2.0
"""Calls that have no records: where those of two sides differ, by the outlines in their facts.

At level L0 only modules are recorded. Which calls a module is made of, in which order and with
which arguments, is known; what they computed is not. So a difference of outlines is no cause by
itself: it names the call where values have shown that something inside of a module differs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import partial
from itertools import zip_longest
from typing import Final

from msprobe.compare.sides import Side
from msprobe.compare.training.aligned import aligned
from msprobe.compare.training.fed_calls import Feeding, OtherFeed, Wanted, feeding_of
from msprobe.compare.training.fingerprints import change_of, of_data
from msprobe.compare.training.gradient_factors import SAME_FACTOR
from msprobe.compare.training.outlined_calls import (
    CASTS,
    COPIES,
    CUTS,
    RESHAPES,
    MadeCalls,
    content_of,
    given_arguments,
    is_ahead_of,
    is_before,
    is_behind,
    is_by,
    is_computed,
    is_inside,
    is_of_model,
    is_outside,
    is_real,
    is_word,
    line_of,
    made_calls,
    number_of,
    operator_in,
    operator_name,
    shown,
    signature_in,
    slot_words,
    words_of,
)
from msprobe.compare.verdicts.verdict_classes import VerdictClass
from msprobe.dump.facts import OUTLINED_TENSOR, Facts, OutlinedCall
from msprobe.dump.formats.dtypes import normal_dtype
from msprobe.numerics.number_types import epsilon_of
from msprobe.operators.lookup import is_in_place, operator_of, scale_of, suggests
from msprobe.operators.operator import Hint
from msprobe.plain_text import times_text

_CLOSE: Final = 1e-6  # numbers that programs compute in other ways
# Whole numbers that programs draw are places of samples, say.
_PICKS: Final = frozenset(("multinomial", "randint", "randint_like", "randperm"))
# Whole numbers that follow from no size: which elements a mask keeps, how far they are moved.
_PLACES: Final = frozenset(("diagonal", "shifts"))
# And those that follow from how many sizes there are alone.
_AXES: Final = frozenset(("axis", "dim", "dim0", "dim1", "dims"))
# How much is padded follows from what is loaded.
_PADDING: Final = frozenset(("constant_pad_nd", "pad", "pad_sequence"))
_SILENT: Final = CUTS | COPIES
_UNSEEN: Final = _SILENT | RESHAPES | CASTS  # a cause only where nothing else differs
_LIMIT: Final = -1e4  # what is masked is set to numbers below it, all to the same effect


@dataclass(frozen=True, slots=True)
class OutlineDifference:
    """The first call in which two outlines differ.

    Attributes:
        verdict: class of the cause that it is, if it is one.
        words: the difference in words.
        source: its line, None inside of the framework.
        takes_tensor: whether the call takes a tensor, and does not make one of numbers alone.
        ratio: of a number that the target's call is given, or multiplies by, to the reference's.
        is_division: whether one side alone makes the call, which divides.
        is_real: whether it is given another real number, truth value or word: whole numbers, such
            as sizes and places, follow from the data.
        is_computed: whether both numbers have the digits of a result.
        is_of_noise: whether the call draws random numbers, which pick no samples.
        is_of_axis: whether the call works along another axis.
    """

    verdict: VerdictClass
    words: str
    source: str | None
    takes_tensor: bool
    ratio: float | None = None
    is_division: bool = False
    is_real: bool = False
    is_computed: bool = False
    is_of_noise: bool = False
    is_of_axis: bool = False

    @property
    def next(self) -> tuple[str, ...]:
        """The next step; empty where no line is known."""
        return (f"look at {self.source}",) if self.source else ()

    def is_factor(self, factor: float) -> bool:
        """Return whether all that one side does otherwise is to multiply by this number."""
        is_call = self.verdict is VerdictClass.CALL and self.ratio is not None
        return is_call and math.isclose(self.ratio or 0.0, factor, rel_tol=SAME_FACTOR)


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
        _first_difference(inside)
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
    return _first_difference(made_calls(facts, *map(is_inside, sides, outer)))


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
                _first_difference(made_calls(facts, *map(is_chosen, sides, outer, inner)))
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
    if not _is_same(*made_calls(facts, *around)):
        return None
    before = made_calls(facts, *map(is_before, sides, outer, inner))
    counts = [Counter(map(shown, calls)) for calls in before]
    for call in (*before.target, *before.reference):
        own, other = (times_text(each[shown(call)]) for each in counts)
        if own != other and operator_name(call) not in _UNSEEN:
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
    return _fed_otherwise(feed) if isinstance(feed, OtherFeed) else None


def difference_of_models(target: Facts | None, reference: Facts | None) -> OutlineDifference | None:
    """Return in which call the models of two steps differ."""
    return _first_difference(made_calls((target, reference), is_of_model, is_of_model))


def difference_of_module(
    target: Facts | None, reference: Facts | None, module: str
) -> OutlineDifference | None:
    """Return in which call of its own the modules of a path differ."""
    return _first_difference(made_calls((target, reference), is_by(module), is_by(module)))


def difference_behind(target: Facts | None, reference: Facts | None) -> OutlineDifference | None:
    """Return in which call after those of the models, as one of a loss, two steps differ."""
    return _first_difference(made_calls((target, reference), is_behind, is_behind))


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
    told = _lone_operator(calls) or _put_between(calls)
    other = None if told else _first_difference(calls)
    return replace(other, verdict=VerdictClass.UNEXPLAINED) if other else told


def _lone_operator(made: MadeCalls) -> OutlineDifference | None:
    """Return the first call by an operator of one side alone; None if others differ as well.

    Or with a number that a person wrote, which no call of the other side is given.
    """
    own, other = ({*map(_written, calls)} for calls in made)
    apart = own ^ other
    if _first_difference(made.only(lambda call: _written(call) not in apart)):
        return None
    return _first_difference(made.only(lambda call: _written(call) in apart))


def _put_between(made: MadeCalls) -> OutlineDifference | None:
    """Return the first call by an operator of one side alone, which makes all of the other's too.

    None if the other side makes calls of its own, but for those in place of it.
    """
    parts = _apart(*made)
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
                return _other_call(*both) if is_target else _other_call(*reversed(both))
    return None


def difference_of_writes(target: Facts | None, reference: Facts | None) -> OutlineDifference | None:
    """Return in which call outside of the models two steps write a tensor otherwise."""
    made = made_calls((target, reference), is_outside, is_outside)
    return _first_difference(made.only(lambda call: is_in_place(call.name)))


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
    told = (
        each
        for each in _differences(*calls)
        if each.is_real or (has_same_sizes and (each.is_of_noise or each.is_of_axis))
    )
    models = made_calls(facts, is_of_model, is_of_model)
    return (
        next(told, None)
        or _lone_operator(calls)
        or _put_between(calls)
        or _other_feed(calls, Wanted(models.places, are_results=None))
    )


def difference_of_casts(target: Facts | None, reference: Facts | None) -> OutlineDifference | None:
    """Return the first cast to a floating type that two steps do not share.

    None where both compute in one type alone: a cast to it changes nothing.
    """
    made = made_calls((target, reference))
    casts = [[c for c in calls if operator_name(c) in CASTS and any(_types(c))] for calls in made]
    used = {epsilon for calls in casts for each in calls for epsilon in _types(each) if epsilon}
    used |= {epsilon for side in (target, reference) if side for epsilon in _resolutions(side)}
    return next(_differences(*casts), None) if len(used) > 1 else None


def gives_other_numbers(target: Facts | None, reference: Facts | None) -> bool:
    """Return whether a call that two steps share is given another real number, or another word.

    Numbers that a program computed follow from others.
    """
    found = _differences(*made_calls((target, reference)))
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
    made = made_calls((target, reference))
    cuts = ([call for call in calls if operator_name(call) in CUTS] for calls in made)
    found = next(_differences(*cuts), None) or difference_behind(target, reference)
    return None if found and found.is_computed else found


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
        for each in _differences(*made_calls((target, reference)))
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
    for own, other in zip(target.labels, reference.labels, strict=True):
        change = change_of(of_data(own), of_data(other))
        if not change.may_be_rounding:
            name, _, place = own.where.rpartition(".")
            prefix, _, api = name.partition(".")
            kind = operator_of(prefix, api).name
            behind = made_calls((target, reference), is_behind, is_behind).target
            lines = {line_of(call) for call in behind if operator_name(call) == kind}
            line = lines.pop() if len(lines) == 1 else None
            call = f"{name} ({line})" if line else name
            return (
                f"argument {place} of {call}, a tensor without a gradient, differs{change.ending}"
            )
    return None


def difference_of_labels(target: Facts | None, reference: Facts | None) -> OutlineDifference | None:
    """Return which labels differ, with the call outside of the models that makes them otherwise."""
    labels = other_labels(target, reference) if target and reference else None
    if labels is None or target is None or reference is None:
        return None
    call = difference_outside(target, reference)
    if call is None:
        return OutlineDifference(VerdictClass.DATA, labels, None, takes_tensor=True)
    # They differ by more than a cast rounds.
    is_cast = call.verdict is VerdictClass.PRECISION
    verdict = VerdictClass.CALL if is_cast else call.verdict
    return replace(call, verdict=verdict, words=f"{labels}; {call.words}")


def _first_difference(made: MadeCalls) -> OutlineDifference | None:
    """Return the first call that may change a result and differs."""
    feeding = feeding_of(made)
    if feeding is None:
        return None if made.target == made.reference else _difference_in((made,), None)
    few = feeding.apart(has_writes=False)
    # Calls are left out where that makes both sides the same, so that others stay in line. What a
    # module counts in its buffers tells less than what it makes besides.
    if _is_same(*_without(few, _UNSEEN)):
        return _difference_in((few, feeding.apart(has_writes=True)), feeding)
    return _difference_in((feeding.without_writes(), made), feeding)


def _difference_in(ways: Sequence[MadeCalls], feeding: Feeding | None) -> OutlineDifference | None:
    """Return the first difference of calls, of the first of several ways to see them."""
    feed = feeding.difference() if feeding else False
    for calls in ways:
        for left_out in (_UNSEEN, _SILENT):
            own, other = _without(calls, left_out)
            found = list(_differences(own, other))
            if found and not _is_same(own, other):
                # What one side alone makes is no cause of what is fed otherwise before it is used.
                if isinstance(feed, OtherFeed) and feed.is_first:
                    return _fed_otherwise(feed)
                return _first_of(found)
            moved = _moved(found, own, other) if found and (feed or not feeding) else None
            is_told = isinstance(feed, OtherFeed) and (feed.is_first or not found)
            if moved is not None and (moved.verdict is VerdictClass.ARGUMENT or not is_told):
                return moved
            if isinstance(feed, OtherFeed) and is_told:
                return _fed_otherwise(feed)
    return None


def _without(calls: MadeCalls, names: Container[str]) -> list[list[OutlinedCall]]:
    """Return the calls of both sides but for those of some operators."""
    return [[call for call in side if operator_name(call) not in names] for side in calls]


def _is_same(target: Sequence[OutlinedCall], reference: Sequence[OutlinedCall]) -> bool:
    """Return whether both sides make the same calls, in whatever order."""
    return Counter(map(content_of, target)) == Counter(map(content_of, reference))


def _first_of(found: Sequence[OutlineDifference]) -> OutlineDifference:
    # What a call makes of nothing but numbers is used by a later one, which tells more.
    first = next((each for each in found if each.takes_tensor), found[0])
    others = len(found) - 1
    verb = "s differ" if others > 1 else " differs"
    more = f"; {others} more call{verb}" if others else ""
    # What a word chooses, another call may take back: the norm of a transform and of its inverse.
    is_real = first.is_real and (first.ratio is not None or not others)
    return replace(first, words=first.words + more, is_real=is_real)


def _moved(
    found: Sequence[OutlineDifference],
    target: Sequence[OutlinedCall],
    reference: Sequence[OutlinedCall],
) -> OutlineDifference:
    """Return where the same calls are made in another order."""
    both = zip(target, reference, strict=True)
    own, other = next(pair for pair in both if content_of(pair[0]) != content_of(pair[1]))
    first = next((each for each in found if each.takes_tensor), found[0])
    if shown(own) == shown(other):  # it takes what another one takes on the other side
        return next(_other_arguments(own, other), first)
    words = f"{shown(own)} is called where the reference calls {shown(other)}, and later"
    return replace(first, verdict=VerdictClass.ORDER, words=words)


def _fed_otherwise(feed: OtherFeed) -> OutlineDifference:
    return OutlineDifference(VerdictClass.ORDER, feed.words, line_of(feed.call), takes_tensor=True)


def _differences(
    target: Sequence[OutlinedCall], reference: Sequence[OutlinedCall]
) -> Iterator[OutlineDifference]:
    """Yield where calls differ: of the same arguments belong together, then those of a name."""
    for own, other in _apart(target, reference):
        for left, right in _by_operator(own, other):
            for one, partner in zip_longest(left, right):
                if one and partner and operator_name(one) == operator_name(partner):
                    yield from _other_arguments(one, partner)
                else:
                    yield _other_call(one, partner)


def _by_operator(
    target: Sequence[OutlinedCall], reference: Sequence[OutlinedCall]
) -> Iterator[tuple[Sequence[OutlinedCall], Sequence[OutlinedCall]]]:
    """Yield parts of two lists that belong together, where operators tell."""
    names, others = ([*map(operator_name, calls)] for calls in (target, reference))
    matcher = SequenceMatcher(None, names, others, autojunk=False)
    for _, *ends in matcher.get_opcodes():
        yield target[ends[0] : ends[1]], reference[ends[2] : ends[3]]


def _apart(
    target: Sequence[OutlinedCall], reference: Sequence[OutlinedCall]
) -> list[tuple[Sequence[OutlinedCall], Sequence[OutlinedCall]]]:
    stretches = aligned(target, reference, content_of, line_of)
    return [(own, other) for is_same, own, other in stretches if not is_same]


def _other_call(target: OutlinedCall | None, reference: OutlinedCall | None) -> OutlineDifference:
    both = [each for each in (target, reference) if each is not None]
    if len(both) == 2:
        words = f"the target calls {shown(both[0])}, the reference {shown(both[1])}"
    else:
        words = f"only the {'target' if target else 'reference'} calls {shown(both[0])}"
    takes = any(OUTLINED_TENSOR in words_of(each) for each in both)
    is_cast = all(operator_name(each) in CASTS and any(_types(each)) for each in both)
    verdict = VerdictClass.PRECISION if is_cast else VerdictClass.CALL
    if any(suggests(each.name, Hint.LIMITS_GRADIENTS) for each in both):
        verdict = VerdictClass.CLIPPING
    ratio = _scale(target) / _scale(reference)
    is_division = len(both) == 1 and abs(_scale(both[0])) < 1
    return OutlineDifference(
        verdict, words, line_of(both[0]), takes, None if ratio == 1 else ratio, is_division
    )


def _scale(call: OutlinedCall | None) -> float:
    """Return by what number a call multiplies its tensor."""
    if call is None:
        return 1.0
    numbers = map(number_of, call.arguments)
    return scale_of(operator_in(call), (each for each in numbers if each is not None))


def _types(call: OutlinedCall) -> Iterator[float]:
    """Yield the resolutions of the floating types that a call names."""
    return map(_resolution, (operator_name(call), *words_of(call)))


def _resolution(word: str) -> float:
    """Return the resolution of the floating type that a word names; 0 if it names none."""
    return epsilon_of(normal_dtype(word))


def _other_arguments(target: OutlinedCall, reference: OutlinedCall) -> Iterator[OutlineDifference]:
    given, expected = _arguments(target), _arguments(reference)
    scale = _scale(target) / _scale(reference)
    defaults = signature_in(target).defaults
    for name in {**given, **expected}:
        own, other = given.get(name), expected.get(name)
        if own is not None and other is not None and _are_alike(own, other):
            continue
        default = repr(defaults[name]) if name in defaults else "not given"
        values = (
            f"{each or default} in the {side}"
            for each, side in ((own, "target"), (other, "reference"))
        )
        words = f"{slot_words(name)} of {shown(target)} is {', '.join(values)}"
        verdict = VerdictClass.ARGUMENT
        if suggests(target.name, Hint.LIMITS_GRADIENTS):
            verdict = VerdictClass.CLIPPING
        elif all(word is not None and _resolution(word) for word in (own, other)):
            verdict = VerdictClass.PRECISION
        yield OutlineDifference(
            verdict,
            words,
            line_of(target),
            takes_tensor=OUTLINED_TENSOR in words_of(target),
            ratio=_ratio(own, other) if scale == 1 else scale,
            is_real=(is_real(own) and is_real(other))
            or any(map(is_word, (own, other)))
            or name in _PLACES,
            is_computed=is_computed(own) and is_computed(other),
            is_of_noise=operator_in(target).draws_random and operator_name(target) not in _PICKS,
            is_of_axis=name in _AXES and _are_axes(own or default, other or default),
        )
        return


def _arguments(call: OutlinedCall) -> dict[str, str]:
    """Return the arguments of a call by name, but for those that are as if they were left out.

    `None` is, where no default is known: functions that are written in C have no signature.
    """
    defaults = {name: repr(value) for name, value in signature_in(call).defaults.items()}
    given = given_arguments(call)
    return {n: w for n, w in given.items() if not _are_alike(defaults.get(n, "None"), w)}


def _are_alike(word: str, other: str) -> bool:
    if word.startswith("[") is not other.startswith("["):  # a stride, say, for each axis or all
        return len({each for side in (word, other) for each in side.strip("[]").split(", ")}) == 1
    number, expected = number_of(word), number_of(other)
    if number is None or expected is None:
        return word == other
    if max(number, expected) <= _LIMIT:
        return True
    return number == expected or abs(number - expected) <= _CLOSE * abs(expected)


def _are_axes(word: str, other: str) -> bool:
    """Return whether two words are axes that are counted from the same end."""
    both = [each.removeprefix("[") for each in (word, other)]
    is_known = all(each.removeprefix("-")[:1].isdigit() for each in both)
    return is_known and len({each.startswith("-") for each in both}) == 1


def _ratio(word: str | None, other: str | None) -> float | None:
    """Return the ratio of two numbers; None where they are none, or the second is zero."""
    number, expected = number_of(word), number_of(other)
    return number / expected if number is not None and expected else None


def _written(call: OutlinedCall) -> Hashable:
    """Return what a program says of a call: its operator, and what it is given if it writes that.

    Whole numbers may be sizes and places, which follow from the data; which of them it gives does
    not.
    """
    is_told = any(is_real(word) and not is_computed(word) for word in words_of(call))
    return content_of(call) if is_told else (operator_name(call), *call.named)
