# SPDX-License-Identifier: Apache-2.0
"""`judged_pair`: a result of several operators against the same in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from msprobe.checks.budgets import budget_of, computing_unit, largest_of, smallest_of
from msprobe.checks.judging import Judgement, judge
from msprobe.dump.formats.dtypes import normal_dtype
from msprobe.dump.tensor_files import StoredTensor
from msprobe.operators.operator import Family, Operator
from msprobe.pytorch.replay.rebuilding import from_torch
from msprobe.replay.runner import Noise

_SEED = 1


def judged_pair(
    found: torch.Tensor,
    exact: torch.Tensor,
    probe: Callable[[Noise], torch.Tensor],
    operands: Sequence[Sequence[int]],
    unit: float = 0.0,
) -> Judgement:
    """Return the judgement of a result by the budget of its type and its measured condition.

    Args:
        found: the result.
        exact: the same in float64.
        probe: returns it with random errors in each step.
        operands: shapes of the tensors that it was made of.
        unit: unit roundoff of the coarsest type on the way to it.
    """
    dtype = normal_dtype(str(found.dtype))
    coarsest = max(unit, computing_unit([dtype]))
    budget = budget_of(
        Operator(name="", family=Family.COMPOSITE),
        dtype,
        unit=coarsest,
        shape=found.shape,
        operands=operands,
    )
    known: list[StoredTensor] = []

    def probes(count: int) -> list[StoredTensor]:
        while len(known) < count:
            noise = Noise(coarsest, _SEED + len(known), largest_of(dtype), smallest_of(dtype))
            known.append(from_torch(probe(noise)))
        return known

    def slack() -> float:
        # Where large numbers cancel inside, the result is as good as those of its size.
        return coarsest * float(exact.abs().nan_to_num(0.0, 0.0, 0.0).max())

    return judge(from_torch(found), from_torch(exact), budget, probes, slack)
