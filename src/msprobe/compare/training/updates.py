# SPDX-License-Identifier: Apache-2.0
"""Parameters that an optimizer step changed in another way, though it was given the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from msprobe.compare.rounding import after_calls
from msprobe.compare.training.differences import Effect, FactDifference, Moment, are, shown, some_of
from msprobe.compare.training.facts_pair import StepPair, is_idle
from msprobe.compare.training.fingerprints import at, change_of, in_column
from msprobe.compare.training.outlines import difference_behind, difference_of_writes
from msprobe.compare.verdicts.verdict_classes import VerdictClass

if TYPE_CHECKING:
    from msprobe.compare.training.replay import Misfit, Replay
    from msprobe.dump.facts import OptimizedParameters

_SIDES: Final = ("target", "reference")
# How much further apart than when the step began parameters are that something changed in it.
_FURTHER: Final = 50.0
_LOOK: Final = ("look at the code that updates this parameter",)


def changed_before(pair: StepPair) -> dict[str, list[str]]:
    """Return the parameters that differ at an optimizer's step, though they agreed at the start.

    Those that agreed up to rounding count if they are much further apart than any was. What both
    sides write is made of the batch by some tens of calls, and may be rounded by each.

    Returns:
        Parameter → the sides, by their names, that changed it.
    """
    changes = {
        name: each
        for name, each in pair.changes("before").items()
        if not (each.is_rounding or (each.is_bound and each.may_be_rounding))
    }
    starts = pair.pair.starts
    if not changes or pair.target.call or not all(starts):
        return {}
    at_start = pair.pair.start_changes()
    begun = {name: at_start[name] for name in pair.places if name in at_start}
    limit = _FURTHER * max((change.relative for change in begun.values()), default=0.0)
    found = {}
    for name, change in changes.items():
        is_near = change.distance is not None and change.relative <= limit
        if is_near or name not in begun or not begun[name].is_rounding:
            continue
        now = [
            at(step.parameters.before.checksum, place)
            for step, place in zip(pair.sides, pair.places[name], strict=True)
        ]
        changed = [
            side
            for side, checksum, start in zip(_SIDES, now, starts, strict=True)
            if checksum != start[name].checksum
        ]
        is_rounded = change.distance is not None and change.relative <= after_calls(change.epsilon)
        if len(changed) < len(_SIDES) or not is_rounded:
            found[name] = changed
    return found


def earlier_changes(pair: StepPair) -> Iterator[FactDifference]:
    """Yield parameters that something changed between the start and the optimizer's step."""
    found = changed_before(pair)
    names = [*found]
    if names:
        sides = {side for each in found.values() for side in each}
        alone = f", in the {sides.pop()} alone" if len(sides) == 1 else ""
        call = difference_of_writes(*pair.pair.sides) or difference_behind(*pair.pair.sides)
        yield pair.difference(
            call.verdict if call else VerdictClass.UPDATE,
            Moment.CLIP,
            f"{some_of(names, pair.total)} {are(names, 'was', 'were')} changed after "
            f"step {pair.pair.step} began and before its optimizer step{alone}"
            + (f"; {call.words}" if call else ""),
            parameter=names[0],
            next=call.next if call else _LOOK,
        )


def update_differences(pair: StepPair) -> Iterator[FactDifference]:
    """Yield updates that are wrong on one side, by themselves or by their optimizer's rule."""
    moved = [name for name, change in pair.changes("after").items() if not change.is_equal]
    if not moved:
        return
    # It brings NumPy along, which comparisons of statistics do without.
    from msprobe.compare.training.replay import replay

    replays = replay(pair.target), replay(pair.reference)
    settled: set[str] = set()
    yield from _idle(pair, moved, replays, settled)
    yield from _misfits(pair, replays, settled)
    settled |= replays[0].judged & replays[1].judged
    yield from _unexplained(pair, [name for name in moved if name not in settled])


def _idle(
    pair: StepPair, moved: Sequence[str], replays: tuple[Replay, Replay], settled: set[str]
) -> Iterator[FactDifference]:
    """Yield parameters that only one side updated; their names become settled."""
    sides = pair.columns
    for side, own in (("target", 0), ("reference", 1)):
        wrong = {misfit.parameter for misfit in replays[own].misfits}
        names = [
            name
            for name in moved
            if is_idle(sides[own], pair.places[name][own])
            and at(sides[own].has_gradient, pair.places[name][own])
            and not is_idle(sides[1 - own], pair.places[name][1 - own])
            and (
                name in wrong
                if name in replays[own].judged
                # An update may vanish in the rounding of a coarse type, or be as small as that.
                else _is_moved(sides[1 - own], pair.places[name][1 - own], _share(pair, name, own))
                and at(sides[0].dtype, pair.places[name][0])
                == at(sides[1].dtype, pair.places[name][1])
            )
        ]
        settled.update(names)
        if names:
            yield _update(
                pair,
                f"{some_of(names, pair.total)} {are(names)} not updated in the {side}, though "
                f"{are(names, 'it has', 'they have')} a gradient "
                f"(step {pair.pair.step})",
                names,
            )


def _share(pair: StepPair, name: str, side: int) -> float:
    """Return how large a gradient of one side is beside the other side's, at most 1."""
    own, other = (side.get(name) for side in (pair.gradients[side], pair.gradients[1 - side]))
    norms = own and own.norm, other and other.norm
    return min(1.0, norms[0] / norms[1]) if norms[0] is not None and norms[1] else 1.0


def _is_moved(parameters: OptimizedParameters, place: int, share: float) -> bool:
    """Return whether a step with this share of its gradient changes a parameter beyond rounding."""
    dtype = at(parameters.dtype, place) or ""
    before = in_column(parameters.before, place, dtype)
    change = change_of(in_column(parameters.after, place, dtype), before)
    is_absorbed = change.distance is not None and change.relative * share <= change.epsilon
    return not change.is_rounding and not is_absorbed


def _misfits(
    pair: StepPair, replays: tuple[Replay, Replay], settled: set[str]
) -> Iterator[FactDifference]:
    """Yield updates that are not what the rule gives on one side; they become settled."""
    by_name = [{misfit.parameter: misfit for misfit in each.misfits} for each in replays]
    both = by_name[0].keys() & by_name[1].keys()
    for side, own, other in (("target", 0, 1), ("reference", 1, 0)):
        # What neither side's rule gives is a rule that is not understood.
        names = [
            name
            for name in by_name[own]
            if name not in both
            and name not in settled
            and name in replays[other].judged | replays[other].bounded
        ]
        settled.update(names)
        if names:
            worst = max((by_name[own][name] for name in names), key=lambda each: each.excess)
            yield _update(
                pair,
                f"{pair.short_name} updates {some_of(names, pair.total)} in the {side} by "
                f"something else than its rule: {_misfit_words(worst)} (step {pair.pair.step})",
                [worst.parameter],
            )
    settled |= both


def _misfit_words(misfit: Misfit) -> str:
    element = f"element {misfit.element} of {misfit.parameter} changes by {shown(misfit.actual)}"
    if misfit.is_bound:
        return f"{element}, beyond the {shown(misfit.expected)} that is its limit"
    ratio = f", {misfit.actual / misfit.expected:.4g} times it" if misfit.expected else ""
    return f"{element} instead of {shown(misfit.expected)}{ratio}"


def _unexplained(pair: StepPair, names: Sequence[str]) -> Iterator[FactDifference]:
    """Yield updates that differ beyond rounding though everything that went in agrees."""
    given = [pair.changes("before"), pair.changes("gradient")]
    given += [pair.state_changes(state) for state in pair.target.parameters.state]
    after = pair.changes("after")
    far = [
        name
        for name in names
        if not after[name].is_rounding and all(change[name].is_equal for change in given)
    ]
    if far:
        # A compiled training step shows no gradients.
        is_known = all(map(_knows_gradient, pair.columns, pair.places[far[0]]))
        agree = "parameter, gradient and state" if is_known else "parameter and state"
        unseen = "" if is_known else "; its gradients were not read"
        yield _update(
            pair,
            f"{some_of(far, pair.total)} {are(far, 'differs', 'differ')} after the "
            f"step of {pair.short_name}, though {agree} agree before it "
            f"(step {pair.pair.step}){unseen}",
            far,
            Effect.POSSIBLE,
            is_unread=not is_known,
        )


def _knows_gradient(parameters: OptimizedParameters, place: int) -> bool:
    """Return whether a gradient was read, or there is none."""
    has_gradient = at(parameters.has_gradient, place)
    return not has_gradient or at(parameters.gradient.checksum, place) is not None


def _update(
    pair: StepPair,
    words: str,
    names: Sequence[str],
    effect: Effect = Effect.CERTAIN,
    *,
    is_unread: bool = False,
) -> FactDifference:
    return pair.difference(
        VerdictClass.UPDATE,
        Moment.UPDATE,
        words,
        effect=effect,
        parameter=names[0],
        next=_LOOK,
        is_unread=is_unread,
    )
