# SPDX-License-Identifier: Apache-2.0
"""`OutlineDifference`: in which call two lists of calls without records differ, and how."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Final

from msprobe.compare.training.aligned import aligned
from msprobe.compare.training.fed_calls import Feeding, OtherFeed, feeding_of
from msprobe.compare.training.gradient_factors import SAME_FACTOR
from msprobe.compare.training.outlined_calls import (
    CASTS,
    COPIES,
    CUTS,
    RESHAPES,
    MadeCalls,
    content_of,
    given_arguments,
    is_computed,
    is_real,
    is_word,
    line_of,
    number_of,
    operator_in,
    operator_name,
    shown,
    signature_in,
    slot_words,
    words_of,
)
from msprobe.compare.verdicts.verdict_classes import VerdictClass
from msprobe.dump.facts import OUTLINED_TENSOR, OutlinedCall
from msprobe.dump.formats.dtypes import normal_dtype
from msprobe.numerics.number_types import epsilon_of
from msprobe.operators.lookup import scale_of, suggests
from msprobe.operators.operator import Hint

_CLOSE: Final = 1e-6  # numbers that programs compute in other ways
# Whole numbers that programs draw are places of samples, say.
_PICKS: Final = frozenset(("multinomial", "randint", "randint_like", "randperm"))
# Whole numbers that follow from no size: which elements a mask keeps, how far they are moved.
_PLACES: Final = frozenset(("diagonal", "shifts"))
# And those that follow from how many sizes there are alone.
_AXES: Final = frozenset(("axis", "dim", "dim0", "dim1", "dims"))
_MASKS: Final = frozenset(
    ("bitwise_not", "bool", "eq", "ge", "gt", "invert", "le", "logical_not", "lt", "ne")
)
_SILENT: Final = CUTS | COPIES
UNSEEN: Final = _SILENT | RESHAPES | CASTS  # a cause only where nothing else differs
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
        is_of_flow: whether both sides make the same calls, in another order or of other tensors.
        is_draw: whether one side alone makes the call, which draws random numbers.
        is_of_mask: whether the call compares or inverts: what is masked by it tells more.
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
    is_of_flow: bool = False
    is_draw: bool = False
    is_of_mask: bool = False

    @property
    def next(self) -> tuple[str, ...]:
        """The next step; empty where no line is known."""
        return (f"look at {self.source}",) if self.source else ()

    @property
    def is_told(self) -> bool:
        """Whether the program itself gives another number, truth value or word."""
        return self.is_real and not self.is_computed

    def is_factor(self, factor: float) -> bool:
        """Return whether all that one side does otherwise is to multiply by this number."""
        is_call = self.verdict is VerdictClass.CALL and self.ratio is not None
        return is_call and math.isclose(self.ratio or 0.0, factor, rel_tol=SAME_FACTOR)


def first_difference(made: MadeCalls) -> OutlineDifference | None:
    """Return the first call that may change a result and differs."""
    feeding = feeding_of(made)
    if feeding is None:
        return None if made.target == made.reference else _difference_in((made,), None)
    few = feeding.apart(has_writes=False)
    # Calls are left out where that makes both sides the same, so that others stay in line. What a
    # module counts in its buffers tells less than what it makes besides.
    if has_same_calls(*_without(few, UNSEEN)):
        return _difference_in((few, feeding.apart(has_writes=True)), feeding)
    return _difference_in((feeding.without_writes(), made), feeding)


def _difference_in(ways: Sequence[MadeCalls], feeding: Feeding | None) -> OutlineDifference | None:
    """Return the first difference of calls, of the first of several ways to see them."""
    feed = feeding.difference() if feeding else False
    for calls in ways:
        for left_out in (UNSEEN, _SILENT):
            own, other = _without(calls, left_out)
            found = list(differences(own, other))
            # Of types alone, casts tell where they begin.
            is_of_types = all(each.verdict is VerdictClass.PRECISION for each in found)
            if found and is_of_types and left_out is UNSEEN:
                continue
            if found and not has_same_calls(own, other):
                # What one side alone makes is no cause of what is fed otherwise before it is used.
                if isinstance(feed, OtherFeed) and feed.is_first:
                    return fed_otherwise(feed)
                return _first_of(found)
            moved = _moved(found, own, other) if found and (feed or not feeding) else None
            is_told = isinstance(feed, OtherFeed) and (feed.is_first or not found)
            if moved is not None and (moved.verdict is VerdictClass.ARGUMENT or not is_told):
                return moved
            if isinstance(feed, OtherFeed) and is_told:
                return fed_otherwise(feed)
    return None


def _without(calls: MadeCalls, names: Container[str]) -> list[list[OutlinedCall]]:
    """Return the calls of both sides but for those of some operators."""
    return [[call for call in side if operator_name(call) not in names] for side in calls]


def has_same_calls(target: Sequence[OutlinedCall], reference: Sequence[OutlinedCall]) -> bool:
    """Return whether both sides make the same calls, in whatever order."""
    return Counter(map(content_of, target)) == Counter(map(content_of, reference))


def _first_of(found: Sequence[OutlineDifference]) -> OutlineDifference:
    # What a call makes of nothing but numbers is used by a later one, which tells more.
    telling = [each for each in found if each.takes_tensor or each.is_draw]
    first = next((each for each in telling if not each.is_of_mask), (telling or found)[0])
    # How many there are depends on which of them change no value.
    is_alone = len(found) == 1
    more = "" if is_alone else "; more calls differ"
    # What a word chooses, another call may take back: the norm of a transform and of its inverse.
    is_real = first.is_real and (first.ratio is not None or is_alone)
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
    return replace(first, verdict=VerdictClass.ORDER, words=words, is_of_flow=True)


def fed_otherwise(feed: OtherFeed) -> OutlineDifference:
    """Return that a call is fed with another tensor."""
    verdict = VerdictClass.ORDER if feed.is_order else VerdictClass.ARGUMENT
    return OutlineDifference(
        verdict, feed.words, line_of(feed.call), takes_tensor=True, is_of_flow=True
    )


def differences(
    target: Sequence[OutlinedCall], reference: Sequence[OutlinedCall]
) -> Iterator[OutlineDifference]:
    """Yield where calls differ: of the same arguments belong together, then those of a name."""
    for own, other in stretches_apart(target, reference):
        for left, right in _by_operator(own, other):
            for one, partner in zip_longest(left, right):
                if one and partner and operator_name(one) == operator_name(partner):
                    yield from _other_arguments(one, partner)
                else:
                    yield other_call(one, partner)


def _by_operator(
    target: Sequence[OutlinedCall], reference: Sequence[OutlinedCall]
) -> Iterator[tuple[Sequence[OutlinedCall], Sequence[OutlinedCall]]]:
    """Yield parts of two lists that belong together, where operators tell."""
    names, others = ([*map(operator_name, calls)] for calls in (target, reference))
    matcher = SequenceMatcher(None, names, others, autojunk=False)
    for _, *ends in matcher.get_opcodes():
        yield target[ends[0] : ends[1]], reference[ends[2] : ends[3]]


def stretches_apart(
    target: Sequence[OutlinedCall], reference: Sequence[OutlinedCall]
) -> list[tuple[Sequence[OutlinedCall], Sequence[OutlinedCall]]]:
    """Return the parts of two lists that belong together and are not the same."""
    stretches = aligned(target, reference, content_of, line_of)
    return [(own, other) for is_same, own, other in stretches if not is_same]


def other_call(target: OutlinedCall | None, reference: OutlinedCall | None) -> OutlineDifference:
    """Return that the sides make other calls at one place, or one side alone makes a call."""
    both = [each for each in (target, reference) if each is not None]
    if len(both) == 2:
        words = f"the target calls {shown(both[0])}, the reference {shown(both[1])}"
    else:
        words = f"only the {'target' if target else 'reference'} calls {shown(both[0])}"
    takes = any(OUTLINED_TENSOR in words_of(each) for each in both)
    is_cast = all(operator_name(each) in CASTS and any(types_of(each)) for each in both)
    verdict = VerdictClass.PRECISION if is_cast else VerdictClass.CALL
    if any(suggests(each.name, Hint.LIMITS_GRADIENTS) for each in both):
        verdict = VerdictClass.CLIPPING
    is_draw = len(both) == 1 and operator_in(both[0]).draws_random
    words += ", which draws random numbers" if is_draw else ""
    ratio = _scale(target) / _scale(reference)
    is_division = len(both) == 1 and abs(_scale(both[0])) < 1
    return OutlineDifference(
        verdict,
        words,
        line_of(both[0]),
        takes,
        None if ratio == 1 else ratio,
        is_division,
        is_draw=is_draw,
        is_of_mask=all(operator_name(each) in _MASKS for each in both),
    )


def _scale(call: OutlinedCall | None) -> float:
    """Return by what number a call multiplies its tensor."""
    if call is None:
        return 1.0
    numbers = map(number_of, call.arguments)
    return scale_of(operator_in(call), (each for each in numbers if each is not None))


def types_of(call: OutlinedCall) -> Iterator[float]:
    """Yield the resolutions of the floating types that a call names."""
    return map(resolution_named, (operator_name(call), *words_of(call)))


def resolution_named(word: str) -> float:
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
        elif all(word is not None and resolution_named(word) for word in (own, other)):
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


def written(call: OutlinedCall) -> Hashable:
    """Return what a program says of a call: its operator, and what it is given if it writes that.

    Whole numbers may be sizes and places, which follow from the data; which of them it gives does
    not.
    """
    is_told = any(is_real(word) and not is_computed(word) for word in words_of(call))
    return content_of(call) if is_told else (operator_name(call), *call.named)
