# SPDX-License-Identifier: Apache-2.0
"""`screened`: most calls are plainly right, and need none of the runs with random errors.

The allowed error of `msprobe.checks.budgets` has a part that these runs measure: the change of each
element by roundings. Here the size of the element's row (its last dimension) is taken in its place,
or the size of the terms of its sum; not for operators that compute each element by itself. What
that does not explain is judged in full. All passes over the elements are PyTorch's, on the device
of the reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np
import torch

from msprobe.checks.budgets import (
    RESULT_ROUNDINGS,
    Budget,
    budget_of,
    computing_unit,
    layout_of,
    with_direction,
)
from msprobe.checks.judging import Judgement, Verdict
from msprobe.checks.slack import absolute_slack
from msprobe.checks.verify_call import CallReport, ResultRow
from msprobe.dump.formats.dtypes import normal_dtype
from msprobe.dump.values import PartPath
from msprobe.operators.operator import Family, Operator
from msprobe.pytorch.live.live_call import LiveCall
from msprobe.pytorch.replay.rebuilding import from_torch
from msprobe.replay.runner import Setting

# Families whose results have an error of the size of the element alone.
_STRICT: Final = frozenset(
    (
        *(Family.MULTIPLYING, Family.PRODUCT, Family.MOVING),
        *(Family.KINKED, Family.DISCRETE, Family.EXPONENTIAL),
    )
)
# A random error of one roundoff in both factors of each term: two standard deviations of the sum.
_DEVIATIONS: Final = 2.0 * math.sqrt(2.0)
# Families that make one number of many.
_REDUCING: Final = frozenset((Family.NORMALISING, Family.AVERAGING, Family.ADDITIVE))


def screened(call: LiveCall, setting: Setting, units: Mapping[Family, float]) -> CallReport | None:
    """Return the report of a call whose results are plainly right; None for all others.

    Args:
        call: the call.
        setting: how its reference is computed.
        units: unit roundoff of float32 by family, where a setting of the run made it coarser.

    Raises:
        CannotReplayError: the reference cannot be computed.
    """
    references, by = call.results(setting)
    pairs = [
        (("output", *place), call.tensors.tensor(form))
        for place, form in call.outputs()
        if call.tensors.has_values(form)
    ]
    if not pairs or setting.dtype != by:
        return None
    types = [normal_dtype(str(one.dtype)) for _, one in pairs]
    operator, is_gradient = with_direction(call.call.operator, is_gradient=False)
    unit = computing_unit(types, units.get(operator.family, 0.0))
    operands = list(call.tensors.all()[: -len(pairs)])
    rows = []

    def terms(place: PartPath) -> torch.Tensor | None:
        return call.sizes_of_terms(setting).get(place)

    for (place, found), dtype in zip(pairs, types, strict=True):
        reference = references.get(place)
        if reference is None or reference.shape != found.shape:
            return None
        budget = budget_of(
            operator,
            dtype,
            unit=unit,
            shape=found.shape,
            operands=[one.shape for one in operands],
            is_gradient=is_gradient,
        )
        own = found.detach().to(reference.device)
        judgement = _Result(
            own, reference, budget, call.call.operator, operands, partial(terms, place)
        ).judgement()
        if judgement is None:
            return None
        rows.append(
            ResultRow(
                record=call.call.name,
                slot=".".join(map(str, place)),
                dtype=dtype,
                shape=tuple(found.shape),
                judgement=judgement,
            )
        )
    return CallReport(name=call.call.name, rows=tuple(rows), by=by)


class _Result:
    """One result beside its reference."""

    def __init__(
        self,
        found: torch.Tensor,
        reference: torch.Tensor,
        budget: Budget,
        operator: Operator,
        operands: Sequence[torch.Tensor],
        terms: Callable[[], torch.Tensor | None],
    ) -> None:
        self._found, self._reference = found, reference
        self._budget, self._operands, self._terms = budget, operands, terms
        self._called = operator
        self._operator, _ = with_direction(operator, is_gradient=False)

    def judgement(self) -> Judgement | None:
        """Return the judgement; None if it is not plainly right."""
        found, reference, budget = self._found, self._reference, self._budget
        head = slice(1) if found.dim() else ...  # most others differ in the first row
        if _is_rounded(found[head], reference[head]) and _is_rounded(found, reference):
            return Judgement(verdict=Verdict.EXACT, count=found.numel())
        if not found.dtype.is_floating_point:
            return None
        error = found.to(reference.dtype).sub_(reference).abs_()
        if self._operator.family in _STRICT:
            return self._within(error.div_(self._own(budget.result_factor).add_(budget.floor)))
        share = budget.step_factor * budget.unit
        is_sum = self._operator.family.sums_products
        rows = self._row_sizes().mul_(share * (_DEVIATIONS if is_sum else 1.0)).add_(budget.floor)
        if error.dim():  # the sizes of rows alone explain most results
            judgement = self._within(error.amax(-1, keepdim=True).div_(rows), error)
            if judgement is not None:
                return judgement
        allowed = self._own(budget.known_factor)
        if is_sum:
            terms = self._terms()
            if terms is None:
                return None
            allowed.add_(terms, alpha=_DEVIATIONS * share).add_(budget.floor)
        else:
            allowed.add_(rows)
            if (slack := self._slack()) is not None:
                allowed.add_(slack, alpha=RESULT_ROUNDINGS)
        return self._within(error.div_(allowed))

    def _own(self, factor: float) -> torch.Tensor:
        """Return the error that the size of each element allows."""
        return self._reference.abs().mul_(factor)

    def _within(self, ratios: torch.Tensor, error: torch.Tensor | None = None) -> Judgement | None:
        """Return the judgement of errors that are allowed.

        Args:
            ratios: errors in parts of the allowed ones; for each row, or for each element.
            error: of each element, where `ratios` are those of rows.
        """
        ratio, place = _largest(ratios)
        if not ratio <= 1.0:  # NaN, too
            return None
        if error is not None:
            width = error.shape[-1]
            place = place * width + int(error.reshape(-1, width)[place].argmax())
        found, expected = _element(self._found, place), _element(self._reference, place)
        size = abs(found - expected)
        return Judgement(
            verdict=Verdict.ROUNDING,
            ratio=ratio,
            ulps=_ulps(found, expected, self._budget),
            error=size,
            index=place,
            found=found,
            expected=expected,
            allowed=size / ratio if ratio else 0.0,
            count=self._found.numel(),
        )

    def _row_sizes(self) -> torch.Tensor:
        """Return the size of each element's row, which stands for its condition."""
        sizes = self._reference
        found = _root_mean_square(sizes, -1)
        if "attention" in self._operator.name:
            # Rows of gradients are differences of sums over all others.
            found = torch.maximum(found, _root_mean_square(sizes.reshape(-1), -1)[0])
        first = self._operands[0] if self._operands else sizes
        if self._operator.family in _REDUCING and first.numel() > sizes.numel():
            # A mean is as good as the numbers that it is made of.
            inner = _root_mean_square(first.detach().to(sizes).reshape(-1), -1)[0]
            found = torch.maximum(found, inner / math.sqrt(self._budget.length))
        return found.abs()

    def _slack(self) -> torch.Tensor | None:
        """Return the error that numbers inside of the operator may leave in each element."""
        floats = [one for one in self._operands if one.dtype.is_floating_point]
        slack = absolute_slack(
            self._called,
            self._budget.unit,
            [from_torch(one).values() for one in floats],
            from_torch(self._reference).array,
            is_gradient=False,
        )
        if slack is None:
            return None
        made = torch.as_tensor(slack).to(self._reference)
        return made.reshape(self._reference.shape) if made.dim() else made


def _root_mean_square(sizes: torch.Tensor, dim: int) -> torch.Tensor:
    """Return the root mean square along a dimension, which stays."""
    if sizes.dim() == 0:
        return sizes
    norm: torch.Tensor = torch.linalg.vector_norm(sizes, dim=dim, keepdim=True)
    return norm / math.sqrt(max(sizes.shape[dim], 1))


def _is_rounded(found: torch.Tensor, reference: torch.Tensor) -> bool:
    """Return whether a result is its reference, rounded to its type."""
    return torch.equal(found, reference.to(found.dtype))


def _largest(values: torch.Tensor) -> tuple[float, int]:
    """Return the largest element, or NaN, and its place; `argmax` of a whole tensor is slow."""
    lines = values.reshape(-1, values.shape[-1] if values.dim() else 1)
    line = int(lines.amax(-1).argmax())
    place = int(lines[line].argmax())
    return float(lines[line, place]), line * lines.shape[1] + place


def _element(tensor: torch.Tensor, place: int) -> float:
    """Return an element by its place in C order."""
    return float(tensor[np.unravel_index(place, tuple(tensor.shape))])


def _ulps(found: float, expected: float, budget: Budget) -> float:
    """Return the error of the element that decided, in units in the last place."""
    layout = layout_of(budget.dtype)
    assert layout is not None
    power = max(math.frexp(expected)[1] - 1 if expected else -1022, layout.min_exponent, -1022)
    return abs(found - expected) / (math.ldexp(1.0, power) * layout.epsilon)
