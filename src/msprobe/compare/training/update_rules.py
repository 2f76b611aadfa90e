# SPDX-License-Identifier: Apache-2.0
"""The update rules of optimizers, elementwise and in float64: (parameter, gradient, state) → new
parameter.

Each rule follows the formula in the documentation of its class (``torch.optim``; Lion: Chen et al.,
"Symbolic Discovery of Optimization Algorithms", 2023). Beside the new value it returns the size of
the terms that are added up, so that the rounding of the optimizer's own type can be told from
another rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import numpy as np

from msprobe.compare.training.elements import (
    Array,
    Elements,
    Options,
    Rule,
    Updated,
    blurred,
    given,
    moved,
)
from msprobe.compare.training.facts_pair import EARLY_EPS
from msprobe.compare.training.whole_tensor_rules import adafactor, muon

# PyTorch keeps numbers of a whole parameter in this type, whatever the parameter's.
_SCALAR_EPSILON: Final = 2.0**-23
# RAdam adapts its rate once the variance has more than so many degrees of freedom.
_RECTIFIED: Final = 5.0
_TINY: Final = np.finfo(float).tiny


def rule_of(class_name: str, options: Options) -> Rule | None:
    """Return the rule of an optimizer; None if it is not known.

    Args:
        class_name: full name of its class.
        options: options of a group of parameters, some of which change the rule.
    """
    module, _, name = class_name.rpartition(".")
    rule: Rule | None
    if name == "Lion":
        rule = None if options.get("cautious") or options.get("caution") else _lion
    else:
        rule = _RULES.get(name) if module.split(".")[:2] == ["torch", "optim"] else None
    # Of divisions by zero, NaN and infinities the results tell.
    return rule and np.errstate(all="ignore")(rule)


def _sgd(options: Options, elements: Elements) -> Updated:
    step, size = given(options, elements)
    momentum = options.get("momentum") or 0.0
    if momentum:
        buffer = momentum * elements.of("momentum_buffer")
        share = 1 - (options.get("dampening") or 0.0)
        gathered = np.where(elements.has_state, buffer + share * step, step)
        gathered_size = np.where(elements.has_state, np.abs(buffer) + share * size, size)
        if options.get("nesterov"):
            step, size = step + momentum * gathered, size + momentum * gathered_size
        else:
            step, size = gathered, gathered_size
    return moved(elements.before, options["lr"] * step, options["lr"] * size)


def _decayed(options: Options, elements: Elements) -> tuple[Array, Array, Array]:
    """Return the parameter and the gradient after either kind of weight decay, and its size."""
    decay = options.get("weight_decay") or 0.0
    if not options.get("decoupled_weight_decay"):
        return elements.before, *given(options, elements)
    kept = elements.before * (1 - options["lr"] * decay)
    return kept, *given({**options, "weight_decay": 0.0}, elements)


def _averages(
    options: Options, elements: Elements, gradient: Array, size: Array
) -> tuple[Array, Array, Array, Array]:
    """Return the averages of the gradient and of its square, and how far rounding blurs them.

    Returns:
        Average, size of its terms, average of squares, and the share of the size of the terms by
        which a root of the squares is blurred where weight decay cancels the gradient, or where
        they are next to nothing.
    """
    first, second = options["betas"]
    moment = first * elements.of("exp_avg") + (1 - first) * gradient
    moment_size = first * np.abs(elements.of("exp_avg")) + (1 - first) * size
    square = second * elements.of("exp_avg_sq") + (1 - second) * gradient * gradient
    blur = np.where(gradient == 0, 0.0, size / np.maximum(np.abs(gradient), _TINY))
    return moment, moment_size, square, blur + blurred(square, elements.epsilon)


def _adamw(options: Options, elements: Elements) -> Updated:
    return _adam({**options, "decoupled_weight_decay": True}, elements)


def _adam(options: Options, elements: Elements) -> Updated:
    kept, gradient, size = _decayed(options, elements)
    moment, moment_size, square, blur = _averages(options, elements, gradient, size)
    if options.get("amsgrad"):
        square = np.maximum(square, elements.of("max_exp_avg_sq"))
    first, second = options["betas"]
    unbiased = 1 - second**elements.steps
    scale = options["lr"] / (1 - first**elements.steps)
    eps = options["eps"] / (np.sqrt(unbiased) if options.get(EARLY_EPS) else 1.0)
    root = np.sqrt(square) / np.sqrt(unbiased) + eps
    correction = 1 / unbiased if options.get("capturable") else 1.0
    update = scale * moment / root
    update_size = scale * moment_size / root * (correction + blur)
    return moved(kept, update, update_size, np.abs(elements.before))


def _lion(options: Options, elements: Elements) -> Updated:
    kept, gradient, size = _decayed({**options, "decoupled_weight_decay": True}, elements)
    first, _ = options["betas"]
    mixed = first * elements.of("exp_avg") + (1 - first) * gradient
    mixed_size = first * np.abs(elements.of("exp_avg")) + (1 - first) * size
    update = options["lr"] * np.sign(mixed)
    # Next to zero, or rounded to zero in a coarse type, the sign may be any.
    may_tip = np.abs(mixed) <= 2.0**-6 * mixed_size
    updated = moved(kept, update, np.abs(update), np.abs(elements.before))
    return Updated(updated.value, updated.terms, np.where(may_tip, 2 * options["lr"], 0.0))


def _rmsprop(options: Options, elements: Elements) -> Updated:
    gradient, size = given(options, elements)
    alpha = options["alpha"]
    square = alpha * elements.of("square_avg") + (1 - alpha) * gradient * gradient
    cancelled: Array | float = 1.0
    if options.get("centered"):
        mean = alpha * elements.of("grad_avg") + (1 - alpha) * gradient
        variance = np.maximum(square - mean * mean, 0.0)
        cancelled = np.where(variance > 0, square / variance, np.inf)
        square = variance
    root = np.sqrt(square) + options["eps"]
    step, step_size = gradient / root, size / root * (cancelled + blurred(square, elements.epsilon))
    momentum = options.get("momentum") or 0.0
    if momentum:
        buffer = momentum * elements.of("momentum_buffer")
        step, step_size = buffer + step, np.abs(buffer) + step_size
    return moved(elements.before, options["lr"] * step, options["lr"] * step_size)


def _adagrad(options: Options, elements: Elements) -> Updated:
    gradient, size = given(options, elements)
    total = elements.of("sum") + gradient * gradient
    rate = options["lr"] / (1 + (elements.steps - 1) * (options.get("lr_decay") or 0.0))
    root = np.sqrt(total) + options["eps"]
    size = size * (1.0 + blurred(total, elements.epsilon))
    return moved(elements.before, rate * gradient / root, rate * size / root)


def _adadelta(options: Options, elements: Elements) -> Updated:
    gradient, size = given(options, elements)
    rho, eps = options["rho"], options["eps"]
    square = rho * elements.of("square_avg") + (1 - rho) * gradient * gradient
    scale = options["lr"] * np.sqrt((elements.of("acc_delta") + eps) / (square + eps))
    return moved(elements.before, scale * gradient, scale * size)


def _adamax(options: Options, elements: Elements) -> Updated:
    gradient, size = given(options, elements)
    first, second = options["betas"]
    moment = first * elements.of("exp_avg") + (1 - first) * gradient
    moment_size = first * np.abs(elements.of("exp_avg")) + (1 - first) * size
    largest = np.maximum(second * elements.of("exp_inf"), np.abs(gradient) + options["eps"])
    # Where weight decay cancels the gradient, its rounding takes part in the maximum.
    blur = 1 + size / np.maximum(largest, _TINY)
    scale = options["lr"] / (1 - first**elements.steps)
    return moved(elements.before, scale * moment / largest, scale * moment_size / largest * blur)


def _nadam(options: Options, elements: Elements) -> Updated:
    kept, gradient, size = _decayed(options, elements)
    moment, moment_size, square, blur = _averages(options, elements, gradient, size)
    first, second = options["betas"]
    steps, decay = elements.steps, options["momentum_decay"]
    mu, mu_next = (first * (1 - 0.5 * 0.96 ** (number * decay)) for number in (steps, steps + 1))
    product = mu * np.where(elements.has_state, elements.of("mu_product"), 1.0)
    root = np.sqrt(square / (1 - second**steps)) + options["eps"]
    scales = (1 - mu) / (1 - product), mu_next / (1 - product * mu_next)
    update = options["lr"] * (scales[0] * gradient + scales[1] * moment) / root
    update_size = options["lr"] * (scales[0] * size + scales[1] * moment_size) / root
    update_size = update_size * (1 + blur) * _scalar_blur(elements)
    return moved(kept, update, update_size, np.abs(elements.before))


def _scalar_blur(elements: Elements) -> float:
    """Return by how much a number of a whole parameter is coarser than the elements."""
    return max(1.0, _SCALAR_EPSILON / elements.epsilon)


def _radam(options: Options, elements: Elements) -> Updated:
    kept, gradient, size = _decayed(options, elements)
    moment, moment_size, square, blur = _averages(options, elements, gradient, size)
    first, second = options["betas"]
    steps = elements.steps
    correction = 1 - second**steps
    final = 2 / (1 - second) - 1
    rho = final - 2 * steps * second**steps / correction
    rectified = np.sqrt((rho - 4) * (rho - 2) * final / ((final - 4) * (final - 2) * rho))
    adaptive = rectified * np.sqrt(correction) / (np.sqrt(square) + options["eps"])
    scale = options["lr"] / (1 - first**steps) * np.where(rho > _RECTIFIED, adaptive, 1.0)
    return moved(kept, scale * moment, scale * moment_size * (1 + blur), np.abs(elements.before))


def _asgd(options: Options, elements: Elements) -> Updated:
    gradient, size = given(options, elements)
    rate = np.where(elements.has_state, elements.of("eta"), options["lr"])
    kept = elements.before * (1 - options["lambd"] * rate)
    blur = _scalar_blur(elements)
    kept_size = np.abs(elements.before) * (1 + options["lambd"] * rate * blur)
    return moved(kept, rate * gradient, rate * size * blur, kept_size)


def _rprop(options: Options, elements: Elements) -> Updated:
    gradient = -elements.gradient if options.get("maximize") else elements.gradient
    less, more = options["etas"]
    trend = np.sign(gradient * elements.of("prev"))
    factor = np.where(trend > 0, more, np.where(trend < 0, less, 1.0))
    size = np.where(elements.has_state, elements.of("step_size"), options["lr"])
    size = np.clip(size * factor, *options["step_sizes"])
    update = np.where(trend < 0, 0.0, np.sign(gradient) * size)
    return moved(elements.before, update, np.abs(update))


_RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "SGD": _sgd,
        "Adam": _adam,
        "AdamW": _adamw,
        "RMSprop": _rmsprop,
        "Adagrad": _adagrad,
        "Adadelta": _adadelta,
        "Adamax": _adamax,
        "NAdam": _nadam,
        "RAdam": _radam,
        "ASGD": _asgd,
        "Rprop": _rprop,
        "Adafactor": adafactor,
        "Muon": muon,
    }
)
