# SPDX-License-Identifier: Apache-2.0
"""Softmax fused with a scale and a mask."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from msprobe.pytorch.references.derivatives import gradients
from msprobe.replay.references import builtin_golden

# Masked scores of the kernels; after softmax their weight is 0 beside any other score.
_MASKED: Final = -10000.0


@builtin_golden("npu_scaled_masked_softmax")
def npu_scaled_masked_softmax(
    x: Tensor, mask: Tensor | None, scale: float = 1.0, fixed_triu_mask: bool = False
) -> Tensor:
    """softmax(x·scale) with masked scores at -10000.

    Args:
        x: (…, queries, keys).
        mask: True where a score is masked.
        scale: of the scores.
        fixed_triu_mask: the mask is the strict upper triangle, whatever `mask` holds.
    """
    if fixed_triu_mask:
        mask = _later(x)
    scores = x * scale
    return (scores if mask is None else scores.masked_fill(mask.bool(), _MASKED)).softmax(-1)


@builtin_golden("npu_scaled_masked_softmax_backward")
def npu_scaled_masked_softmax_backward(
    y_grad: Tensor, y: Tensor, mask: Tensor | None, scale: float, fixed_triu_mask: bool
) -> Tensor:
    """Gradient of x, where the result was `y`."""
    if fixed_triu_mask:
        mask = _later(y)
    # The operator has the result alone. Scores whose softmax it is give the same gradient.
    (found,) = gradients(lambda scores: scores.softmax(-1), (y.log().clamp_min(_MASKED),), y_grad)
    assert found is not None
    return found * scale if mask is None else (found * scale).masked_fill(mask.bool(), 0.0)


def _later(scores: Tensor) -> Tensor:
    return torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)


@builtin_golden("Autograd.ScaledUpperTriangMaskedSoftmax")
def scaled_upper_triang_masked_softmax(inputs: Tensor, scale: float) -> Tensor:
    """Softmax with a causal mask; masked weights are exactly 0 (Megatron)."""
    return (inputs * scale).masked_fill(_later(inputs), -torch.inf).softmax(-1)


@builtin_golden("Autograd.ScaledMaskedSoftmax")
def scaled_masked_softmax(inputs: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Softmax with a mask (Megatron); rows that are masked as a whole are 0."""
    if mask is None:
        return scaled_softmax(inputs, scale)
    blocked = mask.bool()
    found = npu_scaled_masked_softmax(inputs, blocked, scale)
    return found.masked_fill(blocked.all(-1, keepdim=True), 0.0)


@builtin_golden("Autograd.ScaledSoftmax")
def scaled_softmax(inputs: Tensor, scale: float) -> Tensor:
    """softmax(x·scale) (Megatron)."""
    return (inputs * scale).softmax(-1)
