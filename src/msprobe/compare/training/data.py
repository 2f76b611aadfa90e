# SPDX-License-Identifier: Apache-2.0
"""Differences of the batches that two runs were fed with, over all compared steps."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from msprobe.compare.training.calls_ahead import CallsAhead
from msprobe.compare.training.data_pairing import (
    by_micro,
    called_alike,
    calls_other_models,
    key_of,
    keys_of,
    models_called,
    models_words,
    paired,
    tensors_of,
    without_further,
)
from msprobe.compare.training.data_words import holds_the_same, samples_of, tensor_words
from msprobe.compare.training.differences import (
    Effect,
    FactDifference,
    Moment,
    of_sides,
    steps_ahead,
)
from msprobe.compare.training.facts_pair import FactsPair, same
from msprobe.compare.training.fingerprints import Change, change_of, of_data
from msprobe.compare.training.generators import differing_generators
from msprobe.compare.training.loaders import LoaderChange, loader_change
from msprobe.compare.training.micro_batches import SAME_BATCHES, is_split, other_counts
from msprobe.compare.training.modes import lone_autocast_epsilon
from msprobe.compare.training.outline_differences import OutlineDifference
from msprobe.compare.training.outlines import difference_ahead
from msprobe.compare.training.random_calls import DrawAhead, draw_ahead
from msprobe.compare.training.same_training import total_loss
from msprobe.compare.verdicts.verdict_classes import VerdictClass
from msprobe.dump.facts import Data
from msprobe.dump.formats.dtypes import normal_dtype
from msprobe.dump.record_names import parse_record_name
from msprobe.numerics.number_types import WHOLE, Kind, kind_of


@dataclass(frozen=True, slots=True)
class _Batch:
    """A micro batch of both sides; a side that lacks it has no tensors.

    Attributes:
        epsilon: resolution of a type in which one side alone computed earlier results, of which
            the batch may be made; 0 without one.
    """

    step: int
    micro: int
    target: Sequence[Data]
    reference: Sequence[Data]
    epsilon: float = 0.0

    @property
    def keys(self) -> tuple[Hashable, Hashable]:
        """Keys that equal batches share."""
        return keys_of(self.target), keys_of(self.reference)


class Made(Protocol):
    """Tells which inputs of a model, those of both sides, calls of the step made."""

    def __contains__(self, both: object) -> bool:
        """Return whether they are no data."""

    def carried(self, both: tuple[Data, Data]) -> tuple[bool, bool]:
        """Return for both sides whether an input is made of results of the step before."""

    def makes(self, data: Data, *, is_target: bool) -> bool:
        """Return whether recorded calls made an input, which may be one side's alone."""

    def are_made(self, both: tuple[Data, Data]) -> bool:
        """Return whether recorded calls made an input on both sides."""

    def is_faulty(self, both: tuple[Data, Data]) -> bool:
        """Return whether they are what a call to blame made of the data."""

    def is_drawn(self, both: tuple[Data, Data]) -> bool:
        """Return whether they are made of drawn numbers alone, by the same calls."""


class DataHistory:
    """The batches of one rank, step after step.

    Attributes:
        split: how the same samples are divided into other micro batches, in words; None where
            they are not.
    """

    def __init__(self, rank: int | str) -> None:
        self._rank = rank
        self._batches: list[_Batch] = []
        self._uneven: FactDifference | None = None
        self._forgotten: FactDifference | None = None  # a result of the step before
        self._exchanged: FactDifference | None = None  # inputs of one call
        self._other_order: dict[int, str] = {}
        self._turned: FactDifference | None = None  # calls of one model
        self._may_be_turned = True
        self._alike = set[int]()  # steps that come to the same losses and gradients
        self._ahead: dict[int, OutlineDifference | None] = {}
        self._steady = CallsAhead()
        self._draws: dict[int, DrawAhead | None] = {}
        self._moved: dict[int, bool] = {}  # steps that other states of generators begin
        self._loaders = LoaderChange()
        self.split: str | None = None
        self._is_recorded = True
        self._has_passes = False  # backward ones
        self._has_several = False  # calls of models for each of them
        self._has_models = False  # several
        self._leaves_out = False  # batches that follow from calls

    def add(self, pair: FactsPair, made_inside: Made | None = None) -> None:
        """Take in the batches of a step.

        Args:
            pair: the facts.
            made_inside: the inputs that calls of the step made; None where they are not known.
        """
        sides = [by_micro(facts.data) for facts in pair.sides]
        self._moved[pair.step] = bool(differing_generators(pair.target, pair.reference))
        self._has_passes |= any(pair.passes)
        self._has_several |= max(map(len, sides)) > max(pair.passes) > 0
        self._has_models |= any(len({*models_called(facts)}) > 1 for facts in pair.sides)
        if not all(sides):
            self._is_recorded = False
            return
        counts = len(sides[0]), len(sides[1])
        if counts[0] != counts[1] and pair.ran_through:
            same = is_split(pair.target.data, pair.reference.data)
            if self._uneven is None:
                self._uneven = other_counts(pair, counts, same=same)
            if same:
                self.split = self._uneven.words
                return
            # What joins or splits the samples of a model does so in each step.
            sides = called_alike(*sides) if self.split else without_further(*sides)
        elif self._uneven is None and pair.ran_through and calls_other_models(pair):
            self._uneven = other_counts(pair, counts, same=False)
        self._other_order[pair.step] = models_words(pair)
        epsilon = lone_autocast_epsilon(pair)
        batches = [
            _Batch(pair.step, micro, *tensors_of(own, other), epsilon if micro else 0.0)
            for own, other in paired(*sides)
            for micro in (own[0].micro,)
        ]
        self._note_turned(pair, batches)
        self._steady.add(pair, _records_of(batches[0]))
        exchanged = [_exchanged(batch, made_inside) for batch in batches]
        found = (self._of_exchanged(pair.step, each) for each in exchanged if each)
        self._exchanged = self._exchanged or next(found, None)
        batches = [*map(_without_wheres, batches, exchanged)]
        other = next((each for each in batches if each.keys[0] != each.keys[1]), None)
        if other is not None:
            self._look_before(pair, other)
        if made_inside is not None and any(self._is_of_loader(batch) for batch in batches):
            made_inside = None  # calls make it of more or fewer samples
        given = [
            batch
            if made_inside is None or batch.keys[0] == batch.keys[1]
            else _without(batch, made_inside)
            for batch in batches
        ]
        # Calls before the model is first called may have no records: those to blame, that make all
        # later batches otherwise, make the first one, too.
        if made_inside is not None:
            forgotten = (
                self._of_forgotten(pair.step, both, made_inside.carried(both))
                for batch in batches
                for both in _changed(batch)
            )
            self._forgotten = self._forgotten or next(filter(None, forgotten), None)
            faulty = [any(map(made_inside.is_faulty, _changed(batch))) for batch in batches]
            if batches[1:] and all(faulty[1:]):
                given[0] = replace(given[0], target=(), reference=())
            # Where nothing else comes in, the data themselves are drawn within the step.
            changed = itertools.chain.from_iterable(map(_changed, batches))
            if not any(each.target for each in given) and all(map(made_inside.is_drawn, changed)):
                given = batches
        known = [each for each in given if each.target or each.reference]
        self._leaves_out |= len(known) < len(batches)
        self._batches += known

    def note_training(self, step: int, *, is_alike: bool) -> None:
        """Take in whether a step comes to the same losses and gradients on both sides."""
        if is_alike:
            self._alike.add(step)

    def _note_turned(self, pair: FactsPair, batches: Sequence[_Batch]) -> None:
        """Note whether calls of a model get the same inputs in another order, to the same loss.

        Where a backward pass follows from several of them, whoever made the inputs: then what is
        made of their results comes in another order, too. With another loss they are other data.
        """
        target, reference = zip(*(batch.keys for batch in batches), strict=True)
        if target == reference:
            return
        has_several = len(batches) > max(pair.passes) > 0 and not pair.has_closure
        is_turned = has_several and Counter(target) == Counter(reference)
        self._may_be_turned = self._may_be_turned and is_turned
        if self._turned is None and is_turned and same(*map(total_loss, pair.sides)):
            first = next(each for each in batches if each.keys[0] != each.keys[1])
            record = first.target[0].record
            self._turned = self._difference(
                pair.step,
                f"{record or 'the model'} and its later calls get the same inputs in another order "
                f"(step {pair.step})",
                Effect.POSSIBLE,
                verdict=VerdictClass.ORDER,
                next=("look at the calls of the model",),
                record=record,
                micro=first.target[0].micro,
            )

    def _is_of_loader(self, batch: _Batch) -> bool:
        """Return whether the sizes of a batch are those that the loaders are set to."""
        return any(self._loaders.explains(*both) for both in _changed(batch))

    def divide(self, step: int, words: str) -> None:
        """Take in a step in which ranks share the same samples in another way.

        Args:
            step: its number.
            words: how.
        """
        self.split = words
        if self._uneven is None:
            self._uneven = self._difference(step, words, Effect.NONE)

    def divide_all(self, words: str) -> None:
        """Take in that more or fewer ranks share the same samples in all steps."""
        first = min((batch.step for batch in self._batches), default=0)
        self._batches, self._uneven = [], None
        self.divide(first, words)

    @property
    def is_same(self) -> bool:
        """Whether both sides recorded their batches in all steps, equal but for rounding."""
        return self._is_recorded and all(map(_is_rounding, self._differing))

    @property
    def _differing(self) -> list[_Batch]:
        return [batch for batch in self._batches if batch.keys[0] != batch.keys[1]]

    def differences(self, alike_since: float = math.inf) -> Iterator[FactDifference]:
        """Yield what differs in the batches: the first one, and what all of them say of it.

        Args:
            alike_since: the step from which losses and gradients are the same: what is of another
                shape is only padded, perhaps, or batches that vmap made of samples.
        """
        uneven = self._uneven
        if uneven is not None:
            may_be_alike = uneven.effect is Effect.CERTAIN and alike_since <= uneven.step
            yield replace(uneven, effect=Effect.POSSIBLE) if may_be_alike else uneven
        yield from filter(None, (self._forgotten, self._exchanged))
        if self._turned is not None and self._may_be_turned:
            is_idle = self._turned.step in self._alike
            yield replace(self._turned, effect=Effect.NONE) if is_idle else self._turned
            return
        differing = self._differing
        apart = [batch for batch in differing if not _is_rounding(batch)]
        if not apart:
            if differing:
                words = _other_types(differing) or (
                    f"the data agree within rounding, not to the bit (batches: {len(differing)})"
                )
                # Calls may take truth values and numbers in different ways.
                is_kind = any(_kind(a) is not _kind(b) for a, b in _changed(differing[0]))
                effect = Effect.POSSIBLE if is_kind else Effect.NONE
                yield self._difference(differing[0].step, words, effect)
            return
        first = apart[0]
        agree = any(b.step == first.step and b not in differing for b in self._batches)
        models = self._other_order.get(first.step, "")
        order = "" if models else self._order_words(apart)
        changed = [_changed(batch) for batch in apart]
        alone = [words for batch in apart for words in _alone_words(batch)]
        is_given = not order and bool(alone) and not any(changed)
        # Samples or edges may come in any order within a batch: the values tell if it matters.
        is_permuted = not order and all(map(_holds_the_same, apart)) and any(changed)
        is_reshaped = all(b and all(a.shape != o.shape for a, o in b) for b in changed)
        trains_alike = alike_since <= first.step
        is_certain = (order or models or (changed[0] and not is_permuted)) and not trains_alike
        # What generates may be given the whole text each time, or its last word and a cache.
        is_generated = not self._has_passes and all(
            each.shape[:1] == other.shape[:1] for both in changed for each, other in both
        )
        is_padded = is_reshaped and (trains_alike or is_generated)
        tensor = (first.target or first.reference)[0]
        is_unknown = not (order or models or is_given or is_permuted)
        ahead = self._ahead.get(first.step) if is_unknown or is_permuted else None
        if ahead is not None and ahead.source is None and ahead.verdict is VerdictClass.CALL:
            ahead = None  # of the framework: it loads data
        draw = self._draw(first.step)
        if ahead is not None and ahead.verdict is VerdictClass.ARGUMENT:
            # A loader acts before all calls, and a number may be drawn.
            is_drawn = draw is not None and ahead.is_computed and self._moved.get(first.step, False)
            ahead = None if self._loaders.words or is_drawn else ahead
        # Numbers do not change sizes.
        has_sizes = all(own.shape == other.shape for both in changed for own, other in both)
        if ahead is None and is_unknown and has_sizes and not self._loaders.words:
            ahead = self._steady.difference
        more = ahead.words if ahead else self._loaders.words
        is_noise = False
        if draw is not None and is_unknown and has_sizes and not more:
            is_own = draw.is_given and self._stays_apart(apart)
            is_noise = is_own or draw.is_other
            more = draw.words + ", from a generator of its own" * is_own
        yield self._difference(
            first.step,
            order
            or models
            or self._batch_words(apart, is_made=ahead is not None) + (f"; {more}" if more else ""),
            Effect.NONE
            if is_padded
            else Effect.CERTAIN
            if is_certain and not is_noise
            else Effect.POSSIBLE,
            verdict=VerdictClass.ORDER
            if models
            else VerdictClass.ARGUMENT
            if is_given
            else ahead.verdict
            if ahead
            else VerdictClass.RANDOM
            if is_noise
            else VerdictClass.DATA,
            next=(ahead and ahead.next) or SAME_BATCHES,
            record=tensor.record,
            is_partial=agree,
            is_reordered=is_permuted,
            is_unknown=is_unknown and ahead is None,
            is_drawn=draw is not None,
            may_be_drawn=has_sizes and (is_unknown if ahead is None else ahead.is_computed),
            micro=tensor.micro,
        )

    def _look_before(self, pair: FactsPair, other: _Batch) -> None:
        """Note what comes before the model is given another batch."""
        if not self._loaders.words:
            self._loaders = loader_change(pair)
        names = _records_of(other)
        self._ahead[pair.step] = difference_ahead(
            pair.sides,
            names,
            has_same_sizes=all(a.shape == b.shape for a, b in _tensors(other)),
        )
        self._draws[pair.step] = draw_ahead(pair.sides, names)

    def _draw(self, step: int) -> DrawAhead | None:
        """Return how a step draws numbers before its model is called, unless they are the same."""
        draw = self._draws.get(step)
        states = [self._moved.get(each) for each in (step, step + 1)]
        return None if draw is not None and draw.is_same and states == [False, False] else draw

    def _stays_apart(self, apart: Sequence[_Batch]) -> bool:
        """Return whether batches agree until a step, and differ in real numbers alone ever after.

        So does noise, from a draw of one side alone on.
        """
        first = apart[0].step
        later = [batch for batch in self._batches if batch.step >= first]
        kinds = {_kind(each) for batch in apart for both in _changed(batch) for each in both}
        is_first = all(batch.step == first for batch in self._batches if batch.step <= first)
        steps = {batch.step for batch in later}
        return (
            len(later) == len(apart) and len(steps) > 1 and not is_first and kinds == {Kind.FLOAT}
        )

    def _of_forgotten(
        self, step: int, both: tuple[Data, Data], carried: tuple[bool, bool]
    ) -> FactDifference | None:
        """Return that one side alone gives a model what is made of a result of the step before."""
        if carried[0] is carried[1]:
            return None
        side, other = ("target", "reference") if carried[0] else ("reference", "target")
        data = both[0]
        return self._difference(
            step,
            f"{data.where} of {data.record or 'the model'} is made of a result of the step before "
            f"in the {side}, not in the {other} (step {step})",
            Effect.POSSIBLE,
            verdict=VerdictClass.ARGUMENT,
            next=(f"look at what the {other} keeps of the step before",),
            record=data.record,
            micro=data.micro,
        )

    def _of_exchanged(self, step: int, inputs: Sequence[Data]) -> FactDifference:
        """Return that a model is given two tensors in place of each other."""
        names = " and ".join(each.where for each in inputs)
        record = inputs[0].record
        return self._difference(
            step,
            f"{names} of {record or 'the model'} are interchanged (step {step})",
            Effect.POSSIBLE,
            verdict=VerdictClass.ORDER,
            next=("look at the call of the model",),
            record=record,
            micro=inputs[0].micro,
        )

    def _difference(self, step: int, words: str, effect: Effect, **more: Any) -> FactDifference:
        told: dict[str, Any] = {
            "verdict": VerdictClass.DATA,
            "next": SAME_BATCHES,
            "words": words,
            "effect": effect,
        } | more
        return FactDifference(moment=Moment.DATA, step=step, rank=self._rank, **told)

    def _order_words(self, apart: Sequence[_Batch]) -> str:
        """Return how the order of the batches differs; empty where the batches do."""
        targets, references = ([batch.keys[side] for batch in self._batches] for side in (0, 1))
        first = apart[0]
        moved = Counter(b.keys[0] for b in apart) == Counter(b.keys[1] for b in apart)
        if moved and len(apart) > 1:
            return f"the same {len(apart)} batches come in another order (since step {first.step})"
        shift = steps_ahead(targets, references)
        if shift:
            count = f"{abs(shift)} batch{'es' * (abs(shift) > 1)}"
            return (
                f"the target is {count} {'ahead of' if shift > 0 else 'behind'} the reference "
                f"(since step {first.step})"
            )
        known = {key: batch for batch in self._batches for key in batch.keys[1:]}
        if first.keys[0] in known:
            other = known[first.keys[0]]
            return (
                f"{self._place(first)} is the batch that the reference has in step {other.step}"
                + (f", {self._call(other)}" if other.micro else "")
            )
        return ""

    def _place(self, batch: _Batch, *, is_made: bool = False) -> str:
        """Return which batch it is; what a call makes of one is none."""
        if not batch.micro and is_made:
            return f"what the model gets in step {batch.step}"
        if not batch.micro:
            return f"the batch of step {batch.step}"
        if self._has_several or self._has_models:
            return f"what {self._call(batch)} gets in step {batch.step}"
        return f"{self._call(batch)} of step {batch.step}"

    def _call(self, batch: _Batch) -> str:
        """Return which call of its model, or which micro batch, a batch is given to."""
        name = parse_record_name((batch.reference or batch.target)[0].record or "")
        if self._has_models and name.index is not None:
            return f"call {name.index} of {name.base}"
        if self._has_several or self._has_models:
            return f"call {batch.micro} of the model"
        return f"micro batch {batch.micro}"

    def _share(self, apart: Sequence[_Batch]) -> str:
        """Return how many batches differ, in words, or in how many steps; empty for one of one.

        Where calls of several models are given inputs, these are not batches each.
        """
        if self._has_several or self._has_models:
            own, total = (len({b.step for b in batches}) for batches in (apart, self._batches))
            return f" (in {own} of {total} steps)" if total > 1 else ""
        total = len(self._batches)
        return f" ({len(apart)} of {total} batches differ)" if total > 1 else ""

    def _batch_words(self, apart: Sequence[_Batch], *, is_made: bool = False) -> str:
        batch = apart[0]
        sizes = samples_of(_tensors(batch))
        changed = [tensor_words(*both, samples=sizes) for both in _changed(batch)]
        alone = _alone_words(batch)
        place = self._place(batch, is_made=is_made)
        share = "" if self._leaves_out or is_made else self._share(apart)
        if alone and not changed:
            return (
                f"in {self._place(batch)} the model gets other arguments: {'; '.join(alone)}{share}"
            )
        changed += alone
        if not changed:
            return f"{place} holds other tensors{share}"
        return f"{place} differs: {'; '.join(changed[:2])}{share}"


def _records_of(batch: _Batch) -> list[str | None]:
    """Return the records of the model that is given a batch, on both sides."""
    return [next((one.record for one in side), None) for side in (batch.target, batch.reference)]


def _exchanged(batch: _Batch, made_inside: Made | None) -> Sequence[Data]:
    """Return two inputs of a call, those of the target, that the other side gives it as the other.

    Empty without such. Where calls made all of them, these tell which result is which.
    """
    for one, other in itertools.combinations(_changed(batch), 2):
        if made_inside is not None and made_inside.are_made(one) and made_inside.are_made(other):
            continue
        if key_of(one[0]) == key_of(other[1]) and key_of(other[0]) == key_of(one[1]):
            return one[0], other[0]
    return ()


def _without_wheres(batch: _Batch, inputs: Sequence[Data]) -> _Batch:
    """Return a batch without some of its inputs."""
    names = {each.where for each in inputs}
    target, reference = (
        [each for each in side if each.where not in names]
        for side in (batch.target, batch.reference)
    )
    return replace(batch, target=target, reference=reference) if names else batch


def _without(batch: _Batch, made_inside: Made) -> _Batch:
    """Return a batch without the tensors that calls of the step made."""
    made = {
        id(each)
        for both in _tensors(batch)
        if key_of(both[0]) != key_of(both[1]) and both in made_inside
        for each in both
    }
    both_sides = batch.target, batch.reference
    alone = {each.where for each in both_sides[0]} ^ {each.where for each in both_sides[1]}
    formed = [
        each.where
        for place, side in enumerate(both_sides)
        for each in side
        if each.where in alone and made_inside.makes(each, is_target=not place)
    ]
    sides = [
        [each for each in side if id(each) not in made and not _is_form(each.where, alone, formed)]
        for side in both_sides
    ]
    return replace(batch, target=sides[0], reference=sides[1])


def _is_form(where: str, alone: set[str], formed: Sequence[str]) -> bool:
    """Return whether calls made an argument, or the other side's form of it, for one side alone."""
    return where in alone and any(
        where == each or where.startswith(f"{each}.") or each.startswith(f"{where}.")
        for each in formed
    )


def _alone_words(batch: _Batch) -> list[str]:
    """Return which arguments only one side has; empty where the sides name them differently."""
    target = {each.where for each in batch.target}
    reference = {each.where for each in batch.reference}
    if not target & reference:
        return []
    return [
        f"only the {side} is given {where}"
        for side, _, own, other in of_sides(target, reference)
        for where in sorted(own - other)
    ]


def _tensors(batch: _Batch) -> list[tuple[Data, Data]]:
    """Return the tensors of both sides in pairs: by their places, else in order."""
    references = {each.where: each for each in batch.reference}
    paired = [(each, references[each.where]) for each in batch.target if each.where in references]
    if paired:
        return paired
    return list(zip(batch.target, batch.reference, strict=False))


def _changed(batch: _Batch) -> list[tuple[Data, Data]]:
    """Return the tensors that both sides have, and that differ."""
    return [both for both in _tensors(batch) if key_of(both[0]) != key_of(both[1])]


def _holds_the_same(batch: _Batch) -> bool:
    """Return whether the tensors of both sides hold the same values, if in another order.

    One that a side alone has may be made of them: a matrix of edges.
    """
    return all(
        target.shape == reference.shape and holds_the_same(target, reference)
        for target, reference in _changed(batch)
    )


def _kind(data: Data) -> Kind:
    return kind_of(normal_dtype(data.dtype))


def _is_rounding(batch: _Batch) -> bool:
    if not len(_tensors(batch)) == len(batch.target) == len(batch.reference):
        return False
    return all(
        target.shape == reference.shape
        and (_kind(target) is _kind(reference) or {_kind(target), _kind(reference)} <= WHOLE)
        and _is_near(_change(target, reference), batch.epsilon)
        for target, reference in _tensors(batch)
    )


def _is_near(change: Change, epsilon: float) -> bool:
    """Return whether rounding, also that of a type computed in before, explains a difference."""
    coarsest = max(change.epsilon, epsilon) if change.epsilon else 0.0  # integers do not round
    return change._replace(epsilon=coarsest).is_rounding


def _other_types(batches: Sequence[_Batch]) -> str | None:
    """Return in words that all that differs are the types of integers; None if it is not."""
    changed = [both for batch in batches for both in _changed(batch)]
    types = {(normal_dtype(each.dtype), normal_dtype(other.dtype)) for each, other in changed}
    if len(types) != 1:
        return None
    (target, reference), *_ = types
    # Integers do not round: statistics and projections of another type are the same.
    if target == reference or kind_of(target) not in WHOLE:
        return None
    return (
        f"the data agree, as {target} in the target and {reference} in the reference (batches: "
        f"{len(batches)})"
    )


def _change(target: Data, reference: Data) -> Change:
    return change_of(of_data(target), of_data(reference))
