# SPDX-License-Identifier: Apache-2.0
"""Steps whose optimizer asks for the loss again, as L-BFGS does: which calls come before that.

How often it asks, and with which parameters, follows from what it made of the first answer.
"""

from __future__ import annotations

import math
from typing import Final

from msprobe.dump.facts import Facts, Outline

_SETS_GRADIENTS: Final = "Torch._set_grad_enabled"


def repetitions(facts: Facts) -> float:
    """Return how often a model is called with each of its batches, on average."""
    batches: dict[int, list[str | None]] = {}
    for each in facts.data:
        batches.setdefault(each.micro, []).append(each.checksum)
    keys = [tuple(batch) for batch in batches.values() if None not in batch]
    return len(keys) / len({*keys}) if keys else 1.0


def asks_again(facts: Facts) -> bool:
    """Return whether an optimizer asks for the loss again within its step."""
    passes = len({loss.micro for loss in facts.loss})
    return 0 < len(facts.optimizer_steps()) < passes and repetitions(facts) > 1


def first_calls(facts: Facts, outline: Outline) -> float:
    """Return how many calls of an outline come before an optimizer computes something itself.

    It does so outside of the user's code, and without gradients. Infinitely many where it asks for
    the loss once.
    """
    if not asks_again(facts):
        return math.inf
    place, is_off = 0, False
    for run in outline.runs:
        for call in (outline.calls[number] for number in outline.bodies[run.body]):
            if call.name == _SETS_GRADIENTS:
                is_off = call.arguments[:1] == ("False",)
            elif is_off and call.source is None and run.parent is None and run.after:
                return place
            place += 1
    return math.inf
