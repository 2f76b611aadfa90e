# SPDX-License-Identifier: Apache-2.0
"""`bisect_runs`: the first step, phase and parameter in which two finished runs part.

Reads the signatures that ``"task": "signature"`` writes, of all ranks. Nothing is run again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from msprobe.compare.training.fingerprints import ROUNDINGS
from msprobe.dump.facts import WITHOUT_MEANING
from msprobe.dump.signature_file import (
    AUTOCAST,
    QUANTITIES,
    SAMPLED,
    SignatureFile,
    StepSignature,
    signature_files,
)
from msprobe.errors import DumpFormatError
from msprobe.numerics.number_types import epsilon_of
from msprobe.triage.parting import (
    ROUNDING,
    Parting,
    Phase,
    distances,
    find_parting,
    lacks_projections,
    noise_of,
    norms_only,
    unknown_phases,
)

_MOST_LISTED: Final = 5


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
        parameters: how many there are.
        settings: settings that differ there: name, value of the target, of the reference.
        types: number of parameters whose types differ, that of the first one in the target, and in
            the reference; None where types agree or are unknown.
        autocast: types in which the target and the reference compute by autocast, where they
            differ; empty for those of the parameters.
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
    def has_other_rule(self) -> bool:
        """Whether a setting differs that changes what the optimizer computes."""
        return any(_has_meaning(name) for name, _, _ in self.settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bisection:
    """Result of comparing the signatures of two runs.

    Attributes:
        target: the path given for the target.
        reference: that for the reference.
        steps: how many steps were compared, of the rank with the fewest.
        begin: the first one of them.
        ranks: how many ranks.
        knows_noise: whether recordings of one program showed what is noise.
        is_sampled: whether equal checksums only say that norms and some elements agree.
        unknown: what the signatures do not hold of the step in which the runs part, or of any.
        partings: ranks that part; the one that jumps first, or else parts first, leads.
        notes: what was not compared.
    """

    target: Path
    reference: Path
    steps: int
    begin: int
    ranks: int
    knows_noise: bool
    is_sampled: bool
    unknown: frozenset[Phase]
    partings: tuple[RankParting, ...]
    notes: tuple[str, ...]

    @property
    def first(self) -> RankParting | None:
        """The rank in which it begins."""
        return self.partings[0] if self.partings else None

    @property
    def parted_before(self) -> bool:
        """Whether the runs were apart when their first common step began, which is a later one."""
        first = self.first
        if first is None or first.phase is not Phase.PARAMETER or first.is_precision:
            return False
        return first.step == self.begin > 0


def bisect_runs(target: Path, reference: Path, noise: Path | None = None) -> Bisection:
    """Compare the signatures of two runs.

    Args:
        target: a dump path with signatures, its folder of signatures, or one file.
        reference: the same of the run to compare with.
        noise: a second recording of the reference's program; it shows what is noise.

    Raises:
        DumpFormatError: a file is damaged, or the runs have no rank or step in common.
    """
    target_files, reference_files = signature_files(target), signature_files(reference)
    again = {} if noise is None else signature_files(noise)
    notes = _only_in(target_files, reference_files, target, reference)
    common = [rank for rank in target_files if rank in reference_files]
    if not common and len(target_files) == len(reference_files) == 1:
        common = [*target_files]  # two files, whatever their names
        reference_files = dict(zip(common, reference_files.values(), strict=True))
    if not common:
        raise DumpFormatError(target, f"has no rank in common with {reference}")
    compared = [
        _bisect_rank(rank, target_files[rank], reference_files[rank], again.get(rank))
        for rank in common
    ]
    notes += [note for each in compared for note in each.notes]
    partings = [each.parting for each in compared if each.parting is not None]
    return Bisection(
        target=target,
        reference=reference,
        steps=min(each.steps for each in compared),
        begin=min(each.begin for each in compared),
        ranks=len(common),
        knows_noise=bool(again),
        is_sampled=any(each.is_sampled for each in compared),
        unknown=frozenset().union(*(each.unknown for each in compared)),
        partings=tuple(sorted(partings, key=_place)),
        notes=tuple(dict.fromkeys(notes)),
    )


class _Compared(NamedTuple):
    """The signatures of one rank, compared; see `Bisection`."""

    steps: int
    begin: int
    is_sampled: bool
    unknown: frozenset[Phase]
    parting: RankParting | None
    notes: list[str]


def _bisect_rank(rank: str, target: Path, reference: Path, noise: Path | None) -> _Compared:
    with ExitStack() as stack:
        target_file = stack.enter_context(SignatureFile(target))
        reference_file = stack.enter_context(SignatureFile(reference))
        target_heads, reference_heads = _common(target_file.heads, reference_file.heads)
        steps = target_heads["step"]
        if not len(steps):
            raise DumpFormatError(target, f"has no step in common with {reference}")
        notes = list(
            _uneven_notes(rank, target_file.heads["step"], reference_file.heads["step"], len(steps))
        )
        sampled = _is_sampled(target_heads), _is_sampled(reference_heads)
        if sampled[0] is not sampled[1]:
            notes.append(f"{rank}: one side was made on an accelerator, so only norms are compared")
            target_heads, reference_heads = map(_by_norms, (target_heads, reference_heads))
        again = None
        if noise is not None:
            with SignatureFile(noise) as repeated:
                again = _noise_at(steps, reference_file.heads, repeated.heads)

        def has_other_settings(place: int) -> bool:
            sides = (file.step(int(steps[place])).settings for file in files)
            return any(_is_other(*values) for _, *values in _settings_apart(*sides))

        files = target_file, reference_file
        epsilon = min(_epsilon(file.step(int(steps[0]))) for file in files)
        parting = find_parting(target_heads, reference_heads, again, has_other_settings, epsilon)
        found, step = None, int(steps[-1])
        if parting is not None:
            found = _look_at(rank, parting, target_file, reference_file)
            step = found.step
        place = int(np.searchsorted(steps, step))
        unknown = unknown_phases(target_heads[place], reference_heads[place])
        return _Compared(len(steps), int(steps[0]), any(sampled), unknown, found, notes)


def _epsilon(step: StepSignature) -> float:
    """Return the epsilon of the coarsest type in which a step computes."""
    return max(map(epsilon_of, [*step.types, *step.settings.get(AUTOCAST, ())]), default=0.0)


def _by_norms(heads: NDArray[Any]) -> NDArray[Any]:
    found = heads.copy()
    for quantity in QUANTITIES:
        found[quantity] = norms_only(found[quantity])
    return found


def _is_sampled(heads: NDArray[Any]) -> bool:
    return bool((heads["parameter"]["checksum"] & SAMPLED).any())


def _uneven_notes(
    rank: str, target: NDArray[Any], reference: NDArray[Any], common: int
) -> Iterator[str]:
    """Yield how the steps of the two sides differ."""
    if common == len(target) == len(reference):
        return
    ends = (
        f"; the {side} ends after step {own[-1]}, the other one after step {other[-1]}"
        for side, own, other in (("target", target, reference), ("reference", reference, target))
        if len(own) and len(other) and own[-1] < other[-1]
    )
    yield (
        f"{rank}: {common} steps are in both runs, {len(target)} in the target, {len(reference)} "
        f"in the reference{next(ends, '')}"
    )


def _common(target: NDArray[Any], reference: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the steps that both have."""
    if np.array_equal(target["step"], reference["step"]):
        return target, reference  # nothing to copy: there may be millions
    _, in_target, in_reference = np.intersect1d(
        target["step"], reference["step"], assume_unique=True, return_indices=True
    )
    return target[in_target], reference[in_reference]


def _noise_at(
    steps: NDArray[Any], reference: NDArray[Any], repeated: NDArray[Any]
) -> NDArray[np.float64]:
    """Return the noise at these steps; beyond the common ones it is that of the last."""
    one, other = _common(reference, repeated)
    if not len(one):
        return np.zeros((len(steps), 4))
    noise = noise_of(one, other)
    places = np.searchsorted(one["step"], steps, side="right") - 1
    return np.where((places >= 0)[:, None], noise[np.maximum(places, 0)], 0.0)


def _look_at(
    rank: str, parting: Parting, target_file: SignatureFile, reference_file: SignatureFile
) -> RankParting:
    step = parting.step if parting.jump is None else parting.jump
    target, reference = target_file.step(step), reference_file.step(step)
    phase = parting.jump_phase or parting.phase
    others = "update" if phase is Phase.SETTINGS else "gradient"
    quantity = phase.value if phase.value in QUANTITIES else others
    row = QUANTITIES.index(quantity)
    places = {name: place for place, name in enumerate(reference.names)}
    shared = [name for name in target.names if name in places]
    in_target = [target.names.index(name) for name in shared]
    in_reference = [places[name] for name in shared]
    one, other = target.entries[row][in_target], reference.entries[row][in_reference]
    if _is_sampled(target.head) is not _is_sampled(reference.head):
        one, other = (
            norms_only(one),
            norms_only(other),
        )
    changed = np.flatnonzero(one["checksum"] != other["checksum"])
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        errors = distances(one, other) / _sizes(one, other)
    errors[np.isnan(errors)] = np.inf
    if quantity == "update":
        started = [each.entries[0] for each in (target, reference)]
        errors[lacks_projections(started[0][in_target], started[1][in_reference])] = 0.0
    stepless = [
        side
        for side, row in (("target", one), ("reference", other))
        if phase is Phase.GRADIENT and not row["checksum"].any()
    ]
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
        settings=_settings_apart(target.settings, reference.settings),
        types=(len(types), *types[0]) if types else None,
        autocast=_autocast_apart(target.settings, reference.settings),
        stepless=stepless[0] if len(stepless) == 1 else "",
    )


def _autocast_apart(
    target: Mapping[str, Any], reference: Mapping[str, Any]
) -> tuple[str, str] | None:
    """Return the types of autocast, where both are known and differ."""
    if AUTOCAST not in target or AUTOCAST not in reference:
        return None
    one, other = (", ".join(side[AUTOCAST]) for side in (target, reference))
    return None if one == other else (one, other)


def _sizes(target: NDArray[Any], reference: NDArray[Any]) -> NDArray[np.float64]:
    """Return the norms of parameters; noise, such as a bias before BatchNorm, counts as large."""
    sizes: NDArray[np.float64] = np.fmax(target["norm"], reference["norm"])
    largest = float(np.max(sizes, initial=0.0, where=np.isfinite(sizes)))
    return np.where(sizes < ROUNDINGS * epsilon_of("float32") * largest, largest, sizes)


def _settings_apart(
    target: Mapping[str, Any], reference: Mapping[str, Any]
) -> tuple[tuple[str, Any, Any], ...]:
    """Return the settings that differ, those that change what is computed first."""
    target_values, reference_values = (
        dict(_flat({name: value for name, value in side.items() if name != AUTOCAST}))
        for side in (target, reference)
    )
    found = [
        (name, target_values.get(name), reference_values.get(name))
        for name in dict.fromkeys([*target_values, *reference_values])
        if target_values.get(name) != reference_values.get(name)
    ]
    return tuple(sorted(found, key=lambda setting: not _has_meaning(setting[0])))


def _is_other(target: Any, reference: Any) -> bool:
    """Return whether two values of a setting differ by more than rounding."""
    numbers = np.array([target, reference], dtype=object)
    try:
        one, other = numbers.astype(float).reshape(2, -1)
    except (TypeError, ValueError):
        return True
    return not np.allclose(one, other, rtol=ROUNDING, atol=0)


def _has_meaning(name: str) -> bool:
    return name.rpartition(".")[2] not in WITHOUT_MEANING


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


def _only_in(
    in_target: Mapping[str, Path],
    in_reference: Mapping[str, Path],
    target: Path,
    reference: Path,
) -> list[str]:
    if len(in_target) == len(in_reference) == 1:
        return []
    notes = []
    for names, others, where in (
        (in_target, in_reference, target),
        (in_reference, in_target, reference),
    ):
        alone = [name for name in names if name not in others]
        if alone:
            notes.append(f"only {where} has rank {', '.join(alone)}")
    return notes


def _place(found: RankParting) -> tuple[float, float, int]:
    """Return the order of ranks: a jump before any drift, then the earliest phase."""
    parting = found.parting
    jump = math.inf if parting.jump is None else parting.jump
    phases = [*Phase]
    return jump, parting.step, phases.index(parting.jump_phase or parting.phase)
