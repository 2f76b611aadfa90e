# SPDX-License-Identifier: Apache-2.0
"""When the gradients of a step are the same, though their sums were taken in another order."""

from __future__ import annotations

import pytest

from msprobe.compare.training.gradients import has_same_gradients
from msprobe.compare.training.start import FactsPair
from msprobe.compare.training.step_pairs import step_pairs
from msprobe.dump.facts import Facts, Fingerprints, OptimizedParameters, OptimizerStep


def facts(gradient: float, before: float) -> Facts:
    """One parameter with a gradient and a start of norm 1, moved by so much."""

    def moved(by: float) -> Fingerprints:
        return Fingerprints(checksum=[f"{by:08.1e}"], norm=[1.0], projections=[[by, -by]])

    parameters = OptimizedParameters(
        name=["weight"],
        shape=[[4]],
        dtype=["torch.float32"],
        has_gradient=[True],
        gradient=moved(gradient),
        before=moved(before),
    )
    step = OptimizerStep(class_name="torch.optim.sgd.SGD", number=0, call=0, parameters=parameters)
    return Facts(version=1, step=1, events=[step])


@pytest.mark.parametrize(
    ("gradient", "before", "same"),
    [
        (8e-6, 0.0, True),
        (2e-5, 0.0, False),
        # What the start is apart by rounding, the gradients may be apart by ten times.
        (2e-5, 6e-6, True),
        (8e-5, 6e-6, False),
        # A start that is far apart excuses nothing.
        (5e-4, 1e-2, False),
    ],
)
def test_gradients_may_part_as_far_as_the_start_does(
    gradient: float, before: float, same: bool
) -> None:
    pair = FactsPair(step=1, rank=0, target=facts(gradient, before), reference=facts(0.0, 0.0))
    (step,) = step_pairs(pair)
    assert has_same_gradients(step) is same
