# SPDX-License-Identifier: Apache-2.0
"""Differences of gradients as optimizers got them: factors, missing sums, stale ones.

The rows of a comparison show gradients as the backward pass made them. Between it and the
optimizer come accumulation, reduction over ranks, unscaling and clipping.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from msprobe.compare.rounding import LARGEST_SHIFT, is_other_gradient
from msprobe.compare.training.cleared import Accumulated, cleared_alone, cleared_late
from msprobe.compare.training.differences import (
    Effect,
    FactDifference,
    Moment,
    are,
    of_sides,
    shown,
    some_of,
)
from msprobe.compare.training.facts_pair import FactsPair, StepPair
from msprobe.compare.training.fingerprints import Fingerprint, at, is_number
from msprobe.compare.training.gradient_distances import (
    PROJECTIONS,
    SAME_GRADIENT,
    Gradients,
    distance,
    large_gradients,
    near_gradients,
    rounded_gradients,
    total_norms,
)
from msprobe.compare.training.gradient_factors import (
    MOST,
    SAME_FACTOR,
    Factor,
    Meanings,
    common_factor,
    factor_between,
    limited_words,
)
from msprobe.compare.training.outlines import limiting_call
from msprobe.compare.verdicts.next_steps import AFTER_BACKWARD, CLIP_ALIKE
from msprobe.compare.verdicts.verdict_classes import VerdictClass
from msprobe.dump.facts import Clip

# A sum of projections is that of another tensor, up to the rounding of the gradients.
_SAME_SUM: Final = 1e-3
# A part shows in a sum if without it so many times as much is left unexplained.
_SHOWN: Final = 30.0
# So much of a gradient of the step before tells whether it is part of another one.
_LEFT_OVER: Final = 0.1
# So far apart are gradients of ranks that are not those of one with another clipping.
_OWN: Final = 0.05
# So far from the factor of the others, or from any, no rounding takes a gradient.
_ODD_FACTOR: Final = 0.05
_ODD_RESIDUAL: Final = 0.3

NOT_CLEARED: Final = (
    "{} are not cleared: they are the sum of this step's and those of the step before"
)


class GradientHistory:
    """The gradients of one rank's optimizers, step after step."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[Gradients, Gradients]] = {}
        self._accumulated = Accumulated(), Accumulated()

    @property
    def last(self) -> dict[str, tuple[Fingerprint, Fingerprint]]:
        """Parameter → what optimizers last got of its gradient, on both sides."""
        return {
            name: (gradient, reference[name])
            for target, reference in self._last.values()
            for name, gradient in target.items()
            if name in reference
        }

    def end(self, pair: FactsPair) -> None:
        """Take in that a step of the run is over."""
        target, reference = self._accumulated
        self._accumulated = target.after(pair.target), reference.after(pair.reference)

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
            # Of calls that one side makes more often, only the first have the same place. What an
            # optimizer hands on to another one within its step, it got itself.
            if (pair.target.call == 0 or len(counts) == 1) and not pair.is_inner:
                yield from self._of(pair, meanings, resolution)
            self._last[number] = pair.gradients

    def _of(
        self, pair: StepPair, meanings: Meanings, resolution: float
    ) -> Iterator[FactDifference]:
        got, both = pair.gradients, pair.unclipped
        yield from self._lacking(pair, got)
        changes = pair.changes("gradient")
        is_clipped = both is not got
        same, unclipped = _same_sums(pair)
        moved = [
            name
            for name, change in changes.items()
            if not change.is_equal
            and name in both[0]
            and name in both[1]
            and name not in same | unclipped
        ]
        if not moved:
            return
        rounded = rounded_gradients(pair, resolution)
        sizes = dict(zip(pair.columns[0].name, map(math.prod, pair.columns[0].shape), strict=False))
        telling = [n for n in moved if n not in rounded and sizes[n] > PROJECTIONS]
        far = [n for n in moved if not changes[n].is_rounding and n not in rounded]
        if far and (words := cleared_alone(pair, moved, self._accumulated)):
            yield _difference(pair, words, moved)
            return
        last = self._last.get(pair.target.number)
        words = "" if last is None else _stale(moved, _agreeing(pair, self.last), both, last)
        if words:
            yield _difference(pair, f"{words} (step {pair.pair.step})", moved)
            return
        factors = {name: factor_between(both[0][name], both[1][name]) for name in moved}
        factor = common_factor(factors.values())
        is_of_most = len(moved) >= MOST * len(changes)
        is_of_all = is_clipped or is_of_most
        if factor is not None and (is_of_most or factor.is_proved):
            meaning = (meanings if is_of_most else Meanings()).of(factor.value)
            if is_of_all and not any(pair.pair.events(Clip)):
                limited = "" if meaning else limited_words(*total_norms(got))
                if words := limiting_call(*pair.pair.sides) or limited:
                    yield replace(
                        _difference(pair, f"{words} (step {pair.pair.step})", moved),
                        verdict=VerdictClass.CLIPPING,
                        moment=Moment.CLIP,
                        next=(CLIP_ALIKE,),
                    )
                    return
            # Clipped alike, they may have become so after it.
            when = _when(moved) if pair.is_clipped_alike else "before clipping"
            odd = [
                name
                for name in telling
                if _is_odd(factors[name], factor.value)
                or bool(both[0][name].norm) is not bool(both[1][name].norm)
            ]
            scaled = [name for name in moved if name not in odd]
            alone = f"{_odd_words(odd, factors, len(changes))}; " if odd else ""
            yield _difference(
                pair,
                f"{alone}{some_of(scaled, len(changes), 'gradients')} {are(scaled)} "
                f"{shown(factor.value)} times the reference's {when} "
                f"(step {pair.pair.step})" + (f": the factor is {meaning}" if meaning else ""),
                odd or moved,
                Effect.CERTAIN if is_of_all else Effect.POSSIBLE,
                None if is_of_all or telling != moved else _unscaled(pair.pair, factor.value),
                is_scaled=bool(meaning) and is_of_most,
            )
            return
        large, least = large_gradients(both[1], resolution), LARGEST_SHIFT * resolution
        names, value = _multiples({name: factors[name] for name in telling}, large, least)
        if names:
            yield _difference(
                pair,
                f"{some_of(names, len(changes), 'gradients')} {are(names)} {shown(value)} times "
                f"the reference's {_when(names)} (step {pair.pair.step})",
                names,
                Effect.POSSIBLE,
                _unscaled(pair.pair, value),
            )
            return
        if far:
            # What is nothing but rounding on the other side tells no distance.
            known = [name for name in far if name in large]
            told = known or far
            worst = max(told, key=lambda name: changes[name].relative)
            size = changes[worst].largest_of(len(far)).words
            when = "before clipping" if unclipped else _when(far)
            of_which = f", {'' if len(far) == 1 else f'{worst} '}{size}" if size else ""
            fact = _difference(
                pair,
                f"{some_of(far, len(changes), 'gradients')} {are(far, 'differs', 'differ')} "
                f"{when} (step {pair.pair.step}){of_which}",
                [worst],
                Effect.POSSIBLE,
            )
            change = changes[worst]
            is_far = bool(known) and is_other_gradient(change.relative, change.epsilon)
            yield replace(fact, gradients=tuple(far), is_far=is_far)

    def _lacking(
        self, pair: StepPair, both: tuple[Gradients, Gradients]
    ) -> Iterator[FactDifference]:
        columns = [side.has_gradient for side in pair.columns]
        flags = {
            name: (bool(at(columns[0], here)), bool(at(columns[1], there)))
            for name, (here, there) in pair.places.items()
        }
        for side, wanted in (("target", (False, True)), ("reference", (True, False))):
            names = [name for name, found in flags.items() if found == wanted]
            if names:
                which, step = some_of(names, pair.total), pair.pair.step
                lacks = f"{which} {are(names, 'gets', 'get')} no gradient in the {side}"
                yield _difference(
                    pair,
                    cleared_alone(pair, names, self._accumulated) or f"{lacks} (step {step})",
                    names,
                    # A gradient of zeros may have been left out.
                    Effect.CERTAIN
                    if not any(both)
                    or any(n in side and side[n].norm for side in both for n in names)
                    else Effect.POSSIBLE,
                    # Some alone may not be among those that backward was seen to hand gradients to.
                    if_exact=cleared_late(side, names, pair) if len(names) == pair.total else "",
                )


def _is_odd(factor: Factor | None, common: float) -> bool:
    """Return whether a gradient is no such multiple of the reference's as the others are."""
    if factor is None:
        return False
    is_far = factor.residual is not None and factor.residual > _ODD_RESIDUAL
    return is_far or not math.isclose(factor.value, common, rel_tol=_ODD_FACTOR)


def _odd_words(odd: Sequence[str], factors: Mapping[str, Factor | None], total: int) -> str:
    """Return how the gradients differ that are no such multiples as the others."""
    names = some_of(odd, total, "gradients")
    found = [factors[name] for name in odd]
    values = [each.value for each in found if each is not None and _leaves_nothing(each)]
    if len(values) == len(odd) and max(values) - min(values) <= SAME_FACTOR * abs(values[0]):
        return f"{names} {are(odd)} {shown(values[0])} times the reference's"
    return f"{names} {are(odd, 'differs', 'differ')} otherwise"


def _unscaled(pair: FactsPair, factor: float) -> float | None:
    """Return a factor; None if losses have it as well: the calls that scale these are the cause."""
    own, other = (math.fsum(loss.value or 0.0 for loss in facts.loss) for facts in pair.sides)
    is_of_loss = other != 0.0 and math.isclose(own / other, factor, rel_tol=SAME_FACTOR)
    return None if is_of_loss else factor


def _when(names: Sequence[str]) -> str:
    return f"when the optimizer gets {are(names, 'it', 'them')}"


def _multiples(
    factors: Mapping[str, Factor | None], large: Collection[str], least: float
) -> tuple[list[str], float]:
    """Return the gradients, if any, that are the same multiple of the reference's, and the factor.

    The gradients behind them are sums of multiples and others. Several that the factor does not
    explain as closely as it is known may look so by chance, and so may one among others that
    differ: it must be alone, `large`, so that it is no rounding, and far off.

    Args:
        factors: gradient → its factor.
        large: gradients that are no rounding of the terms of others.
        least: by how much the factor of one alone is not 1, at least.
    """
    proved = {
        name: factor.value
        for name, factor in factors.items()
        if factor is not None and factor.is_multiple and _leaves_nothing(factor)
    }
    for value in proved.values():
        names = [n for n, v in proved.items() if math.isclose(v, value, rel_tol=SAME_FACTOR)]
        if len(names) > 1:
            return names, value
    for name, factor in factors.items() if len(factors) == 1 else ():
        is_told = factor is not None and factor.is_multiple and factor.is_proved and name in large
        if factor is not None and is_told and abs(factor.value - 1.0) > least:
            return [name], factor.value
    return [], 1.0


def _leaves_nothing(factor: Factor) -> bool:
    residual = factor.residual
    return residual is not None and residual <= SAME_FACTOR and factor.is_proved


def gradients_of(side: str, names: Sequence[str], others: int) -> str:
    """Return gradients of a side in words: which they are, if enough others are not like them."""
    total = len(names) + others
    return f"the {side}'s gradients" + (
        f" of {some_of(names, total)}" if len(names) < MOST * total else ""
    )


def _same_sums(pair: StepPair) -> tuple[set[str], set[str]]:
    """Return the gradients that are the same sums in another order, and those before clipping.

    One that changes the total norm changes all that are clipped with it.
    """
    same = near_gradients(*pair.gradients)
    clipped = [each for each in (pair.unclipped, pair.unclipped_part) if each is not pair.gradients]
    return same, set().union(*(near_gradients(*each) for each in clipped)) - same


def _agreeing(pair: StepPair, last: Mapping[str, tuple[Fingerprint, Fingerprint]]) -> int:
    """Return how many gradients, other than noise, optimizers get alike and cleared."""
    steps = [each for each in pair.pair.steps if each.target.call == pair.target.call]
    same = [set[str]().union(*_same_sums(each)) for each in steps]
    large = [large_gradients(each.gradients[0], 0.0) for each in steps]
    return sum(
        is_cleared(each.unclipped[0][name], each.unclipped[1][name], last.get(name))
        for each, names, those in zip(steps, same, large, strict=True)
        for name in names & those
    )


def is_cleared(
    target: Fingerprint,
    reference: Fingerprint,
    last: tuple[Fingerprint, Fingerprint] | None,
) -> bool:
    """Return whether gradients are nearer to each other than to a sum with that of the step before.

    Beside large gradients those of the step before are as small as rounding, where they are zero
    they are nothing.
    """
    apart = distance(target, reference, 0.0)
    if last is None or not math.isfinite(apart):
        return True
    return apart * (reference.norm or 0.0) < _LEFT_OVER * min(each.norm or 0.0 for each in last)


def _stale(
    names: Sequence[str],
    agreeing: int,
    both: tuple[Gradients, Gradients],
    last: tuple[Gradients, Gradients],
) -> str:
    """Return whether gradients are left over from the step before, in words; empty if not.

    Args:
        names: the gradients that differ.
        agreeing: how many others do not.
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
        if stale and len(stale) >= MOST * len(names):
            return f"{gradients_of(side, stale, agreeing)} are those of the step before"
        parts = {n: (other[n], earlier[n]) for n in known if n in earlier}
        added = [
            n
            for n, each in parts.items()
            # Beside a large gradient one of the step before does not show.
            if is_sum(own[n], each) and not is_sum(own[n], each[:1])
        ]
        if added and len(added) >= MOST * len(names):
            return NOT_CLEARED.format(gradients_of(side, added, agreeing))
        # Any two numbers are such a sum: all projections of one are itself.
        several = [name for name in parts if not is_number(own[name])]
        shared = [two for two in itertools.pairwise(several) if _share_weights(two, own, parts)]
        scaled = [*dict.fromkeys(itertools.chain.from_iterable(shared))]
        if scaled and len(scaled) >= MOST * len(names):
            return (
                f"{gradients_of(side, scaled, agreeing)} are not cleared: they hold those of the "
                "step before, scaled as by clipping or unscaling"
            )
    return ""


def _share_weights(
    names: Sequence[str], own: Gradients, parts: Mapping[str, tuple[Fingerprint, Fingerprint]]
) -> bool:
    """Return whether gradients are one sum, with weights, of this step's and of the last one's.

    Clipping divides the sum on its side, and this step's gradients on the other: they weigh at
    least as much as those of the last step, and these at most 1. The weights that explain all
    projections best (least squares) must leave nothing, and so must no weight of this step's alone.
    """
    rows: list[tuple[float, float, float]] = []
    for name in names:
        columns = [each.projections or () for each in (own[name], *parts[name])]
        size = own[name].norm
        if not size or not math.isfinite(size) or {*map(len, columns)} != {PROJECTIONS}:
            return False
        for values in zip(*columns, strict=True):
            whole, new, old = (math.nan if value is None else value / size for value in values)
            rows.append((whole, new, old))
    of_new, of_both = _weights(rows, is_alone=True), _weights(rows)
    if of_new is None or of_both is None:
        return False
    left = [
        math.hypot(*(whole - new * a - old * b for whole, new, old in rows))
        for a, b in (of_new, of_both)
    ]
    weighs_right = 0.0 < of_both[1] <= min(of_both[0], 1.0) * (1.0 + _SAME_SUM)
    size = math.hypot(*(whole for whole, _, _ in rows))
    return weighs_right and left[1] <= _SAME_SUM * size and left[0] > _SHOWN * left[1]


def _weights(
    rows: Sequence[tuple[float, float, float]], *, is_alone: bool = False
) -> tuple[float, float] | None:
    """Return the weights of two columns that make the first one best; 0 for the second `is_alone`.

    None where the columns do not tell them.
    """
    aa, ab, bb, wa, wb = (
        math.fsum(row[i] * row[j] for row in rows)
        for i, j in ((1, 1), (1, 2), (2, 2), (0, 1), (0, 2))
    )
    if is_alone:
        return (wa / aa, 0.0) if aa > 0.0 else None
    shared = aa * bb - ab * ab
    if not shared > _SAME_SUM**2 * aa * bb:
        return None
    return (wa * bb - wb * ab) / shared, (wb * aa - wa * ab) / shared


def _is_copy(gradient: Fingerprint, earlier: Fingerprint | None) -> bool:
    """Return whether a gradient holds the numbers of another one: not where it is 0 or NaN."""
    return (
        earlier is not None
        and gradient.checksum is not None
        and gradient.checksum == earlier.checksum
        and 0.0 < (gradient.norm or 0.0) < math.inf
    )


def is_sum(whole: Fingerprint, parts: Sequence[Fingerprint], weight: float = 1.0) -> bool:
    """Return whether a gradient is the sum of others times a weight; projections are linear."""
    columns = [part.projections for part in parts]
    if not whole.projections or not all(columns):
        return False
    for place, value in enumerate(whole.projections):
        terms = [at(column, place) for column in columns if column]
        if value is None or None in terms:
            return False
        shares = [weight * term for term in terms if term is not None]
        size = abs(value) + sum(map(abs, shares))
        if abs(value - math.fsum(shares)) > _SAME_SUM * size:
            return False
    return True


def unreduced(pairs: Sequence[StepPair]) -> Iterator[FactDifference]:
    """Yield a missing reduction of gradients over ranks."""
    if len(pairs) < 2:
        return
    told: set[str] = set()
    # Ranks clip by other numbers what they did not reduce.
    for ranks in ([each.unclipped for each in pairs], [each.unclipped_part for each in pairs]):
        for side, _, own, other in of_sides(*([each[side] for each in ranks] for side in (0, 1))):
            names = [
                name
                for name in own[0]
                if name not in told
                and all(name in each for each in (*own, *other))
                and any(distance(each[name], own[0][name], 0.0) > _OWN for each in own)
                and not any(_are_alike([each[name], other[0][name]]) for each in own)
                and _are_alike([each[name] for each in other])
            ]
            for weight, verb in _reductions([each[names[0]] for each in own]) if names else ():
                found = [n for n in names if is_sum(other[0][n], [each[n] for each in own], weight)]
                if len(found) >= MOST * len(names):
                    yield _unreduced(pairs, side, verb, [each[found[0]] for each in own], found)
                    told.update(found)
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
    whose = gradients_of(side, found, pairs[0].total - len(found))
    return _difference(
        pairs[0],
        f"{whose} are not {verb} over its {len(pairs)} ranks: {how}, and {whole} of them is the "
        f"other side's (step {pairs[0].pair.step})",
        found,
        verdict=VerdictClass.GRADIENT if is_alone else VerdictClass.COMMUNICATION,
    )


def _are_alike(gradients: Sequence[Fingerprint]) -> bool:
    """Return whether ranks have the same gradient, but for the rounding of a clipping."""
    return len({each.checksum for each in gradients}) == 1 or all(
        distance(each, gradients[0], 0.0) <= SAME_GRADIENT for each in gradients
    )


def total_norm_differences(pair: FactsPair, meanings: Meanings) -> Iterator[FactDifference]:
    """Yield a factor between the total norms that the gradients had before they were clipped.

    Where one side clips more often, the first of its norms may be that of a single micro batch.
    """
    clips = pair.events(Clip)
    if len(clips[0]) != len(clips[1]):
        return
    for target, reference in zip(*clips, strict=True):
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
                is_scaled=True,
            )
            return


def _difference(
    pair: StepPair,
    words: str,
    names: Sequence[str],
    effect: Effect = Effect.CERTAIN,
    multiple: float | None = None,
    *,
    verdict: VerdictClass = VerdictClass.GRADIENT,
    is_scaled: bool = False,
    if_exact: str = "",
) -> FactDifference:
    return pair.difference(
        verdict,
        Moment.REDUCE,
        words,
        effect=effect,
        multiple=multiple,
        is_scaled=is_scaled,
        if_exact=if_exact,
        parameter=names[0],
        next=(AFTER_BACKWARD,),
    )
