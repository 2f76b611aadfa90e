# SPDX-License-Identifier: Apache-2.0
"""The update rules of optimizers, elementwise and in float64: (parameter, gradient, state) → new
parameter.

Each rule follows the formula in the documentation of its class (``torch.optim``; Lion: Chen et al.,
"Symbolic Discovery of Optimization Algorithms", 2023). Beside the new value it returns the size of
the terms that are added up, so that the rounding of the optimizer's own type can be told from
another rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Options = Mapping[str, Any]

# Roundings of one element on its way through the longest rule, each half an epsilon, doubled.
_ROUNDINGS: Final = 16.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Elements:
    """Elements of parameters before one optimizer step; all arrays have one shape.

    Attributes:
        before: the parameter.
        gradient: the gradient as the optimizer got it.
        steps: number of the step for each element's parameter, from 1.
        state: the optimizer's state before the step; zero where `has_state` is False.
        has_state: whether the optimizer had a state for the element's parameter.
    """

    before: Array
    gradient: Array
    steps: Array
    state: Mapping[str, Array] = field(default_factory=dict)
    has_state: NDArray[np.bool_]

    def of(self, name: str) -> Array:
        """Return a state; zeros where there is none."""
        found = self.state.get(name)
        return np.zeros_like(self.before) if found is None else found


@dataclass(frozen=True, slots=True)
class Updated:
    """The result of a rule.

    Attributes:
        value: the new parameter.
        terms: size of the terms that made it: an error of one rounding is epsilon times this.
        slack: further deviation that the rule allows, such as a sign that may tip over.
    """

    value: Array
    terms: Array
    slack: Array | float = 0.0

    def allowed(self, epsilon: float) -> Array:
        """Return how far rounding to a type of this epsilon may take the new parameter."""
        bound: Array = _ROUNDINGS * epsilon * self.terms + self.slack
        return bound


def rule_of(class_name: str, options: Options) -> Callable[[Options, Elements], Updated] | None:
    """Return the rule of an optimizer; None if it is not known.

    Args:
        class_name: full name of its class.
        options: options of a group of parameters, some of which change the rule.
    """
    module, _, name = class_name.rpartition(".")
    if name == "Lion":
        return None if options.get("cautious") or options.get("caution") else _lion
    return _RULES.get(name) if module.split(".")[:2] == ["torch", "optim"] else None


def _given(options: Options, elements: Elements) -> tuple[Array, Array]:
    """Return the gradient with its sign and a coupled weight decay, and the size of its terms."""
    gradient = -elements.gradient if options.get("maximize") else elements.gradient
    decay = options.get("weight_decay") or 0.0
    return (
        gradient + decay * elements.before,
        np.abs(gradient) + decay * np.abs(elements.before),
    )


def _sgd(options: Options, elements: Elements) -> Updated:
    step, size = _given(options, elements)
    momentum = options.get("momentum") or 0.0
    if momentum:
        buffer = momentum * elements.of("momentum_buffer")
        share = 1 - (options.get("dampening") or 0.0)
        moved = np.where(elements.has_state, buffer + share * step, step)
        moved_size = np.where(elements.has_state, np.abs(buffer) + share * size, size)
        if options.get("nesterov"):
            step, size = step + momentum * moved, size + momentum * moved_size
        else:
            step, size = moved, moved_size
    return _moved(elements.before, options["lr"] * step, options["lr"] * size)


def _adam(options: Options, elements: Elements) -> Updated:
    coupled = not options.get("decoupled_weight_decay")
    return _adam_step(options, elements, coupled=coupled)


def _adamw(options: Options, elements: Elements) -> Updated:
    return _adam_step(options, elements, coupled=False)


def _adam_step(options: Options, elements: Elements, *, coupled: bool) -> Updated:
    before = elements.before
    decay = options.get("weight_decay") or 0.0
    gradient, size = _given({**options, "weight_decay": decay if coupled else 0.0}, elements)
    kept = before if coupled else before * (1 - options["lr"] * decay)
    first, second = options["betas"]
    moment = first * elements.of("exp_avg") + (1 - first) * gradient
    moment_size = first * np.abs(elements.of("exp_avg")) + (1 - first) * size
    square = second * elements.of("exp_avg_sq") + (1 - second) * gradient * gradient
    if options.get("amsgrad"):
        square = np.maximum(square, elements.of("max_exp_avg_sq"))
    # Where weight decay cancels the gradient, its rounding takes part in the root.
    blur = np.where(gradient == 0, 0.0, size / np.maximum(np.abs(gradient), np.finfo(float).tiny))
    scale = options["lr"] / (1 - first**elements.steps)
    root = np.sqrt(square) / np.sqrt(1 - second**elements.steps) + options["eps"]
    correction = 1 / (1 - second**elements.steps) if options.get("capturable") else 1.0
    with np.errstate(divide="ignore", invalid="ignore"):
        update = scale * moment / root
        update_size = scale * moment_size / root * (correction + blur)
    return _moved(kept, update, update_size, np.abs(before))


def _lion(options: Options, elements: Elements) -> Updated:
    decay = options.get("weight_decay") or 0.0
    first, _ = options["betas"]
    gradient, size = _given({**options, "weight_decay": 0.0}, elements)
    mixed = first * elements.of("exp_avg") + (1 - first) * gradient
    mixed_size = first * np.abs(elements.of("exp_avg")) + (1 - first) * size
    kept = elements.before * (1 - options["lr"] * decay)
    update = options["lr"] * np.sign(mixed)
    # Next to zero, or rounded to zero in a coarse type, the sign may be any.
    may_tip = np.abs(mixed) <= 2.0**-6 * mixed_size
    moved = _moved(kept, update, np.abs(update), np.abs(elements.before))
    return Updated(moved.value, moved.terms, np.where(may_tip, 2 * options["lr"], 0.0))


def _rmsprop(options: Options, elements: Elements) -> Updated:
    gradient, size = _given(options, elements)
    alpha = options["alpha"]
    square = alpha * elements.of("square_avg") + (1 - alpha) * gradient * gradient
    cancelled: Array | float = 1.0
    if options.get("centered"):
        mean = alpha * elements.of("grad_avg") + (1 - alpha) * gradient
        variance = np.maximum(square - mean * mean, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            cancelled = np.where(variance > 0, square / variance, np.inf)
        square = variance
    root = np.sqrt(square) + options["eps"]
    with np.errstate(divide="ignore", invalid="ignore"):
        step, step_size = gradient / root, size / root * cancelled
    momentum = options.get("momentum") or 0.0
    if momentum:
        buffer = momentum * elements.of("momentum_buffer")
        step, step_size = buffer + step, np.abs(buffer) + step_size
    return _moved(elements.before, options["lr"] * step, options["lr"] * step_size)


def _adagrad(options: Options, elements: Elements) -> Updated:
    gradient, size = _given(options, elements)
    total = elements.of("sum") + gradient * gradient
    rate = options["lr"] / (1 + (elements.steps - 1) * (options.get("lr_decay") or 0.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        root = np.sqrt(total) + options["eps"]
        return _moved(elements.before, rate * gradient / root, rate * size / root)


def _moved(
    kept: Array, update: Array, update_size: Array, kept_size: Array | None = None
) -> Updated:
    size = np.abs(kept) if kept_size is None else kept_size
    return Updated(kept - update, size + np.abs(update) + update_size)


_RULES: Final[Mapping[str, Callable[[Options, Elements], Updated]]] = MappingProxyType(
    {
        "SGD": _sgd,
        "Adam": _adam,
        "AdamW": _adamw,
        "RMSprop": _rmsprop,
        "Adagrad": _adagrad,
    }
)
