# SPDX-License-Identifier: Apache-2.0
"""The error that the type of a result allows it.

For a reference b, the unit roundoff u of the type that was computed in, and the change d of b that
relative errors of size u in every step make (measured by probes), the allowed error is

    RESULT_ROUNDINGS u |b|  +  (STEP_ROUNDINGS + sqrt(n) v / u) (d + u |b|)

where n is the length of the longest sum and v the unit roundoff of the type that sums are kept in.
The first part is the error of elementary functions. In the second, STEP_ROUNDINGS is the number
of roundings that a kernel may make for each step of the reference; sums of n terms lose sqrt(n)
roundings, as their errors hardly depend on each other (N. J. Higham and T. Mary, A new approach to
probabilistic rounding error analysis, 2019).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from msprobe.dump.formats.dtypes import COMPLEX_PARTS, FLOATS, FloatFormat
from msprobe.numerics.number_types import epsilon_of
from msprobe.operators.lookup import differentiated
from msprobe.operators.operator import Family, Operator

RESULT_ROUNDINGS: Final = 4.0
STEP_ROUNDINGS: Final = 4.0
# Kernels that do in one step what would be many.
_STEPS: Final = {Family.NORMALISING: 16.0, Family.COMPOSITE: 16.0}
# Half types are summed in float32.
_ACCUMULATION: Final = 2.0**-24
_SINGLE: Final = ("float32", "complex64")
# Families whose results are elements of their inputs, or of the gradients.
_EXACT: Final = frozenset((Family.MOVING,))
# Results with one term for each element of the inputs.
_ELEMENTWISE: Final = frozenset(
    (Family.MULTIPLYING, Family.PRODUCT, Family.LIPSCHITZ, Family.MOVING)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Quantities that decide the allowed error of a result.

    Attributes:
        dtype: type of the result.
        unit: unit roundoff of the type that was computed in.
        accumulation: unit roundoff of the type that sums are kept in.
        length: terms of the longest sum.
        exact: the result must be the reference, rounded to its type.
        steps: roundings of a kernel for each step of the reference.
    """

    dtype: str
    unit: float
    accumulation: float
    length: int = 1
    exact: bool = False
    steps: float = STEP_ROUNDINGS

    @property
    def own_unit(self) -> float:
        """Unit roundoff of the result's type."""
        return unit_of(self.dtype)

    @property
    def result_factor(self) -> float:
        """Allowed error of the last step, in parts of the reference's size."""
        # A reference in float64 has errors of its own when the result is float64, too.
        double = 2.0 if self.dtype in ("float64", "complex128") else 1.0
        return (1.0 if self.exact else RESULT_ROUNDINGS) * self.own_unit * double

    @property
    def known_factor(self) -> float:
        """Allowed error in parts of the reference's size, without any measured change."""
        return self.result_factor + self.step_factor * self.unit

    @property
    def step_factor(self) -> float:
        """Allowed error in parts of the measured change."""
        if self.exact or not self.unit:
            return 0.0
        return self.steps + math.sqrt(self.length) * self.accumulation / self.unit

    @property
    def floor(self) -> float:
        """Allowed error of elements around zero: devices may flush subnormal numbers to zero."""
        layout = layout_of(self.dtype)
        if layout is None:
            return 0.0
        if layout.exponent_bits >= 8:
            return math.ldexp(1.0, max(layout.min_exponent, -1022))
        return math.ldexp(1.0, layout.min_exponent - layout.fraction_bits)


def unit_of(dtype: str) -> float:
    """Return the unit roundoff of a type: half the distance from 1 to the next number."""
    return epsilon_of(dtype) / 2


def layout_of(dtype: str) -> FloatFormat | None:
    """Return the layout of a floating-point type, or of the parts of a complex one."""
    return FLOATS.get(COMPLEX_PARTS.get(dtype, dtype))


def largest_of(dtype: str) -> float:
    """Return the largest number that is not rounded to infinity in a type."""
    layout = layout_of(dtype)
    if layout is None or layout.exponent_bits == 11:
        return math.inf
    top = (1 << layout.exponent_bits) - 2 - layout.bias
    return math.ldexp(2.0 - layout.epsilon / 2, top)


def smallest_of(dtype: str) -> float:
    """Return the smallest positive number of a type; 0 where it has no limit that matters."""
    layout = layout_of(dtype)
    return 0.0 if layout is None else math.ldexp(layout.epsilon, max(layout.min_exponent, -1022))


def computing_unit(dtypes: Iterable[str], float32_unit: float = 0.0) -> float:
    """Return the unit roundoff of the coarsest of these types; 0 if all hold integers.

    Args:
        dtypes: the types.
        float32_unit: that of float32, where a setting of the run made it coarser.
    """
    units = (max(unit_of(dtype), float32_unit if dtype in _SINGLE else 0.0) for dtype in dtypes)
    return max(units, default=0.0)


def budget_of(
    operator: Operator,
    dtype: str,
    *,
    unit: float,
    shape: Sequence[int],
    operands: Sequence[Sequence[int]],
    is_gradient: bool = False,
) -> Budget:
    """Return the budget of one result.

    Args:
        operator: the function.
        dtype: type of the result.
        unit: unit roundoff of the type that was computed in.
        shape: of the result.
        operands: shapes of the tensors that it was made of.
        is_gradient: the result is a gradient, whose shares may have been added up.
    """
    operator, is_gradient = with_direction(operator, is_gradient=is_gradient)
    exact = operator.family in _EXACT and unit <= unit_of(dtype) and not is_gradient
    return Budget(
        dtype=dtype,
        unit=unit,
        accumulation=min(unit, _ACCUMULATION),
        length=_sum_length(operator.family, shape, operands),
        exact=exact,
        steps=_STEPS.get(operator.family, STEP_ROUNDINGS),
    )


def with_direction(operator: Operator, *, is_gradient: bool) -> tuple[Operator, bool]:
    """Return the operator of the forward pass, and whether the result is its gradient.

    Args:
        operator: of a call; ``convolution_backward`` is that of a gradient.
        is_gradient: whether the result was made by a backward pass of the call.
    """
    forward = differentiated(operator)
    return (operator, is_gradient) if forward is None else (forward, True)


def _sum_length(family: Family, shape: Sequence[int], operands: Sequence[Sequence[int]]) -> int:
    """Return an upper bound of the number of terms in one element."""
    count = max(math.prod(shape), 1)
    sizes = sorted((math.prod(one) for one in operands), reverse=True) or [1]
    longest = max(sizes[0] / count, 1.0)
    if family in _ELEMENTWISE:
        return math.ceil(longest)
    if family.sums_products and len(sizes) > 1:
        longest = max(longest, math.sqrt(sizes[0] * sizes[1] / count))
    widest = max((size for one in operands for size in one), default=1)
    return math.ceil(max(longest, widest))
