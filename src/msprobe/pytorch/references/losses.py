# SPDX-License-Identifier: Apache-2.0
"""Cross entropy, with smoothed labels, ignored classes and weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from msprobe.pytorch.references.derivatives import gradients
from msprobe.replay.references import NoReferenceError, builtin_golden


@builtin_golden("Functional.cross_entropy", "cross_entropy_loss")
def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str | int = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """-log softmax(input) at the target class.

    Args:
        input: (classes), (batch, classes) or (batch, classes, …).
        target: classes, or shares of all classes in the shape of `input`.
        weight: (classes).
        size_average: old form of `reduction`.
        ignore_index: a class whose elements count for nothing.
        reduce: old form of `reduction`.
        reduction: none, mean or sum.
        label_smoothing: share of the labels that is spread over all classes.
    """
    reduction = _reduction(reduction, size_average, reduce)
    axis = 0 if input.ndim == 1 else 1
    classes = input.shape[axis]
    logs = (input - input.logsumexp(axis, keepdim=True)).movedim(axis, -1)
    factors = torch.ones(classes, dtype=logs.dtype) if weight is None else weight
    if target.is_floating_point():
        shares = target.movedim(axis, -1)
        shares = shares * (1 - label_smoothing) + label_smoothing / classes
        losses = -_products(shares, logs * factors).sum(-1)
        return _reduced(losses, reduction, losses.numel())
    kept = target != ignore_index
    chosen = target.masked_fill(~kept, 0).long()
    hot = torch.nn.functional.one_hot(chosen, classes).to(logs.dtype)
    shares = hot * (1 - label_smoothing) + label_smoothing / classes
    losses = -_products(shares, logs * factors).sum(-1).masked_fill(~kept, 0.0)
    return _reduced(losses, reduction, factors[chosen].masked_fill(~kept, 0.0).sum())


def _products(shares: Tensor, logs: Tensor) -> Tensor:
    """Return products; a class without a share counts for nothing, impossible as it may be."""
    return shares * logs.masked_fill((shares == 0) & logs.isneginf(), 0.0)


@builtin_golden("Aten._ctc_loss")
def ctc_loss_with_table(*args: Any, **kwargs: Any) -> tuple[Tensor, None]:
    """-log of the probability of the targets; the table that the kernel leaves is not known."""
    return torch._ctc_loss(*args, **kwargs)[0], None


def _reduction(reduction: str | int, size_average: bool | None, reduce: bool | None) -> str:
    if size_average is not None or reduce is not None:
        if reduce is False:
            return "none"
        return "sum" if size_average is False else "mean"
    if isinstance(reduction, int):
        return ("none", "mean", "sum")[reduction]
    return reduction


def _reduced(losses: Tensor, reduction: str, count: Tensor | int) -> Tensor:
    if reduction == "none":
        return losses
    return losses.sum() if reduction == "sum" else losses.sum() / count


@builtin_golden("npu_cross_entropy_loss")
def npu_cross_entropy_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    lse_square_scale_for_zloss: float = 0.0,
    return_zloss: bool = False,
) -> tuple[Any, ...]:
    """Cross entropy and log softmax; nothing about the two outputs for the z-loss."""
    if lse_square_scale_for_zloss or return_zloss:
        raise NoReferenceError("npu_cross_entropy_loss with z-loss")
    loss = cross_entropy(
        input,
        target,
        weight,
        ignore_index=ignore_index,
        reduction=reduction,
        label_smoothing=label_smoothing,
    )
    return loss, input.log_softmax(-1), None, None


@builtin_golden("npu_cross_entropy_loss_backward")
def npu_cross_entropy_loss_backward(
    grad_loss: Tensor,
    log_prob: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    grad_zloss: Tensor | None = None,
    lse_for_zloss: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    lse_square_scale_for_zloss: float = 0.0,
) -> Tensor | None:
    """Gradient of the input, whose log softmax was `log_prob`."""
    if lse_square_scale_for_zloss:
        raise NoReferenceError("npu_cross_entropy_loss_backward with z-loss")
    # Log softmax of a log softmax is itself, so it serves as input.
    return gradients(
        lambda x: cross_entropy(
            x,
            target,
            weight,
            ignore_index=ignore_index,
            reduction=reduction,
            label_smoothing=label_smoothing,
        ),
        (log_prob,),
        grad_loss,
    )[0]


@builtin_golden("npu_softmax_cross_entropy_with_logits")
def npu_softmax_cross_entropy_with_logits(self: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of each row, with shares as labels."""
    return -(labels * self.log_softmax(-1)).sum(-1)


@builtin_golden("fused_linear_cross_entropy", "cut_cross_entropy.linear_cross_entropy")
def fused_linear_cross_entropy(
    input: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    **_: Any,
) -> Tensor:
    """Cross entropy of input·weightᵀ + bias, whose logits were never stored."""
    logits = input @ weight.t()
    return cross_entropy(
        logits if bias is None else logits + bias,
        target,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction=reduction,
    )
