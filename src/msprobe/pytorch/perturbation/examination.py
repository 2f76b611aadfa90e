# SPDX-License-Identifier: Apache-2.0
"""`examine`: run one call again with a change, and judge the difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from torch import Tensor

from msprobe.checks.budgets import budget_of, largest_of, smallest_of, unit_of
from msprobe.checks.judging import Judgement, judge
from msprobe.checks.perturbation import (
    Change,
    Judged,
    judged_change,
    judged_reference,
    judged_rerun,
)
from msprobe.config import Perturbation
from msprobe.dump.tensor_files import StoredTensor
from msprobe.pytorch.perturbation.arguments import CallCopy, SkippedError, is_float
from msprobe.pytorch.perturbation.changes import (
    bit_changes,
    change_of,
    epsilon,
    float_changes,
    paired,
)
from msprobe.pytorch.perturbation.modes import Trial, trial_of
from msprobe.pytorch.replay.noise import NoiseMode
from msprobe.pytorch.replay.rebuilding import converted, from_torch
from msprobe.replay.runner import Noise

# Errors up to so many units in the last place, at the root mean square of a result, need no
# reference with random errors: any budget allows them.
_SMALL: Final = 4.0
REFERENCES: Final = (Perturbation.HIGH_PRECISION, Perturbation.CPU_REFERENCE)
"""Perturbations whose result is better than that of the call."""

Learned = Callable[[str], float]
"""Returns the amplification that sound runs of the API had in a type."""


def examine(
    call: CallCopy, result: Any, mode: Perturbation, learned: Learned = lambda _dtype: 1.0
) -> Iterator[Judged]:
    """Run a call again with a change and yield the judgement of each of its results.

    Args:
        call: the call.
        result: of the program's own run.
        mode: the change.
        learned: see `Learned`.

    Raises:
        SkippedError: the change says nothing about this call, or the call cannot be run again.
    """
    call.check_unchanged()
    trial = trial_of(call, mode)
    changed = trial.restored(call.run(trial.args, trial.kwargs, plain=trial.plain))
    yield from judged(call, trial, mode, result, changed, learned)


def judged(
    call: CallCopy,
    trial: Trial,
    mode: Perturbation,
    result: Any,
    changed: Any,
    learned: Learned = lambda _dtype: 1.0,
    again: Callable[[Noise], Any] | None = None,
) -> Iterator[Judged]:
    """Yield the judgements of results, or gradients, and those of the changed call.

    Args:
        call: the call.
        trial: how it was changed.
        mode: the change.
        result: what the unchanged call gave.
        changed: what the changed one gave.
        learned: see `Learned`.
        again: runs the call in high precision with random errors in each step; None for a
            forward run.
    """
    if mode is Perturbation.RERUN:
        yield from map(judged_rerun, bit_changes(result, changed))
    elif mode in REFERENCES:
        probe = again or (lambda noise: _disturbed(call, trial_of(call, mode), noise))
        yield from _held_against(call, mode, result, changed, probe, is_gradient=again is not None)
    else:
        for change in float_changes(result, changed):
            unit = max(trial.unit, unit_of(change.dtype))
            yield judged_change(
                change,
                input_change=trial.input_change,
                unit=unit,
                learned=learned(change.dtype),
            )


def _held_against(
    call: CallCopy,
    mode: Perturbation,
    result: Any,
    reference: Any,
    probe: Callable[[Noise], Any],
    *,
    is_gradient: bool,
) -> Iterator[Judged]:
    """Yield the judgements of results whose true values are nearly known."""
    for index, one, true in paired(result, reference):
        if not is_float(one):
            continue
        change = change_of(index, one, true.to(one.device))
        judgement = None
        if change.reshaped is None and not _is_small(one, change):
            judgement = _judgement(call, index, one, true, probe, is_gradient=is_gradient)
        yield judged_reference(change, judgement, mode)


def _is_small(result: Tensor, change: Change) -> bool:
    return (
        not change.nonfinite
        and not change.cancels
        and change.worst_ulp <= _SMALL
        and change.relative <= _SMALL * epsilon(result.dtype)
    )


def _judgement(
    call: CallCopy,
    index: int,
    result: Tensor,
    reference: Tensor,
    probe: Callable[[Noise], Any],
    *,
    is_gradient: bool,
) -> Judgement:
    """Return the judgement of one result, with the budget that all checks have."""
    stored = from_torch(result)
    unit = max([unit_of(stored.dtype), *(epsilon(one) / 2 for one in call.autocast_types)])
    budget = budget_of(
        call.operator,
        stored.dtype,
        unit=unit,
        shape=result.shape,
        operands=[tuple(one.shape) for one in call.floats],
        is_gradient=is_gradient,
    )

    def probes(count: int) -> Sequence[StoredTensor]:
        found = []
        for seed in range(count):
            noise = Noise(unit, seed, largest_of(stored.dtype), smallest_of(stored.dtype))
            try:
                disturbed = {i: b for i, _, b in paired(probed, probe(noise))}
            except SkippedError:
                break
            if index in disturbed:
                found.append(from_torch(disturbed[index]))
        return found

    probed = [None] * index + [result]
    return judge(stored, from_torch(reference), budget, probes)


def _disturbed(call: CallCopy, trial: Trial, noise: Noise) -> Any:
    """Return the result of the call in high precision, with random errors in each step."""
    mode = NoiseMode(noise)

    def changed(value: Any, _place: Any) -> Any:
        if isinstance(value, Tensor):
            return mode.disturbed(value) if is_float(value) else value.clone()
        return value

    args, kwargs = converted(trial.args, changed), converted(trial.kwargs, changed)
    with mode:
        return call.run(args, kwargs, plain=True)
