# SPDX-License-Identifier: Apache-2.0
"""Parameters of which one side alone holds a part on each rank, as with FSDP against DDP.

Their parts are compared together: by the norm over all ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from msprobe.compare.training.differences import FactDifference, Moment, are, shown, some_of
from msprobe.compare.training.facts_pair import FactsPair
from msprobe.compare.training.fingerprints import at
from msprobe.compare.training.gradient_distances import below_rounding
from msprobe.compare.verdicts.next_steps import AFTER_BACKWARD
from msprobe.compare.verdicts.verdict_classes import VerdictClass
from msprobe.dump.facts import Facts

# Norms of parts are sums in another order; those of gradients that several ranks share, too.
_SAME_NORM: Final = 1e-4

Norms = dict[str, float | None]


class ShardHistory:
    """Compares the parts of all ranks together, step after step."""

    def __init__(self) -> None:
        self._rounded: set[str] = set()

    def differences(self, pairs: Sequence[FactsPair]) -> Iterator[FactDifference]:
        """Yield what differs in the parts of all ranks, when a step starts and later.

        A gradient that is zero but for rounding tells nothing, nor what an optimizer made of it.
        """
        names = [
            n for n in (pairs[0].reshaped if pairs else ()) if all(n in p.sharded for p in pairs)
        ]
        for moment, verdict, norms_of, when, todo in _COMPARED if names else ():
            by_rank = [[norms_of(facts) for facts in pair.sides] for pair in pairs]
            if moment is Moment.REDUCE:
                noise = [below_rounding(norms) for both in by_rank for norms in both if norms]
                self._rounded |= set.intersection(*noise) if noise else set()
            apart = {}
            for name in (each for each in names if each not in self._rounded):
                both = [
                    _whole(pairs, name, side, [e[side].get(name) for e in by_rank])
                    for side in (0, 1)
                ]
                if None not in both and not math.isclose(both[0], both[1], rel_tol=_SAME_NORM):  # type: ignore[arg-type]
                    apart[name] = both
            if apart:
                found = list(apart)
                numbers = [shown(number) for number in apart[found[0]]]
                yield pairs[0].difference(
                    verdict,
                    moment,
                    f"{some_of(found, len(names), 'sharded parameters')} "
                    f"{are(found, 'has', 'have')} another {when}, over all ranks: "
                    f"{'' if len(found) == 1 else 'the first '}{numbers[0]} instead of "
                    f"{numbers[1]} (step {pairs[0].step})",
                    parameter=found[0],
                    next=(todo,),
                )


def _whole(
    pairs: Sequence[FactsPair], name: str, side: int, norms: Sequence[float | None]
) -> float | None:
    """Return the norm of a whole parameter; None where one of its parts is not known."""
    shapes = [pair.reshaped[name] for pair in pairs]
    total = max(map(math.prod, shapes[0]))
    held = sum(math.prod(each[side]) for each in shapes)
    if None in norms or not held:
        return None
    # Groups of ranks may hold the same parts.
    return math.hypot(*(norm or 0.0 for norm in norms)) * math.sqrt(total / held)


def _at_start(facts: Facts) -> Norms:
    columns = facts.parameters
    return {} if columns is None else dict(zip(columns.name, columns.norm, strict=False))


def _of_gradients(facts: Facts) -> Norms:
    return {
        name: at(step.parameters.gradient.norm, place)
        for step in facts.optimizer_steps()
        if step.parameters.gradient is not None
        for place, name in enumerate(step.parameters.name)
    }


_COMPARED: Final[tuple[tuple[Moment, VerdictClass, Callable[[Facts], Norms], str, str], ...]] = (
    (
        Moment.PARAMETERS,
        VerdictClass.PARAMETERS,
        _at_start,
        "norm when the step starts",
        "compare the checkpoints that the runs began with (msprobe compare-ckpt), and how "
        "parameters are initialised",
    ),
    (
        Moment.REDUCE,
        VerdictClass.GRADIENT,
        _of_gradients,
        "norm of the gradient that the optimizer gets",
        AFTER_BACKWARD,
    ),
)
