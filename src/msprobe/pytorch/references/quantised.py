# SPDX-License-Identifier: Apache-2.0
"""Matrix products of 8-bit integers and 8-bit floats, and the roundings to them."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from msprobe.pytorch.references.matrix_products import wide
from msprobe.pytorch.references.norms import npu_rms_norm
from msprobe.replay.references import NoReferenceError, builtin_golden

_INT8_MAX: Final = 127


@builtin_golden("_scaled_mm", "Aten._scaled_mm")
def scaled_mm(
    self: Tensor,
    mat2: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None = None,
    scale_result: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> Tensor:
    """(self·scale_a)·(mat2·scale_b) + bias of 8-bit floats.

    Args:
        self: (rows, inner).
        mat2: (inner, columns).
        scale_a: one number, one for each row, or one for each block of a row.
        scale_b: one number, one for each column, or one for each block.
        bias: (columns).
        scale_result: factor of the result.
        out_dtype: type that the kernel rounds to.
        use_fast_accum: whether the kernel adds in fewer bits; no effect here.
    """
    product = _descaled(self, scale_a) @ _descaled(mat2, scale_b)
    product = product if bias is None else product + bias
    return product if scale_result is None else product * wide(scale_result)


def _descaled(matrix: Tensor, scale: Tensor) -> Tensor:
    """Return a matrix times its scales, each of which may belong to a block."""
    factors = wide(scale)
    if factors.numel() == 1:
        return wide(matrix) * factors.reshape(())
    if factors.ndim != 2:
        raise NoReferenceError("_scaled_mm with swizzled scales")
    for axis in (0, 1):
        repeats = -(-matrix.shape[axis] // factors.shape[axis])
        factors = factors.repeat_interleave(repeats, axis).narrow(axis, 0, matrix.shape[axis])
    return wide(matrix) * factors


@builtin_golden("_int_mm", "Aten._int_mm")
def int_mm(self: Tensor, mat2: Tensor) -> Tensor:
    """Product of 8-bit integers, exactly."""
    return (self.long() @ mat2.long()).int()


@builtin_golden("_weight_int8pack_mm", "Aten._weight_int8pack_mm")
def weight_int8pack_mm(self: Tensor, mat2: Tensor, scales: Tensor) -> Tensor:
    """self·mat2ᵀ·scales, with a weight of 8-bit integers and a scale for each of its rows."""
    return self @ wide(mat2).t() * scales


@builtin_golden("npu_quant_matmul")
def npu_quant_matmul(
    x1: Tensor,
    x2: Tensor,
    scale: Tensor,
    *,
    offset: Tensor | None = None,
    pertoken_scale: Tensor | None = None,
    bias: Tensor | None = None,
    output_dtype: torch.dtype | None = None,
    **_: Any,
) -> Tensor:
    """(x1·x2 + bias)·scale·pertoken_scale of 8-bit integers; rounded if the result is int8.

    An integer bias is added to the exact product, a floating one to the scaled result.
    """
    if scale.dtype == torch.int64:
        raise NoReferenceError("npu_quant_matmul with packed scales")
    product = wide(x1) @ wide(x2)
    if bias is not None and not bias.is_floating_point():
        product = product + bias
    product = product * scale
    if pertoken_scale is not None:
        product = product * pertoken_scale.unsqueeze(-1)
    if bias is not None and bias.is_floating_point():
        product = product + bias
    if offset is not None:
        product = product + offset
    return rounded_int8(product) if output_dtype in (None, torch.int8) else product


def rounded_int8(values: Tensor) -> Tensor:
    """Return the nearest 8-bit integers; halves go to even ones."""
    return values.round().clamp(-_INT8_MAX - 1, _INT8_MAX).to(torch.int8)


@builtin_golden("npu_weight_quant_batchmatmul")
def npu_weight_quant_batchmatmul(
    x: Tensor,
    weight: Tensor,
    antiquant_scale: Tensor,
    antiquant_offset: Tensor | None = None,
    quant_scale: Tensor | None = None,
    quant_offset: Tensor | None = None,
    bias: Tensor | None = None,
    antiquant_group_size: int = 0,
    inner_precise: int = 0,
    **_: Any,
) -> Tensor:
    """x·((weight + offset)·scale) + bias, with a weight of 8-bit integers."""
    if quant_scale is not None or quant_offset is not None:
        raise NoReferenceError("npu_weight_quant_batchmatmul with a quantised result")
    restored = wide(weight)
    if antiquant_offset is not None:
        restored = restored + _per_group(antiquant_offset, antiquant_group_size)
    product = x @ (restored * _per_group(antiquant_scale, antiquant_group_size))
    return product if bias is None else product + bias


def _per_group(scale: Tensor, size: int) -> Tensor:
    return scale.repeat_interleave(size, dim=0) if size else scale


@builtin_golden("npu_dynamic_quant")
def npu_dynamic_quant(
    input: Tensor, *, smooth_scales: Tensor | None = None, **options: Any
) -> tuple[Tensor, Tensor]:
    """8-bit integers of each row, and its largest magnitude / 127."""
    if options.get("group_index") is not None:
        raise NoReferenceError("npu_dynamic_quant with groups")
    smoothed = input if smooth_scales is None else input * smooth_scales
    scale = smoothed.abs().amax(-1) / _INT8_MAX
    return rounded_int8(smoothed / scale.unsqueeze(-1)), scale


@builtin_golden("npu_rms_norm_dynamic_quant")
def npu_rms_norm_dynamic_quant(
    x: Tensor,
    gamma: Tensor,
    *,
    smooth_scales: Tensor | None = None,
    epsilon: float = 1e-06,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """`npu_dynamic_quant` of `npu_rms_norm`."""
    return npu_dynamic_quant(npu_rms_norm(x, gamma, epsilon)[0], smooth_scales=smooth_scales)


@builtin_golden("npu_quantize")
def npu_quantize(
    self: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
    dtype: torch.dtype = torch.int8,
    axis: int = 1,
    div_mode: bool = True,
) -> Tensor:
    """Nearest 8-bit integers of x/scales + zero_points (or x·scales + zero_points)."""
    shape = [1] * self.ndim
    if scales.numel() > 1:
        shape[axis] = -1
    factors = scales.reshape(shape)
    values = self / factors if div_mode else self * factors
    if zero_points is not None:
        values = values + zero_points.reshape(shape)
    return rounded_int8(values)


@builtin_golden("npu_dequant_swiglu_quant")
def npu_dequant_swiglu_quant(
    x: Tensor,
    *,
    weight_scale: Tensor | None = None,
    activation_scale: Tensor | None = None,
    bias: Tensor | None = None,
    quant_scale: Tensor | None = None,
    quant_offset: Tensor | None = None,
    group_index: Tensor | None = None,
    activate_left: bool = False,
    quant_mode: int = 0,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """8-bit integers of swiglu(x·scales), and the scale of each row."""
    if quant_mode != 1 or bias is not None or quant_offset is not None or group_index is not None:
        raise NoReferenceError("npu_dequant_swiglu_quant with fixed scales, a bias or groups")
    values = wide(x)
    if weight_scale is not None:
        values = values * weight_scale
    if activation_scale is not None:
        values = values * activation_scale.reshape(*x.shape[:-1], 1)
    first, second = values.chunk(2, -1)
    gate, kept = (first, second) if activate_left else (second, first)
    return npu_dynamic_quant(torch.nn.functional.silu(gate) * kept, smooth_scales=quant_scale)
