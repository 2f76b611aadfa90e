# SPDX-License-Identifier: Apache-2.0
"""Whether an optimizer step did what its rule says, by the recorded elements of its parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from msprobe.compare.training.elements import Array, Elements, Updated
from msprobe.compare.training.fingerprints import at
from msprobe.compare.training.update_rules import rule_of
from msprobe.dump.facts import Fingerprints, OptimizedParameters, OptimizerGroup, OptimizerStep
from msprobe.dump.formats.dtypes import normal_dtype
from msprobe.numerics.number_types import epsilon_of

_COLUMNS: Final = ("index", "before", "gradient", "after")
_SCALARS: Final = ("mu_product", "eta", "mu")
"""States of one positive number a parameter: their norms are their values."""
_FACTORS: Final = ("row_var", "col_var")
"""States that the rules of whole tensors do without."""


@dataclass(frozen=True, slots=True)
class Misfit:
    """A parameter whose update is not what the rule of its optimizer gives.

    Attributes:
        parameter: its name.
        element: flat position of the element that shows it best.
        actual: the change of that element.
        expected: the change by the rule; if the rule only bounds it, the bound.
        excess: the deviation in units of what rounding allows.
        is_bound: whether the rule only bounds it.
    """

    parameter: str
    element: int
    actual: float
    expected: float
    excess: float
    is_bound: bool = False


@dataclass(frozen=True, slots=True)
class Replay:
    """The replay of one optimizer step.

    Attributes:
        judged: names of the parameters of which the rule gives the update.
        bounded: names of those of which it only gives bounds, as other elements take part.
        misfits: the parameters among them whose update the rule does not explain.
    """

    judged: frozenset[str]
    bounded: frozenset[str]
    misfits: tuple[Misfit, ...]


def replay(step: OptimizerStep) -> Replay:
    """Replay an optimizer step at its recorded elements, in float64.

    Parameters of which no elements were recorded, without a gradient, or with a master copy of
    another type are not judged, nor are optimizers whose rule is not known.
    """
    judged: set[str] = set()
    bounded: set[str] = set()
    misfits: list[Misfit] = []
    for group in step.groups:
        rule = rule_of(step.class_name, group.options)
        if rule is None:
            continue
        for part in _parts(step.parameters, group):
            try:
                updated = rule(group.options, part.elements)
            except (KeyError, TypeError, ValueError):
                continue  # options of another version of the class
            limited = set() if updated.is_bound is None else _owners(part, updated.is_bound)
            bounded |= limited
            judged.update(name for name in part.names if name not in limited)
            misfits += _misfits(part, updated)
    return Replay(frozenset(judged), frozenset(bounded), tuple(misfits))


@dataclass(frozen=True, slots=True)
class _Part:
    """Elements of several parameters of one type, one after another."""

    names: Sequence[str]
    owners: Sequence[int]
    positions: Sequence[int]
    elements: Elements
    after: Array
    epsilon: float


def _parts(parameters: OptimizedParameters, group: OptimizerGroup) -> Iterator[_Part]:
    by_type: dict[str, list[int]] = {}
    for place in group.parameters:
        if _is_judged(parameters, place):
            by_type.setdefault(normal_dtype(parameters.dtype[place]), []).append(place)
    for dtype, places in by_type.items():
        yield _part(parameters, places, epsilon_of(dtype))


def _is_judged(parameters: OptimizedParameters, place: int) -> bool:
    if at(parameters.name, place) is None or at(parameters.dtype, place) is None:
        return False
    columns = [at(parameters.samples.get(name, []), place) for name in _COLUMNS]
    if not all(columns) or not at(parameters.has_gradient, place):
        return False
    if len({len(column) for column in columns if column}) != 1:
        return False
    known = [name for name, each in parameters.state.items() if at(each.norm, place) is not None]
    elementwise = [name for name in known if name not in (*_SCALARS, *_FACTORS)]
    if any(not at(parameters.samples.get(name, []), place) for name in elementwise):
        return False
    return not any("master" in name for name in known)


def _part(parameters: OptimizedParameters, places: Sequence[int], epsilon: float) -> _Part:
    samples = parameters.samples
    owners = [owner for owner, place in enumerate(places) for _ in samples["index"][place] or ()]
    lengths = [len(samples["index"][place] or ()) for place in places]
    has_state = [_has_state(parameters, place) for place in places]
    steps = [(at(parameters.steps, place) or 0) + 1 for place in places]
    return _Part(
        names=[parameters.name[place] for place in places],
        owners=owners,
        positions=[
            int(each)
            for place in places
            for each in samples["index"][place] or ()
            if each is not None
        ],
        elements=Elements(
            before=_joined(samples["before"], places, lengths),
            gradient=_joined(samples["gradient"], places, lengths),
            steps=np.repeat(np.asarray(steps, dtype=np.float64), lengths),
            state={
                name: _joined(column, places, lengths)
                for name, column in samples.items()
                if name not in _COLUMNS
            }
            | {
                name: np.repeat(_norms(parameters.state[name], places), lengths)
                for name in _SCALARS
                if name in parameters.state
            },
            has_state=np.repeat(np.asarray(has_state, dtype=np.bool_), lengths),
            norms=np.repeat(_norms(parameters.before, places), lengths),
            shapes=[parameters.shape[places[owner]] for owner in owners],
            epsilon=epsilon,
        ),
        after=_joined(samples["after"], places, lengths),
        epsilon=epsilon,
    )


def _norms(columns: Fingerprints, places: Sequence[int]) -> Array:
    return np.asarray([at(columns.norm, place) for place in places], dtype=np.float64)


def _has_state(parameters: OptimizedParameters, place: int) -> bool:
    samples = parameters.samples.items()
    return any(at(column, place) for name, column in samples if name not in _COLUMNS)


def _joined(
    column: Sequence[Sequence[float | None] | None],
    places: Sequence[int],
    lengths: Sequence[int],
) -> Array:
    """Return the elements of some parameters, one after another; zeros where one has none."""
    values: list[float | None] = []
    for place, length in zip(places, lengths, strict=True):
        found = at(column, place) or ()
        values += found if len(found) == length else [0.0] * length
    return np.asarray([np.nan if each is None else each for each in values], dtype=np.float64)


def _owners(part: _Part, elements: NDArray[np.bool_]) -> set[str]:
    """Return the names of the parameters that some elements belong to."""
    return {part.names[part.owners[index]] for index in map(int, np.flatnonzero(elements))}


def _misfits(part: _Part, updated: Updated) -> Iterator[Misfit]:
    expected, allowed = updated.value, updated.allowed(part.epsilon)
    # NaN and infinities have a cause of their own.
    with np.errstate(all="ignore"):
        deviation = np.abs(part.after - expected)
        excess = np.where(deviation > 0, deviation / allowed, 0.0)
    excess = np.where(np.isfinite(part.after) & np.isfinite(expected), excess, 0.0)
    worst: dict[int, int] = {}
    for index in map(int, np.flatnonzero(excess > 1)):
        owner = part.owners[index]
        if owner not in worst or excess[index] > excess[worst[owner]]:
            worst[owner] = index
    slack = np.broadcast_to(updated.slack, expected.shape)
    for owner, index in worst.items():
        before = part.elements.before[index]
        is_bound = updated.is_bound is not None and bool(updated.is_bound[index])
        nearest = np.sign(part.after[index] - expected[index]) * slack[index] if is_bound else 0.0
        yield Misfit(
            parameter=part.names[owner],
            element=part.positions[index],
            actual=float(part.after[index] - before),
            expected=float(expected[index] + nearest - before),
            excess=float(excess[index]),
            is_bound=is_bound,
        )
