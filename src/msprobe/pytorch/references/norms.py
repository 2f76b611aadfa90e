# SPDX-License-Identifier: Apache-2.0
"""Normalisations: RMS, layer and group norm, alone and fused with what is before or behind them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from msprobe.pytorch.references.derivatives import gradients
from msprobe.replay.references import builtin_golden


@builtin_golden("Functional.rms_norm", "Torch.rms_norm", "Aten.rms_norm")
def rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    recorded_dtype: torch.dtype = torch.float32,
) -> Tensor:
    """x·weight / √(mean(x²) + eps) over the last axes.

    Args:
        input: any shape.
        normalized_shape: the last axes.
        weight: of this shape.
        eps: None is the machine epsilon of the type that kernels compute in.
        recorded_dtype: type of the recorded input; 16-bit types are computed in float32.
    """
    if eps is None:
        computed = torch.float64 if recorded_dtype == torch.float64 else torch.float32
        eps = torch.finfo(computed).eps
    normed = _rms(input, tuple(range(-len(normalized_shape), 0)), eps)[0]
    return normed if weight is None else normed * weight


def _rms(x: Tensor, axes: Sequence[int], eps: float) -> tuple[Tensor, Tensor]:
    """Return x / √(mean(x²) + eps), and what x was multiplied with."""
    factor = (x.square().mean(tuple(axes), keepdim=True) + eps).rsqrt()
    return x * factor, factor


@builtin_golden("npu_rms_norm", "NPU.rms_norm")
def npu_rms_norm(self: Tensor, gamma: Tensor, epsilon: float = 1e-06) -> tuple[Tensor, Tensor]:
    """x·gamma / √(mean(x²) + epsilon) over the axes of gamma, and the reciprocal root."""
    normed, factor = _rms(self, range(-gamma.ndim, 0), epsilon)
    return normed * gamma, factor


@builtin_golden("npu_rms_norm_backward")
def npu_rms_norm_backward(
    dy: Tensor, self: Tensor, gamma: Tensor, rstd: Tensor
) -> tuple[Tensor | None, ...]:
    """Gradients of x and gamma, where 1/√(mean(x²) + epsilon) was `rstd`."""
    axes = tuple(range(-gamma.ndim, 0))
    # The operator is not told epsilon; it follows from what it saved.
    epsilon = rstd.detach().reciprocal().square() - self.detach().square().mean(axes, keepdim=True)

    def forward(x: Tensor, weight: Tensor) -> Tensor:
        return x * (x.square().mean(axes, keepdim=True) + epsilon).rsqrt() * weight

    return gradients(forward, (self, gamma), dy)


@builtin_golden("npu_add_rms_norm")
def npu_add_rms_norm(
    x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-06
) -> tuple[Tensor, Tensor, Tensor]:
    """RMS norm of x1 + x2, the reciprocal root, and the sum."""
    added = x1 + x2
    return (*npu_rms_norm(added, gamma, epsilon), added)


@builtin_golden("npu_gemma_rms_norm")
def npu_gemma_rms_norm(
    self: Tensor, gamma: Tensor, epsilon: float = 1e-06
) -> tuple[Tensor, Tensor]:
    """RMS norm with the weight 1 + gamma."""
    return npu_rms_norm(self, 1 + gamma, epsilon)


@builtin_golden("npu_layer_norm_eval")
def npu_layer_norm_eval(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-05,
) -> Tensor:
    """(x - mean)·weight / √(var + eps) + bias over the last axes."""
    axes = tuple(range(-len(normalized_shape), 0))
    centred = input - input.mean(axes, keepdim=True)
    normed = _rms(centred, axes, eps)[0]
    normed = normed if weight is None else normed * weight
    return normed if bias is None else normed + bias


@builtin_golden("npu_group_norm_silu")
def npu_group_norm_silu(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    group: int,
    eps: float = 1e-05,
) -> tuple[Tensor, Tensor, Tensor]:
    """silu(group norm), and mean and reciprocal deviation of each group."""
    grouped = input.reshape(input.shape[0], group, -1)
    mean = grouped.mean(-1, keepdim=True)
    normed, factor = _rms(grouped - mean, (-1,), eps)
    per_channel = (-1, *(1,) * (input.ndim - 2))
    result = normed.reshape(input.shape)
    if weight is not None:
        result = result * weight.reshape(per_channel)
    if bias is not None:
        result = result + bias.reshape(per_channel)
    return functional.silu(result), mean.squeeze(-1), factor.squeeze(-1)


@builtin_golden("Autograd.FusedRMSNormAffineFunction")
def fused_rms_norm_affine(
    input: Tensor, weight: Tensor, normalized_shape: Sequence[int], eps: float, *_: Any
) -> Tensor:
    """RMS norm with a weight (Apex)."""
    return rms_norm(input, normalized_shape, weight, eps)


@builtin_golden("Autograd.FusedLayerNormAffineFunction")
def fused_layer_norm_affine(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    normalized_shape: Sequence[int],
    eps: float,
    *_: Any,
) -> Tensor:
    """Layer norm with weight and bias (Apex)."""
    return npu_layer_norm_eval(input, normalized_shape, weight, bias, eps)


@builtin_golden("Autograd.LigerRMSNormFunction")
def liger_rms_norm(X: Tensor, W: Tensor, eps: float, offset: float = 0.0, *_: Any) -> Tensor:  # noqa: N803
    """RMS norm with the weight W + offset (Liger)."""
    return rms_norm(X, W.shape, W + offset, eps)
