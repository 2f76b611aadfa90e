# SPDX-License-Identifier: Apache-2.0
"""`float32_units`: what settings of PyTorch make of products of float32 numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msprobe.operators.operator import Family

# TF32 keeps ten bits of the factors, bfloat16 seven.
_TF32: Final = 2.0**-11
_BFLOAT16: Final = 2.0**-8
_EXACT: Final = "highest"
# Bilinear functions, and those that make them inside.
_PRODUCTS: Final = (Family.BILINEAR, Family.ATTENTION)
# Recurrent networks are functions of cuDNN, as convolutions are.
_CUDNN: Final = (Family.CONVOLUTION, Family.COMPOSITE)


def float32_units(
    *, on_accelerator: bool, matmul_precision: str, cudnn_tf32: bool
) -> Mapping[Family, float]:
    """Return the unit roundoff of float32 products, of families where it is not float32's own.

    Args:
        on_accelerator: whether the calls run on CUDA, which has TF32, or on an NPU, which has the
            nearly equal HF32 and uses it as cuDNN does.
        matmul_precision: as of ``torch.get_float32_matmul_precision()``.
        cudnn_tf32: as of ``torch.backends.cudnn.allow_tf32``.
    """
    if not on_accelerator:
        return dict.fromkeys(_PRODUCTS, _BFLOAT16) if matmul_precision == "medium" else {}
    products = {} if matmul_precision == _EXACT else dict.fromkeys(_PRODUCTS, _TF32)
    return {**products, **(dict.fromkeys(_CUDNN, _TF32) if cudnn_tf32 else {})}
