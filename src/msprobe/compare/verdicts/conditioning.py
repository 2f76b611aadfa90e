# SPDX-License-Identifier: Apache-2.0
"""Error bounds of operations: from their own rounding, and from errors of their inputs.

Sizes are L2 norms. A sum of products ``y = x W`` can turn a relative error e of x into an absolute
error of ``e * |x| * |W|``, which is more than ``e * |y|`` where terms cancel; its own rounding has
the same form (N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.5).
The other families are treated in the same spirit: first-order bounds, with
the sizes in the four statistics. Bounds that only the worst inputs reach are wanted here: below
them, a difference does not show a fault.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from msprobe.compare.model import Matched, Row
from msprobe.compare.rounding import IN_SUM, resolution_of
from msprobe.compare.verdicts.limits import is_limit
from msprobe.dump.values import Value
from msprobe.numerics.number_types import epsilon_of
from msprobe.operators.operator import Family

# Frameworks accumulate half types in float32.
_ACCUMULATION: Final = 2.0**-23
# Blocked and threaded sums differ by a few roundings; so do elementary functions of two libraries.
_ROUNDINGS: Final = 4.0
# Slopes of smooth activations: at most 1.13 (GELU, SiLU).
_SLOPE: Final = 1.2
# Below it exp is zero in float32; sums with a larger difference are not rounded to anything.
_LEAST_EXPONENT: Final = 104.0
_MASKED: Final = 1e4  # the exponents of what is masked are larger
_STATISTICS: Final = 2.0**-52  # their rounding: sums in float64
# What an operation that nothing is known of may do to the relative error of its inputs.
_UNKNOWN_GROWTH: Final = 50.0
# A batch holds groups with less spread than the whole.
_UNEVEN_SPREAD: Final = 8.0
_LEAST_SPREAD: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Operand:
    """One tensor of an operation: its size, and how far the two sides are apart in it.

    Attributes:
        size: L2 norm.
        error: L2 norm of the difference.
        largest_error: largest difference of an element.
        peak: largest absolute value.
        least: smallest absolute value, as far as the signs tell: zero where both signs occur.
        spread: L2 norm after the mean was subtracted.
        count: number of elements.
        shape: shape of the reference.
        epsilon: of the coarser type.
    """

    size: float
    error: float
    largest_error: float
    peak: float
    least: float
    spread: float
    count: int
    shape: tuple[int, ...]
    epsilon: float

    @property
    def relative(self) -> float:
        """The error relative to the size."""
        if self.error == 0:
            return 0.0
        return self.error / self.size if self.size else 1.0


def operand_of(row: Row) -> Operand | None:
    """Return a row as an operand; None if either side is no tensor or has no known size."""
    if not isinstance(row, Matched) or not all(value.is_tensor for value in row.values):
        return None
    target, reference = row.target, row.reference
    sizes = _sizes(reference)
    if sizes[0] == 0:
        sizes = _sizes(target)
    size, _, peak = sizes
    metrics = row.metrics
    if row.error == 0 or row.error is None or size is None:
        error = largest = 0.0
    elif metrics is not None and metrics.euclidean is not None:
        error = float(metrics.euclidean)
        largest = float(abs(metrics.max_abs_err or 0.0))
    else:
        error, largest = row.error * size, row.error * peak
    epsilon = resolution_of(row.values)
    return _operand(reference, sizes, epsilon, error, largest)


def exact_operand(value: Value) -> Operand | None:
    """Return a tensor of one side as an operand without an error; None without a known size."""
    return _operand(value, _sizes(value), epsilon_of(value.dtype)) if value.is_tensor else None


def _operand(
    value: Value,
    sizes: tuple[float | None, float, float],
    epsilon: float,
    error: float = 0.0,
    largest: float = 0.0,
) -> Operand | None:
    size, spread, peak = sizes
    if size is None:
        return None
    shape = value.shape or ()
    count, least = max(math.prod(shape), 1), _least_size(value)
    return Operand(size, error, largest, peak, least, spread, count, shape, epsilon)


def _sizes(value: Value) -> tuple[float | None, float, float]:
    """Return norm, norm without the mean, and peak of the finite elements, limits left out."""
    peak, is_known, has_limit = 0.0, False, False
    for end in value.finite_ends:
        if is_limit(end):
            has_limit = True
        elif end is not None:
            peak, is_known = max(peak, abs(float(end))), True
    count = max(math.prod(value.shape or ()), 1)
    norm, mean = value.norm, value.mean
    if has_limit or norm is None or not math.isfinite(norm):
        return (peak * math.sqrt(count) if is_known else None), peak * math.sqrt(count), peak
    size = float(norm)
    if mean is None or not math.isfinite(mean):
        return size, size, peak
    rest = size * size - count * float(mean) ** 2
    return size, math.sqrt(max(rest, (_LEAST_SPREAD * size) ** 2)), peak


def _least_size(value: Value) -> float:
    largest, least = value.finite_ends
    if largest is None or least is None or least <= 0 <= largest:
        return 0.0
    return min(abs(float(largest)), abs(float(least)))


@dataclass(frozen=True, slots=True)
class Bound:
    """The error that may be expected in a result.

    Attributes:
        own: L2 error that the operation's own rounding can make.
        passed_on: L2 error that the errors of its inputs can make.
    """

    own: float
    passed_on: float


def forward_bound(family: Family, operands: Sequence[Operand], result: Operand) -> Bound:
    """Return the error that may be expected in an output."""
    out = result.epsilon * result.size
    relative = sum(operand.relative for operand in operands)
    if not operands:
        return Bound(_ROUNDINGS * out, 0.0)
    match family:
        case Family.BILINEAR | Family.CONVOLUTION:
            scale, rest = _product_scale(family, operands, result)
            own = 2 * out + _ROUNDINGS * _ACCUMULATION * scale
            return Bound(own, scale * relative + rest)
        case Family.ADDITIVE | Family.AVERAGING:
            is_mean = family is Family.AVERAGING
            scale = sum(operand.size * _reach(operand, result, is_mean) for operand in operands)
            own = 2 * out + _ROUNDINGS * _ACCUMULATION * scale
            passed = sum(op.error * _reach(op, result, is_mean) for op in operands)
            return Bound(own, passed)
        case Family.MULTIPLYING | Family.PRODUCT:
            return Bound(_ROUNDINGS * out, _product_passed(family, operands, result))
        case Family.LIPSCHITZ | Family.KINKED:
            slope = max((op.peak for op in operands), default=0.0)
            steep = max(_SLOPE, result.peak / slope if slope else _SLOPE)
            passed = sum(op.error * _reach(op, result, is_mean=True) for op in operands)
            return Bound(_ROUNDINGS * out, steep * passed)
        case Family.EXPONENTIAL | Family.LOGARITHMIC | Family.ATTENTION:
            return Bound(*_exponential_forward(family, operands, result))
        case Family.NORMALISING:
            main = max(operands, key=lambda op: op.count)
            growth = _UNEVEN_SPREAD * (main.size / main.spread if main.spread else 1.0)
            own = 2 * out + _ROUNDINGS * _ACCUMULATION * growth * result.size
            passed = max(growth * relative * result.size, _of_squared_difference(operands, result))
            return Bound(own, passed)
        case Family.MOVING:
            return Bound(out, sum(op.error * _copies(op, result) for op in operands))
        case Family.DISCRETE:
            return Bound(out, math.inf if relative else 0.0)
        case _:
            own = out * (8 if family is Family.COMPOSITE else 2)
            passed = _UNKNOWN_GROWTH * relative * result.size
            return Bound(own, passed + sum(op.error for op in operands))


def _of_squared_difference(operands: Sequence[Operand], result: Operand) -> float:
    """Return what errors can make of the mean of (a - b)^2, where a and b may be nearly equal."""
    if result.count > 1 or len(operands) != 2 or operands[0].shape != operands[1].shape:
        return 0.0
    error = math.fsum(op.error for op in operands) / math.sqrt(operands[0].count)
    return error * (error + 2 * math.sqrt(result.size))


def quotient_error(
    numerator: Operand, divisor: Operand, factor: float, result: Operand
) -> float | None:
    """Return the L2 error that errors of single elements can make in ``factor * a / b``.

    Where divisors are tiny, such as in Adam for gradients that are zero up to rounding, small
    errors of small elements become large ones, which no norm of the inputs shows.

    Returns:
        None where divisors may be zero, so that nothing can be said.
    """
    if not divisor.least:
        return None
    error = numerator.largest_error + numerator.peak * divisor.largest_error / divisor.least
    return abs(factor) * error / divisor.least * math.sqrt(result.count)


def sum_in_own_type(gradients: Sequence[Operand], result: Operand) -> float:
    """Return the error of a parameter's gradient that threads sum up in its own type.

    A norm's kernel on the CPU does so. Every partial sum is rounded to the nearest. It is about as
    large as the root of how many terms it has, or grows to the result: on both sides together these
    are 0.3 units times the root of all terms.
    """
    terms = max((each.count for each in gradients), default=1) / result.count
    size = max(math.hypot(*(each.size for each in gradients)), result.size)
    return result.epsilon * math.sqrt(max(terms, 1.0)) * size / _ROUNDINGS


def is_summed_noise(family: Family, gradients: Sequence[Operand], result: Operand) -> bool:
    """Return whether the rounding of the sum that makes a parameter's gradient explains its error.

    A bias before a norm gets one that is nothing else. What is summed up was rounded before, to the
    coarsest of the types: each term by itself.
    """
    own = backward_bound(family, gradients, (), result).own
    if len(result.shape) <= 1:
        coarsest = max(each.epsilon for each in (result, *gradients))
        terms = math.hypot(*(each.size for each in gradients))
        own = max(own, terms * coarsest, sum_in_own_type(gradients, result))
    return result.error <= IN_SUM * own


def backward_bound(
    family: Family,
    gradients: Sequence[Operand],
    saved: Sequence[Operand],
    result: Operand,
) -> Bound:
    """Return the error that may be expected in a gradient that a call hands on."""
    if not gradients:
        return Bound(_ROUNDINGS * result.epsilon * result.size, 0.0)
    out = result.epsilon * result.size
    size = math.hypot(*(gradient.size for gradient in gradients))
    error = math.hypot(*(gradient.error for gradient in gradients))
    count = max(gradient.count for gradient in gradients)
    relative = error / size if size else (1.0 if error else 0.0)
    others = sum(operand.relative for operand in saved)
    summed = math.sqrt(max(count / result.count, 1.0))
    spread_out = math.sqrt(max(result.count / count, 1.0))
    peak = max((gradient.peak for gradient in gradients), default=0.0)
    match family:
        case Family.BILINEAR | Family.CONVOLUTION:
            scale = _gradient_scale(family, size, count, saved, result)
        case Family.MULTIPLYING | Family.PRODUCT:
            steep = max((operand.peak for operand in saved), default=1.0)
            scale = max(size * summed * max(steep, _slope(result, peak)), result.size)
        case Family.LIPSCHITZ:
            scale = size * max(_SLOPE, _slope(result, peak)) * max(summed, 1.0)
        case Family.KINKED:
            scale = size * max(_SLOPE, _slope(result, peak)) * max(summed, 1.0)
            jumps = math.sqrt(1 + 4 * result.count * others) if others else 0.0
            jump = max(peak, result.peak) * jumps
            return Bound(2 * out + _ROUNDINGS * _ACCUMULATION * scale, scale * relative + jump)
        case Family.EXPONENTIAL | Family.LOGARITHMIC | Family.ATTENTION:
            scale = max(2 * size, result.size)
            others = 2 * others + sum(2 * op.largest_error for op in saved)
        case Family.NORMALISING:
            scale, others = _normalising_gradient(size, count, saved, result)
        case Family.DISCRETE:
            return Bound(2 * out, math.inf if relative or others else 0.0)
        case Family.ADDITIVE | Family.AVERAGING | Family.MOVING:
            scale, others = size * max(summed, spread_out), 0.0
        case _:
            scale = max(_UNKNOWN_GROWTH * result.size, size)
    own = 2 * out + _ROUNDINGS * _ACCUMULATION * scale
    if family in (Family.OTHER, Family.COMPOSITE):
        own = out * (16 if family is Family.COMPOSITE else 8)
    return Bound(own, scale * (relative + others))


def _slope(result: Operand, peak: float) -> float:
    return result.peak / peak if peak else 1.0


def _kernel(family: Family, operands: Sequence[Operand]) -> float:
    """Return the number of uses of each element by a convolution, as a factor of L2 norms."""
    if family is not Family.CONVOLUTION:
        return 1.0
    return max(
        (math.sqrt(math.prod(op.shape[2:])) for op in operands if len(op.shape) >= 3), default=1.0
    )


def _product_scale(
    family: Family, operands: Sequence[Operand], result: Operand
) -> tuple[float, float]:
    """Return |a| * |b| of a sum of products, and the error of the addend."""
    wide = [op for op in operands if len(op.shape) > 1] or list(operands)
    if len(wide) < 2:
        wide = list(operands)
    ordered = sorted((op.size for op in wide), reverse=True)
    scale = ordered[0] * (ordered[1] if len(ordered) > 1 else 1.0) * _kernel(family, operands)
    rest = sum(
        op.error * math.sqrt(max(result.count / op.count, 1.0))
        for op in operands
        if len(op.shape) <= 1
    )
    return max(scale, result.size), rest


def _gradient_scale(
    family: Family, size: float, count: int, saved: Sequence[Operand], result: Operand
) -> float:
    """Return |gradient| * |other factor| of the gradient of a sum of products."""
    if len(result.shape) <= 1:
        total = size * math.sqrt(max(count / result.count, 1.0))
        return max(total, result.size)
    partners = [op.size for op in saved if op.shape != result.shape and len(op.shape) > 1]
    partners = partners or [op.size for op in saved]
    return max(size * max(partners, default=1.0) * _kernel(family, saved), result.size)


def _reach(operand: Operand, result: Operand, is_mean: bool) -> float:
    """Return the factor by which sums or broadcasts can enlarge the L2 norm of an operand."""
    if operand.count < result.count or is_mean:
        return math.sqrt(result.count / operand.count)
    return math.sqrt(operand.count / result.count)


def _copies(operand: Operand, result: Operand) -> float:
    return math.sqrt(max(result.count / operand.count, 1.0))


def _product_passed(family: Family, operands: Sequence[Operand], result: Operand) -> float:
    relative = sum(op.relative for op in operands) * result.size
    if family is not Family.MULTIPLYING or len(operands) != 2:
        return 8 * relative
    first, second = operands
    passed = first.error * _copies(first, result) * second.peak
    return max(passed + second.error * _copies(second, result) * first.peak, relative)


def _exponential_forward(
    family: Family, operands: Sequence[Operand], result: Operand
) -> tuple[float, float]:
    """Softmax and exp turn absolute errors into relative ones, logarithms the reverse."""
    largest = sum(map(_exponent_error, operands))
    error = sum(op.error for op in operands)
    out = result.epsilon * result.size
    passed = 2 * largest * result.size + error
    if family is Family.LOGARITHMIC:
        # Of a number near zero it moves by as much as the error is times that number.
        near = sum(math.log1p(op.largest_error / op.least) for op in operands if op.least)
        passed += (2 * largest + near) * math.sqrt(result.count)
    if family is Family.ATTENTION:
        passed += _UNKNOWN_GROWTH * sum(op.relative for op in operands) * result.size
    own = _ROUNDINGS * out
    # The argument of exp is itself rounded, and shifted by the largest one.
    peak = min(max((op.peak for op in operands), default=0.0), _LEAST_EXPONENT)
    return own + 2 * _ACCUMULATION * peak * result.size, passed


def _exponent_error(operand: Operand) -> float:
    """Return how far elements whose exponential is not zero may be apart."""
    if operand.peak < _MASKED:
        return operand.largest_error
    # Beside numbers that mask others no statistic shows where the error is, nor a small one.
    return operand.error + _ROUNDINGS * _STATISTICS * operand.size


def _normalising_gradient(
    size: float, count: int, saved: Sequence[Operand], result: Operand
) -> tuple[float, float]:
    """Return |gradient| * weight / standard deviation, and the error of the saved tensors."""
    wide = [op for op in saved if op.count > 1] or list(saved)
    if not wide:
        return max(size, result.size), 0.0
    main = max(wide, key=lambda op: op.count)
    growth = main.size / main.spread if main.spread else 1.0
    others = growth * sum(op.relative for op in saved)
    if result.count < count:
        return _UNEVEN_SPREAD * max(size * math.sqrt(count / result.count), result.size), others
    deviation = main.spread / math.sqrt(main.count) or 1.0
    weight = max((op.peak for op in saved if op.count < main.count), default=1.0) or 1.0
    return _UNEVEN_SPREAD * max(size * weight / deviation, result.size), others
