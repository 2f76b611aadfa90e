# SPDX-License-Identifier: Apache-2.0
"""Calls that have no records: where those of two sides differ, by the outlines in their facts.

At level L0 only modules are recorded. Which calls a module is made of, in which order and with
which arguments, is known; what they computed is not. So a difference of outlines is no cause by
itself: it names the call where values have shown that something inside of a module differs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Final

import msgspec

from msprobe.compare.matching.signatures import Signature, signature_of
from msprobe.compare.sides import Side
from msprobe.compare.training.fingerprints import change_of, of_data
from msprobe.compare.training.frameworks import are_of_two_frameworks, is_of_mindspore
from msprobe.compare.training.gradient_factors import SAME_FACTOR
from msprobe.compare.verdicts.verdict_classes import VerdictClass
from msprobe.dump.facts import OUTLINED_TENSOR, Facts, Outline, OutlinedCall, OutlineRun
from msprobe.dump.formats.dtypes import normal_dtype
from msprobe.numerics.number_types import epsilon_of
from msprobe.operators.lookup import is_in_place, operator_of, scale_of, suggests
from msprobe.operators.operator import Hint, Operator

_CLOSE: Final = 1e-6  # numbers that programs compute in other ways
# They choose what gets a gradient, and no value.
_CUTS: Final = frozenset(("detach", "requires_grad", "setgradenabled"))
_COPIES: Final = frozenset(("clone", "contiguous"))
# The same elements in the same order, or casts that may be none: a cause only where nothing else
# differs.
_RESHAPES: Final = frozenset(
    ("flatten", "reshape", "squeeze", "unflatten", "unsqueeze", "view", "view_as")
)
_CASTS: Final = frozenset(("bfloat16", "double", "float", "half", "to", "type", "type_as"))
# Whole numbers that programs draw are places of samples, say.
_PICKS: Final = frozenset(("multinomial", "randint", "randint_like", "randperm"))
_CHANCES: Final = ("p", "dropout_p")
# How much is padded follows from what is loaded.
_PADDING: Final = frozenset(("constant_pad_nd", "pad", "pad_sequence"))
# Numbers that a person writes have fewer digits.
_COMPUTED: Final = 10
_TRUTH: Final = ("True", "False")
_LIMIT: Final = -1e4  # what is masked is set to numbers below it, all to the same effect
_MOST_COMPARED: Final = 500  # calls between the first and the last that differ, of either side


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

    Where they agree, those before it may have made another input of it.

    Args:
        sides: the target and the reference.
        names: the forward records of the module.

    Returns: None where the calls agree, or are not known, here and below.
    """
    facts = [side.view.facts for side in sides]
    inside = _calls(facts, *map(_is_inside, sides, names))
    return _first_difference(*inside) or difference_before(sides, names)


def difference_around(
    sides: Sequence[Side], names: Sequence[str | None]
) -> OutlineDifference | None:
    """Return in which call the module around a module differs, before or after it calls it.

    What comes after it makes the gradient that it is given. Arguments as above.
    """
    facts = [side.view.facts for side in sides]
    outer = [side.parent(name or "") for side, name in zip(sides, names, strict=True)]
    return _first_difference(*_calls(facts, *map(_is_inside, sides, outer)))


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
                _first_difference(*_calls(facts, *map(is_before, sides, outer, inner)))
                for is_before in (_is_before, partial(_is_before, has_parts=True))
            )
            # What one side calls by itself may be in a part of the other.
            kinds = [each and each.verdict for each in (found, whole)]
            if kinds[0] is VerdictClass.CALL and kinds[1] is not VerdictClass.CALL:
                found = whole
        inner = outer
    return found


def difference_of_models(target: Facts | None, reference: Facts | None) -> OutlineDifference | None:
    """Return in which call the models of two steps differ."""
    return _first_difference(*_calls((target, reference), _is_of_model, _is_of_model))


def difference_behind(target: Facts | None, reference: Facts | None) -> OutlineDifference | None:
    """Return in which call after those of the models, as one of a loss, two steps differ."""
    return _first_difference(*_calls((target, reference), _is_behind, _is_behind))


def limiting_call(target: Facts, reference: Facts) -> str:
    """Return how two steps limit gradients otherwise, in words; empty if no call shows it."""
    found = difference_behind(target, reference)
    return found.words if found is not None and found.verdict is VerdictClass.CLIPPING else ""


def difference_outside(target: Facts, reference: Facts) -> OutlineDifference | None:
    """Return in which call outside of the models two steps differ, by another program if it tells.

    Which calls put a batch together may depend on what is loaded, each of them on either side: one
    that the other side never makes is of another program. Any other may be of either.
    """
    calls = _calls((target, reference), _is_outside, _is_outside)
    told = _lone_operator(calls) or _put_between(calls)
    other = None if told else _first_difference(*calls)
    return replace(other, verdict=VerdictClass.UNEXPLAINED) if other else told


def _lone_operator(made: Sequence[Sequence[OutlinedCall]]) -> OutlineDifference | None:
    """Return the first call by an operator of one side alone; None if others differ as well.

    Or with a number that a person wrote, which no call of the other side is given.
    """
    own, other = ({*map(_written, calls)} for calls in made)
    lone, shared = (
        [[c for c in calls if (_written(c) in own ^ other) is is_lone] for calls in made]
        for is_lone in (True, False)
    )
    return None if _first_difference(*shared) else _first_difference(*lone)


def _put_between(made: Sequence[Sequence[OutlinedCall]]) -> OutlineDifference | None:
    """Return the first call by an operator of one side alone, which makes all of the other's too.

    None if the other side makes calls of its own, but for those in place of it.
    """
    parts = [part for part in _aligned(*_without_ends(*made), _content) if part[0] != "equal"]
    if len(parts) != 1 and {tag for tag, *_ in parts} not in ({"delete"}, {"insert"}):
        return None
    for is_target in (True, False):
        known = {*map(_operator, made[is_target]), *_PADDING}
        for _, *sides in parts:
            more, others = sides[not is_target], sides[is_target]
            place = next((i for i, call in enumerate(more) if _operator(call) not in known), None)
            if place is not None:
                both = more[place], next(iter(others[place:]), None)
                return _other_call(*both) if is_target else _other_call(*reversed(both))
    return None


def difference_of_writes(target: Facts | None, reference: Facts | None) -> OutlineDifference | None:
    """Return in which call outside of the models two steps write a tensor otherwise."""
    made = _calls((target, reference), _is_outside, _is_outside)
    return _first_difference(*([c for c in calls if is_in_place(c.name)] for calls in made))


def difference_ahead(
    facts: Sequence[Facts | None], names: Sequence[str | None], *, has_same_sizes: bool = False
) -> OutlineDifference | None:
    """Return which call of the program, before it calls a model, is given another number.

    Or which one side alone makes, as it does none of its operator.

    Args:
        facts: of the target and the reference.
        names: the forward records of the model, which is given another batch.
        has_same_sizes: it is of the same size, so that noise of another size does not follow.
    """
    calls = _calls(facts, *map(_is_ahead_of, names))
    told = (e for e in _differences(*calls) if e.is_real or (has_same_sizes and e.is_of_noise))
    return next(told, None) or _lone_operator(calls) or _put_between(calls)


def draw_ahead(facts: Sequence[Facts | None], names: Sequence[str | None]) -> bool:
    """Return whether both sides draw random numbers before they call a model; as above."""
    return all(_draws(_calls(facts, *map(_is_ahead_of, names))))


def same_draw(sides: Sequence[Side], names: Sequence[str | None]) -> OutlineDifference | None:
    """Return the first call that draws random numbers within a module, and may draw others.

    None unless both sides draw as often in the step, by the same calls. Arguments as for
    `difference_inside`.
    """
    facts = [side.view.facts for side in sides]
    made = (_draws(_calls(facts)), _draws(_calls(facts, *map(_is_inside, sides, names))))
    if any([*map(_content, own)] != [*map(_content, other)] for own, other in made):
        return None
    call = next(iter(made[1][0]), None)
    if call is None:
        return None
    words = f"{_shown(call)} draws other numbers"
    return OutlineDifference(VerdictClass.RANDOM, words, _line(call), takes_tensor=True)


def draws_within(target: Facts | None, reference: Facts | None) -> bool:
    """Return whether the models of both sides draw random numbers by calls without a record."""
    made = _draws(_calls((target, reference), _is_of_model, _is_of_model))
    return all(any(map(_takes_chance, calls)) for calls in made)


def _takes_chance(call: OutlinedCall) -> bool:
    signature = _signature_of(call)
    given = {signature.name_of(str(place)): word for place, word in enumerate(call.arguments)}
    numbers = {name: _number(word) for name, word in {**given, **call.named}.items()}
    return takes_chance({**signature.defaults, **numbers})


def takes_chance(arguments: Mapping[str, object]) -> bool:
    """Return whether a call that may draw random numbers does: not with a probability of 0.

    That is known by its name, or as the only real number that a call is given.
    """
    numbers = [each for each in arguments.values() if isinstance(each, float)]
    is_zero = bool(numbers) and not any(numbers)
    return not is_zero and all(arguments.get(name, True) for name in _CHANCES)


def _draws(made: Sequence[Sequence[OutlinedCall]]) -> list[list[OutlinedCall]]:
    return [[call for call in calls if _operator_of(call).draws_random] for calls in made]


def difference_of_casts(target: Facts | None, reference: Facts | None) -> OutlineDifference | None:
    """Return the first cast to a floating type that two steps do not share.

    None where both compute in one type alone: a cast to it changes nothing.
    """
    made = _calls((target, reference))
    casts = [[c for c in calls if _operator(c) in _CASTS and any(_types(c))] for calls in made]
    used = {epsilon for calls in casts for each in calls for epsilon in _types(each) if epsilon}
    used |= {epsilon for side in (target, reference) if side for epsilon in _resolutions(side)}
    return next(_differences(*casts), None) if len(used) > 1 else None


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
    made = _calls((target, reference))
    cuts = ([call for call in calls if _operator(call) in _CUTS] for calls in made)
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
        for each in _differences(*_calls((target, reference)))
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
            call, _, place = own.where.rpartition(".")
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
    return replace(call, words=f"{labels}; {call.words}")


def _calls(
    facts: Sequence[Facts | None], *wanted: Callable[[OutlineRun], bool]
) -> list[list[OutlinedCall]]:
    """Return the calls of both steps, in order: of all runs, or of those that are wanted.

    Returns: none unless all calls of both steps are known, of one framework.
    """
    target, reference = facts
    if target is None or reference is None or are_of_two_frameworks(target, reference):
        return [[], []]
    outlines = [each.outline or Outline(is_whole=False) for each in (target, reference)]
    if not all(outline.is_whole for outline in outlines):
        return [[], []]
    return [
        [
            calls[number]
            for run in outline.runs
            if is_wanted is None or is_wanted(run)
            for number in outline.bodies[run.body]
        ]
        for outline, calls, is_wanted in zip_longest(
            outlines, map(_known_calls, (target, reference), outlines), wanted
        )
    ]


class _UnnamedCall(OutlinedCall, frozen=True):
    """A call of MindSpore, whose functions have other signatures than PyTorch's of that name."""


def _known_calls(facts: Facts, outline: Outline) -> list[OutlinedCall]:
    if not is_of_mindspore(facts):
        return outline.calls
    return [_UnnamedCall(**msgspec.structs.asdict(call)) for call in outline.calls]


def _is_inside(side: Side, record: str | None) -> Callable[[OutlineRun], bool]:
    """Return whether a run is within a module, made by others in it as well."""
    return lambda run: record is not None and record in _modules(side, run)


def _is_before(
    side: Side, record: str | None, inner: str | None, *, has_parts: bool = False
) -> Callable[[OutlineRun], bool]:
    """Return whether a module makes a run before those within one of its parts.

    By itself, or in other parts as well.
    """
    begun = False

    def is_before(run: OutlineRun) -> bool:
        nonlocal begun
        around = _modules(side, run)
        begun = begun or inner in around
        return record in (around if has_parts else around[:1]) and not begun

    return is_before


def _modules(side: Side, run: OutlineRun) -> tuple[str | None, ...]:
    """Return the records of the modules that a run is within, from the innermost."""
    return run.parent, *side.around(run.parent or "")


def _is_ahead_of(record: str | None) -> Callable[[OutlineRun], bool]:
    has_ended = False

    def is_ahead(run: OutlineRun) -> bool:
        nonlocal has_ended
        has_ended = has_ended or (run.after is not None and run.after == record)
        return run.parent is None and not has_ended

    return is_ahead


def _is_outside(run: OutlineRun) -> bool:
    return run.parent is None


def _is_of_model(run: OutlineRun) -> bool:
    return run.parent is not None


def _is_behind(run: OutlineRun) -> bool:
    return run.parent is None and run.after is not None


def _first_difference(
    target: Sequence[OutlinedCall], reference: Sequence[OutlinedCall]
) -> OutlineDifference | None:
    """Return the first call that may change a result and differs."""
    if target == reference:
        return None
    silent = _CUTS | _COPIES
    for left_out in (silent | _RESHAPES | _CASTS, silent):
        own, other = (
            [each for each in calls if _operator(each) not in left_out]
            for calls in (target, reference)
        )
        found = list(_differences(own, other))
        if found:
            return _summed(found, own, other)
    return None


def _summed(
    found: Sequence[OutlineDifference],
    target: Sequence[OutlinedCall],
    reference: Sequence[OutlinedCall],
) -> OutlineDifference:
    # What a call makes of nothing but numbers is used by a later one, which tells more.
    first = next((each for each in found if each.takes_tensor), found[0])
    if Counter(map(_content, target)) == Counter(map(_content, reference)):
        both = zip(target, reference, strict=True)
        own, other = next(pair for pair in both if _content(pair[0]) != _content(pair[1]))
        if _shown(own) == _shown(other):  # it takes what another one takes on the other side
            return next(_other_arguments(own, other), first)
        words = f"{_shown(own)} is called where the reference calls {_shown(other)}, and later"
        return replace(first, verdict=VerdictClass.ORDER, words=words)
    others = len(found) - 1
    verb = "s differ" if others > 1 else " differs"
    more = f"; {others} more call{verb}" if others else ""
    return replace(first, words=first.words + more)


def _differences(
    target: Sequence[OutlinedCall], reference: Sequence[OutlinedCall]
) -> Iterator[OutlineDifference]:
    """Yield where calls differ: of the same arguments belong together, then those of a name."""
    for tag, own, other in _aligned(*_without_ends(target, reference), _content):
        if tag == "equal":
            continue
        for _, left, right in _aligned(own, other, _operator):
            for one, partner in zip_longest(left, right):
                if one and partner and _operator(one) == _operator(partner):
                    yield from _other_arguments(one, partner)
                else:
                    yield _other_call(one, partner)


def _without_ends(
    target: Sequence[OutlinedCall], reference: Sequence[OutlinedCall]
) -> tuple[Sequence[OutlinedCall], Sequence[OutlinedCall]]:
    """Return what lies between equal beginnings and equal ends, as far as it is compared."""
    least = min(len(target), len(reference))
    keys = [[*map(_content, calls)] for calls in (target, reference)]
    first = next((i for i in range(least) if keys[0][i] != keys[1][i]), least)
    last = next((i for i in range(least - first) if keys[0][~i] != keys[1][~i]), least - first)
    target, reference = (
        calls[first : min(len(calls) - last, first + _MOST_COMPARED)]
        for calls in (target, reference)
    )
    return target, reference


def _aligned(
    target: Sequence[OutlinedCall],
    reference: Sequence[OutlinedCall],
    key: Callable[[OutlinedCall], Hashable],
) -> Iterator[tuple[str, Sequence[OutlinedCall], Sequence[OutlinedCall]]]:
    """Yield parts of two lists that belong together, and `equal` where they are the same."""
    keys = [[*map(key, calls)] for calls in (target, reference)]
    for tag, *ends in SequenceMatcher(None, keys[0], keys[1], autojunk=False).get_opcodes():
        yield tag, target[ends[0] : ends[1]], reference[ends[2] : ends[3]]


def _other_call(target: OutlinedCall | None, reference: OutlinedCall | None) -> OutlineDifference:
    if target is not None and reference is not None:
        words = f"the target calls {_shown(target)}, the reference {_shown(reference)}"
    else:
        side = "reference" if target is None else "target"
        words = f"only the {side} calls {_shown(target or reference)}"
    both = [each for each in (target, reference) if each is not None]
    takes = any(OUTLINED_TENSOR in _words(each) for each in both)
    is_cast = len(both) == 1 and _operator(both[0]) in _CASTS
    verdict = VerdictClass.PRECISION if is_cast and any(_types(both[0])) else VerdictClass.CALL
    if any(suggests(each.name, Hint.LIMITS_GRADIENTS) for each in both):
        verdict = VerdictClass.CLIPPING
    ratio = _scale(target) / _scale(reference)
    is_division = len(both) == 1 and abs(_scale(both[0])) < 1
    return OutlineDifference(
        verdict, words, _line(both[0]), takes, None if ratio == 1 else ratio, is_division
    )


def _scale(call: OutlinedCall | None) -> float:
    """Return by what number a call multiplies its tensor."""
    if call is None:
        return 1.0
    numbers = map(_number, call.arguments)
    return scale_of(_operator_of(call), (each for each in numbers if each is not None))


def _types(call: OutlinedCall) -> Iterator[float]:
    """Yield the resolutions of the floating types that a call names."""
    return (epsilon_of(normal_dtype(word)) for word in (_operator(call), *_words(call)))


def _other_arguments(target: OutlinedCall, reference: OutlinedCall) -> Iterator[OutlineDifference]:
    given, expected = _arguments(target), _arguments(reference)
    scale = _scale(target) / _scale(reference)
    defaults = _signature_of(target).defaults
    for name in {**given, **expected}:
        own, other = given.get(name), expected.get(name)
        if own is not None and other is not None and _are_alike(own, other):
            continue
        what = f"argument {name}" if name.isdigit() else name
        default = repr(defaults[name]) if name in defaults else "not given"
        values = (
            f"{each or default} in the {side}"
            for each, side in ((own, "target"), (other, "reference"))
        )
        words = f"{what} of {_shown(target)} is {', '.join(values)}"
        is_limit = suggests(target.name, Hint.LIMITS_GRADIENTS)
        yield OutlineDifference(
            VerdictClass.CLIPPING if is_limit else VerdictClass.ARGUMENT,
            words,
            _line(target),
            takes_tensor=OUTLINED_TENSOR in _words(target),
            ratio=_ratio(own, other) if scale == 1 else scale,
            is_real=(_is_real(own) and _is_real(other)) or _is_word(own) or _is_word(other),
            is_computed=_is_computed(own) and _is_computed(other),
            is_of_noise=_operator_of(target).draws_random and _operator(target) not in _PICKS,
        )
        return


def _arguments(call: OutlinedCall) -> dict[str, str]:
    """Return the arguments of a call by name, those that are as if they were left out left out."""
    signature = _signature_of(call)
    given = {
        **{signature.name_of(str(place)): word for place, word in enumerate(call.arguments)},
        **call.named,
    }
    defaults = {name: repr(value) for name, value in signature.defaults.items()}
    return {name: word for name, word in given.items() if defaults.get(name) != word}


def _signature_of(call: OutlinedCall) -> Signature:
    return signature_of("" if isinstance(call, _UnnamedCall) else call.name)


def _words(call: OutlinedCall) -> tuple[str, ...]:
    return *call.arguments, *call.named.values()


def _are_alike(word: str, other: str) -> bool:
    number, expected = _number(word), _number(other)
    if number is None or expected is None:
        return word == other
    if max(number, expected) <= _LIMIT:
        return True
    return number == expected or abs(number - expected) <= _CLOSE * abs(expected)


def _ratio(word: str | None, other: str | None) -> float | None:
    """Return the ratio of two numbers; None where they are none, or the second is zero."""
    number, expected = _number(word), _number(other)
    return number / expected if number is not None and expected else None


def _number(word: str | None) -> float | None:
    try:
        return float(word or "")
    except ValueError:
        return None


def _content(call: OutlinedCall) -> Hashable:
    return _operator(call), call.arguments, *call.named.items()


def _digits(word: str | None) -> int:
    """Return how many digits a number is written with."""
    return sum(map(str.isdigit, (word or "").partition("e")[0].lstrip("-0.")))


def _is_real(word: str | None) -> bool:
    return _number(word) is not None and not (word or "").lstrip("-").isdigit()


def _is_word(word: str | None) -> bool:
    return word in _TRUTH or (word or "").startswith("'")


def _is_computed(word: str | None) -> bool:
    return _is_real(word) and _digits(word) >= _COMPUTED


def _written(call: OutlinedCall) -> Hashable:
    """Return what a program says of a call: its operator, and what it is given if it writes that.

    Whole numbers may be sizes and places, which follow from the data; which of them it gives does
    not.
    """
    is_told = any(_is_real(word) and not _is_computed(word) for word in _words(call))
    return _content(call) if is_told else (_operator(call), *call.named)


def _operator(call: OutlinedCall) -> str:
    return _operator_of(call).name


def _operator_of(call: OutlinedCall) -> Operator:
    prefix, _, api = call.name.partition(".")
    return operator_of(prefix, api)


def _shown(call: OutlinedCall | None) -> str:
    assert call is not None
    line = _line(call)
    return f"{call.name} ({line})" if line else call.name


def _line(call: OutlinedCall) -> str | None:
    return Path(call.source).name if call.source else None
