# SPDX-License-Identifier: Apache-2.0
"""Differences of the batches that two runs were fed with, over all compared steps."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from msprobe.compare.training.batches import (
    Batch,
    Made,
    alone_words,
    are_reordered,
    both_tensors,
    changed_tensors,
    exchanged_inputs,
    is_rounding,
    kind_of_data,
    other_types,
    records_of,
    without_made,
    without_wheres,
)
from msprobe.compare.training.calls_ahead import CallsAhead
from msprobe.compare.training.data_pairing import (
    by_micro,
    called_alike,
    calls_other_models,
    models_called,
    models_words,
    paired,
    tensors_of,
    without_further,
)
from msprobe.compare.training.data_words import samples_of, tensor_words
from msprobe.compare.training.differences import (
    Effect,
    FactDifference,
    Moment,
    steps_ahead,
)
from msprobe.compare.training.facts_pair import FactsPair
from msprobe.compare.training.generators import differing_generators
from msprobe.compare.training.loaders import LoaderChange, loader_change
from msprobe.compare.training.micro_batches import SAME_BATCHES, is_split, other_counts
from msprobe.compare.training.modes import lone_autocast_epsilon
from msprobe.compare.training.outline_differences import OutlineDifference
from msprobe.compare.training.outlines import difference_ahead
from msprobe.compare.training.random_calls import DrawAhead, draw_ahead
from msprobe.compare.training.turned_calls import TurnedCalls
from msprobe.compare.verdicts.verdict_classes import VerdictClass
from msprobe.dump.facts import Data
from msprobe.dump.record_names import parse_record_name
from msprobe.numerics.number_types import Kind


class DataHistory:
    """The batches of one rank, step after step.

    Attributes:
        split: how the same samples are divided into other micro batches, in words; None where
            they are not.
    """

    def __init__(self, rank: int | str) -> None:
        self._rank = rank
        self._batches: list[Batch] = []
        self._uneven: FactDifference | None = None
        self._forgotten: FactDifference | None = None  # a result of the step before
        self._exchanged: FactDifference | None = None  # inputs of one call
        self._other_order: dict[int, str] = {}
        self._turned = TurnedCalls()
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
            Batch(pair.step, micro, *tensors_of(own, other), epsilon if micro else 0.0)
            for own, other in paired(*sides)
            for micro in (own[0].micro,)
        ]
        if batches:  # the calls of one side may have no partners at all
            self._turned.add(pair, batches)
            self._steady.add(pair, records_of(batches[0]))
        exchanged = [exchanged_inputs(batch, made_inside) for batch in batches]
        found = (self._of_exchanged(pair.step, each) for each in exchanged if each)
        self._exchanged = self._exchanged or next(found, None)
        batches = [*map(without_wheres, batches, exchanged)]
        other = next((each for each in batches if each.keys[0] != each.keys[1]), None)
        if other is not None:
            self._look_before(pair, other)
        if made_inside is not None and any(self._is_of_loader(batch) for batch in batches):
            made_inside = None  # calls make it of more or fewer samples
        given = [
            batch
            if made_inside is None or batch.keys[0] == batch.keys[1]
            else without_made(batch, made_inside)
            for batch in batches
        ]
        # Calls before the model is first called may have no records: those to blame, that make all
        # later batches otherwise, make the first one, too.
        if made_inside is not None:
            forgotten = (
                self._of_forgotten(pair.step, both, made_inside.carried(both))
                for batch in batches
                for both in changed_tensors(batch)
            )
            self._forgotten = self._forgotten or next(filter(None, forgotten), None)
            faulty = [any(map(made_inside.is_faulty, changed_tensors(batch))) for batch in batches]
            if batches[1:] and all(faulty[1:]):
                given[0] = replace(given[0], target=(), reference=())
            # Where nothing else comes in, the data themselves are drawn within the step.
            changed = itertools.chain.from_iterable(map(changed_tensors, batches))
            if not any(each.target for each in given) and all(map(made_inside.is_drawn, changed)):
                given = batches
        known = [each for each in given if each.target or each.reference]
        self._leaves_out |= len(known) < len(batches)
        self._batches += known

    def note_training(self, step: int, *, is_alike: bool) -> None:
        """Take in whether a step comes to the same losses and gradients on both sides."""
        if is_alike:
            self._turned.alike.add(step)

    def _is_of_loader(self, batch: Batch) -> bool:
        """Return whether the sizes of a batch are those that the loaders are set to."""
        return any(self._loaders.explains(*both) for both in changed_tensors(batch))

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
        return self._is_recorded and all(map(is_rounding, self._differing))

    @property
    def _differing(self) -> list[Batch]:
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
        turned = self._turned.difference
        if turned is not None:
            yield turned
            return
        differing = self._differing
        apart = [batch for batch in differing if not is_rounding(batch)]
        if not apart:
            if differing:
                words = other_types(differing) or (
                    f"the data agree within rounding, not to the bit (batches: {len(differing)})"
                )
                # Calls may take truth values and numbers in different ways.
                is_kind = any(
                    kind_of_data(a) is not kind_of_data(b) for a, b in changed_tensors(differing[0])
                )
                effect = Effect.POSSIBLE if is_kind else Effect.NONE
                yield self._difference(differing[0].step, words, effect)
            return
        first = apart[0]
        agree = any(b.step == first.step and b not in differing for b in self._batches)
        models = self._other_order.get(first.step, "")
        order = "" if models else self._order_words(apart)
        changed = [changed_tensors(batch) for batch in apart]
        alone = [words for batch in apart for words in alone_words(batch)]
        is_given = not order and bool(alone) and not any(changed)
        # Samples or edges may come in any order within a batch: the values tell if it matters.
        is_permuted = not order and all(map(are_reordered, apart)) and any(changed)
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

    def _look_before(self, pair: FactsPair, other: Batch) -> None:
        """Note what comes before the model is given another batch."""
        if not self._loaders.words:
            self._loaders = loader_change(pair)
        names = records_of(other)
        self._ahead[pair.step] = difference_ahead(
            pair.sides,
            names,
            has_same_sizes=all(a.shape == b.shape for a, b in both_tensors(other)),
        )
        self._draws[pair.step] = draw_ahead(pair.sides, names)

    def _draw(self, step: int) -> DrawAhead | None:
        """Return how a step draws numbers before its model is called, unless they are the same."""
        draw = self._draws.get(step)
        states = [self._moved.get(each) for each in (step, step + 1)]
        return None if draw is not None and draw.is_same and states == [False, False] else draw

    def _stays_apart(self, apart: Sequence[Batch]) -> bool:
        """Return whether batches agree until a step, and differ in real numbers alone ever after.

        So does noise, from a draw of one side alone on.
        """
        first = apart[0].step
        later = [batch for batch in self._batches if batch.step >= first]
        kinds = {
            kind_of_data(each)
            for batch in apart
            for both in changed_tensors(batch)
            for each in both
        }
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

    def _order_words(self, apart: Sequence[Batch]) -> str:
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

    def _place(self, batch: Batch, *, is_made: bool = False) -> str:
        """Return which batch it is; what a call makes of one is none."""
        if not batch.micro and is_made:
            return f"what the model gets in step {batch.step}"
        if not batch.micro:
            return f"the batch of step {batch.step}"
        if self._has_several or self._has_models:
            return f"what {self._call(batch)} gets in step {batch.step}"
        return f"{self._call(batch)} of step {batch.step}"

    def _call(self, batch: Batch) -> str:
        """Return which call of its model, or which micro batch, a batch is given to."""
        name = parse_record_name((batch.reference or batch.target)[0].record or "")
        if self._has_models and name.index is not None:
            return f"call {name.index} of {name.base}"
        if self._has_several or self._has_models:
            return f"call {batch.micro} of the model"
        return f"micro batch {batch.micro}"

    def _share(self, apart: Sequence[Batch]) -> str:
        """Return how many batches differ, in words, or in how many steps; empty for one of one.

        Where calls of several models are given inputs, these are not batches each.
        """
        if self._has_several or self._has_models:
            own, total = (len({b.step for b in batches}) for batches in (apart, self._batches))
            return f" (in {own} of {total} steps)" if total > 1 else ""
        total = len(self._batches)
        return f" ({len(apart)} of {total} batches differ)" if total > 1 else ""

    def _batch_words(self, apart: Sequence[Batch], *, is_made: bool = False) -> str:
        batch = apart[0]
        sizes = samples_of(both_tensors(batch))
        changed = [tensor_words(*both, samples=sizes) for both in changed_tensors(batch)]
        alone = alone_words(batch)
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
