# SPDX-License-Identifier: Apache-2.0
"""Calls without records that draw random numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from msprobe.compare.matching.signatures import signature_of
from msprobe.compare.sides import Side
from msprobe.compare.training.outline_differences import (
    OutlineDifference,
    differences,
    has_same_calls,
)
from msprobe.compare.training.outlined_calls import (
    MadeCalls,
    content_of,
    given_arguments,
    is_ahead_of,
    is_inside,
    is_of_model,
    is_word,
    line_of,
    made_calls,
    number_of,
    operator_in,
    shown,
    signature_in,
)
from msprobe.compare.verdicts.verdict_classes import VerdictClass
from msprobe.dump.facts import Facts, OutlinedCall
from msprobe.dump.record_names import RecordKind
from msprobe.plain_text import times_text

_CHANCES: Final = ("p", "dropout_p", "training")
_GENERATOR: Final = "generator"
_NONE: Final = (None, "None")


@dataclass(frozen=True, slots=True)
class DrawAhead:
    """Calls by which both sides draw random numbers before they call a model.

    Attributes:
        words: the first of them, or how often it is made where that differs.
        is_same: both sides make the same calls, none of them with a generator of the program's own:
            from the same state they draw the same numbers.
        is_given: both sides make the same calls, the first of them with such a generator.
        is_other: one side alone makes some of them, and nothing else before the model differs.
    """

    words: str
    is_same: bool
    is_given: bool
    is_other: bool


def draw_ahead(facts: Sequence[Facts | None], names: Sequence[str | None]) -> DrawAhead | None:
    """Return how both sides draw random numbers before they call a model; None if one does not.

    Args:
        facts: of the target and the reference.
        names: the forward records of the model.
    """
    made = made_calls(facts, *map(is_ahead_of, names))
    target, reference = _draws(made)
    if not (target and reference):
        return None
    words = f"before it calls the model, the program draws random numbers by {shown(target[0])}"
    is_same = [*map(content_of, target)] == [*map(content_of, reference)]
    given = [each.named.get(_GENERATOR) not in _NONE for each in (*target, *reference)]
    others = ([each for each in calls if not operator_in(each).draws_random] for calls in made)
    lone = (each.words for each in differences(target, reference) if each.is_draw)
    return DrawAhead(
        _often_words(target, reference) or next(lone, words),
        is_same=is_same and not any(given),
        is_given=is_same and given[0],
        is_other=len(target) != len(reference) and has_same_calls(*others),
    )


def same_draw(sides: Sequence[Side], names: Sequence[str | None]) -> OutlineDifference | None:
    """Return the first call that draws random numbers within a module, and may draw others.

    None unless both sides draw as often in the step, by the same calls.

    Args:
        sides: the target and the reference.
        names: the forward records of the module.
    """
    facts = [side.view.facts for side in sides]
    made = (_draws(made_calls(facts)), _draws(made_calls(facts, *map(is_inside, sides, names))))
    if any([*map(content_of, own)] != [*map(content_of, other)] for own, other in made):
        return None
    call = next(iter(made[1][0]), None)
    if call is None:
        return None
    words = f"{shown(call)} draws other numbers"
    return OutlineDifference(VerdictClass.RANDOM, words, line_of(call), takes_tensor=True)


def draws_numbers(side: Side, record: str) -> bool:
    """Return whether a recorded call of a function draws random numbers."""
    parsed = side.parsed(record)
    if parsed.is_module or parsed.kind is not RecordKind.FORWARD:
        return False
    if not side.operator(record).draws_random:
        return False
    signature = signature_of(parsed.base)
    given = {signature.name_of(v.argument): v.value for v in side.values(record)}
    return takes_chance({**signature.defaults, **given})


def is_given_generator(side: Side, record: str) -> bool:
    """Return whether a recorded call is given a generator of the program's own."""
    values = side.values(record)
    return any(each.argument == _GENERATOR and each.value is not None for each in values)


def lone_draw(facts: Sequence[Facts | None]) -> OutlineDifference | None:
    """Return the first call without a record by which one side alone draws random numbers.

    Not one that is given a generator of the program's own. Where all other calls are the same,
    nothing but the random numbers differ.
    """
    made = made_calls(facts)
    own, other = (
        [each for each in calls if _takes_chance(each) and each.named.get(_GENERATOR) in _NONE]
        for calls in _draws(made)
    )
    found = (each for each in differences(own, other) if each.verdict is VerdictClass.CALL)
    call = next(found, None)
    if call is None:
        return None
    others = ([each for each in calls if not operator_in(each).draws_random] for calls in made)
    verdict = VerdictClass.RANDOM if has_same_calls(*others) else call.verdict
    return replace(call, verdict=verdict, words=_often_words(own, other) or call.words)


def _often_words(*sides: Sequence[OutlinedCall]) -> str:
    """Return which call both sides make, one of them more often, in words; empty if none is."""
    counts = [Counter(map(shown, side)) for side in sides]
    both = [call for call in counts[0] if counts[0][call] != counts[1][call]]
    if not (both and counts[1][both[0]] and counts[0].keys() == counts[1].keys()):
        return ""
    target, reference = (times_text(each[both[0]]) for each in counts)
    return f"the target calls {both[0]} {target}, the reference {reference}"


def draws_within(target: Facts | None, reference: Facts | None) -> bool:
    """Return whether the models of both sides draw random numbers by calls without a record."""
    made = _draws(made_calls((target, reference), is_of_model, is_of_model))
    return all(any(map(_takes_chance, calls)) for calls in made)


def takes_chance(arguments: Mapping[str, object]) -> bool:
    """Return whether a call that may draw random numbers does: not with a probability of 0.

    That is known by its name, or as the only real number that a call is given. Nor in evaluation.
    """
    numbers = [each for each in arguments.values() if isinstance(each, float)]
    is_zero = bool(numbers) and not any(numbers)
    return not is_zero and all(arguments.get(name, True) for name in _CHANCES)


def _takes_chance(call: OutlinedCall) -> bool:
    numbers = {
        name: word == "True" if is_word(word) else number_of(word)
        for name, word in given_arguments(call).items()
    }
    return takes_chance({**signature_in(call).defaults, **numbers})


def _draws(made: MadeCalls) -> list[list[OutlinedCall]]:
    return [[call for call in calls if operator_in(call).draws_random] for calls in made]
