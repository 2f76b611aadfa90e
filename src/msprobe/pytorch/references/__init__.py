# SPDX-License-Identifier: Apache-2.0
"""Reference functions of fused operators, in plain PyTorch; one module for each subject.

Importing this package registers them in `msprobe.replay.references`. They compute in the
type of their inputs, which replays raise to float64, and change none of their arguments but those
that the operator changes. Gradients are those of autograd, those of the ``*_backward`` operators,
too. An output that nothing is known about is None.
"""

from __future__ import annotations

from msprobe.pytorch.references import (
    activations,
    flash_attention,
    fusion_attention,
    layouts,
    losses,
    matrix_products,
    moe,
    norms,
    optimizers,
    quantised,
    rotary,
    softmaxes,
    torch_attention,
)

__all__ = [
    "activations",
    "flash_attention",
    "fusion_attention",
    "layouts",
    "losses",
    "matrix_products",
    "moe",
    "norms",
    "optimizers",
    "quantised",
    "rotary",
    "softmaxes",
    "torch_attention",
]
