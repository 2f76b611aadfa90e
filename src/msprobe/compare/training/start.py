# SPDX-License-Identifier: Apache-2.0
"""Differences of the parameters and buffers with which a step begins."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from msprobe.compare.training.differences import (
    Effect,
    FactDifference,
    Moment,
    are,
    of_sides,
    shown,
    some_of,
)
from msprobe.compare.training.facts_pair import FactsPair
from msprobe.compare.training.fingerprints import Change, apart_together
from msprobe.compare.training.generators import differing_generators
from msprobe.compare.training.gradient_factors import common_factor, factor_between
from msprobe.compare.training.module_settings import owner_words
from msprobe.compare.training.other_modules import other_modules
from msprobe.compare.training.outlines import difference_of_writes, moved_write
from msprobe.compare.verdicts.verdict_classes import VerdictClass
from msprobe.dump.facts import Facts, Parameters

BEFORE: Final = (
    "; what made them differ came before: an earlier step, which was not compared, or a checkpoint"
)
"""Of parameters that differ when the first step starts that was compared, if it is a later one."""

_EARLIER_STEPS: Final = (
    'record the steps before step {} of both runs, too ("task": "signature"): msprobe bisect names '
    "the one in which they part"
)


def parameter_differences(
    pair: FactsPair,
    unchanged: Mapping[str, bool] | None,
    last: FactsPair | None = None,
    *,
    trains_alike: bool = False,
) -> Iterator[FactDifference]:
    """Yield differences of parameters and buffers when the step starts.

    Args:
        pair: the facts.
        trains_alike: both sides come to the same gradients: one holds several weights as one.
        unchanged: parameter → whether both sides agreed after the step before, a frozen one when it
            began; None for the first step that was compared. Parameters that it lacks, or that
            differed, inherit.
        last: the facts of the step before it that was compared.
    """
    target, reference = pair.target.parameters, pair.reference.parameters
    if target is None or reference is None or not target.name or not reference.name:
        return
    tied = list(_tied(pair, target, reference))
    yield from tied
    present = list(_present(pair)) if unchanged is None else []
    ties = _ties(target)
    changes = {
        name: change
        for name, change in pair.start_changes().items()
        if name not in ties and (unchanged is None or unchanged.get(name, False))
    }
    other = None if trains_alike else _of_modules(pair, present, changes)
    for each in present if other is None else [other]:
        yield replace(each, effect=Effect.NONE) if trains_alike else each
    yield from _types(pair)
    if other is not None and other.effect is Effect.CERTAIN:
        return
    # A model of other parameters draws other numbers for those that follow.
    alone = "".join(f"; {each.words}" for each in present)
    reshaped = _reshaped(pair) if unchanged is None and not trains_alike else ""
    is_first = unchanged is None
    moved = list(_moved(pair, target, changes, last, alone + reshaped, is_first=is_first))
    if is_first and moved and tied:
        # A parameter of its own draws numbers that a tied one does not.
        moved[0] = replace(moved[0], words=f"{tied[0].words}; {moved[0].words}")
    if reshaped:
        yield pair.difference(
            VerdictClass.PARAMETERS,
            Moment.PARAMETERS,
            reshaped.removeprefix("; ") + alone,
            # One that is only padded, say, draws no other numbers for those that follow.
            effect=Effect.CERTAIN
            if moved or differing_generators(pair.target, pair.reference)
            else Effect.POSSIBLE,
            next=("make both models with the same options",),
        )
    yield from moved


def _of_modules(
    pair: FactsPair, present: Sequence[FactDifference], changes: Mapping[str, Change]
) -> FactDifference | None:
    """Return that the models hold other modules, where parameters of one side alone show it.

    A module that is made otherwise draws other numbers than those made behind it are given: what
    they start with follows from it. Where one before it differs, too, something else is the cause.
    """
    if not any(each.effect is not Effect.NONE for each in present):
        return None
    lone = [*dict.fromkeys(name for names in _lone(pair) for name in names)]
    reshaped = _reshaped_names(pair)
    words, explained = other_modules(pair, [*lone, *reshaped])
    if not words or not explained.issuperset(reshaped):
        return None
    far = [name for name, change in changes.items() if not change.is_rounding]
    is_behind = bool(far) and any(_are_behind(facts, far, explained) for facts in pair.sides)
    is_followed = is_behind or (bool(far) and _are_drawn_again(pair, explained))
    words += f"; {_without_partner(pair)}"
    if is_followed:
        behind, kind = _of_one_kind(far, pair)
        total = sum(_kinds(pair).get(name) == kind for name in changes)
        place = "behind" if is_behind else "drawn after"
        words += (
            f"; {len(behind)} of {total} {kind}s that both have, all {place} these, "
            f"{are(behind, 'starts', 'start')} otherwise"
        )
    shares_some = bool(pair.starts[0].keys() & pair.starts[1].keys())
    return pair.difference(
        VerdictClass.CALL if shares_some else VerdictClass.DIFFERENT_PROGRAMS,
        Moment.PARAMETERS,
        words,
        effect=Effect.CERTAIN if is_followed else Effect.POSSIBLE,
        parameter=present[0].parameter,
        next=("make models of the same modules in both runs",),
    )


def _without_partner(pair: FactsPair) -> str:
    """Return how many parameters of each side the other one lacks, in words."""
    words: list[str] = []
    for (side, _, own, _), lone in zip(of_sides(*pair.starts), _lone(pair), strict=True):
        names, kind = _of_one_kind(lone, pair)
        what = f" {kind}s" * (not words)
        words += [f"{len(names)} of the {side}'s {_total(own, pair, kind)}{what}"] * bool(names)
    return f"{' and '.join(words)} have no partner"


def _are_behind(facts: Facts, names: Iterable[str], first: Container[str]) -> bool:
    """Return whether a model holds all of some parameters behind the first one of others."""
    columns = facts.parameters
    held = () if columns is None else columns.name
    before = set(itertools.takewhile(lambda name: name not in first, held))
    return len(before) < len(held) and before.isdisjoint(names)


def _are_drawn_again(pair: FactsPair, explained: Container[str]) -> bool:
    """Return whether what differs may be drawn anew, after modules that one side alone has.

    Their numbers leave the generators in another state. Another seed leaves no matrix equal that
    is made before them.
    """
    target, reference = pair.starts
    shapes = _shapes(pair.target.parameters)
    before = itertools.takewhile(lambda name: name not in explained, target)
    return bool(differing_generators(pair.target, pair.reference)) and any(
        min(shapes.get(name, (1, 1))[:2], default=1) > 1
        and target[name].norm
        and target[name].checksum == reference[name].checksum
        for name in before
        if name in reference
    )


def equal_at_start(pair: FactsPair, kind: str | None = None) -> dict[str, bool]:
    """Return parameter or buffer → whether both sides agree to the bit when the step starts.

    Those that one side lacks, or whose bytes were not read, are left out.
    """
    target, reference = pair.starts
    kinds = {} if kind is None or not target else kinds_of(pair.target.parameters)
    return {
        name: found.checksum == reference[name].checksum
        for name, found in target.items()
        if name in reference
        and None not in (found.checksum, reference[name].checksum)
        and kind in (None, kinds.get(name))
    }


class SharedParameters(NamedTuple):
    """How many parameters two models share.

    Attributes:
        target: parameters of the target's model.
        reference: those of the reference's.
        names: parameters of one name and shape.
        shapes: those of one shape, whatever their names.
    """

    target: int
    reference: int
    names: int
    shapes: int


def shared_parameters(pair: FactsPair) -> SharedParameters | None:
    """Return how many parameters the models of a step share; None where a side has none."""
    target, reference = map(_shapes, (pair.target.parameters, pair.reference.parameters))
    if not target or not reference:
        return None
    alike = Counter(target.values()) & Counter(reference.values())
    names = target.items() & reference.items()
    return SharedParameters(len(target), len(reference), len(names), alike.total())


def _shapes(columns: Parameters | None) -> dict[str, tuple[int, ...]]:
    """Return parameter → its shape; buffers are left out."""
    if columns is None:
        return {}
    rows = zip(columns.name, columns.kind, columns.shape, strict=False)
    return {name: tuple(shape) for name, kind, shape in rows if kind == "parameter"}


def frozen_in_both(pair: FactsPair) -> frozenset[str]:
    """Return the parameters that require no gradient on either side."""
    sides = (pair.target.modes, pair.reference.modes)
    frozen = [frozenset(() if modes is None else modes.requires_grad_false) for modes in sides]
    return frozen[0] & frozen[1]


def kinds_of(columns: Parameters | None) -> dict[str, str]:
    """Return name → parameter or buffer."""
    return {} if columns is None else dict(zip(columns.name, columns.kind, strict=False))


def _moved(
    pair: FactsPair,
    target: Parameters,
    changes: Mapping[str, Change],
    last: FactsPair | None,
    alone: str,
    *,
    is_first: bool,
) -> Iterator[FactDifference]:
    kinds = kinds_of(target)
    is_next = last is not None and last.step + 1 == pair.step
    for kind, plural in (("parameter", "parameters"), ("buffer", "buffers")):
        of_kind = [name for name in changes if kinds.get(name) == kind]
        moved = [name for name in of_kind if not changes[name].is_equal]
        far = [name for name in moved if not changes[name].is_rounding]
        if not far:
            continue
        worst = max(far, key=lambda name: changes[name].relative)
        change = changes[worst].largest_of(len(far))
        size = change.ending
        together = apart_together((changes[name], pair.starts[1][name].norm) for name in far)
        if together and not change.not_finite:
            size = together
        factor = common_factor(
            factor_between(*(each[name] for each in pair.starts)) for name in far
        )
        if factor is not None and factor.is_proved:
            size = f" by the factor {factor.value:.4g}"
        agreed = "it" if len(far) == 1 else "they"
        is_later = is_first and _went_on(pair)
        since = alone if is_first else f", though {agreed} agreed after the step before"
        since += BEFORE if is_later else ""
        if not is_first and worst in frozen_in_both(pair):
            since = f", though {agreed} agreed when the step before began"
        elif last is not None and is_next and kind == "parameter":
            since += (
                f": written between the update of step {last.step} and the start of step "
                f"{pair.step}"
            )
        verdict = VerdictClass.PARAMETERS
        call = None
        if last is not None and is_next and kind == "parameter":
            moved_call = moved_write(*last.sides)
            verdict = moved_call.verdict if moved_call else verdict
            call = moved_call or difference_of_writes(*last.sides)
            since += f"; {call.words}" if call else ""
        if kind == "buffer":
            sides = (pair.target.settings, pair.reference.settings)
            made, is_argument = owner_words(sides, worst)
            # Other modules may differ by what they start with, or by the step before: recordings
            # may have no fact of buffers after a step.
            is_made = is_argument and all(owner_words(sides, name)[1] for name in far)
            if is_made or not is_first:
                since = made or ", though every value recorded before it agrees"
                verdict = VerdictClass.ARGUMENT if is_argument else verdict
        yield pair.difference(
            verdict,
            Moment.PARAMETERS,
            f"{some_of(far, len(of_kind), plural)} {are(far, 'differs', 'differ')} when step "
            f"{pair.step} starts{size}{since}",
            effect=_effect(pair, far, change),
            parameter=worst,
            is_written=not is_first and kind == "parameter",
            next=(
                *((_EARLIER_STEPS.format(pair.step),) if is_later else ()),
                "make both models with the same options"
                if verdict is VerdictClass.ARGUMENT
                else "compare the checkpoints that the runs began with (msprobe compare-ckpt), and "
                "how parameters are initialised",
            )
            if is_first
            else (call.next if call else ())
            or ("look for code that changes parameters between two optimizer steps",),
        )


def _effect(pair: FactsPair, names: Iterable[str], change: Change) -> Effect:
    """Return whether what differs at the start changes values, `change` the largest difference."""
    # Norms alone tell no rounding from a swap of elements: calls that read them do.
    if change.is_bound and change.may_be_rounding:
        return Effect.NONE
    ends = [facts.buffers_after for facts in pair.sides]
    after = [{} if e is None else dict(zip(e.name, e.checksum, strict=True)) for e in ends]
    # As ranks do that get their buffers of another one before the model is called.
    is_overwritten = all(
        after[0].get(name) is not None and after[0][name] == after[1].get(name) for name in names
    )
    return Effect.IF_READ if is_overwritten else Effect.CERTAIN


def _went_on(pair: FactsPair) -> bool:
    """Return whether both runs may have trained before the step: optimizers count their steps."""
    sides = [facts.optimizer_steps() for facts in pair.sides]
    counts = [
        {n for step in steps for n in step.parameters.steps if n is not None} for steps in sides
    ]
    return pair.step > 0 and all(not known or max(known) > 0 for known in counts)


def _reshaped(pair: FactsPair) -> str:
    """Return which parameters have another shape, as a part of a sentence; shards have none."""
    names, kind = _of_one_kind(_reshaped_names(pair), pair)
    if not names:
        return ""
    total = _total(pair.starts[0], pair, kind)
    shapes = [shown([*shape]) for shape in pair.reshaped[names[0]]]
    first = "" if len(names) == 1 else "the first "
    return (
        f"; {some_of(names, total, f'{kind}s')} {are(names, 'has', 'have')} "
        f"another shape, "
        f"{first}{shapes[0]} instead of {shapes[1]}"
    )


def _reshaped_names(pair: FactsPair) -> list[str]:
    left_out = pair.sharded | _tied_names(pair)
    return [name for name in pair.reshaped if name not in left_out]


def _total(own: Iterable[str], pair: FactsPair, kind: str) -> int:
    """Return how many parameters, or buffers, a side has; one of several names counts once."""
    kinds = _kinds(pair)
    tied = _tied_names(pair)
    return sum(kinds.get(name) == kind for name in own if name not in tied)


def _kinds(pair: FactsPair) -> dict[str, str]:
    return kinds_of(pair.target.parameters) | kinds_of(pair.reference.parameters)


def _tied_names(pair: FactsPair) -> set[str]:
    return set().union(*(_ties(facts.parameters) for facts in pair.sides if facts.parameters))


def _of_one_kind(names: Iterable[str], pair: FactsPair) -> tuple[list[str], str]:
    """Return the parameters among some names, or the buffers where there are none; and the kind.

    Buffers follow their modules, as parameters that have another name besides follow these.
    """
    kinds = _kinds(pair)
    found = [name for name in names if kinds.get(name) != "buffer"]
    return (found, "parameter") if found else ([*names], "buffer")


def _present(pair: FactsPair) -> Iterator[FactDifference]:
    """Yield parameters that only one side has.

    As many on both sides, and none of them with a common name, are a model with other names. Of
    buffers the calls tell whether they are used: a mask may be kept, or made anew.
    """
    starts = pair.starts
    is_renamed = len(starts[0]) == len(starts[1]) and starts[0].keys().isdisjoint(starts[1])
    for (side, _, own, _), lone in zip(of_sides(*starts), _lone(pair), strict=True):
        names, kind = _of_one_kind(lone, pair)
        if names:
            yield pair.difference(
                VerdictClass.PARAMETERS,
                Moment.PARAMETERS,
                f"only the {side} has {some_of(names, _total(own, pair, kind), f'{kind}s')}",
                effect=Effect.NONE if is_renamed or kind == "buffer" else Effect.POSSIBLE,
                parameter=names[0],
            )


def _lone(pair: FactsPair) -> tuple[list[str], list[str]]:
    """Return the parameters and buffers of each side that the other one lacks."""
    target, reference = pair.starts
    tied = _tied_names(pair)
    return (
        [name for name in target if name not in reference and name not in tied],
        [name for name in reference if name not in target and name not in tied],
    )


def _types(pair: FactsPair) -> Iterator[FactDifference]:
    target, reference = pair.starts
    kinds = kinds_of(pair.target.parameters)
    tied = _tied_names(pair)
    single = [name for name in target if name not in tied]
    by_types: dict[tuple[str, str], list[str]] = {}
    for name in (name for name in single if name in reference):
        by_types.setdefault((target[name].dtype, reference[name].dtype), []).append(name)
    for types, names in by_types.items():
        if types[0] != types[1]:
            held = sorted({kinds.get(name, "parameter") for name in names}, reverse=True)
            total = sum(kinds.get(name, "parameter") in held for name in single)
            what = " and ".join(f"{kind}s" for kind in held)
            yield pair.difference(
                VerdictClass.PRECISION,
                Moment.PARAMETERS,
                f"{some_of(names, total, what)} {are(names)} {types[0]} in the target, "
                f"{types[1]} in the reference",
                effect=Effect.POSSIBLE,
                parameter=names[0],
            )


def _tied(pair: FactsPair, target: Parameters, reference: Parameters) -> Iterator[FactDifference]:
    for side, apart, own, other in of_sides(target, reference):
        ties, others = _ties(own), _ties(other)
        names = [name for name in ties if name not in others and name in other.name]
        if names:
            tied = ", ".join(f"{name} is tied to {ties[name]}" for name in names[:2])
            yield pair.difference(
                VerdictClass.PARAMETERS,
                Moment.PARAMETERS,
                f"{tied} in the {side}, and a parameter of its own in the {apart}",
                effect=Effect.POSSIBLE,
                parameter=names[0],
                next=("tie the same parameters in both runs",),
            )


def _ties(columns: Parameters) -> dict[str, str]:
    return {
        name: same
        for name, same in zip(columns.name, columns.same_as, strict=False)
        if same is not None
    }
