# SPDX-License-Identifier: Apache-2.0
"""Activation functions, and products of an activated half and the other half."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from msprobe.pytorch.references.derivatives import gradients
from msprobe.replay.references import builtin_golden

_FAST: Final = 1.702
_TANH: Final = 1


@builtin_golden("npu_fast_gelu", "fast_gelu", "quick_gelu")
def npu_fast_gelu(self: Tensor) -> Tensor:
    """x·sigmoid(1.702·x)."""
    return self * torch.sigmoid(_FAST * self)


@builtin_golden("npu_fast_gelu_backward", "fast_gelu_backward")
def npu_fast_gelu_backward(grad: Tensor, self: Tensor) -> Tensor | None:
    """Gradient of `npu_fast_gelu`."""
    return gradients(npu_fast_gelu, (self,), grad)[0]


@builtin_golden("npu_silu")
def npu_silu(self: Tensor) -> Tensor:
    """x·sigmoid(x)."""
    return self * torch.sigmoid(self)


@builtin_golden("npu_silu_backward")
def npu_silu_backward(grad_output: Tensor, x0: Tensor, x1: Tensor) -> Tensor | None:
    """Gradient of `npu_silu` at `x0`, whose result was `x1`."""
    return gradients(npu_silu, (x0,), grad_output)[0]


@builtin_golden("npu_mish")
def npu_mish(self: Tensor) -> Tensor:
    """x·tanh(softplus(x))."""
    return self * torch.tanh(functional.softplus(self))


@builtin_golden("npu_mish_backward")
def npu_mish_backward(grad: Tensor, input: Tensor) -> Tensor | None:
    """Gradient of `npu_mish`."""
    return gradients(npu_mish, (input,), grad)[0]


@builtin_golden("npu_swiglu", "swiglu", "Autograd.SwiGLUFunction")
def npu_swiglu(self: Tensor, dim: int = -1, *_: Any) -> Tensor:
    """silu(first half) · second half, along `dim`."""
    first, second = self.chunk(2, dim)
    return npu_silu(first) * second


@builtin_golden("npu_swiglu_backward")
def npu_swiglu_backward(grad_output: Tensor, self: Tensor, dim: int = -1) -> Tensor | None:
    """Gradient of `npu_swiglu`."""
    return gradients(lambda one: npu_swiglu(one, dim), (self,), grad_output)[0]


@builtin_golden("npu_geglu")
def npu_geglu(
    self: Tensor, dim: int = -1, approximate: int = 1, activate_left: bool = False
) -> tuple[Tensor, Tensor]:
    """One half · gelu(other half), and gelu(other half)."""
    kept, gate = self.chunk(2, dim)
    if activate_left:
        kept, gate = gate, kept
    activated = functional.gelu(gate, approximate="tanh" if approximate == _TANH else "none")
    return kept * activated, activated


@builtin_golden("silu_and_mul")
def silu_and_mul(input: Tensor, *_: Any, **__: Any) -> Tensor:
    """silu(first half) · second half, of the last axis."""
    return npu_swiglu(input)


@builtin_golden("gelu_and_mul")
def gelu_and_mul(input: Tensor, *_: Any, **__: Any) -> Tensor:
    """gelu(first half) · second half, of the last axis."""
    first, second = input.chunk(2, -1)
    return functional.gelu(first) * second


@builtin_golden("gelu_tanh_and_mul")
def gelu_tanh_and_mul(input: Tensor, *_: Any, **__: Any) -> Tensor:
    """gelu(first half) · second half with the approximation by tanh."""
    first, second = input.chunk(2, -1)
    return functional.gelu(first, approximate="tanh") * second


@builtin_golden("Autograd.BiasSwiGLUFunction")
def bias_swiglu(input: Tensor, bias: Tensor, *_: Any) -> Tensor:
    """`npu_swiglu` of input + bias (Megatron)."""
    return npu_swiglu(input + bias)


@builtin_golden("Autograd.GeLUFunction")
def bias_gelu(input: Tensor, bias: Tensor) -> Tensor:
    """gelu of input + bias with the approximation by tanh (Megatron)."""
    return functional.gelu(input + bias, approximate="tanh")


@builtin_golden("Autograd.LigerSiLUMulFunction")
def silu_mul(a: Tensor, b: Tensor, *_: Any) -> Tensor:
    """silu(a)·b (Liger)."""
    return npu_silu(a) * b


@builtin_golden("Autograd.LigerGELUMulFunction")
def gelu_mul(a: Tensor, b: Tensor, *_: Any) -> Tensor:
    """gelu(a)·b with the approximation by tanh (Liger)."""
    return functional.gelu(a, approximate="tanh") * b
