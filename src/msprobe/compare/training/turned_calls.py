# SPDX-License-Identifier: Apache-2.0
"""`TurnedCalls`: calls of a model that get each other's inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from msprobe.compare.training.batches import Batch
from msprobe.compare.training.differences import Effect, FactDifference, Moment
from msprobe.compare.training.facts_pair import FactsPair, same
from msprobe.compare.training.same_training import total_loss
from msprobe.compare.verdicts.verdict_classes import VerdictClass


class TurnedCalls:
    """Calls of a model that get the same inputs in another order within each step, step after step.

    Where a backward pass follows from several of them, whoever made the inputs, and the loss is the
    same: then what is made of their results comes in another order, too. With another loss they are
    other data.

    Attributes:
        alike: steps that come to the same losses and gradients.
    """

    def __init__(self) -> None:
        self.alike = set[int]()
        self._found: FactDifference | None = None
        self._may_be = True

    def add(self, pair: FactsPair, batches: Sequence[Batch]) -> None:
        """Take in what the models are given in a step."""
        target, reference = zip(*(batch.keys for batch in batches), strict=True)
        if target == reference:
            return
        has_several = len(batches) > max(pair.passes) > 0 and not pair.has_closure
        is_turned = has_several and Counter(target) == Counter(reference)
        self._may_be = self._may_be and is_turned
        if self._found is None and is_turned and same(*map(total_loss, pair.sides)):
            first = next(each for each in batches if each.keys[0] != each.keys[1]).target[0]
            self._found = pair.difference(
                VerdictClass.ORDER,
                Moment.DATA,
                f"{first.record or 'the model'} and its later calls get the same inputs in another "
                f"order (step {pair.step})",
                effect=Effect.POSSIBLE,
                next=("look at the calls of the model",),
                record=first.record,
                micro=first.micro,
            )

    @property
    def difference(self) -> FactDifference | None:
        """Their difference; None where they are no such calls in any step."""
        found = self._found if self._may_be else None
        is_idle = found is not None and found.step in self.alike
        return replace(found, effect=Effect.NONE) if found is not None and is_idle else found
