# SPDX-License-Identifier: Apache-2.0
"""Operators that move elements: transposing with a view, sorting."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from msprobe.pytorch.references.derivatives import gradients
from msprobe.replay.references import builtin_golden


@builtin_golden("npu_confusion_transpose")
def npu_confusion_transpose(
    self: Tensor, perm: Sequence[int], shape: Sequence[int], transpose_first: bool
) -> Tensor:
    """Permuted and then reshaped, or the other way round."""
    if transpose_first:
        return self.permute(*perm).reshape(tuple(shape))
    return self.reshape(tuple(shape)).permute(*perm)


@builtin_golden("npu_confusion_transpose_backward")
def npu_confusion_transpose_backward(
    grad: Tensor, perm: Sequence[int], shape: Sequence[int], transpose_first: bool
) -> Tensor | None:
    """Gradient of the input, whose shape is `shape`."""
    forward_shape = grad.shape
    if not transpose_first:
        # Forward reshaped to this and permuted it to the gradient's shape.
        forward_shape = grad.permute(*_inverse(perm)).shape
    return gradients(
        lambda x: npu_confusion_transpose(x, perm, forward_shape, transpose_first),
        (grad.new_zeros(tuple(shape)),),
        grad,
    )[0]


def _inverse(perm: Sequence[int]) -> list[int]:
    return sorted(range(len(perm)), key=lambda place: perm[place])


@builtin_golden("npu_sort_v2")
def npu_sort_v2(self: Tensor, dim: int = -1, descending: bool = False) -> Tensor:
    """Sorted values."""
    return self.sort(dim=dim, descending=descending, stable=True).values
