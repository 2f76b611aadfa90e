# SPDX-License-Identifier: Apache-2.0
"""How far apart the gradients are that an optimizer gets, and whether rounding explains it.

In a coarse type other calls make other roundings: elements move up and down, norms hardly.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from msprobe.compare.rounding import LARGEST_SHIFT, gradient_shift, is_of_sum
from msprobe.compare.training.facts_pair import StepPair
from msprobe.compare.training.fingerprints import Fingerprint
from msprobe.compare.training.gradient_factors import factor_between

PROJECTIONS: Final = 2
"""How many there are of each gradient; one with as many elements is a multiple by chance."""
SAME_GRADIENT: Final = 1e-5
"""Sums in another order are as near as this in float32, and gradients of other calls, too."""
# Gradients so much smaller than the largest one may be the rounding of larger terms.
_SMALL: Final = 1e-4
# Terms as large as the largest gradient may cancel in a smaller one, and leave their rounding.
_OF_TERMS: Final = 2.0**-21
# What is left of noise beside the nearest multiple of other noise, relative to its norm.
_NOISE: Final = 0.05
_ROUNDING: Final = 2.0**-19  # a sum of many roundings of float32

Gradients = Mapping[str, Fingerprint]


def has_same_gradients(pair: StepPair, tolerance: float = SAME_GRADIENT) -> bool:
    """Return whether all gradients that an optimizer gets are the same sums, in another order.

    One side may hold several weights as one: those of one side alone are the same together.
    """
    both = pair.gradients
    shared = both[0].keys() & both[1].keys()
    alone = [[each.norm or 0.0 for n, each in side.items() if n not in shared] for side in both]
    return (
        len(near_gradients(*both, tolerance)) == len(shared)
        and bool(alone[0]) is bool(alone[1])
        and math.isclose(math.hypot(*alone[0]), math.hypot(*alone[1]), rel_tol=tolerance)
    )


def are_rounded(pair: StepPair, resolution: float, *, is_one_sided: bool = False) -> bool:
    """Return whether all gradients that an optimizer gets differ as sums in a coarse type do.

    Those of one side alone do so together, as in `has_same_gradients`.

    Args:
        pair: an optimizer step.
        resolution: of the coarse type.
        is_one_sided: see `is_of_sum`.
    """
    both = pair.gradients
    shared = both[0].keys() & both[1].keys()
    rounded = rounded_gradients(pair, resolution, is_one_sided=is_one_sided)
    if not shared or rounded != shared:
        return False
    alone = _alone(pair)
    typical = _typical(list(_moves(pair)))
    return alone is None or is_of_sum(
        typical, alone.moved, alone.size, resolution, typical, is_one_sided=is_one_sided
    )


class _Alone(NamedTuple):
    """The gradients that one side alone has, and those of the other side alone, as one each.

    Attributes:
        name: the first of their parameters.
        moved: how far the norm moves, relative to it; infinite where these are no same parameters.
        size: how many elements they have.
    """

    name: str
    moved: float
    size: int


def _alone(pair: StepPair) -> _Alone | None:
    """Return what one side alone has, which may hold several weights as one; None if nothing."""
    target, reference = pair.gradients
    found = []
    for own, other, columns in (
        (target, reference, pair.columns[0]),
        (reference, target, pair.columns[1]),
    ):
        shapes = dict(zip(columns.name, columns.shape, strict=False))
        names = [name for name in own if name not in other]
        norm = math.hypot(*(own[name].norm or 0.0 for name in names))
        found.append((names, sum(math.prod(shapes[name]) for name in names), norm))
    (names, size, norm), (others, other_size, other_norm) = found
    if not names and not others:
        return None
    is_same = size == other_size and other_norm > 0.0
    moved = abs(norm - other_norm) / other_norm if is_same else math.inf
    return _Alone((names or others)[0], moved, max(size, other_size))


def rounded_gradients(pair: StepPair, resolution: float, *, is_one_sided: bool = False) -> set[str]:
    """Return the gradients that differ as sums do in a type of some resolution."""
    noise = _noise(pair, resolution)
    moves = [each for each in _moves(pair) if each.name not in noise]
    typical = _typical(moves)
    return noise | {
        each.name
        for each in moves
        if is_of_sum(
            each.distance,
            each.moved,
            each.size,
            resolution,
            typical,
            is_one_sided=is_one_sided,
        )
    }


def _noise(pair: StepPair, resolution: float) -> set[str]:
    """Return the gradients that are the rounding of larger terms, which cancel.

    So do those of a bias before a norm. In a coarse type they are no longer small: what tells them
    is that they have any direction, where a fault leaves a multiple.
    """
    zero = set.intersection(*map(_zero_but_for_rounding, pair.gradients))
    limits = [resolution * _largest(_norms(side)) for side in pair.gradients]
    return zero | {
        each.name
        for each in _moves(pair)
        if not each.is_multiple
        and each.left > _NOISE
        and all(
            (side[each.name].norm or 0.0) <= limit
            for side, limit in zip(pair.gradients, limits, strict=True)
        )
    }


class _Move(NamedTuple):
    """A gradient of both sides, and how far it is apart.

    Attributes:
        name: its parameter.
        distance: how far it is apart, relative to its norm.
        moved: the same of its norm.
        size: how many elements it has.
        norm: of the reference's.
        left: how far it is apart from the multiple of the reference's that has the same norm.
        is_multiple: it is that multiple, as far as coarse types tell.
    """

    name: str
    distance: float
    moved: float
    size: int
    norm: float
    left: float
    is_multiple: bool


def _typical(moves: Sequence[_Move]) -> float:
    """Return the root mean square of the distances of gradients."""
    return math.hypot(*(each.distance for each in moves)) / math.sqrt(max(len(moves), 1))


def shifted_gradient(pair: StepPair, resolution: float) -> tuple[str, float] | None:
    """Return the first gradient that moves as a whole, though as little as rounding, and how far.

    Args:
        pair: an optimizer step.
        resolution: of the coarse type that gradients are computed in.
    """
    moves = list(_moves(pair))
    # Those that are small beside the others may be the rounding of terms as large as these, of
    # which no factor leaves next to nothing.
    no_rounding = large_gradients(pair.gradients[1], resolution)
    large = [m for m in moves if m.name in no_rounding or (m.is_multiple and m.size > PROJECTIONS)]
    # Those that are further apart tell nothing of the others.
    typical = _typical([m for m in large if m.distance <= LARGEST_SHIFT * resolution])
    for each in large:
        # Most of the distance of one that moves so far is that shift.
        is_far = each.moved > LARGEST_SHIFT * resolution
        error = max(each.left if is_far else each.distance, typical) / resolution
        if each.moved > gradient_shift(each.size, error) * resolution:
            return each.name, each.moved
    alone = _alone(pair)
    if alone is not None and alone.moved < math.inf:
        most = gradient_shift(alone.size, typical / resolution) * resolution
        return (alone.name, alone.moved) if alone.moved > most else None
    return None


def _moves(pair: StepPair) -> Iterator[_Move]:
    target, reference = pair.gradients
    own = pair.columns[0]
    counts = {name: math.prod(shape) for name, shape in zip(own.name, own.shape, strict=False)}
    for name, distance in _distances(target, reference).items():
        both = target[name], reference[name]
        moved, norm = _moved(*both), reference[name].norm or 0.0
        factor = factor_between(*both)
        left = distance if factor is None or not norm else _left(*both, factor.value) / norm
        is_multiple = factor is not None and factor.residual is not None and factor.is_multiple
        yield _Move(name, distance, moved, counts[name], norm, min(left, distance), is_multiple)


def _left(target: Fingerprint, reference: Fingerprint, factor: float) -> float:
    """Return by how much a gradient is apart from a multiple of the other; infinite if unknown."""
    parts = list(zip(target.projections or (), reference.projections or (), strict=False))
    if not parts:
        return math.inf
    return max(math.inf if None in (a, b) else abs(a - factor * b) for a, b in parts)  # type: ignore[operator]


def _moved(target: Fingerprint, reference: Fingerprint) -> float:
    """Return how far the norm of a gradient moves, relative to it; infinite if unknown."""
    if target.norm is None or not reference.norm:
        return math.inf
    if target.norm == reference.norm:
        return 0.0  # an infinite one, too
    if not math.isfinite(reference.norm):
        return math.inf
    return abs(target.norm - reference.norm) / reference.norm


def total_norms(both: tuple[Gradients, Gradients]) -> tuple[float, float]:
    """Return the total norms of the gradients of both sides."""
    target, reference = (math.hypot(*(g.norm or 0.0 for g in side.values())) for side in both)
    return target, reference


def farthest_gradient(pair: StepPair, resolution: float = 0.0) -> float:
    """Return how far gradients are apart at most, relative to their norms.

    Args:
        pair: an optimizer step.
        resolution: of a coarse type in which both sides compute, which makes noise of some.
    """
    return _farthest(gradient_distances(pair), _noise(pair, resolution) if resolution else ())


def gradient_distances(pair: StepPair) -> dict[str, float]:
    """Return parameter → how far its gradients are apart, relative to their norms."""
    return _distances(*pair.gradients)


def near_gradients(
    target: Gradients, reference: Gradients, tolerance: float = SAME_GRADIENT
) -> set[str]:
    """Return the gradients that are the same sum on both sides, in another order."""
    found = _distances(target, reference)
    near = {name for name, distance in found.items() if distance <= tolerance}
    return near | _of_larger_terms(target, reference, found)


def _of_larger_terms(
    target: Gradients, reference: Gradients, distances: Mapping[str, float]
) -> set[str]:
    """Return the gradients that are as far apart as the rounding of terms like the largest one."""
    zero = _zero_but_for_rounding(target) & _zero_but_for_rounding(reference)
    largest = _largest(_norms(reference))
    return zero | {
        name
        for name, distance in distances.items()
        if distance * max(reference[name].norm or 0.0, _SMALL * largest) <= _OF_TERMS * largest
    }


def farthest_told(pair: StepPair, distances: Mapping[str, float]) -> float:
    """Return how far gradients are apart at most, relative to their norms, but for noise.

    Args:
        pair: an optimizer step.
        distances: its `gradient_distances`.
    """
    return _farthest(distances, _of_larger_terms(*pair.gradients, distances))


def _farthest(distances: Mapping[str, float], noise: Container[str]) -> float:
    return max((distances[name] for name in distances if name not in noise), default=0.0)


def _zero_but_for_rounding(gradients: Gradients) -> set[str]:
    return below_rounding({name: each.norm for name, each in gradients.items()})


def below_rounding(norms: Mapping[str, float | None]) -> set[str]:
    """Return the gradients that are below the rounding of the largest one, by their norms."""
    limit = _ROUNDING * _largest(norms.values())
    return {name for name, norm in norms.items() if norm is not None and norm <= limit}


def large_gradients(gradients: Gradients, resolution: float) -> set[str]:
    """Return the gradients that are no rounding of terms as large as the largest one."""
    least = max(resolution, _SMALL) * _largest(_norms(gradients))
    return {name for name, each in gradients.items() if (each.norm or 0.0) > least}


def _largest(norms: Iterable[float | None]) -> float:
    """Return the largest norm: of those that are finite, as beside an infinite one all is small."""
    return max((n for n in norms if n is not None and math.isfinite(n)), default=0.0)


def _norms(gradients: Gradients) -> Iterator[float | None]:
    return (each.norm for each in gradients.values())


def _distances(target: Gradients, reference: Gradients) -> dict[str, float]:
    largest = _largest(_norms(reference))
    # In the order of the parameters: what is named first must not change from run to run.
    return {
        name: distance(gradient, reference[name], largest)
        for name, gradient in target.items()
        if name in reference
    }


def distance(target: Fingerprint, reference: Fingerprint, largest: float) -> float:
    """Return how far two gradients are apart, relative to the norm; infinite if unknown."""
    if target.checksum is not None and target.checksum == reference.checksum:
        return 0.0
    parts = list(zip(target.projections or (), reference.projections or (), strict=False))
    norms = target.norm or 0.0, reference.norm or 0.0
    # Elements that all differ by the same may leave every projection where it is, not the norm.
    least = 0.0 if None in (target.norm, reference.norm) else abs(norms[0] - norms[1])
    if not all(map(math.isfinite, norms)):
        # Projections leave out what is not finite. Where both overflow, they tell of the rest.
        if norms[0] != norms[1]:
            return math.inf
        least, norms = 0.0, (0.0, max((abs(b) for _, b in parts if b is not None), default=0.0))
    size = max(norms[1], _SMALL * largest)
    if not parts or not size:
        return math.inf
    apart = (math.inf if None in (a, b) else abs(a - b) / size for a, b in parts)  # type: ignore[operator]
    return max(least / size, *apart)
