# SPDX-License-Identifier: Apache-2.0
"""Calls that have no records: where those of two sides differ, by the outlines in their facts.

At level L0 only modules are recorded. Which calls a module is made of, in which order and with
which arguments, is known; what they computed is not. So a difference of outlines is no cause by
itself: it names the call where values have shown that something inside of a module differs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import zip_longest
from pathlib import Path
from typing import Final

from msprobe.compare.matching.signatures import signature_of
from msprobe.compare.sides import Side
from msprobe.compare.training.fingerprints import change_of, of_data
from msprobe.compare.verdicts.verdict_classes import VerdictClass
from msprobe.dump.facts import OUTLINED_TENSOR, Facts, Outline, OutlinedCall
from msprobe.dump.record_names import parse_record_name
from msprobe.operators.lookup import operator_of

_CLOSE: Final = 1e-6  # numbers that programs compute in other ways
# The same elements in the same order, as one tensor or as another.
_SAME_ELEMENTS: Final = frozenset(
    (
        *("clone", "contiguous", "detach", "flatten", "reshape", "squeeze", "unflatten"),
        *("unsqueeze", "view"),
    )
)


@dataclass(frozen=True, slots=True)
class OutlineDifference:
    """The first call in which two outlines differ.

    Attributes:
        verdict: class of the cause that it is, if it is one.
        words: the difference in words.
        source: its line, as far as it is known.
        takes_tensor: whether the call takes a tensor, and does not make one of numbers alone.
    """

    verdict: VerdictClass
    words: str
    source: str | None
    takes_tensor: bool


def difference_inside(
    sides: tuple[Side, Side], names: tuple[str | None, str | None]
) -> OutlineDifference | None:
    """Return in which call of its own a module differs from its partner.

    Where its own calls agree, those that the modules around it make before it may differ: a mask, a
    table of angles.

    Args:
        sides: of the target and of the reference.
        names: the forward records of the module.

    Returns: None where the calls agree, or are not known.
    """
    found = None
    inner: tuple[str | None, str | None] = (None, None)
    while found is None and all(names):
        found = _difference(_facts(sides), names, inner)
        inner, names = names, _around(sides, names)
    return found


def difference_outside(
    sides: tuple[Side, Side], names: tuple[str | None, str | None]
) -> OutlineDifference | None:
    """Return in which call the use that is made of a module's results differs.

    That is where a gradient comes from that differs though all results agree.

    Args:
        sides: of the target and of the reference.
        names: the forward records of the module.

    Returns: None where the calls agree, or are not known.
    """
    found = None
    while found is None and all(names):
        names = _around(sides, names)
        found = _difference(_facts(sides), names, (None, None))
    return found


def difference_behind(target: Facts | None, reference: Facts | None) -> OutlineDifference | None:
    """Return in which call after those of the models, as one of a loss, two steps differ.

    Returns: None where the calls agree, or are not known.
    """
    return _difference((target, reference), (None, None), (None, None))


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


def _around(
    sides: tuple[Side, Side], names: tuple[str | None, str | None]
) -> tuple[str | None, str | None]:
    """Return the records of the modules around two; None for one outside of all."""
    own, other = (side.parent(name or "") for side, name in zip(sides, names, strict=True))
    return own, other


def _facts(sides: tuple[Side, Side]) -> tuple[Facts | None, Facts | None]:
    return sides[0].view.facts, sides[1].view.facts


def _difference(
    sides: tuple[Facts | None, Facts | None],
    names: tuple[str | None, str | None],
    until: tuple[str | None, str | None],
) -> OutlineDifference | None:
    target, reference = sides
    if target is None or target.outline is None or reference is None or reference.outline is None:
        return None
    return _first_difference(
        _calls(target.outline, names[0], until[0]), _calls(reference.outline, names[1], until[1])
    )


def _calls(outline: Outline, parent: str | None, until: str | None = None) -> list[OutlinedCall]:
    """Return the calls that a module makes by itself, or those outside of all after a model ran.

    Args:
        outline: of the step.
        parent: the record of the module; None for what is outside.
        until: the record of a module before whose calls they are made.
    """
    inside = None
    if until is not None:
        parsed = parse_record_name(until)
        inside = f"{parsed.prefix}.{parsed.path}." if parsed.path else f"{parsed.prefix}."
    found: list[OutlinedCall] = []
    for run in outline.runs:
        if inside is not None and run.parent and f"{run.parent}.".startswith((f"{until}.", inside)):
            break
        if run.parent == parent and (parent is not None or run.after is not None):
            found += [outline.calls[number] for number in outline.bodies[run.body]]
    return found


def _first_difference(
    target: Sequence[OutlinedCall], reference: Sequence[OutlinedCall]
) -> OutlineDifference | None:
    """Return the first call that differs, those that rearrange no elements left out."""
    sides = [
        [each for each in calls if _operator(each) not in _SAME_ELEMENTS]
        for calls in (target, reference)
    ]
    found = list(_differences(*sides)) or list(_differences(target, reference))
    if not found:
        return None
    # What a call makes of nothing but numbers is used by a later one, which tells more.
    first = next((each for each in found if each.takes_tensor), found[0])
    if Counter(map(_content, target)) == Counter(map(_content, reference)):
        both = zip(target, reference, strict=True)
        own, other = next(pair for pair in both if _content(pair[0]) != _content(pair[1]))
        words = f"{_shown(own)} is called where the reference calls {_shown(other)}, and later"
        return replace(first, verdict=VerdictClass.ORDER, words=words)
    others = len(found) - 1
    more = f"; {others} more of its calls differ{'s' * (others == 1)}" if others else ""
    return replace(first, words=first.words + more)


def _differences(
    target: Sequence[OutlinedCall], reference: Sequence[OutlinedCall]
) -> Iterator[OutlineDifference]:
    """Yield where calls differ: of the same arguments belong together, then those of a name."""
    for own, other in _unequal(target, reference, _content):
        for left, right in _unequal(own, other, _operator, wants_equal=True):
            for one, partner in zip_longest(left, right):
                if one and partner and _operator(one) == _operator(partner):
                    yield from _other_arguments(one, partner)
                else:
                    yield _other_call(one, partner)


def _unequal(
    target: Sequence[OutlinedCall],
    reference: Sequence[OutlinedCall],
    key: Callable[[OutlinedCall], Hashable],
    *,
    wants_equal: bool = False,
) -> Iterator[tuple[Sequence[OutlinedCall], Sequence[OutlinedCall]]]:
    """Yield the parts of two lists that differ; with `wants_equal` those that agree as well."""
    keys = [[key(each) for each in calls] for calls in (target, reference)]
    for tag, begin, end, other, other_end in SequenceMatcher(
        None, keys[0], keys[1], autojunk=False
    ).get_opcodes():
        if wants_equal or tag != "equal":
            yield target[begin:end], reference[other:other_end]


def _other_call(target: OutlinedCall | None, reference: OutlinedCall | None) -> OutlineDifference:
    if target is not None and reference is not None:
        words = f"the target calls {_shown(target)}, the reference {_shown(reference)}"
    else:
        side = "reference" if target is None else "target"
        words = f"only the {side} calls {_shown(target or reference)}"
    both = [each for each in (target, reference) if each is not None]
    takes = any(OUTLINED_TENSOR in _words(each) for each in both)
    return OutlineDifference(VerdictClass.CALL, words, both[0].source, takes)


def _other_arguments(target: OutlinedCall, reference: OutlinedCall) -> Iterator[OutlineDifference]:
    given, expected = _arguments(target), _arguments(reference)
    defaults = signature_of(target.name).defaults
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
        takes = OUTLINED_TENSOR in _words(target)
        yield OutlineDifference(VerdictClass.ARGUMENT, words, target.source, takes)
        return


def _arguments(call: OutlinedCall) -> dict[str, str]:
    """Return the arguments of a call by name, those that are as if they were left out left out."""
    signature = signature_of(call.name)
    given = {
        **{signature.name_of(str(place)): word for place, word in enumerate(call.arguments)},
        **call.named,
    }
    defaults = {name: repr(value) for name, value in signature.defaults.items()}
    return {name: word for name, word in given.items() if defaults.get(name) != word}


def _words(call: OutlinedCall) -> tuple[str, ...]:
    return *call.arguments, *call.named.values()


def _are_alike(word: str, other: str) -> bool:
    if word == other:
        return True
    try:
        number, expected = float(word), float(other)
    except ValueError:
        return False
    return abs(number - expected) <= _CLOSE * abs(expected)


def _content(call: OutlinedCall) -> Hashable:
    return _operator(call), *sorted(_arguments(call).items())


def _operator(call: OutlinedCall) -> str:
    prefix, _, api = call.name.partition(".")
    return operator_of(prefix, api).name


def _shown(call: OutlinedCall | None) -> str:
    assert call is not None
    line = f" ({Path(call.source).name})" if call.source else ""
    return f"{call.name}{line}"
