# SPDX-License-Identifier: Apache-2.0
"""`bisect_runs`: the first step, phase and parameter in which two finished runs part.

Reads the signatures that ``"task": "signature"`` writes, of all ranks. Nothing is run again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from msprobe.dump.signature_file import (
    QUANTITIES,
    SignatureFile,
    StepSignature,
    signature_files,
)
from msprobe.errors import DumpFormatError
from msprobe.triage.parting import Parting, Phase, find_parting, noise_of

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
    """

    rank: str
    parting: Parting
    quantity: str
    changes: tuple[ParameterChange, ...]
    changed: int
    parameters: int
    settings: tuple[tuple[str, Any, Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bisection:
    """What the signatures of two runs tell.

    Attributes:
        steps: how many steps were compared, of the rank with the fewest.
        ranks: how many ranks.
        knows_noise: whether recordings of one program showed what is noise.
        partings: ranks that part; the one that jumps first, or else parts first, leads.
        notes: what was not compared.
    """

    steps: int
    ranks: int
    knows_noise: bool
    partings: tuple[RankParting, ...]
    notes: tuple[str, ...]

    @property
    def first(self) -> RankParting | None:
        """The rank in which it begins."""
        return self.partings[0] if self.partings else None


def bisect_runs(target: Path, reference: Path, noise: Path | None = None) -> Bisection:
    """Compare the signatures of two runs.

    Args:
        target: a dump path with signatures, its folder of signatures, or one file.
        reference: the same of the run to compare with.
        noise: a second recording of the reference's program; it shows what is noise.

    Raises:
        DumpFormatError: a file is damaged, or the runs have no rank or step in common.
    """
    ours, theirs = signature_files(target), signature_files(reference)
    again = {} if noise is None else signature_files(noise)
    notes = _only_in(ours, theirs, "rank", target, reference)
    common = [rank for rank in ours if rank in theirs]
    if not common and len(ours) == len(theirs) == 1:
        common = [*ours]  # two files, whatever their names
        theirs = dict(zip(common, theirs.values(), strict=True))
    if not common:
        raise DumpFormatError(target, f"has no rank in common with {reference}")
    partings, steps = [], []
    for rank in common:
        count, parting, said = _bisect_rank(rank, ours[rank], theirs[rank], again.get(rank))
        steps.append(count)
        notes += said
        if parting is not None:
            partings.append(parting)
    return Bisection(
        steps=min(steps),
        ranks=len(common),
        knows_noise=bool(again),
        partings=tuple(sorted(partings, key=_place)),
        notes=tuple(dict.fromkeys(notes)),
    )


def _bisect_rank(
    rank: str, target: Path, reference: Path, noise: Path | None
) -> tuple[int, RankParting | None, list[str]]:
    with ExitStack() as stack:
        ours = stack.enter_context(SignatureFile(target))
        theirs = stack.enter_context(SignatureFile(reference))
        target_heads, reference_heads = _common(ours.heads, theirs.heads)
        steps = target_heads["step"]
        if not len(steps):
            raise DumpFormatError(target, f"has no step in common with {reference}")
        notes = []
        if len(steps) < max(len(ours.heads), len(theirs.heads)):
            notes.append(
                f"{rank}: {len(steps)} steps are in both runs, {len(ours.heads)} in the target, "
                f"{len(theirs.heads)} in the reference"
            )
        again = None
        if noise is not None:
            with SignatureFile(noise) as repeated:
                again = _noise_at(steps, theirs.heads, repeated.heads)
        parting = find_parting(target_heads, reference_heads, again)
        if parting is None:
            return len(steps), None, notes
        step = parting.step if parting.jump is None else parting.jump
        phase = parting.jump_phase or parting.phase
        found = _look_at(rank, parting, phase, ours.step(step), theirs.step(step))
        return len(steps), found, notes


def _common(target: NDArray[Any], reference: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the steps that both have."""
    if np.array_equal(target["step"], reference["step"]):
        return target, reference  # nothing to copy: there may be millions
    _, ours, theirs = np.intersect1d(
        target["step"], reference["step"], assume_unique=True, return_indices=True
    )
    return target[ours], reference[theirs]


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
    rank: str, parting: Parting, phase: Phase, target: StepSignature, reference: StepSignature
) -> RankParting:
    quantity = phase.value if phase.value in QUANTITIES else "gradient"
    row = QUANTITIES.index(quantity)
    places = {name: place for place, name in enumerate(reference.names)}
    shared = [name for name in target.names if name in places]
    ours = target.entries[row][[target.names.index(name) for name in shared]]
    theirs = reference.entries[row][[places[name] for name in shared]]
    changed = np.flatnonzero(ours["checksum"] != theirs["checksum"])
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        apart = np.sqrt(
            np.square(ours["projections"].astype(float) - theirs["projections"]).mean(axis=1)
        )
        errors = apart / np.maximum(ours["norm"], theirs["norm"])
    errors[np.isnan(errors)] = np.inf
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
    )


def _settings_apart(
    target: Mapping[str, Any], reference: Mapping[str, Any]
) -> tuple[tuple[str, Any, Any], ...]:
    ours, theirs = dict(_flat(target)), dict(_flat(reference))
    return tuple(
        (name, ours.get(name), theirs.get(name))
        for name in dict.fromkeys([*ours, *theirs])
        if ours.get(name) != theirs.get(name)
    )


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
    ours: Mapping[str, Path], theirs: Mapping[str, Path], what: str, target: Path, reference: Path
) -> list[str]:
    if len(ours) == len(theirs) == 1:
        return []
    notes = []
    for names, others, where in ((ours, theirs, target), (theirs, ours, reference)):
        alone = [name for name in names if name not in others]
        if alone:
            notes.append(f"only {where} has {what} {', '.join(alone)}")
    return notes


def _place(found: RankParting) -> tuple[float, float, int]:
    """Return the order of ranks: a jump before any drift, then the earliest phase."""
    parting = found.parting
    jump = math.inf if parting.jump is None else parting.jump
    phases = [*Phase]
    return jump, parting.step, phases.index(parting.jump_phase or parting.phase)
