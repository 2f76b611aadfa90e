# SPDX-License-Identifier: Apache-2.0
"""The ways to change a call before it runs again."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from msprobe.config import Perturbation
from msprobe.operators.operator import Family
from msprobe.pytorch.perturbation.arguments import CallCopy, SkippedError, is_float
from msprobe.pytorch.perturbation.changes import epsilon
from msprobe.pytorch.perturbation.reordering import reordered
from msprobe.pytorch.replay.rebuilding import converted

# Of a quarter of a type's digits: far above its roundings, far below its numbers.
_RELATIVE_SHARE: Final = 0.75
_HALVES: Final = (torch.float16, torch.bfloat16)
_COMPLEX: Final = {torch.float32: torch.complex64, torch.float64: torch.complex128}
_PARTS: Final = {torch.complex64: torch.float32, torch.complex128: torch.float64}
_PERIOD: Final = 1 << 18
# Families whose results hold elements of their inputs, or choose among results.
_NOT_SMOOTH: Final = (Family.MOVING, Family.DISCRETE)


def unchanged(result: Any) -> Any:
    """Return the result as it is."""
    return result


@dataclass(frozen=True, slots=True)
class Trial:
    """A changed call.

    Attributes:
        args: its positional arguments.
        kwargs: its keyword arguments.
        input_change: relative size of what was put in; 0 where the inputs have the same values.
        unit: unit roundoff of the coarsest type among the inputs.
        plain: whether it runs without autocast.
        restored: brings its result into the order of the original one.
    """

    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    input_change: float = 0.0
    unit: float = 0.0
    plain: bool = False
    restored: Callable[[Any], Any] = unchanged


def trial_of(call: CallCopy, mode: Perturbation) -> Trial:
    """Return the call, changed.

    Raises:
        SkippedError: this change says nothing about this call.
    """
    if mode is Perturbation.RERUN:
        args, kwargs = call.again()
        return Trial(args, kwargs)
    floats = call.floats
    if not floats:
        raise SkippedError("no floating-point inputs")
    if mode in (Perturbation.HIGH_PRECISION, Perturbation.CPU_REFERENCE):
        return _raised(call, mode)
    if call.operator.family in _NOT_SMOOTH:
        raise SkippedError("results do not depend smoothly on inputs")
    unit = max(epsilon(one.dtype) for one in floats) / 2
    args, kwargs = call.again()
    if mode is Perturbation.PERMUTE:
        found = reordered(call.operator, args, kwargs)
        if found is None:
            raise SkippedError("the order of elements matters, or is not known not to")
        changed, restored = found
        return Trial(changed[0], changed[1], unit, unit, restored=restored)
    if mode is Perturbation.ULP_NOISE:
        noise = Noise(lambda eps: eps / 2)
        return Trial(noise.on(args), noise.on(kwargs), unit, unit)
    size = (2 * unit) ** _RELATIVE_SHARE
    noise = Noise(lambda eps: eps**_RELATIVE_SHARE)
    return Trial(noise.on(args), noise.on(kwargs), size * math.sqrt(0.5), unit)


class Noise:
    """Moves about half of the elements of tensors toward zero.

    So infinities, NaN and zeros stay, and nothing leaves its range: a probability of 1 is none
    above. The same elements move in each run, and equal arguments stay equal.
    """

    def __init__(self, size: Callable[[float], float]) -> None:
        """Move elements by `size` of the epsilon of their type, in parts of themselves.

        Half of epsilon moves them to the next number of their type.
        """
        self._size = size
        self._known: dict[Any, Tensor] = {}

    def on(self, value: Any) -> Any:
        """Return nested arguments with their floating-point tensors changed."""
        return converted(value, self._moved)

    def _moved(self, value: Any, _place: Any) -> Any:
        if not isinstance(value, Tensor) or not is_float(value) or not value.numel():
            return value
        key = (value.data_ptr(), value.shape, value.stride(), value.dtype)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._product(value)
        return known

    def _product(self, value: Tensor) -> Tensor:
        dtype = _PARTS.get(value.dtype, value.dtype)
        factors = _factors(dtype, value.device, self._size(epsilon(dtype)))
        count = value.numel()
        if count <= _PERIOD:
            return value * factors[:count].view(value.shape)
        if not value.is_contiguous():
            repeated = factors.repeat(-(-count // _PERIOD))[:count]
            return value * repeated.view(value.shape)
        result = torch.empty_like(value)
        source, target = value.view(-1), result.view(-1)
        for start in range(0, count, _PERIOD):
            part = slice(start, min(start + _PERIOD, count))
            torch.mul(source[part], factors[: part.stop - start], out=target[part])
        return result


_FACTORS: Final[dict[Any, Tensor]] = {}


def _factors(dtype: torch.dtype, device: torch.device, size: float) -> Tensor:
    """Return 1 and 1 - `size`, at random."""
    key = (dtype, device, size)
    found = _FACTORS.get(key)
    if found is None:
        moved = np.random.default_rng(0).integers(0, 2, _PERIOD)
        found = torch.from_numpy(1.0 - size * moved).to(device=device, dtype=dtype)
        _FACTORS[key] = found
    return found


def _raised(call: CallCopy, mode: Perturbation) -> Trial:
    """Return the call in higher precision.

    Raises:
        SkippedError: there is none.
    """
    types = {one.dtype for one in call.floats}
    if mode is Perturbation.CPU_REFERENCE:
        to, device = torch.float64, torch.device("cpu")
    else:
        to, device = (torch.float32 if types & set(_HALVES) else torch.float64), None
        if types <= {torch.float64, torch.complex128}:
            raise SkippedError("already in float64")
    raise_ = Raise(to, device)
    args, kwargs = call.again()
    return Trial(converted(args, raise_), converted(kwargs, raise_), plain=True)


class Raise:
    """Returns arguments in a wider type, or on another device."""

    def __init__(self, dtype: torch.dtype, device: torch.device | None = None) -> None:
        """Create it.

        Args:
            dtype: narrower floating-point tensors get this type.
            device: where tensors go; None to leave them.
        """
        self._dtype = dtype
        self._device = device

    def __call__(self, value: Any, _place: Any = ()) -> Any:
        """Return one argument."""
        if isinstance(value, Tensor):
            return value.to(device=self._device or value.device, dtype=self._type(value.dtype))
        if isinstance(value, torch.dtype):
            return self._type(value)
        if isinstance(value, torch.device) and self._device is not None:
            return self._device
        return value

    def _type(self, dtype: torch.dtype) -> torch.dtype:
        if dtype in _PARTS:
            return _COMPLEX.get(self._dtype, dtype)
        narrow = dtype in (torch.float16, torch.bfloat16, torch.float32)
        return torch.promote_types(dtype, self._dtype) if narrow else dtype
