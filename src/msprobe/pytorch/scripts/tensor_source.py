# SPDX-License-Identifier: Apache-2.0
"""Tensors as lines of Python: their elements, or their place in a file beside the script."""

from __future__ import annotations

import math
from typing import Any, Final

import torch

_SHORTEST: Final = {torch.bfloat16: 2, torch.float16: 3}
_NARROW: Final = frozenset(
    getattr(torch, name)
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
)


class TensorTexts:
    """Writes tensors as expressions; large ones go into a file that `beside` is the content of."""

    def __init__(self, *, inline: int) -> None:
        """Write tensors of up to `inline` elements as numbers."""
        self.beside: dict[str, Any] = {}
        self._inline = inline

    def is_large(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor goes into the file."""
        return tensor.numel() > self._inline and not _is_constant(tensor.detach().cpu())

    def of(self, name: str, tensor: torch.Tensor) -> str:
        """Return an expression that makes a tensor."""
        plain = tensor.detach().cpu()
        if plain.numel() and _is_constant(plain):
            value = number_text(plain.reshape(-1)[0].item())
            return f"torch.full({tuple(plain.shape)}, {value}, dtype={plain.dtype})"
        if self.is_large(plain):
            self.beside[name] = plain
            return f'data["{name}"]'
        return _numbers(plain)


def _is_constant(tensor: torch.Tensor) -> bool:
    if tensor.dtype in _NARROW or tensor.numel() < 2:
        return False
    first = tensor.reshape(-1)[0]
    if tensor.is_floating_point() and first == 0 and torch.signbit(tensor).any():
        return False
    return bool((tensor == first).all())


def _numbers(tensor: torch.Tensor) -> str:
    """Return all elements, exactly, by the fewest decimals that give them back."""
    texts = ", ".join(_element(one) for one in tensor.reshape(-1))
    if tensor.ndim == 0:
        text = f"torch.tensor({texts}, dtype={_made(tensor)})"
    else:
        text = f"torch.tensor([{texts}], dtype={_made(tensor)})"
    if tensor.ndim > 1 or not tensor.numel():
        text += f".reshape({tuple(tensor.shape)})"
    return text if tensor.dtype not in _NARROW else f"{text}.to({tensor.dtype})"


def _element(element: torch.Tensor) -> str:
    if element.dtype is torch.float32:
        found = float(str(element.numpy()))
        return number_text(found)
    value = element.item()
    for digits in range(_SHORTEST.get(element.dtype, 17), 17):
        short = float(f"{value:.{digits}g}")
        if short == value or torch.tensor(short, dtype=element.dtype) == element:
            return number_text(short)
    return number_text(value)


def _made(tensor: torch.Tensor) -> torch.dtype:
    """Return the type that the elements are written in."""
    return torch.float32 if tensor.dtype in _NARROW else tensor.dtype


def number_text(value: object) -> str:
    """Return a number as Python source."""
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, complex):
        return f"complex({number_text(value.real)}, {number_text(value.imag)})"
    return repr(value)
