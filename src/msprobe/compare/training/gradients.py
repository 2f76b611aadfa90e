# SPDX-License-Identifier: Apache-2.0
"""Differences of gradients as optimizers got them: factors, missing sums, stale ones.

The rows of a comparison show gradients as the backward pass made them. Between it and the
optimizer come accumulation, reduction over ranks, unscaling and clipping.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from msprobe.compare.rounding import ONCE, is_of_sum, shift_of
from msprobe.compare.training.differences import (
    Effect,
    FactDifference,
    Moment,
    are,
    of_sides,
    shown,
    some_of,
)
from msprobe.compare.training.facts_pair import FactsPair, StepPair, clip_coefficient
from msprobe.compare.training.fingerprints import Fingerprint, at
from msprobe.compare.training.gradient_factors import (
    Factor,
    Meanings,
    common_factor,
    factor_between,
    limit_of,
    limited_words,
)
from msprobe.compare.verdicts.next_steps import AFTER_BACKWARD, CLIP_ALIKE
from msprobe.compare.verdicts.verdict_classes import VerdictClass
from msprobe.dump.facts import Clip, Facts, Scaler

# A sum of projections is that of another tensor, up to the rounding of the gradients.
_SAME_SUM: Final = 1e-3
SAME_GRADIENT: Final = 1e-5
"""Sums in another order are as near as this in float32, and gradients of other calls, too."""
# A gradient that moves so many times as far as rounding moves norms is another one, if it is no
# further apart than so many units, else it is told by that.
_BEYOND: Final = 1.5
_AS_LITTLE: Final = 8.0
_MOST: Final = 0.9
_PLAIN: Final = (1.0, 1.0)
# Gradients so much smaller than the largest one may be the rounding of larger terms.
_SMALL: Final = 1e-4
_ROUNDING: Final = 2.0**-19  # a sum of many roundings of float32
# Scales of losses, as powers of two: they keep gradients from becoming zero in a coarse type.
_LEAST_SCALE: Final = 3

Gradients = Mapping[str, Fingerprint]


def meanings_of(pair: FactsPair, world_size: int) -> Meanings:
    """Return the numbers that factors of a step's gradients may come from."""
    return Meanings(
        world_size=world_size,
        micro_batches=max(pair.passes),
        scales=[each.scale for side in pair.events(Scaler) for each in side if each.scale],
        samples=sorted(
            {math.prod(each.shape[:rank]) for each in pair.target.data for rank in (1, 2)}
        ),
    )


def has_same_gradients(pair: StepPair, tolerance: float = SAME_GRADIENT) -> bool:
    """Return whether all gradients that an optimizer gets are the same sums, in another order.

    One side may hold several weights as one: those of one side alone are the same together.
    """
    both = pair.gradients
    shared = both[0].keys() & both[1].keys()
    alone = [[each.norm or 0.0 for n, each in side.items() if n not in shared] for side in both]
    return (
        len(_near(*both, tolerance)) == len(shared)
        and bool(alone[0]) is bool(alone[1])
        and math.isclose(math.hypot(*alone[0]), math.hypot(*alone[1]), rel_tol=tolerance)
    )


def are_rounded(pair: StepPair, resolution: float) -> bool:
    """Return whether all gradients that an optimizer gets differ as sums in a coarse type do."""
    target, reference = pair.gradients
    return target.keys() == reference.keys() == _rounded(pair, resolution)


def _rounded(pair: StepPair, resolution: float) -> set[str]:
    """Return the gradients that differ as sums do in a type of some resolution."""
    zero = set.intersection(*map(_zero_but_for_rounding, pair.gradients))
    moves = [each for each in _moves(pair) if each.name not in zero]
    typical = _typical(moves)
    return zero | {
        each.name
        for each in moves
        if is_of_sum(each.distance, each.moved, each.size, resolution, typical)
    }


class _Move(NamedTuple):
    """A gradient of both sides, how far it is apart and its norm moves, and how large it is."""

    name: str
    distance: float
    moved: float
    size: int
    norm: float


def _typical(moves: Sequence[_Move]) -> float:
    """Return the root mean square of the distances of gradients."""
    return math.hypot(*(each.distance for each in moves)) / math.sqrt(max(len(moves), 1))


def shifted_gradient(pair: StepPair, resolution: float) -> tuple[str, float] | None:
    """Return the first gradient that moves as a whole, though as little as rounding, and how far.

    Args:
        pair: an optimizer step.
        resolution: of the coarse type that gradients are computed in.
    """
    moves = list(_moves(pair))
    # Those that are small beside the others may be the rounding of terms as large as these.
    least = resolution * max((each.norm for each in moves), default=0.0)
    little = [m for m in moves if m.distance <= _AS_LITTLE * resolution and m.norm > least]
    typical = _typical(little)
    for each in little:
        error = max(each.distance, typical) / resolution
        if each.moved > _BEYOND * shift_of(each.size, error) * resolution:
            return each.name, each.moved
    return None


def _moves(pair: StepPair) -> Iterator[_Move]:
    target, reference = pair.gradients
    own = pair.columns[0]
    counts = {name: math.prod(shape) for name, shape in zip(own.name, own.shape, strict=False)}
    for name, distance in _distances(target, reference).items():
        moved, norm = _moved(target[name], reference[name]), reference[name].norm or 0.0
        yield _Move(name, distance, moved, counts[name], norm)


def _moved(target: Fingerprint, reference: Fingerprint) -> float:
    """Return how far the norm of a gradient moves, relative to it; infinite if unknown."""
    if target.norm is None or not reference.norm:
        return math.inf
    return abs(target.norm - reference.norm) / reference.norm


def farthest_gradient(pair: StepPair) -> float:
    """Return how far gradients are apart at most, relative to their norms."""
    return max(gradient_distances(pair).values(), default=0.0)


def gradient_distances(pair: StepPair) -> dict[str, float]:
    """Return parameter → how far its gradients are apart, relative to their norms."""
    return _distances(*pair.gradients)


def _near(target: Gradients, reference: Gradients, tolerance: float = SAME_GRADIENT) -> set[str]:
    """Return the gradients that are the same sum on both sides, in another order."""
    found = _distances(target, reference)
    zero = _zero_but_for_rounding(target) & _zero_but_for_rounding(reference)
    return {name for name, distance in found.items() if distance <= tolerance or name in zero}


def _zero_but_for_rounding(gradients: Gradients) -> set[str]:
    """Return the gradients that are below the rounding of the largest one."""
    norms = {name: each.norm for name, each in gradients.items() if each.norm is not None}
    limit = _ROUNDING * max(norms.values(), default=0.0)
    return {name for name, norm in norms.items() if norm <= limit}


def _distances(target: Gradients, reference: Gradients) -> dict[str, float]:
    largest = max((gradient.norm or 0.0 for gradient in reference.values()), default=0.0)
    return {
        name: _distance(target[name], reference[name], largest)
        for name in target.keys() & reference.keys()
    }


def has_same_training(
    pair: FactsPair,
    steps: Sequence[StepPair],
    tolerance: float = SAME_GRADIENT,
    resolution: float = 0.0,
) -> bool:
    """Return whether optimizers get the same gradients of the same losses.

    The losses of micro batches may add up to the same, and all of them may be scaled for the
    backward pass, if the gradients are not any more. So must be what clipping hides from an
    optimizer: norms of gradients.

    Args:
        pair: the facts of a step.
        steps: its optimizer steps.
        tolerance: of gradients.
        resolution: of the coarse type to whose roundings they may be apart; 0 without one.
    """
    totals = [_total_loss(facts) for facts in pair.sides]
    if len(pair.target.loss) != len(pair.reference.loss) and not _are_near(*totals):
        # Losses of inner updates (MAML) come before the one that the optimizer's gradients are of.
        totals = [facts.loss[-1].value if facts.loss else None for facts in pair.sides]
    clips = pair.events(Clip)
    if None in totals or not _limit_alike(*clips):
        return False
    if not steps or not all(
        has_same_gradients(step, tolerance) or are_rounded(step, resolution) for step in steps
    ):
        return False
    if all(step.is_opposed for step in steps):
        totals[0] = -(totals[0] or 0.0)
    if _are_near(*totals, tolerance=max(SAME_GRADIENT, ONCE * resolution)):
        return True
    # A total norm that is a limit itself was left by code of the program, which hides a scale.
    found = [clip.total_norm for side in clips for clip in side]
    if not found:
        found = [total for step in steps for total in _totals(step.gradients)]
    is_seen = all(total and not limit_of(total) for total in found)
    is_taken_back = any(pair.events(Scaler)) or is_seen
    return _is_scale(*totals, parts=max(pair.passes), is_taken_back=is_taken_back)


def _limit_alike(target: Sequence[Clip], reference: Sequence[Clip]) -> bool:
    """Return whether clipping does the same to the gradients of both sides.

    Gradients that are divided after they were clipped have another norm then, and another limit.
    """
    active = [
        [clip for clip in side if clip_coefficient(clip) != 1.0] for side in (target, reference)
    ]
    if len(active[0]) != len(active[1]):
        return False
    for both in zip(*active, strict=True):
        coefficients = [clip_coefficient(clip) for clip in both]
        norms = [clip.total_norm or 0.0 for clip in both]
        if not _are_near(*(norms if None in coefficients else coefficients)):
            return False
    return True


def _total_loss(facts: Facts) -> float | None:
    """Return the sum of a step's losses; None where one is not known."""
    known = [loss.value for loss in facts.loss if loss.value is not None]
    return math.fsum(known) if known and len(known) == len(facts.loss) else None


def _are_near(
    target: float | None, reference: float | None, *, tolerance: float = SAME_GRADIENT
) -> bool:
    known = target is not None and reference is not None
    return known and math.isclose(target, reference, rel_tol=tolerance)  # type: ignore[arg-type]


def _is_scale(
    target: float | None, reference: float | None, *, parts: int, is_taken_back: bool
) -> bool:
    """Return whether one loss is the other one times a scale, or divided by the micro batches.

    A half may also be a mistake, which clipping by the program's own code hides from optimizers.
    """
    if not target or not reference or not 0 < target / reference < math.inf:
        return False
    power = round(math.log2(target / reference))
    scales = [2.0**power] if is_taken_back or abs(power) >= _LEAST_SCALE else []
    scales += [float(parts), 1 / parts] if is_taken_back else []
    return any(math.isclose(target / reference, s, rel_tol=SAME_GRADIENT) for s in scales)


def _distance(target: Fingerprint, reference: Fingerprint, largest: float) -> float:
    """Return how far two gradients are apart, relative to the norm; infinite if unknown."""
    if target.checksum is not None and target.checksum == reference.checksum:
        return 0.0
    parts = list(zip(target.projections or (), reference.projections or (), strict=False))
    size = max(reference.norm or 0.0, _SMALL * largest)
    if not parts or not size:
        return math.inf
    return max(math.inf if None in (a, b) else abs(a - b) / size for a, b in parts)  # type: ignore[operator]


class GradientHistory:
    """The gradients of one rank's optimizers, step after step."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[Gradients, Gradients]] = {}

    def differences(
        self, pairs: Sequence[StepPair], meanings: Meanings, resolution: float
    ) -> Iterator[FactDifference]:
        """Yield how the gradients of a step differ; steps come in their order.

        Args:
            pairs: the optimizer steps.
            meanings: of factors.
            resolution: of the type to which other calls round.
        """
        for pair in pairs:
            number = pair.target.number
            counts = {each[number] for each in pair.pair.step_counts}
            # Of calls that one side makes more often, only the first have the same place.
            if pair.target.call == 0 or len(counts) == 1:
                yield from self._of(pair, meanings, resolution)
            self._last[number] = pair.gradients

    def _of(
        self, pair: StepPair, meanings: Meanings, resolution: float
    ) -> Iterator[FactDifference]:
        got, both = pair.gradients, pair.unclipped
        yield from _lacking(pair, got)
        changes = pair.changes("gradient")
        is_clipped = both is not got
        same = set()
        if pair.is_opposed or is_clipped or not pair.has_same_scale:
            same = _near(*got)
        if is_clipped:
            # One that changes the total norm changes all that are clipped with it.
            same |= _near(*both)
        moved = [
            name
            for name, change in changes.items()
            if not change.is_equal and name in both[0] and name in both[1] and name not in same
        ]
        if not moved:
            return
        last = self._last.get(pair.target.number)
        words = "" if last is None else _stale(moved, both, last)
        if words:
            yield _difference(pair, f"{words} (step {pair.pair.step})", moved)
            return
        factor = common_factor(factor_between(both[0][name], both[1][name]) for name in moved)
        is_of_all = is_clipped or len(moved) >= _MOST * len(changes)
        if factor is not None and (is_of_all or factor.is_proved):
            meaning = meanings.of(factor.value)
            has_clips = any(pair.pair.events(Clip))
            limited = "" if meaning or has_clips or not is_of_all else limited_words(*_totals(got))
            if limited:
                yield replace(
                    _difference(pair, f"{limited} (step {pair.pair.step})", moved),
                    verdict=VerdictClass.CLIPPING,
                    moment=Moment.CLIP,
                    next=(CLIP_ALIKE,),
                )
                return
            when = f"when the optimizer gets {are(moved, 'it', 'them')}"
            yield _difference(
                pair,
                f"{some_of(moved, len(changes), 'gradients')} {are(moved)} "
                f"{shown(factor.value)} times the reference's "
                f"{'before clipping' if is_clipped else when} "
                f"(step {pair.pair.step})" + (f": the factor is {meaning}" if meaning else ""),
                moved,
                Effect.CERTAIN if is_of_all else Effect.POSSIBLE,
            )
            return
        rounded = _rounded(pair, resolution)
        far = [n for n in moved if not changes[n].is_rounding and n not in rounded]
        if far:
            worst = max(far, key=lambda name: changes[name].relative or 0.0)
            yield _difference(
                pair,
                f"{some_of(far, len(changes), 'gradients')} "
                f"{are(far, 'differs', 'differ')} when the optimizer gets "
                f"{are(far, 'it', 'them')} (step {pair.pair.step}), "
                f"{'' if len(far) == 1 else f'{worst} '}{changes[worst].words}",
                [worst],
                Effect.POSSIBLE,
            )


def _totals(both: tuple[Gradients, Gradients]) -> tuple[float, float]:
    target, reference = (math.hypot(*(g.norm or 0.0 for g in side.values())) for side in both)
    return target, reference


def _lacking(pair: StepPair, both: tuple[Gradients, Gradients]) -> Iterator[FactDifference]:
    columns = [side.has_gradient for side in pair.columns]
    flags = {
        name: (bool(at(columns[0], here)), bool(at(columns[1], there)))
        for name, (here, there) in pair.places.items()
    }
    for side, wanted in (("target", (False, True)), ("reference", (True, False))):
        names = [name for name, found in flags.items() if found == wanted]
        if names:
            yield _difference(
                pair,
                f"{some_of(names, pair.total)} {are(names, 'gets', 'get')} no gradient in the "
                f"{side} (step "
                f"{pair.pair.step})",
                names,
                # A gradient of zeros may have been left out.
                Effect.CERTAIN
                if not any(both) or any(n in side and side[n].norm for side in both for n in names)
                else Effect.POSSIBLE,
            )


def _stale(
    names: Sequence[str], both: tuple[Gradients, Gradients], last: tuple[Gradients, Gradients]
) -> str:
    """Return whether gradients are left over from the step before, in words; empty if not.

    Args:
        names: the gradients that differ.
        both: the gradients of this step, before they were clipped.
        last: those that the optimizer got in the step before.
    """
    known = [name for name in names if name in last[0]]
    for (side, _, own, other), earlier in zip(of_sides(*both), last, strict=True):
        stale = [
            n
            for n in known
            if _is_copy(own[n], earlier.get(n)) and not _is_copy(other[n], earlier.get(n))
        ]
        if stale and len(stale) >= _MOST * len(names):
            return f"the {side}'s gradients are those of the step before"
        parts = {n: (other[n], earlier[n]) for n in known if n in earlier}
        added = [
            n
            for n, each in parts.items()
            # Beside a large gradient one of the step before does not show.
            if _is_sum(own[n], each, _PLAIN) and not _is_sum(own[n], each[:1], _PLAIN)
        ]
        if added and len(added) >= _MOST * len(names):
            return (
                f"the {side}'s gradients are not cleared: they are the sum of this step's and "
                "those of the step before"
            )
    return ""


def _is_copy(gradient: Fingerprint, earlier: Fingerprint | None) -> bool:
    return (
        earlier is not None
        and gradient.checksum is not None
        and gradient.checksum == earlier.checksum
    )


def _is_sum(whole: Fingerprint, parts: Sequence[Fingerprint], weights: Sequence[float]) -> bool:
    """Return whether a gradient is the weighted sum of others; projections are linear."""
    columns = [part.projections for part in parts]
    if not whole.projections or not all(columns):
        return False
    for place, value in enumerate(whole.projections):
        terms = [at(column, place) for column in columns if column]
        if value is None or None in terms:
            return False
        shares = [w * term for w, term in zip(weights, terms, strict=False) if term is not None]
        size = abs(value) + sum(map(abs, shares))
        if abs(value - math.fsum(shares)) > _SAME_SUM * size:
            return False
    return True


def unreduced(pairs: Sequence[StepPair]) -> Iterator[FactDifference]:
    """Yield a missing reduction of gradients over ranks."""
    if len(pairs) < 2:
        return
    sides = [[each.unclipped[side] for each in pairs] for side in (0, 1)]
    for side, _, own, other in of_sides(*sides):
        names = [
            name
            for name in own[0]
            if all(name in each for each in (*own, *other))
            and not _are_alike([each[name] for each in own])
            and _are_alike([each[name] for each in other])
        ]
        if not names:
            continue
        for weight, verb in _reductions([each[names[0]] for each in own]):
            weights = [weight] * len(own)
            found = [n for n in names if _is_sum(other[0][n], [each[n] for each in own], weights)]
            if len(found) >= _MOST * len(names):
                yield _unreduced(pairs, side, verb, [each[found[0]] for each in own], found)
                break


def _reductions(own: Sequence[Fingerprint]) -> Iterator[tuple[float, str]]:
    """Yield by which weights the gradients of all ranks may add up to the reduced one."""
    yield 1 / len(own), "averaged"
    # Ranks that share a sum count once.
    largest = max(Counter(each.checksum for each in own).values(), default=1)
    yield 1 / largest, "summed"


def _unreduced(
    pairs: Sequence[StepPair], side: str, verb: str, own: Sequence[Fingerprint], found: list[str]
) -> FactDifference:
    """Return that gradients were not reduced, or only within groups of ranks."""
    members: dict[str | None, list[str]] = {}
    for step, gradient in zip(pairs, own, strict=True):
        members.setdefault(gradient.checksum, []).append(str(step.pair.rank))
    is_alone = len(members) == len(pairs)
    groups = "; ".join(", ".join(each) for each in members.values())
    how = "each rank has its own" if is_alone else f"only over groups of ranks ({groups})"
    whole = "the mean" if verb == "averaged" else "the sum"
    return _difference(
        pairs[0],
        f"the {side}'s gradients are not {verb} over its {len(pairs)} ranks: {how}, and {whole} "
        f"of them is the other side's (step {pairs[0].pair.step}, "
        f"{some_of(found, pairs[0].total, 'gradients')})",
        found,
        verdict=VerdictClass.GRADIENT if is_alone else VerdictClass.COMMUNICATION,
    )


def _are_alike(gradients: Sequence[Fingerprint]) -> bool:
    """Return whether ranks have the same gradient, but for the rounding of a clipping."""
    return len({each.checksum for each in gradients}) == 1 or all(
        _distance(each, gradients[0], 0.0) <= SAME_GRADIENT for each in gradients
    )


def total_norm_differences(pair: FactsPair, meanings: Meanings) -> Iterator[FactDifference]:
    """Yield a factor between the total norms that the gradients had before they were clipped."""
    for target, reference in zip(*pair.events(Clip), strict=False):
        if not target.total_norm or not reference.total_norm:
            continue
        if target.norm_type != reference.norm_type or target.parameters != reference.parameters:
            continue
        factor = Factor(target.total_norm / reference.total_norm, None)
        meaning = meanings.of(factor.value)
        if factor.is_multiple and meaning:
            yield pair.difference(
                VerdictClass.GRADIENT,
                Moment.REDUCE,
                f"the total norm of the gradients is {shown(target.total_norm)} in the "
                f"target, {shown(reference.total_norm)} in the reference (step {pair.step}): the "
                f"factor is {meaning}",
            )
            return


def _difference(
    pair: StepPair,
    words: str,
    names: Sequence[str],
    effect: Effect = Effect.CERTAIN,
    verdict: VerdictClass = VerdictClass.GRADIENT,
) -> FactDifference:
    return pair.difference(
        verdict,
        Moment.REDUCE,
        words,
        effect=effect,
        parameter=names[0],
        next=(AFTER_BACKWARD,),
    )
