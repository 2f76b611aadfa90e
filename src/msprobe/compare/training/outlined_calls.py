# SPDX-License-Identifier: Apache-2.0
"""Calls that have no records, as the outlines of two steps tell them: which, and of what.

A part of a step is chosen by its runs: those within a module, before it, outside of all.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from msprobe.compare.matching.signatures import Signature, signature_of
from msprobe.compare.sides import Side
from msprobe.compare.training.first_evaluation import first_calls
from msprobe.compare.training.frameworks import are_of_two_frameworks, is_of_mindspore
from msprobe.compare.training.shared_outlines import with_shared_outline
from msprobe.dump.facts import Facts, Outline, OutlinedCall, OutlineRun
from msprobe.dump.record_names import parse_record_name
from msprobe.operators.lookup import operator_of
from msprobe.operators.operator import Operator

# Numbers that a person writes have fewer digits.
_COMPUTED: Final = 10
_OF_NUMBERS: Final = frozenset(("as_tensor", "tensor"))
_WHOLE: Final = re.compile(r"[-\d\[\], ]+")
_TRUTH: Final = ("True", "False")
# They choose what gets a gradient, and no value.
CUTS: Final = frozenset(("detach", "requires_grad", "_setgradenabled"))
COPIES: Final = frozenset(("clone", "contiguous"))
RESHAPES: Final = frozenset(
    ("flatten", "reshape", "squeeze", "unflatten", "unsqueeze", "view", "view_as")
)
"""The same elements in the same order."""
CASTS: Final = frozenset(("bfloat16", "double", "float", "half", "to", "type", "type_as"))
"""Casts, which may be none."""


@dataclass(frozen=True, slots=True)
class MadeCalls:
    """Calls of both steps, in order.

    Attributes:
        target: those of the target.
        reference: those of the reference.
        places: of both, which calls of the whole step they are.
        outlines: those of the whole steps; none where not all calls are known.
        shared: names of parameters, buffers and inputs of models that both steps have.
    """

    target: Sequence[OutlinedCall] = ()
    reference: Sequence[OutlinedCall] = ()
    places: tuple[Sequence[int], Sequence[int]] = ((), ())
    outlines: tuple[Outline, ...] = ()
    shared: frozenset[str] = frozenset()

    def __iter__(self) -> Iterator[Sequence[OutlinedCall]]:
        """Yield the calls of the target, then those of the reference."""
        return iter((self.target, self.reference))

    def only(self, is_kept: Callable[[OutlinedCall], bool]) -> MadeCalls:
        """Return some of the calls, without what they are fed with."""
        own, other = ([call for call in calls if is_kept(call)] for calls in self)
        return MadeCalls(own, other)


def made_calls(facts: Sequence[Facts | None], *wanted: Callable[[OutlineRun], bool]) -> MadeCalls:
    """Return the calls of both steps: of all runs, or of those that are wanted.

    But for those after an optimizer asks for the loss again. Of two frameworks these are the calls
    that both make alike.

    Returns: none unless all calls of both steps are known.
    """
    target, reference = facts
    if target is None or reference is None:
        return MadeCalls()
    if are_of_two_frameworks(target, reference):
        target, reference = (
            with_shared_outline(each, is_mindspore=is_of_mindspore(each))
            for each in (target, reference)
        )
    outlines = [_known_outline(each) for each in (target, reference)]
    if not all(outline.is_whole for outline in outlines):
        return MadeCalls()
    ends = map(first_calls, (target, reference), outlines)
    places = tuple(map(_places, outlines, wanted or (lambda _: True,) * 2, ends))
    own, other = (
        [calls[place] for place in chosen]
        for calls, chosen in zip(map(calls_in, outlines), places, strict=True)
    )
    shared = frozenset.intersection(*map(_names, (target, reference)))
    return MadeCalls(own, other, (places[0], places[1]), tuple(outlines), shared)


def _names(facts: Facts) -> frozenset[str]:
    held = facts.parameters.name if facts.parameters else ()
    return frozenset((*held, *(each.where for each in facts.data)))


def calls_in(
    outline: Outline, is_wanted: Callable[[OutlineRun], bool] = lambda _: True
) -> list[OutlinedCall]:
    """Return the calls of a step, in order: of all runs, or of those that are wanted."""
    runs = filter(is_wanted, outline.runs)
    return [outline.calls[number] for run in runs for number in outline.bodies[run.body]]


def _places(
    outline: Outline, is_wanted: Callable[[OutlineRun], bool], end: float = math.inf
) -> list[int]:
    places: list[int] = []
    first = 0
    for run in outline.runs:
        count = len(outline.bodies[run.body])
        if is_wanted(run):
            places += range(first, first + count)
        first += count
    return [place for place in places if place < end]


class _UnnamedCall(OutlinedCall, frozen=True):
    """A call of MindSpore, whose functions have other signatures than PyTorch's of that name."""


def _known_outline(facts: Facts) -> Outline:
    outline = facts.outline or Outline(is_whole=False)
    if not is_of_mindspore(facts):
        return outline
    calls: list[OutlinedCall] = [
        _UnnamedCall(**msgspec.structs.asdict(call)) for call in outline.calls
    ]
    return msgspec.structs.replace(outline, calls=calls)


def is_inside(side: Side, record: str | None) -> Callable[[OutlineRun], bool]:
    """Return whether a run is within a module, made by others in it as well."""
    return lambda run: record is not None and record in _modules(side, run)


def is_before(
    side: Side, record: str | None, inner: str | None, *, has_parts: bool = False
) -> Callable[[OutlineRun], bool]:
    """Return whether a module makes a run before those within one of its parts.

    By itself, or in other parts as well.
    """
    # Modules of the framework may make no call that is told: they end all the same.
    places = {name: place for place, name in enumerate(side.names)}
    begun = False

    def is_before(run: OutlineRun) -> bool:
        nonlocal begun
        around = _modules(side, run)
        has_ended = places.get(run.after or "", -1) >= places.get(inner or "", math.inf)
        begun = begun or inner in around or has_ended
        return record in (around if has_parts else around[:1]) and not begun

    return is_before


def _modules(side: Side, run: OutlineRun) -> tuple[str | None, ...]:
    """Return the records of the modules that a run is within, from the innermost."""
    return run.parent, *side.around(run.parent or "")


def is_ahead_of(record: str | None) -> Callable[[OutlineRun], bool]:
    """Return whether a run is the program's, before it has called a model."""
    has_ended = False

    def is_ahead(run: OutlineRun) -> bool:
        nonlocal has_ended
        has_ended = has_ended or (run.after is not None and run.after == record)
        return run.parent is None and not has_ended

    return is_ahead


def is_outside(run: OutlineRun) -> bool:
    """Return whether a run is outside of all modules."""
    return run.parent is None


def is_by(module: str) -> Callable[[OutlineRun], bool]:
    """Return whether a run is the own code of a module, which is given by its path."""
    return lambda run: run.parent is not None and parse_record_name(run.parent).path == module


def is_of_model(run: OutlineRun) -> bool:
    """Return whether a run is within a module."""
    return run.parent is not None


def is_behind(run: OutlineRun) -> bool:
    """Return whether a run is outside of all modules, after one has ended."""
    return run.parent is None and run.after is not None


def operator_in(call: OutlinedCall) -> Operator:
    """Return what a call computes."""
    prefix, _, api = call.name.partition(".")
    return operator_of(prefix, api)


def operator_name(call: OutlinedCall) -> str:
    """Return the name of what a call computes, the same for a function and a method."""
    return operator_in(call).name


def content_of(call: OutlinedCall) -> Hashable:
    """Return all that a call is, but for its place and its tensors.

    Whole numbers of which it makes a tensor may be places that the program chose by values.
    """
    name, given = operator_name(call), call.arguments
    if name in _OF_NUMBERS and given and _WHOLE.fullmatch(given[0]):
        given = ("", *given[1:])
    return name, given, *call.named.items()


def words_of(call: OutlinedCall) -> tuple[str, ...]:
    """Return what a call is given."""
    return *call.arguments, *call.named.values()


def signature_in(call: OutlinedCall) -> Signature:
    """Return the signature of the function that is called."""
    return signature_of("" if isinstance(call, _UnnamedCall) else call.name)


def given_arguments(call: OutlinedCall) -> dict[str, str]:
    """Return what a call is given, by the names of its function, or positions."""
    signature = signature_in(call)
    by_place = {signature.name_of(str(i)): word for i, word in enumerate(call.arguments)}
    return {**by_place, **call.named}


def slot_words(name: str) -> str:
    """Return an argument in words."""
    return f"argument {name}" if name.isdigit() else name


def shown(call: OutlinedCall) -> str:
    """Return a call in words."""
    line = line_of(call)
    return f"{call.name} ({line})" if line else call.name


def line_of(call: OutlinedCall) -> str | None:
    """Return the line of a call, None inside of the framework."""
    return Path(call.source).name if call.source else None


def number_of(word: str | None) -> float | None:
    """Return an argument as a number; None if it is none."""
    try:
        return float(word or "")
    except ValueError:
        return None


def is_real(word: str | None) -> bool:
    """Return whether an argument is a number, and no whole one."""
    return number_of(word) is not None and not (word or "").lstrip("-").isdigit()


def is_word(word: str | None) -> bool:
    """Return whether an argument is a truth value or a text."""
    return word in _TRUTH or (word or "").startswith("'")


def is_computed(word: str | None) -> bool:
    """Return whether an argument is a number with the digits of a result."""
    digits = (word or "").partition("e")[0].lstrip("-0.")
    return is_real(word) and sum(map(str.isdigit, digits)) >= _COMPUTED
