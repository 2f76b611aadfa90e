# SPDX-License-Identifier: Apache-2.0
"""Random errors in each step of a computation, to measure its condition.

Every result of a kernel, forward and backward, is multiplied by 1 ± unit. The change of the final
result shows what roundings of that size can do, whatever the function is made of (stochastic
arithmetic; J. Vignes, A stochastic arithmetic for reliable scientific computation, 1993).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from msprobe.replay.runner import Noise

# Of smaller steps around zero nothing is seen in float64.
_VISIBLE: Final = 1e-20
# A prime: rows of tensors must not get the same signs.
_PERIOD: Final = 65_537


class NoiseMode(TorchDispatchMode):  # type: ignore[no-untyped-call]  # not annotated in torch
    """While it is on, results of kernels have random errors."""

    def __init__(self, noise: Noise) -> None:
        """Put errors of the size `noise.unit` on results."""
        super().__init__()  # type: ignore[no-untyped-call]  # not annotated in torch
        self._noise = noise
        self._random = np.random.default_rng(noise.seed)
        self._factors = _factors(noise.unit)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Leave `__torch_dispatch__` as it is: nothing is compiled here, and dynamo takes 2 s."""
        return False

    def disturbed(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy of a floating-point or complex tensor with errors."""
        count = tensor.numel()
        if count <= _PERIOD:
            return tensor * self._factors_like(tensor)
        # Row by row, so that the factors of a large tensor are never written down.
        flat, row = tensor.reshape(-1), self._row(tensor)
        made = torch.empty_like(flat)
        whole = count - count % _PERIOD
        torch.mul(flat[:whole].view(-1, _PERIOD), row, out=made[:whole].view(-1, _PERIOD))
        torch.mul(flat[whole:], row[: count - whole], out=made[whole:])
        return made.reshape(tensor.shape)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run a kernel and put errors on its results."""
        if func in _STEPPED:
            with self:  # it is off within this method
                return _STEPPED[func](*args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        effect = _effect(func)
        if effect is None:
            return result
        if type(result) is torch.Tensor:
            return self._changed(result, effect)
        if isinstance(result, tuple):
            return tuple(self._changed(item, effect) for item in result)
        return result

    def _changed(self, value: Any, in_place: bool) -> Any:
        if type(value) is not torch.Tensor or not _has_errors(value):
            return value
        changed = self._limited(self.disturbed(value))
        return value.copy_(changed) if in_place else changed

    def _limited(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a result with the errors that a narrow range makes of it."""
        noise = self._noise
        if tensor.dtype.is_complex or tensor.numel() == 0:
            return tensor
        if noise.smallest > _VISIBLE:
            step = (self._factors_like(tensor) - 1.0) * (noise.smallest / (2 * noise.unit))
            tensor = torch.where(tensor == 0, tensor, tensor + step)
        lowest, highest = torch.aminmax(tensor)
        if max(-float(lowest), float(highest)) <= noise.largest:
            return tensor
        return torch.where(tensor.abs() > noise.largest, tensor * math.inf, tensor)

    def _factors_like(self, tensor: torch.Tensor) -> torch.Tensor:
        count, row = tensor.numel(), self._row(tensor)
        if count > _PERIOD:
            row = row.repeat(-(-count // _PERIOD))
        return row[:count].reshape(tensor.shape)

    def _row(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return one period of the factors, from any place on, in the type of a tensor."""
        start = int(self._random.integers(0, _PERIOD))
        row = self._factors[start : start + _PERIOD]
        if not tensor.dtype.is_complex:
            row = row.to(tensor.dtype)
        return row.to(tensor.device)


@cache
def _factors(unit: float) -> torch.Tensor:
    """Return 1 ± unit, with a period that is repeated once."""
    signs = np.random.default_rng(0).integers(0, 2, _PERIOD) * 2.0 - 1.0
    return torch.from_numpy(1.0 + unit * np.tile(signs, 2))


def _has_errors(tensor: torch.Tensor) -> bool:
    is_float = tensor.dtype.is_floating_point or tensor.dtype.is_complex
    return is_float and tensor.layout is torch.strided


@cache
def _effect(func: Any) -> bool | None:
    """Return whether a kernel writes into its argument; None for one that computes nothing."""
    returns = func._schema.returns
    aliased = [one.alias_info for one in returns if one.alias_info is not None]
    if not aliased:
        return False
    return True if all(alias.is_write for alias in aliased) else None


def _soft_margin_loss(x: torch.Tensor, target: torch.Tensor, reduction: int = 1) -> torch.Tensor:
    losses = torch.exp(-target * x).log1p()
    return (losses.mean() if reduction == 1 else losses.sum()) if reduction else losses


def _soft_margin_loss_backward(
    gradient: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int
) -> torch.Tensor:
    norm = 1.0 / x.numel() if reduction == 1 else 1.0
    power = torch.exp(-target * x)
    return target * power * -norm / (power + 1) * gradient


# Kernels of which a step leaves the range of half types, where neither arguments nor results do.
_STEPPED: Final[Mapping[Any, Callable[..., torch.Tensor]]] = {
    torch.ops.aten.soft_margin_loss.default: _soft_margin_loss,
    torch.ops.aten.soft_margin_loss_backward.default: _soft_margin_loss_backward,
}
