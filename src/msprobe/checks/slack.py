# SPDX-License-Identifier: Apache-2.0
"""Absolute errors that kernels make inside, where no error of an input or a step shows them.

The gradient of a gate that is nearly open is one minus the gate; GELU far below zero subtracts
numbers of the size of its input; `log_softmax` near zero is the difference of two numbers of the
size of its largest input; interpolation rounds coordinates, which moves the place that is read by
units in the last place of the image's size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from msprobe.checks.budgets import with_direction
from msprobe.operators.lookup import suggests
from msprobe.operators.operator import Family, Hint, Operator

_ACCUMULATION: Final = 2.0**-24
# Kernels have polynomials in place of erf and exp: the one of GELU on CPUs is off by nine units.
_POLYNOMIAL: Final = 2.0

Sizes = NDArray[np.float64]


def absolute_slack(
    operator: Operator,
    unit: float,
    operands: Sequence[NDArray[Any]],
    reference: NDArray[Any],
    *,
    is_gradient: bool,
) -> Sizes | float | None:
    """Return the error that inner numbers may leave in each element of a result.

    Args:
        operator: the function.
        unit: unit roundoff of the type that was computed in.
        operands: arguments with floating-point elements; in a backward pass, gradients first.
        reference: the result in high precision.
        is_gradient: the result is a gradient.

    Returns:
        One number for all elements, one for each (flat), or None for none.
    """
    operator, is_gradient = with_direction(operator, is_gradient=is_gradient)
    if suggests(operator.name, Hint.INTERPOLATES):
        widest = max((size for one in operands for size in one.shape), default=1)
        return unit * widest * _product_of_peaks(operands[:1])
    if is_gradient and operator.name == "glu":
        # One minus the gate is the difference of two numbers of the size of one.
        gradient, *inputs = map(_peak, operands)
        return unit * gradient * max(1.0, *inputs)
    if operator.family is Family.LOGARITHMIC:
        # Gradients of losses are as small as the batch is large: their own size counts.
        return unit * (_peak(reference) if is_gradient else max(map(_peak, operands), default=0.0))
    if is_gradient and _is_attention(operator):
        # The gradient of a weight is the difference of two numbers that may be equal, each a
        # product of a gradient and a value; times a key, or a query, it is a term of the result.
        return unit * max(_peak(reference), _attention_terms(operands))
    if operator.family is Family.LIPSCHITZ:
        return _elementwise(_POLYNOMIAL * min(unit, _ACCUMULATION), operands, reference.shape)
    return None


def leaves_slack(operator: Operator, *, is_gradient: bool) -> bool:
    """Return whether `absolute_slack` may be more than None."""
    operator, is_gradient = with_direction(operator, is_gradient=is_gradient)
    if operator.family in (Family.LOGARITHMIC, Family.LIPSCHITZ):
        return True
    if suggests(operator.name, Hint.INTERPOLATES):
        return True
    return is_gradient and (operator.name == "glu" or _is_attention(operator))


def _attention_terms(operands: Sequence[NDArray[Any]]) -> float:
    """Return the size of a weight's gradient before it is a difference, times a key or query."""
    if len(operands) < 4:
        return 0.0
    gradient, query, key, value = operands[:4]
    lengths = [
        float(np.sqrt(np.square(one, dtype=np.float64).sum(-1).max(initial=0.0)))
        for one in (gradient, value)
    ]
    scale = 1.0 / math.sqrt(max(query.shape[-1], 1)) if query.ndim else 1.0
    return scale * lengths[0] * lengths[1] * max(_peak(query), _peak(key))


def _is_attention(operator: Operator) -> bool:
    return operator.family is Family.ATTENTION or "attention" in operator.name


def _elementwise(
    unit: float, operands: Sequence[NDArray[Any]], shape: tuple[int, ...]
) -> Sizes | None:
    sizes = [np.abs(one).reshape(-1) for one in operands if one.shape == shape]
    if not sizes:
        return None
    gradient, *inputs = sizes
    slack: Sizes = gradient.astype(np.float64)
    slack *= unit
    for one in inputs:
        slack *= np.maximum(one, 1.0)
    return slack


def _product_of_peaks(operands: Sequence[NDArray[Any]]) -> float:
    return float(np.prod([_peak(one) for one in operands]))


def _peak(values: NDArray[Any]) -> float:
    sizes = np.abs(values)
    return float(np.max(sizes, initial=0.0, where=np.isfinite(sizes)))
