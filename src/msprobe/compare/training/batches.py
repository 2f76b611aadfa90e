# SPDX-License-Identifier: Apache-2.0
"""`Batch`: what both sides give a model at one call, and how its tensors differ."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from msprobe.compare.training.data_pairing import key_of, keys_of
from msprobe.compare.training.data_words import holds_the_same
from msprobe.compare.training.differences import of_sides
from msprobe.compare.training.fingerprints import Change, change_of, of_data
from msprobe.dump.facts import Data
from msprobe.dump.formats.dtypes import normal_dtype
from msprobe.numerics.number_types import WHOLE, Kind, kind_of


@dataclass(frozen=True, slots=True)
class Batch:
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


def records_of(batch: Batch) -> list[str | None]:
    """Return the records of the model that is given a batch, on both sides."""
    return [next((one.record for one in side), None) for side in (batch.target, batch.reference)]


def exchanged_inputs(batch: Batch, made_inside: Made | None) -> Sequence[Data]:
    """Return two inputs of a call, those of the target, that the other side gives it as the other.

    Empty without such. Where calls made all of them, these tell which result is which.
    """
    for one, other in itertools.combinations(changed_tensors(batch), 2):
        if made_inside is not None and made_inside.are_made(one) and made_inside.are_made(other):
            continue
        if key_of(one[0]) == key_of(other[1]) and key_of(other[0]) == key_of(one[1]):
            return one[0], other[0]
    return ()


def without_wheres(batch: Batch, inputs: Sequence[Data]) -> Batch:
    """Return a batch without some of its inputs."""
    names = {each.where for each in inputs}
    target, reference = (
        [each for each in side if each.where not in names]
        for side in (batch.target, batch.reference)
    )
    return replace(batch, target=target, reference=reference) if names else batch


def without_made(batch: Batch, made_inside: Made) -> Batch:
    """Return a batch without the tensors that calls of the step made."""
    made = {
        id(each)
        for both in both_tensors(batch)
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


def alone_words(batch: Batch) -> list[str]:
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


def both_tensors(batch: Batch) -> list[tuple[Data, Data]]:
    """Return the tensors of both sides in pairs: by their places, else in order."""
    references = {each.where: each for each in batch.reference}
    paired = [(each, references[each.where]) for each in batch.target if each.where in references]
    if paired:
        return paired
    return list(zip(batch.target, batch.reference, strict=False))


def changed_tensors(batch: Batch) -> list[tuple[Data, Data]]:
    """Return the tensors that both sides have, and that differ."""
    return [both for both in both_tensors(batch) if key_of(both[0]) != key_of(both[1])]


def are_reordered(batch: Batch) -> bool:
    """Return whether the tensors of both sides hold the same values, if in another order.

    One that a side alone has may be made of them: a matrix of edges.
    """
    return all(
        target.shape == reference.shape and holds_the_same(target, reference)
        for target, reference in changed_tensors(batch)
    )


def kind_of_data(data: Data) -> Kind:
    """Return the kind of numbers that a tensor holds."""
    return kind_of(normal_dtype(data.dtype))


def is_rounding(batch: Batch) -> bool:
    """Return whether the tensors of both sides agree but for the rounding of their types."""
    if not len(both_tensors(batch)) == len(batch.target) == len(batch.reference):
        return False
    return all(
        target.shape == reference.shape
        and (
            kind_of_data(target) is kind_of_data(reference)
            or {kind_of_data(target), kind_of_data(reference)} <= WHOLE
        )
        and _is_near(_change(target, reference), batch.epsilon)
        for target, reference in both_tensors(batch)
    )


def _are_of_one_kind(target: Data, reference: Data) -> bool:
    kinds = {kind_of_data(target), kind_of_data(reference)}
    return len(kinds) == 1 or kinds <= WHOLE


def _is_near(change: Change, epsilon: float) -> bool:
    """Return whether rounding, also that of a type computed in before, explains a difference."""
    coarsest = max(change.epsilon, epsilon) if change.epsilon else 0.0  # integers do not round
    return change._replace(epsilon=coarsest).is_rounding


def other_types(batches: Sequence[Batch]) -> str | None:
    """Return in words that all that differs are the types of integers; None if it is not."""
    changed = [both for batch in batches for both in changed_tensors(batch)]
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
