# SPDX-License-Identifier: Apache-2.0
"""`look_at`: what differs between two signatures of the step in which the runs of a rank part."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from msprobe.compare.training.clipping import limits_apart
from msprobe.compare.training.fingerprints import ROUNDINGS
from msprobe.dump.facts import WITHOUT_MEANING, Clip
from msprobe.dump.signature_file import (
    AUTOCAST,
    CLIPPING,
    NO_OPTIMIZERS,
    OPTIMIZER_STEPS,
    QUANTITIES,
    SAMPLED,
    SignatureFile,
    StepSignature,
)
from msprobe.numerics.number_types import epsilon_of
from msprobe.triage.parting import (
    ROUNDING,
    Parting,
    Phase,
    distances,
    lacks_projections,
    norms_only,
)

OPTIMIZER: Final = "optimizer"
"""The setting that tells which class an optimizer has, where that differs."""
GROUPS: Final = "groups"
"""The setting that counts the groups of an optimizer, where that differs."""

_MOST_LISTED: Final = 5
_FEWEST_SCALED: Final = 2
# Gradients are multiples of others where what is left differs by no more than this, or by so many
# times the rounding of the types in which the model computes.
_SAME_FACTOR: Final = 1e-5
_ROUNDINGS_OF_FACTOR: Final = 4.0
# Of so many times that, a factor is another one than 1.
_OTHER_FACTOR: Final = 4.0
# The rank of a setting that changes nothing that is computed.
_IDLE: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterChange:
    """How far one parameter, gradient or update is apart.

    Attributes:
        name: of the parameter.
        error: estimated relative difference; infinite where only one side is finite or has one.
    """

    name: str
    error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankParting:
    """Where two runs part in one rank.

    Attributes:
        rank: its folder's name.
        parting: the step and phase.
        quantity: which one of `QUANTITIES` the changes are of.
        changes: parameters that differ at the jump, or where they part if none jumps; the largest
            difference first, at most five.
        changed: how many differ.
        parameters: how many both sides have.
        settings: settings that differ there: name, value of the target, of the reference.
        types: number of parameters whose types differ, that of the first one in the target, and in
            the reference; None where types agree or are unknown.
        autocast: types in which the target and the reference compute by autocast, where they
            differ; empty for those of the parameters.
        clipping: how the sides limit gradients otherwise, in words; empty where they do alike.
        factor: by which all gradients of the reference are multiplied in the target; None where
            they differ otherwise.
        losses: of the target and of the reference.
        lacking: of the target and of the reference, the parameters without gradient that have one
            in the other.
        alone: the parameters that only the target has, and those that only the reference has.
        stepless: the side of which no optimizer makes a step there, or an empty text.
    """

    rank: str
    parting: Parting
    quantity: str
    changes: tuple[ParameterChange, ...]
    changed: int
    parameters: int
    settings: tuple[tuple[str, Any, Any], ...]
    types: tuple[int, str, str] | None
    autocast: tuple[str, str] | None
    clipping: str
    factor: float | None
    losses: tuple[float, float]
    lacking: tuple[tuple[str, ...], tuple[str, ...]]
    alone: tuple[tuple[str, ...], tuple[str, ...]]
    stepless: str

    @property
    def step(self) -> int:
        """The step to look at: the jump, or where a drift begins."""
        return self.parting.step if self.parting.jump is None else self.parting.jump

    @property
    def phase(self) -> Phase:
        """The phase of that step."""
        return self.parting.jump_phase or self.parting.phase

    @property
    def is_precision(self) -> bool:
        """Whether parameters, or the loss, differ by no more than the rounding of a type that one
        side lacks."""
        types = {
            Phase.PARAMETER: self.types and self.types[1:],
            Phase.LOSS: self.autocast,
        }.get(self.phase)
        error = self.parting.error
        if types is None or error is None or self.step != self.parting.step:
            return False
        return error <= max(epsilon_of(dtype) for dtype in types if dtype)

    @property
    def has_scaled_loss(self) -> bool:
        """Whether the loss is multiplied by the factor of the gradients, too."""
        target, reference = self.losses
        return self.factor is not None and math.isclose(
            target, self.factor * reference, rel_tol=_SAME_FACTOR
        )

    @property
    def has_other_rule(self) -> bool:
        """Whether a setting differs that changes what the optimizer computes."""
        return any(_rank(name) < _IDLE for name, _, _ in self.settings)


def look_at(
    rank: str, parting: Parting, target_file: SignatureFile, reference_file: SignatureFile
) -> RankParting:
    """Return how the sides differ in the step that jumps, or in which a drift begins.

    Args:
        rank: its folder's name.
        parting: the step and phase.
        target_file: signatures of the target.
        reference_file: those of the reference.
    """
    step = parting.step if parting.jump is None else parting.jump
    target, reference = target_file.step(step), reference_file.step(step)
    phase = parting.jump_phase or parting.phase
    others = "update" if phase is Phase.SETTINGS else "gradient"
    quantity = phase.value if phase.value in QUANTITIES else others
    row = QUANTITIES.index(quantity)
    shared = [name for name in target.names if name in set(reference.names)]
    in_target, in_reference = (_places(side, shared) for side in (target, reference))
    one, other = target.entries[row][in_target], reference.entries[row][in_reference]
    has_norms_only = is_sampled(target.head) is not is_sampled(reference.head)
    if has_norms_only:
        one, other = norms_only(one), norms_only(other)
    changed = np.flatnonzero(one["checksum"] != other["checksum"])
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        errors = distances(one, other) / _sizes(one, other)
    errors[np.isnan(errors)] = np.inf
    if quantity == "update":
        started = [each.entries[0] for each in (target, reference)]
        errors[lacks_projections(started[0][in_target], started[1][in_reference])] = 0.0
    stepless, factor = [], None
    lacking: tuple[tuple[str, ...], tuple[str, ...]] = (), ()
    if quantity == "gradient":
        has = one["checksum"] != 0, other["checksum"] != 0
        sides = zip(("target", "reference"), has, strict=True)
        stepless = [side for side, found in sides if not found.any()]
        lacking = _named(shared, has[1] & ~has[0]), _named(shared, has[0] & ~has[1])
        if not any(lacking) and not has_norms_only and not is_sampled(target.head):
            here = has[0]
            roundings = max(map(epsilon_of_step, (target, reference)))
            factor = _factor(one[here], other[here], roundings)
    types = [
        (target.types[here], reference.types[there])
        for here, there in zip(in_target, in_reference, strict=True)
        if target.types and reference.types and target.types[here] != reference.types[there]
    ]
    worst = changed[np.argsort(-errors[changed], kind="stable")][:_MOST_LISTED]
    return RankParting(
        rank=rank,
        parting=parting,
        quantity=quantity,
        changes=tuple(
            ParameterChange(name=shared[place], error=float(errors[place])) for place in worst
        ),
        changed=len(changed),
        parameters=len(shared),
        settings=settings_apart(target.settings, reference.settings),
        types=(len(types), *types[0]) if types else None,
        autocast=_autocast_apart(target.settings, reference.settings),
        clipping=_clipping_apart(target.settings, reference.settings),
        factor=factor,
        losses=(float(target.head["loss"]), float(reference.head["loss"])),
        lacking=lacking,
        alone=(
            tuple(name for name in target.names if name not in set(shared)),
            tuple(name for name in reference.names if name not in set(shared)),
        ),
        stepless=stepless[0] if len(stepless) == 1 else "",
    )


def _places(side: StepSignature, names: Sequence[str]) -> list[int]:
    places = {name: place for place, name in enumerate(side.names)}
    return [places[name] for name in names]


def _named(names: Sequence[str], chosen: NDArray[np.bool_]) -> tuple[str, ...]:
    return tuple(name for name, is_chosen in zip(names, chosen, strict=True) if is_chosen)


def is_sampled(heads: NDArray[Any]) -> bool:
    """Return whether checksums are not of all bytes."""
    return bool((heads["parameter"]["checksum"] & SAMPLED).any())


def epsilon_of_step(step: StepSignature) -> float:
    """Return the epsilon of the coarsest type in which a step computes."""
    return max(map(epsilon_of, [*step.types, *step.settings.get(AUTOCAST, ())]), default=0.0)


def _factor(target: NDArray[Any], reference: NDArray[Any], epsilon: float) -> float | None:
    """Return by which number all values are multiplied; None if they differ otherwise, or not.

    The least squares of the projections estimate it, which tell a sign and a permutation, too.
    """
    one, other = (each["projections"].astype(float) for each in (target, reference))
    square = float(np.square(other).sum())
    if len(target) < _FEWEST_SCALED or not square > 0 or not np.isfinite(one).all():
        return None
    factor = float((one * other).sum()) / square
    scaled = reference.copy()
    scaled["projections"] *= factor
    scaled["norm"] *= abs(factor)
    off = distances(target, scaled) / _sizes(target, scaled)
    tolerance = max(_SAME_FACTOR, _ROUNDINGS_OF_FACTOR * epsilon)
    is_multiple = np.isfinite(off).all() and off.max() <= tolerance
    return factor if is_multiple and abs(factor - 1) > _OTHER_FACTOR * tolerance else None


def _autocast_apart(
    target: Mapping[str, Any], reference: Mapping[str, Any]
) -> tuple[str, str] | None:
    """Return the types of autocast, where both are known and differ."""
    if AUTOCAST not in target or AUTOCAST not in reference:
        return None
    one, other = (", ".join(side[AUTOCAST]) for side in (target, reference))
    return None if one == other else (one, other)


def _clipping_apart(target: Mapping[str, Any], reference: Mapping[str, Any]) -> str:
    """Return how gradients are limited otherwise, where that is known of both."""
    if CLIPPING not in target or CLIPPING not in reference:
        return ""
    one, other = (msgspec.convert(side[CLIPPING], list[Clip]) for side in (target, reference))
    return limits_apart(one, other)


def _sizes(target: NDArray[Any], reference: NDArray[Any]) -> NDArray[np.float64]:
    """Return the norms of parameters; noise, such as a bias before BatchNorm, counts as large."""
    sizes: NDArray[np.float64] = np.fmax(target["norm"], reference["norm"])
    largest = float(np.max(sizes, initial=0.0, where=np.isfinite(sizes)))
    return np.where(sizes < ROUNDINGS * epsilon_of("float32") * largest, largest, sizes)


def settings_apart(
    target: Mapping[str, Any], reference: Mapping[str, Any]
) -> tuple[tuple[str, Any, Any], ...]:
    """Return the settings of optimizers that differ, those that change what is computed first.

    The number of steps comes before them: the settings are those of the last one. Of an optimizer
    of another class, and of groups that one side lacks, nothing else is told.
    """
    one, other = map(_optimizers, (target, reference))
    found: list[tuple[str, Any, Any]] = []
    for number in dict.fromkeys([*one, *other]):
        (name, groups), (other_name, other_groups) = (
            side.get(number, ("", [])) for side in (one, other)
        )
        if name != other_name:
            kind, other_kind = (each.partition(".")[2] or None for each in (name, other_name))
            found.append((f"{number}.{OPTIMIZER}", kind, other_kind))
            continue
        if len(groups) != len(other_groups):
            found.append((f"{name}.{GROUPS}", len(groups), len(other_groups)))
        found += _options_apart(name, groups, other_groups)
    return tuple(sorted(found, key=lambda setting: _rank(setting[0])))


def _optimizers(settings: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """Return name and groups of each optimizer by its number."""
    items = settings.items()
    return {n.partition(".")[0]: (n, groups) for n, groups in items if n not in NO_OPTIMIZERS}


def _options_apart(
    name: str, target: Sequence[Mapping[str, Any]], reference: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, Any, Any]]:
    for number, (one, other) in enumerate(zip(target, reference, strict=False)):
        values, expected = dict(_flat(one)), dict(_flat(other))
        for key in dict.fromkeys([*values, *expected]):
            if values.get(key) != expected.get(key):
                yield f"{name}.{number}.{key}", values.get(key), expected.get(key)


def is_other(target: Any, reference: Any) -> bool:
    """Return whether two values of a setting differ by more than rounding."""
    numbers = np.array([target, reference], dtype=object)
    try:
        one, other = numbers.astype(float).reshape(2, -1)
    except (TypeError, ValueError):
        return True
    return not np.allclose(one, other, rtol=ROUNDING, atol=0)


def _rank(name: str) -> int:
    option = name.rpartition(".")[2]
    return 0 if option == OPTIMIZER_STEPS else _IDLE if option in WITHOUT_MEANING else 1


def _flat(settings: Any, prefix: str = "") -> list[tuple[str, Any]]:
    if isinstance(settings, Mapping):
        items = [(str(key), value) for key, value in settings.items()]
    elif isinstance(settings, list) and any(isinstance(each, dict | list) for each in settings):
        items = [(str(number), value) for number, value in enumerate(settings)]
    else:
        return [(prefix, settings)]
    return [
        pair for key, value in items for pair in _flat(value, f"{prefix}.{key}" if prefix else key)
    ]
