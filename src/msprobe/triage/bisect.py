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
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from msprobe.dump.signature_file import QUANTITIES, SignatureFile, signature_files
from msprobe.errors import DumpFormatError
from msprobe.triage.parted_step import (
    RankParting,
    epsilon_of_step,
    is_other,
    is_sampled,
    look_at,
    settings_apart,
)
from msprobe.triage.parting import Phase, find_parting, noise_of, norms_only, unknown_phases


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
        sampled = is_sampled(target_heads), is_sampled(reference_heads)
        if sampled[0] is not sampled[1]:
            notes.append(f"{rank}: one side was made on an accelerator, so only norms are compared")
            target_heads, reference_heads = map(_by_norms, (target_heads, reference_heads))
        again = None
        if noise is not None:
            with SignatureFile(noise) as repeated:
                again = _noise_at(steps, reference_file.heads, repeated.heads)

        def has_other_settings(place: int) -> bool:
            sides = (file.step(int(steps[place])).settings for file in files)
            return any(is_other(*values) for _, *values in settings_apart(*sides))

        files = target_file, reference_file
        epsilon = min(epsilon_of_step(file.step(int(steps[0]))) for file in files)
        parting = find_parting(target_heads, reference_heads, again, has_other_settings, epsilon)
        found, step = None, int(steps[-1])
        if parting is not None:
            found = look_at(rank, parting, target_file, reference_file)
            step = found.step
        place = int(np.searchsorted(steps, step))
        unknown = unknown_phases(target_heads[place], reference_heads[place])
        return _Compared(len(steps), int(steps[0]), any(sampled), unknown, found, notes)


def _by_norms(heads: NDArray[Any]) -> NDArray[Any]:
    found = heads.copy()
    for quantity in QUANTITIES:
        found[quantity] = norms_only(found[quantity])
    return found


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
