# SPDX-License-Identifier: Apache-2.0
"""Elements of parameters before and after an optimizer step, as the update rules see them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Options = Mapping[str, Any]

# Roundings of one element on its way through the longest rule, each half an epsilon, doubled.
_ROUNDINGS: Final = 16.0
# Epsilon of a type and its smallest number: that of float16 is so large that squares vanish in it.
_SMALLEST: Final = {2.0**-10: 2.0**-24}


@dataclass(frozen=True, slots=True, kw_only=True)
class Elements:
    """Elements of parameters before one optimizer step; all arrays have one shape.

    Attributes:
        before: the parameter.
        gradient: the gradient as the optimizer got it.
        steps: number of the step for each element's parameter, from 1.
        state: the optimizer's state before the step; zero where `has_state` is False.
        has_state: whether the optimizer had a state for the element's parameter.
        norms: L2 norm of each element's whole parameter before the step.
        shapes: shape of each element's parameter.
        epsilon: that of the type of the parameters.
    """

    before: Array
    gradient: Array
    steps: Array
    state: Mapping[str, Array] = field(default_factory=dict)
    has_state: NDArray[np.bool_]
    norms: Array
    shapes: Sequence[Sequence[int]]
    epsilon: float

    def of(self, name: str) -> Array:
        """Return a state; zeros where there is none."""
        found = self.state.get(name)
        return np.zeros_like(self.before) if found is None else found


def blurred(square: Array, epsilon: float) -> Array | float:
    """Return by how many roundings a root is blurred where its square nearly vanishes.

    Twice rounded to a multiple of the smallest number of its type, it may be zero.

    Args:
        square: averages of squares.
        epsilon: of their type.
    """
    smallest = _SMALLEST.get(epsilon, 0.0)
    if not smallest:
        return 0.0
    left = square - 2 * smallest
    return np.where(left > 0, smallest / left / epsilon, np.inf)


@dataclass(frozen=True, slots=True)
class Updated:
    """The result of a rule.

    Attributes:
        value: the new parameter.
        terms: size of the terms that made it: an error of one rounding is epsilon times this.
        slack: further deviation that the rule allows, such as a sign that may tip over.
        is_bound: where the new value depends on elements that are not known: then `value` and
            `slack` are the middle and the half of the range that it may be in.
    """

    value: Array
    terms: Array
    slack: Array | float = 0.0
    is_bound: NDArray[np.bool_] | None = None

    def allowed(self, epsilon: float) -> Array:
        """Return how far rounding to a type of this epsilon may take the new parameter."""
        bound: Array = _ROUNDINGS * epsilon * self.terms + self.slack
        return bound


Rule = Callable[[Options, Elements], Updated]
"""Options of a group of parameters, elements before the step → elements after it."""


def given(options: Options, elements: Elements) -> tuple[Array, Array]:
    """Return the gradient with its sign and a coupled weight decay, and the size of its terms."""
    gradient = -elements.gradient if options.get("maximize") else elements.gradient
    decay = options.get("weight_decay") or 0.0
    return (
        gradient + decay * elements.before,
        np.abs(gradient) + decay * np.abs(elements.before),
    )


def moved(
    kept: Array, update: Array, update_size: Array, kept_size: Array | None = None
) -> Updated:
    """Return the result of subtracting an update.

    Args:
        kept: the parameter after weight decay.
        update: what is subtracted.
        update_size: size of the terms that made the update.
        kept_size: size of those that made `kept`; None for its own.
    """
    size = np.abs(kept) if kept_size is None else kept_size
    return Updated(kept - update, size + np.abs(update) + update_size)
