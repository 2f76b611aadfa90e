# SPDX-License-Identifier: Apache-2.0
"""How two tensors of a batch differ, in words."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence

from msprobe.compare.training.differences import shown
from msprobe.compare.training.fingerprints import change_of, of_data
from msprobe.compare.training.micro_batches import SAME_SUM
from msprobe.dump.facts import Data


def samples_of(tensors: Sequence[tuple[Data, Data]]) -> tuple[int, int] | None:
    """Return how many samples the batches of both sides hold; None where that is not told.

    Most tensors are as long as that, or the one of most dimensions; a list of words is not.
    """
    shapes = [(a.shape, b.shape) for a, b in tensors if a.shape and b.shape]
    sizes = Counter((own[0], other[0]) for own, other in shapes)
    votes: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for own, other in shapes:
        both = own[0], other[0]
        votes[sizes[both], len(own)].append(both)
    most = {*votes[max(votes)]} if votes else set()
    return most.pop() if len(most) == 1 else None


def tensor_words(target: Data, reference: Data, *, samples: tuple[int, int] | None) -> str:
    """Return how two tensors of a batch differ.

    Args:
        target: the target's.
        reference: the reference's.
        samples: how many samples the batch holds on both sides.
    """
    where = target.where
    if target.shape != reference.shape:
        is_longer = target.shape[1:] == reference.shape[1:] and target.shape and reference.shape
        if is_longer and (target.shape[0], reference.shape[0]) == samples:
            count = target.shape[0]
            held = f"{count} sample{'s' * (count != 1)}"
            return f"{where} holds {held} instead of {reference.shape[0]}"
        return f"{where} has the shape {shown(target.shape)} instead of {shown(reference.shape)}"
    if target.dtype != reference.dtype:
        return f"{where} is {target.dtype} instead of {reference.dtype}"
    if holds_the_same(target, reference):
        return f"{where} holds the same values in another order"
    found = []
    for name in ("mean", "norm", "max", "min"):
        both = [getattr(side, name) for side in (target, reference)]
        number, other = map(shown, both)
        if None not in both and number != other:
            found.append(f"{name} of {where} is {number} instead of {other}")
            if name != "mean" or not _is_sum_of_rounding(target, reference):
                return found[-1]
    if found:
        return found[0]
    size = change_of(of_data(target), of_data(reference)).words
    return f"{where} differs {size}".rstrip()


def _is_sum_of_rounding(target: Data, reference: Data) -> bool:
    """Return whether means differ by no more than rounding leaves of values that add up to 0."""
    if target.mean is None or reference.mean is None or not reference.norm:
        return False
    typical = reference.norm / math.sqrt(math.prod(reference.shape))
    return abs(target.mean - reference.mean) <= SAME_SUM * typical


def holds_the_same(target: Data, reference: Data) -> bool:
    """Return whether two tensors hold the same values, as far as sums and extremes tell."""
    pairs = [(target.mean, reference.mean), (target.norm, reference.norm)]
    return (
        target.max == reference.max
        and target.min == reference.min
        and math.prod(target.shape) > 1
        and all(
            a is not None and b is not None and abs(a - b) <= SAME_SUM * abs(b) for a, b in pairs
        )
    )
