# SPDX-License-Identifier: Apache-2.0
"""Pair parameters that were renamed and changed: by their values, their order and their names.

Only a sample of the elements is read. Values decide first: two parameters of one shape are a pair
if each is the nearest to the other and clearly nearer than chance. What is left is paired by its
module, if others of it are pairs, and by the pattern of its names, if shapes, numbers of layers and
magnitudes agree.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from msprobe.checkpoints.parameters import Parameter
from msprobe.dump.formats.dtypes import COMPLEX_PARTS, PACKED_TYPES, widen

SAMPLE: Final = 1024
_NUMBER: Final = re.compile(r"\d+")
# Pairs of one shape that are compared with each other at most; beyond, only names are used.
_MOST_OF_A_SHAPE: Final = 1500
# A relative distance below which a few elements are the same parameter, changed a little.
NEAR: Final = 0.2
# Share of the elements that has to be near where the others are far off.
_MOST: Final = 0.9
# Random directions of n elements have a cosine of about 1 / sqrt(n).
_CLEAR_COSINE: Final = 0.5
_CHANCE: Final = 6.0
_ALIKE_NAMES: Final = 0.6
_LEAST_SIZE_RATIO: Final = 0.5
# Patterns of names that are compared with each other at most.
_MOST_PATTERNS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Sample:
    """The first elements of a parameter, as float64.

    Attributes:
        parameter: the parameter.
        values: its first elements.
    """

    parameter: Parameter
    values: NDArray[np.float64]

    @property
    def rms(self) -> float:
        """Root of the mean square."""
        return float(np.sqrt(np.mean(self.values**2))) if self.values.size else 0.0


def sample(parameter: Parameter) -> Sample | None:
    """Return the first elements of a parameter, None for types without real numbers."""
    if parameter.dtype in PACKED_TYPES or parameter.dtype in COMPLEX_PARTS:
        return None
    return Sample(parameter, first_elements(parameter, 0, min(parameter.count, SAMPLE)))


def first_elements(parameter: Parameter, start: int, stop: int) -> NDArray[np.float64]:
    """Return some elements as float64; NaN and infinities become 0."""
    wide = widen(parameter.span.read(start, stop), parameter.dtype).astype(np.float64)
    return np.nan_to_num(wide, nan=0.0, posinf=0.0, neginf=0.0)


def is_near(one: NDArray[np.float64], other: NDArray[np.float64]) -> bool:
    """Return whether two samples are the same values but for small changes or few elements.

    Constants never are.
    """
    if one.size < 2 or np.ptp(one) == 0.0 or np.ptp(other) == 0.0:
        return False
    difference = np.abs(one - other)
    if float(np.linalg.norm(difference)) <= NEAR * float(np.linalg.norm(other)):
        return True
    # Zeros on both sides say nothing about where the other values come from.
    says = (one != 0.0) | (other != 0.0)
    usual = float(np.median(np.abs(other[says])))
    return float(np.quantile(difference[says], _MOST)) <= NEAR * usual


def number_pattern(name: str) -> tuple[str, tuple[int, ...]]:
    """Return a name with its numbers replaced, and the numbers."""
    numbers = tuple(int(found[:18]) for found in _NUMBER.findall(name))
    return _NUMBER.sub("#", name), numbers


Pair = tuple[Parameter, Parameter]
"""A target parameter and the reference parameter that it was."""


def pair_by_values(added: Sequence[Parameter], removed: Sequence[Parameter]) -> list[Pair]:
    """Return pairs of parameters that were renamed and changed a little.

    Args:
        added: parameters that only the target has.
        removed: parameters that only the reference has.
    """
    targets, references = _by_shape(added), _by_shape(removed)
    pairs: list[Pair] = []
    for shape in targets.keys() & references.keys():
        pairs += _pairs_by_values(targets[shape], references[shape])
    return pairs


def pair_by_names(
    added: Sequence[Parameter], removed: Sequence[Parameter], known: Iterable[Pair]
) -> list[Pair]:
    """Return pairs of parameters that were renamed, and whose values tell nothing.

    Args:
        added: parameters that only the target has.
        removed: parameters that only the reference has.
        known: pairs that were found before; their modules tell where other parameters are.
    """
    pairs = _pairs_by_module(known, added, removed)
    return pairs + _pairs_by_names(*_left(added, removed, pairs))


def _left(
    added: Sequence[Parameter], removed: Sequence[Parameter], pairs: Sequence[Pair]
) -> tuple[list[Parameter], list[Parameter]]:
    taken = {id(item) for pair in pairs for item in pair}
    return (
        [item for item in added if id(item) not in taken],
        [item for item in removed if id(item) not in taken],
    )


def _pairs_by_module(
    known: Iterable[Pair], added: Sequence[Parameter], removed: Sequence[Parameter]
) -> list[Pair]:
    """Pair parameters that have one name (``bias``) in two modules of which others are pairs."""
    modules = {one.name.rpartition(".")[0]: other.name.rpartition(".")[0] for one, other in known}
    by_name = {item.name: item for item in removed}
    pairs: list[Pair] = []
    for item in added:
        module, _, last = item.name.rpartition(".")
        other = by_name.get(f"{modules[module]}.{last}") if module in modules else None
        if other is not None and other.shape == item.shape:
            pairs.append((item, by_name.pop(other.name)))
    return pairs


def _by_shape(parameters: Iterable[Parameter]) -> dict[tuple[int, ...], list[Parameter]]:
    found: dict[tuple[int, ...], list[Parameter]] = defaultdict(list)
    for item in parameters:
        if item.count:
            found[item.shape].append(item)
    return found


def _pairs_by_values(added: Sequence[Parameter], removed: Sequence[Parameter]) -> list[Pair]:
    if max(len(added), len(removed)) > _MOST_OF_A_SHAPE:
        return []
    targets = [found for item in added if (found := sample(item)) is not None]
    references = [found for item in removed if (found := sample(item)) is not None]
    if not targets or not references:
        return []
    likeness = _likeness(targets, references)
    pairs: list[Pair] = []
    for row, column in enumerate(likeness.argmax(axis=1)):
        is_mutual = likeness[:, column].argmax() == row
        if is_mutual and likeness[row, column] > 0.0:
            pairs.append((targets[row].parameter, references[column].parameter))
    return pairs


def _likeness(targets: Sequence[Sample], references: Sequence[Sample]) -> NDArray[np.float64]:
    """Return how much alike each two samples are: at most 1, and 0 where it may be chance."""
    one = _centred(targets)
    other = _centred(references)
    cosine: NDArray[np.float64] = one @ other.T
    count = one.shape[1]
    if count < 2:
        return np.zeros_like(cosine)
    clear = max(_CLEAR_COSINE, _CHANCE / float(np.sqrt(count)))
    likeness = np.where(cosine >= min(clear, 0.999), cosine, 0.0)
    sizes, other_sizes = ([each.rms for each in side] for side in (targets, references))
    small, large = np.minimum.outer(sizes, other_sizes), np.maximum.outer(sizes, other_sizes)
    return np.asarray(np.where(small >= _LEAST_SIZE_RATIO * large, likeness, 0.0))


def _centred(samples: Sequence[Sample]) -> NDArray[np.float64]:
    values = np.stack([each.values for each in samples])
    values = values - values.mean(axis=1, keepdims=True)
    norms = np.linalg.norm(values, axis=1, keepdims=True)
    return np.asarray(np.divide(values, norms, out=np.zeros_like(values), where=norms > 0))


def _size_ratio(one: Sample, other: Sample) -> float:
    """Return the ratio of two magnitudes, the smaller over the larger; 1 if both are 0."""
    small, large = sorted((one.rms, other.rms))
    return small / large if large else 1.0


def _pairs_by_names(added: Sequence[Parameter], removed: Sequence[Parameter]) -> list[Pair]:
    """Pair whole patterns of names (``layers.#.weight``) with the same numbers and shapes."""
    targets, references = _by_pattern(added), _by_pattern(removed)
    others = _by_members(references)
    candidates: list[tuple[float, str, str]] = []
    for members, patterns in _by_members(targets).items():
        if len(patterns) * len(others.get(members, ())) <= _MOST_PATTERNS:
            candidates += [
                (-SequenceMatcher(None, one, other).ratio(), one, other)
                for one in patterns
                for other in others.get(members, ())
            ]
    candidates.sort()
    pairs: list[Pair] = []
    taken: set[tuple[int, str]] = set()
    for ratio, one, other in candidates:
        if -ratio < _ALIKE_NAMES or (0, one) in taken or (1, other) in taken:
            continue
        found = [(targets[one][key], references[other][key]) for key in targets[one]]
        if all(_same_magnitude(*pair) for pair in found[:8]):
            taken |= {(0, one), (1, other)}
            pairs += found
    return pairs


_Patterns = dict[str, dict[tuple[int, ...], Parameter]]
"""Parameters by the pattern of their names and their numbers."""


def _by_members(patterns: _Patterns) -> dict[Any, list[str]]:
    """Return the patterns by the numbers and shapes of their parameters."""
    found: dict[Any, list[str]] = defaultdict(list)
    for pattern, members in patterns.items():
        found[frozenset((key, item.shape) for key, item in members.items())].append(pattern)
    return found


def _by_pattern(parameters: Sequence[Parameter]) -> _Patterns:
    found: dict[str, dict[tuple[int, ...], Parameter]] = defaultdict(dict)
    for item in parameters:
        pattern, numbers = number_pattern(item.name)
        found[pattern][numbers] = item
    return found


def _same_magnitude(one: Parameter, other: Parameter) -> bool:
    samples = sample(one), sample(other)
    if samples[0] is None or samples[1] is None:
        return one.dtype == other.dtype
    return samples[0].rms > 0.0 and _size_ratio(samples[0], samples[1]) >= _LEAST_SIZE_RATIO
