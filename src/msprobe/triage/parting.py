# SPDX-License-Identifier: Apache-2.0
"""`find_parting`: the step and phase in which the signatures of two runs of one rank part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from msprobe.dump.signature_file import random_parts

# Without recordings of the noise: a difference that was this small when the runs parted may be
# rounding, and is a jump where it grows so many times beyond everything before.
ROUNDING: Final = 1e-4
_JUMP: Final = 30.0
# With them: so many times beyond the largest difference that they have shown up to that step.
_ABOVE_NOISE: Final = 8.0
# What a next step seems to feel jumps if it is so many times beyond updates without effect.
_ABOVE_UNFELT: Final = 3.0
# A phase that has differed in so many steps is held against what it has shown itself: updates may
# be full of noise that neither losses nor gradients have.
_SHOWN: Final = 10
# Adam divides a gradient by its size, so one that is zero but for rounding (a bias of keys, a bias
# before BatchNorm) moves as far as any other. Where it is no more than this part of the update, and
# neither losses nor gradients jump then or in the next step, its difference has no consequence.
_SMALL_PART: Final = 0.05
# A ReLU whose input is zero but for rounding changes a gradient as suddenly, for a step or a few.
_PASSING_STEPS: Final = 3
_MOST_PASSING: Final = 20


class Phase(StrEnum):
    """Phases of a training step, in their order."""

    PARAMETER = "parameter"
    DATA = "data"
    RANDOM = "random"
    LOSS = "loss"
    GRADIENT = "gradient"
    SETTINGS = "settings"
    UPDATE = "update"


_CAUSES: Final = (Phase.DATA, Phase.RANDOM, Phase.SETTINGS)
_MEASURED: Final = (Phase.PARAMETER, Phase.LOSS, Phase.GRADIENT, Phase.UPDATE)
_OF_WEIGHTS: Final = np.array([True, False, False, True])
_OF_GRADIENTS: Final = np.array([False, False, True, True])


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """Where two runs part.

    Attributes:
        step: the first step in which they do not hold the same bits.
        phase: the first phase of that step which differs.
        error: relative difference there; None where it has none (data, random, settings).
        drifts: whether that may be rounding: what was computed differs by little.
        jump: the first step in which the difference is more than such rounding grows to; equal to
            `step` if it does not drift, None if no step jumps.
        jump_phase: the first phase of that step which jumps.
        jump_error: relative difference there.
        idle: steps and phases that differ without any consequence.
    """

    step: int
    phase: Phase
    error: float | None
    drifts: bool
    jump: int | None
    jump_phase: Phase | None
    jump_error: float | None
    idle: tuple[tuple[int, Phase], ...] = ()


def find_parting(
    target: NDArray[Any],
    reference: NDArray[Any],
    noise: NDArray[np.float64] | None = None,
    has_other_settings: Callable[[int], bool] = lambda _: True,
    epsilon: float = 0.0,
) -> Parting | None:
    """Return where two runs part; None if all of their common steps hold the same bits.

    Args:
        target: one element of type `HEAD` for each step, in their order.
        reference: the same steps of the other run.
        noise: the largest error that recordings of one program show up to each of these steps, of
            shape (steps, 4), see `noise_of`.
        has_other_settings: whether settings that differ do so by more than rounding, given a place
            in the arrays; Prodigy keeps what it measures among them.
        epsilon: that of the type in which both sides compute: what differs by less may be rounding.
    """
    rounding = max(ROUNDING, epsilon)
    differs = {phase: _differing(phase, target, reference) for phase in Phase}
    matters = np.logical_or.reduce([differs[phase] for phase in _MEASURED])
    if not matters.any():
        return None
    first = int(np.argmax(matters))
    errors = relative_errors(target, reference)
    begins = {each: int(np.argmax(differs[each])) for each in _CAUSES if differs[each].any()}
    # Generators that differed all along without consequence are not drawn from, nor are those of a
    # step whose results agree.
    drawn = _drawn_apart(target, reference)
    begins[Phase.RANDOM] = int(np.argmax(drawn)) if drawn.any() else -1
    draws = differs[Phase.LOSS] | differs[Phase.GRADIENT]
    is_drawn = begins[Phase.RANDOM] == first and bool(draws[first])
    phase = next(
        phase for phase in Phase if (is_drawn if phase is Phase.RANDOM else differs[phase][first])
    )
    changed = begins.get(Phase.SETTINGS, -1)
    if changed < first or not has_other_settings(changed):
        changed = -1
    elif changed == first and _may_be_rounding(first, errors[:, :-1], noise, rounding):
        phase = Phase.SETTINGS
    unfelt = np.zeros(len(target), dtype=bool)
    if noise is None:
        unfelt = _unfelt_updates(first, errors, differs, rounding)
    is_unfelt = unfelt[:, None] & _OF_WEIGHTS
    if noise is None:
        is_unfelt |= _passing_jumps(first, errors, rounding)[:, None] & _OF_GRADIENTS
    heard = np.where(is_unfelt, 0.0, errors)
    # The same samples in other micro batches are other data all along, and generators may not be
    # drawn from.
    is_given = phase in _CAUSES and (first > 0 or phase is Phase.SETTINGS)
    drifts = not is_given and _may_be_rounding(first, heard, noise, rounding)
    jump, jump_phase = first, phase
    if drifts:
        jumps = _jumps(first, heard, noise, rounding)
        idle = np.maximum.accumulate(np.where(is_unfelt, errors, 0.0))
        jumps[1:] &= heard[1:] > _ABOVE_UNFELT * idle[:-1]
        found = np.flatnonzero(jumps.any(axis=1))
        jump = min([*map(int, found[:1]), *[changed][: changed >= 0]], default=-1)
        jump_phase = next(
            each
            for each in Phase
            if (begins.get(each) == jump if each in _CAUSES else jumps[jump, _MEASURED.index(each)])
            or jump < 0
        )
    return Parting(
        step=int(target["step"][first]),
        phase=phase,
        error=_error(errors[first], phase),
        drifts=drifts,
        jump=int(target["step"][jump]) if jump >= 0 else None,
        jump_phase=jump_phase if jump >= 0 else None,
        jump_error=_error(errors[jump], jump_phase) if jump >= 0 else None,
        idle=tuple(
            (int(target["step"][place]), each)
            for each in _CAUSES
            if (place := int(np.argmax(differs[each]))) < first + (each is Phase.RANDOM)
            and differs[each][place]
            and each is not phase
        )
        + tuple((int(target["step"][place]), Phase.UPDATE) for place in _leaps(unfelt, errors)),
    )


def relative_errors(target: NDArray[Any], reference: NDArray[Any]) -> NDArray[np.float64]:
    """Return the relative differences of the measured phases, of shape (steps, 4).

    That of the loss is exact, the others are estimated (see `distances`). One side that is not
    finite, or has no such value, differs infinitely.
    """
    errors = np.zeros((len(target), len(_MEASURED)))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        for column, phase in enumerate(_MEASURED):
            one, other = target[phase.value], reference[phase.value]
            if phase is Phase.LOSS:
                sizes = np.maximum(np.abs(one), np.abs(other))
                apart = np.abs(one - other)
            else:
                apart = distances(one, other)
                sizes = np.maximum(one["norm"], other["norm"])
            relative = np.where(apart == 0, 0.0, apart / sizes)
            relative[np.isnan(relative)] = np.inf
            known = _differing(phase, target, reference)
            if phase is Phase.UPDATE:
                known &= ~lacks_projections(target["parameter"], reference["parameter"])
            errors[:, column] = np.where(known, relative, 0.0)
    return errors


def lacks_projections(target: NDArray[Any], reference: NDArray[Any]) -> NDArray[np.bool_]:
    """Return where prints of parameters have no projections, so that updates have no norm.

    Those whose elements do not lie in their order have none: convolutions in channels_last.
    """
    found = [
        np.isnan(each["projections"]).any(axis=-1) & np.isfinite(each["norm"])
        for each in (target, reference)
    ]
    return np.asarray(found[0] | found[1])


def distances(target: NDArray[Any], reference: NDArray[Any]) -> NDArray[np.float64]:
    """Return estimates of the norm of the difference of values, by their prints.

    The mean square of the differences of projections estimates its square; and norms do not differ
    by more than the values do. Where there are no projections, norms alone tell.
    """
    differences = target["projections"].astype(float) - reference["projections"]
    estimates = np.sqrt(np.square(differences).mean(axis=-1))
    found: NDArray[np.float64] = np.fmax(estimates, np.abs(target["norm"] - reference["norm"]))
    return found


def norms_only(prints: NDArray[Any]) -> NDArray[Any]:
    """Return prints of which only the norms are compared; see `signature_file.PRINT`."""
    found = prints.copy()
    found["checksum"] = found["norm"].view("<u8")
    found["projections"] = found["norm"][..., None]
    return found


def unknown_phases(target: NDArray[Any], reference: NDArray[Any]) -> frozenset[Phase]:
    """Return of which phases of a step one of the sides holds nothing."""
    heads = target, reference
    numbers = {
        Phase.LOSS: [h["loss"] for h in heads],
        Phase.GRADIENT: [h["gradient"]["norm"] for h in heads],
    }
    found = {phase for phase in _CAUSES if any(head[phase.value] == 0 for head in heads)}
    return frozenset(found | {phase for phase, each in numbers.items() if np.isnan(each).any()})


def noise_of(target: NDArray[Any], reference: NDArray[Any]) -> NDArray[np.float64]:
    """Return the largest error up to each step between two recordings of one program."""
    return np.maximum.accumulate(relative_errors(target, reference), axis=0)


def _differing(phase: Phase, target: NDArray[Any], reference: NDArray[Any]) -> NDArray[np.bool_]:
    """Return whether the bits of a phase differ, for each step; unknown ones do not."""
    one, other = target[phase.value], reference[phase.value]
    if phase is Phase.LOSS:
        found = (one != other) & ~(np.isnan(one) & np.isnan(other))
    elif phase is Phase.RANDOM:
        found = _random_apart(target, reference).any(axis=1)
    elif phase in _CAUSES:
        found = (one != other) & (one != 0) & (other != 0)
    else:
        found = one["checksum"] != other["checksum"]
    return np.asarray(found)


def _random_apart(target: NDArray[Any], reference: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which parts of the random states differ, for each step."""
    one, other = (random_parts(heads["random"]) for heads in (target, reference))
    return np.asarray((one != other) & (one != 0) & (other != 0))


def _drawn_apart(target: NDArray[Any], reference: NDArray[Any]) -> NDArray[np.bool_]:
    """Return the steps that draw from generators whose states differ.

    A state that is the same when the next step begins was not drawn from; of the last step, one
    that is the same in all steps.
    """
    drawn = np.zeros((len(target), 4), dtype=bool)
    for heads in (target, reference):
        parts = random_parts(heads["random"])
        drawn[:-1] |= parts[1:] != parts[:-1]
    drawn[-1] = drawn.any(axis=0) if len(drawn) > 1 else True
    return np.asarray((drawn & _random_apart(target, reference)).any(axis=1))


def _may_be_rounding(
    first: int, errors: NDArray[np.float64], noise: NDArray[np.float64] | None, rounding: float
) -> bool:
    if noise is not None:
        return bool((errors[first] <= _ABOVE_NOISE * noise[first]).all())
    return bool((errors[first] < rounding).all())


def _jumps(
    first: int, errors: NDArray[np.float64], noise: NDArray[np.float64] | None, rounding: float
) -> NDArray[np.bool_]:
    """Return which phases of which steps differ more than rounding grows to."""
    if noise is not None:
        return np.asarray(errors > _ABOVE_NOISE * noise)
    before = np.vstack([np.zeros(errors.shape[1]), np.maximum.accumulate(errors, axis=0)[:-1]])
    shown = np.vstack([np.zeros(errors.shape[1]), np.cumsum(errors > 0, axis=0)[:-1]])
    # A phase that still holds the same bits has shown no error to grow from.
    largest = np.where(shown < _SHOWN, before.max(axis=1, keepdims=True), before)
    largest[: first + 1] = np.inf
    return np.asarray((errors > _JUMP * largest) & (errors > rounding))


def _unfelt_updates(
    first: int,
    errors: NDArray[np.float64],
    differs: dict[Phase, NDArray[np.bool_]],
    rounding: float,
) -> NDArray[np.bool_]:
    """Return in which steps a small part of the updates differs that nothing else feels."""
    weights = errors[:, _OF_WEIGHTS].max(axis=1)
    found = (weights >= rounding) & (weights < _SMALL_PART)
    found &= differs[Phase.GRADIENT] & ~differs[Phase.SETTINGS]
    found[first] &= errors[first, 0] < rounding  # what it begins with has no cause before
    if not found.any():
        return np.asarray(found)
    felt = np.asarray(_jumps(first, errors[:, ~_OF_WEIGHTS], None, rounding).any(axis=1))
    felt[first] = (errors[first, ~_OF_WEIGHTS] >= rounding).any()
    felt[:-1] |= felt[1:].copy()
    return np.asarray(found & ~felt)


def _passing_jumps(first: int, errors: NDArray[np.float64], rounding: float) -> NDArray[np.bool_]:
    """Return in which steps gradients jump by little, and nothing but updates does with them.

    They are back within some steps. One that is left out may hide the next one, so it is asked
    again.
    """
    found = np.zeros(len(errors), dtype=bool)
    for _ in range(_MOST_PASSING):
        heard = np.where(found[:, None] & _OF_GRADIENTS, 0.0, errors)
        jumps = _jumps(first, heard, None, rounding)
        places = np.flatnonzero(jumps.any(axis=1))[:1]
        if not places.size:
            break
        step = int(places[0])
        later = heard[step + 1 : step + 1 + _PASSING_STEPS, 2]
        back = later <= max(rounding, _JUMP * heard[:step, 2].max(initial=0.0))
        end = step + 1 + int(np.argmax(back)) if back.any() else step
        is_small = (heard[step : end + 1][:, _OF_GRADIENTS] < _SMALL_PART).all()
        if end == step or not is_small:
            break
        heard[step:end, _OF_GRADIENTS] = 0.0
        if _jumps(first, heard, None, rounding)[step : end + 1, :2].any():
            break
        found[step:end] = True
    return found


def _leaps(unfelt: NDArray[np.bool_], errors: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return the first of these steps in which they differ far more than losses and gradients."""
    others = np.maximum.accumulate(errors[:, ~_OF_WEIGHTS].max(axis=1))
    return np.flatnonzero(unfelt & (errors.max(axis=1) > _JUMP * others))[:1]


def _error(errors: NDArray[np.float64], phase: Phase) -> float | None:
    return float(errors[_MEASURED.index(phase)]) if phase in _MEASURED else None
