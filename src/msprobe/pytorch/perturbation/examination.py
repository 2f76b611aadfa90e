# SPDX-License-Identifier: Apache-2.0
"""`examine`: run one call again with a change, and judge the difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from msgspec.structs import replace
from torch import Tensor

from msprobe.checks.budgets import budget_of, largest_of, smallest_of, unit_of
from msprobe.checks.judging import Judgement, judge
from msprobe.checks.perturbation import (
    Change,
    Judged,
    Severity,
    SkippedError,
    digits_limits,
    judged_change,
    judged_reference,
    judged_rerun,
)
from msprobe.config import Perturbation
from msprobe.dump.tensor_files import StoredTensor
from msprobe.operators.operator import Family
from msprobe.pytorch.perturbation.arguments import RANDOM, CallCopy, is_float
from msprobe.pytorch.perturbation.changes import (
    bit_changes,
    change_of,
    dtype_name,
    epsilon,
    float_changes,
    paired,
    rms,
)
from msprobe.pytorch.perturbation.modes import NOISES, REFERENCES, Trial, holds_ends, trial_of
from msprobe.pytorch.replay.noise import NoiseMode
from msprobe.pytorch.replay.rebuilding import from_torch
from msprobe.replay.arguments import converted
from msprobe.replay.runner import Noise

# Errors up to so many units in the last place, at the root mean square of a result, need no
# reference with random errors: any budget allows them.
_SMALL: Final = 4.0
# Of differences and averages: a result so many roundings large is none of their digits.
_CANCELLED: Final = 32.0
_CANCELLING: Final = (Family.ADDITIVE, Family.AVERAGING, Family.NORMALISING, Family.OTHER)

Learned = Callable[[str], float]
"""Returns the amplification that sound runs of the API had in a type."""


def examine(
    call: CallCopy, result: Any, mode: Perturbation, learned: Learned = lambda _dtype: 1.0
) -> list[Judged]:
    """Run a call again with a change and return the judgement of each of its results.

    Args:
        call: the call.
        result: of the program's own run.
        mode: the change.
        learned: see `Learned`.

    Raises:
        SkippedError: the change says nothing about this call, or the call cannot be run again.
    """
    call.check_unchanged()
    if mode in REFERENCES and call.drew_random:
        raise SkippedError(RANDOM)
    # Another kernel has other roundings, and draws other random numbers.
    same_kernel = call.drew_random or mode in (Perturbation.RERUN, Perturbation.PERMUTE)

    def judgements(trial: Trial) -> Iterator[Judged]:
        again = call.run(trial.args, trial.kwargs, plain=trial.plain, same_kernel=same_kernel)
        changed = trial.restored(again)
        return judged(call, trial, mode, result, changed, learned)

    return judged_twice(call, mode, judgements)


def judged_twice(
    call: CallCopy, mode: Perturbation, judgements: Callable[[Trial], Iterator[Judged]]
) -> list[Judged]:
    """Return the judgements of a changed call.

    A row that a mask covers altogether is as good as not computed. So where noise makes a finding,
    numbers that stand for infinity are spared in a second run.
    """
    found = list(judgements(trial_of(call, mode)))
    is_sound = all(one.severity is Severity.NONE for one in found)
    if is_sound or mode not in NOISES or not any(map(holds_ends, call.floats)):
        return found
    return list(judgements(trial_of(call, mode, spares_ends=True)))


def judged(
    call: CallCopy,
    trial: Trial,
    mode: Perturbation,
    result: Any,
    changed: Any,
    learned: Learned = lambda _dtype: 1.0,
    again: Callable[[Noise], Any] | None = None,
    incoming: Sequence[Tensor | None] = (),
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
        incoming: the gradients that results are computed from.
    """
    if mode is Perturbation.RERUN:
        yield from map(judged_rerun, bit_changes(result, changed))
    elif mode in REFERENCES:
        probe = again or (lambda noise: _disturbed(call, trial_of(call, mode), noise))
        yield from _held_against(call, mode, result, changed, probe, is_gradient=again is not None)
    else:
        for found in float_changes(result, changed):
            unit = max(trial.unit, unit_of(found.dtype))
            if again is not None:  # a float32 weight has a gradient that was computed in bfloat16
                unit = max([unit, *(epsilon(one) / 2 for one in call.autocast_types)])
            size = max(unit, trial.input_change)
            is_noise = not found.cancels and _is_noise(call, found, unit, size, incoming)
            change = replace(found, cancels=True) if is_noise else found
            yield judged_change(
                change,
                input_change=trial.input_change,
                unit=unit,
                learned=learned(change.dtype),
            )


def _is_noise(
    call: CallCopy,
    change: Change,
    unit: float,
    input_change: float,
    incoming: Sequence[Tensor | None],
) -> bool:
    """Return whether a result is no larger than roundings of what it was made of.

    The mean of a normalised tensor is zero, and so is much of a gradient.
    """
    if change.relative < digits_limits(unit)[1] * unit:
        return False
    if change.size is None:
        return False
    # The gradient of an argument that was broadcast is a sum of what came in.
    summed = [one for one in incoming if one is not None and one.numel() > change.count]
    if change.relative * change.size <= _CANCELLED * input_change * _largest(summed):
        return True
    is_difference = call.operator.family in _CANCELLING
    return is_difference and change.size <= _CANCELLED * unit * _largest(call.floats)


def _largest(tensors: Sequence[Tensor]) -> float:
    """Return the largest root mean square of tensors."""
    return max((float(rms(one)) for one in tensors if one.numel()), default=0.0)


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
    types = [stored.dtype, *map(dtype_name, call.autocast_types)]
    unit = max(map(unit_of, types))
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
            noise = Noise(unit, seed, min(map(largest_of, types)), max(map(smallest_of, types)))
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
    with mode:
        return call.run(disturbed(trial.args, mode), disturbed(trial.kwargs, mode), plain=True)


def disturbed(value: Any, mode: NoiseMode) -> Any:
    """Return copies of nested arguments, with random errors in floating-point elements."""

    def changed(one: Any, _place: Any) -> Any:
        if not isinstance(one, Tensor):
            return one
        return mode.disturbed(one) if is_float(one) else one.clone()

    return converted(value, changed)
