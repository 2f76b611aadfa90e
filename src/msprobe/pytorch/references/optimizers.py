# SPDX-License-Identifier: Apache-2.0
"""Fused updates of optimizers, by their definition; they change their arguments as kernels do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from msprobe.replay.references import NoReferenceError, builtin_golden


def _scalar(value: Tensor | float) -> Tensor | float:
    return value.double() if isinstance(value, Tensor) else float(value)


def _adam(
    self: Sequence[Tensor],
    grads: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    max_exp_avg_sqs: Sequence[Tensor],
    state_steps: Sequence[Tensor],
    *,
    lr: Tensor | float,
    beta1: float,
    beta2: float,
    weight_decay: float,
    eps: float,
    amsgrad: bool,
    maximize: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
    decoupled: bool,
) -> None:
    """Update parameters and states in place; `state_steps` count this step already."""
    if found_inf is not None and float(found_inf) == 1.0:
        return
    rate = _scalar(lr)
    for number, (param, grad) in enumerate(zip(self, grads, strict=True)):
        mean, square, step = exp_avgs[number], exp_avg_sqs[number], _scalar(state_steps[number])
        direction = _unscaled(grad, grad_scale, maximize)
        if decoupled:
            param.mul_(1 - rate * weight_decay)
        else:
            direction = direction + weight_decay * param
        mean.copy_(beta1 * mean + (1 - beta1) * direction)
        square.copy_(beta2 * square + (1 - beta2) * direction.square())
        largest = square
        if amsgrad:
            largest = max_exp_avg_sqs[number]
            largest.copy_(torch.maximum(largest, square))
        denominator = (largest / (1 - beta2**step)).sqrt() + eps
        param.sub_(rate * (mean / (1 - beta1**step)) / denominator)


def _unscaled(grad: Tensor, grad_scale: Tensor | None, maximize: bool) -> Tensor:
    """Return the gradient that the update is made with; the kernels write the unscaled one back."""
    if grad_scale is not None:
        grad.copy_(grad / _scalar(grad_scale))
    return -grad if maximize else grad


@builtin_golden("_fused_adam_")
def fused_adam(*args: Any, **kwargs: Any) -> None:
    """Adam of lists of parameters, in place."""
    _adam(*args, decoupled=False, **kwargs)


@builtin_golden("_fused_adamw_")
def fused_adamw(*args: Any, **kwargs: Any) -> None:
    """AdamW of lists of parameters, in place."""
    _adam(*args, decoupled=True, **kwargs)


@builtin_golden("_fused_sgd_")
def fused_sgd(
    self: Sequence[Tensor],
    grads: Sequence[Tensor],
    momentum_buffer_list: Sequence[Tensor],
    *,
    weight_decay: float,
    momentum: float,
    lr: Tensor | float,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:
    """SGD of lists of parameters, in place."""
    if found_inf is not None and float(found_inf) == 1.0:
        return
    for number, (param, grad) in enumerate(zip(self, grads, strict=True)):
        direction = _unscaled(grad, grad_scale, maximize) + weight_decay * param
        if momentum:
            buffer = momentum_buffer_list[number]
            kept = direction if is_first_step else momentum * buffer + (1 - dampening) * direction
            buffer.copy_(kept)
            direction = direction + momentum * buffer if nesterov else buffer
        param.sub_(_scalar(lr) * direction)


def _results(out: Sequence[Tensor] | None, results: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Write into the tensors that the operator was given, and return them."""
    if out is None:
        return results
    return tuple(buffer.copy_(result) for buffer, result in zip(out, results, strict=True))


def _states(out: Sequence[Tensor] | None, states: dict[str, Any]) -> tuple[Tensor, ...]:
    given = [states.get(name) for name in ("var", "m", "v")] if out is None else list(out)
    found = tuple(one for one in given if isinstance(one, Tensor))
    if len(found) < len(given):
        raise NoReferenceError("an update without the tensors that it changes")
    return found


@builtin_golden("npu_apply_adam")
def npu_apply_adam(
    beta1_power: float,
    beta2_power: float,
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    grad: Tensor,
    use_locking: bool | None = None,
    use_nesterov: bool | None = None,
    out: Sequence[Tensor] | None = None,
    **states: Any,
) -> tuple[Tensor, ...]:
    """Adam of one tensor: parameter, mean and square; powers are those of this step."""
    var, m, v = _states(out, states)
    mean = beta1 * m + (1 - beta1) * grad
    square = beta2 * v + (1 - beta2) * grad.square()
    rate = lr * (1 - beta2_power) ** 0.5 / (1 - beta1_power)
    direction = beta1 * mean + (1 - beta1) * grad if use_nesterov else mean
    return _results(out, (var - rate * direction / (epsilon + square.sqrt()), mean, square))


@builtin_golden("npu_apply_adam_w")
def npu_apply_adam_w(
    beta1_power: float,
    beta2_power: float,
    lr: float,
    weight_decay: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    grad: Tensor,
    max_grad_norm: Tensor | None = None,
    amsgrad: bool | None = None,
    maximize: bool | None = None,
    out: Sequence[Tensor] | None = None,
    **states: Any,
) -> tuple[Tensor, ...]:
    """AdamW of one tensor: parameter, mean and square; powers are those of the step before.

    Args:
        beta1_power: β1 to the number of steps so far; this step multiplies it once more.
        beta2_power: same for β2.
        lr: learning rate.
        weight_decay: decoupled from the gradient.
        beta1: decay of the mean.
        beta2: decay of the square.
        epsilon: added to the root.
        grad: gradient.
        max_grad_norm: largest square so far, with `amsgrad`; takes the new one.
        amsgrad: whether the largest square so far divides.
        maximize: whether the sign of the gradient is turned.
        out: parameter, mean and square, which take the results.
        **states: the same as ``var``, ``m`` and ``v``.
    """
    var, m, v = _states(out, states)
    direction = -grad if maximize else grad
    mean = beta1 * m + (1 - beta1) * direction
    square = beta2 * v + (1 - beta2) * direction.square()
    divisor = square
    if amsgrad:
        if max_grad_norm is None:
            raise NoReferenceError("npu_apply_adam_w with amsgrad and without max_grad_norm")
        divisor = max_grad_norm.copy_(torch.maximum(max_grad_norm, square))
    root = (divisor / (1 - beta2_power * beta2)).sqrt() + epsilon
    param = var * (1 - lr * weight_decay) - lr * (mean / (1 - beta1_power * beta1)) / root
    return _results(out, (param, mean, square))
