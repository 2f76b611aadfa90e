# SPDX-License-Identifier: Apache-2.0
"""The ways to change a call before it runs again."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import torch
from torch import Tensor

from msprobe.capture.statistics import NATIVE
from msprobe.checks.perturbation import SkippedError
from msprobe.config import Perturbation
from msprobe.dump.values import PartPath
from msprobe.operators.operator import Family, Importance, Operator
from msprobe.pytorch.perturbation.arguments import ARGS, FLOATS, KWARGS, PLAIN, CallCopy
from msprobe.pytorch.perturbation.changes import epsilon, native_kind
from msprobe.pytorch.perturbation.reordering import Arguments, reordered
from msprobe.pytorch.perturbation.scratch import scratch
from msprobe.pytorch.values.tensor_search import tensors_in
from msprobe.replay.arguments import converted
from msprobe.replay.references import Golden, find

# Of a quarter of a type's digits: far above its roundings, far below its numbers.
_RELATIVE_SHARE: Final = 0.75
_END: Final = 0.9  # of the largest number of a type: beyond it, a number is a mask
NOISES: Final = (Perturbation.ULP_NOISE, Perturbation.RELATIVE_NOISE)
"""Perturbations of values, all of which are small."""
REFERENCES: Final = (Perturbation.HIGH_PRECISION, Perturbation.CPU_REFERENCE)
"""Perturbations whose result is better than that of the call."""
_HALVES: Final = (torch.float16, torch.bfloat16)
_COMPLEX: Final = {torch.float32: torch.complex64, torch.float64: torch.complex128}
_PARTS: Final = {torch.complex64: torch.float32, torch.complex128: torch.float64}
# Elements that stay in the processor's cache; not a power of two, or rows of a tensor would get
# the same noise.
_PERIOD: Final = 15_991
# Families whose results hold elements of their inputs, or choose among results.
_NOT_SMOOTH: Final = (Family.MOVING, Family.DISCRETE)


def unchanged(result: Any) -> Any:
    """Return the result as it is."""
    return result


class Trial(msgspec.Struct, frozen=True):
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


def why_left_out(operator: Operator, mode: Perturbation) -> str | None:
    """Return why calls of an operator are not perturbed; None if they are."""
    if operator.reads_shape_only or operator.allocates:
        return "makes a tensor, and reads none"
    if operator.family is Family.MOVING and operator.importance is Importance.LOW:
        return "only moves elements"
    has_noise = mode is not Perturbation.RERUN and mode not in REFERENCES
    if has_noise and operator.family in _NOT_SMOOTH:
        return "results do not depend smoothly on inputs"
    return None


def golden_of(prefix: str, api: str, mode: Perturbation, *given: Any) -> Golden | None:
    """Return the golden function that computes the reference of a call; None for its own one.

    Args:
        prefix: of the record's name.
        api: the rest of it.
        mode: how the call is changed.
        given: its arguments. Golden functions are written for the CPU.
    """
    if mode not in REFERENCES:
        return None
    found: list[Any] = []
    tensors_in(given, {}, found)
    on_cpu = mode is Perturbation.CPU_REFERENCE or all(one.is_cpu for one, _ in found)
    return find((f"{prefix}.{api}", api)) if on_cpu else None


def trial_of(call: CallCopy, mode: Perturbation, *, spares_ends: bool = False) -> Trial:
    """Return the call, changed.

    Args:
        call: the call.
        mode: the change.
        spares_ends: whether noise leaves alone what `holds_ends` asks for.

    Raises:
        SkippedError: this change says nothing about this call.
    """
    if mode is Perturbation.RERUN:
        args, kwargs = call.again()
        return Trial(args, kwargs)
    floats = call.floats
    if not floats:
        raise SkippedError("no floating-point inputs")
    if mode in REFERENCES:
        return _raised(call, mode)
    unit = max([epsilon(one.dtype) for one in floats]) / 2
    args, kwargs = call.again()
    if mode is Perturbation.PERMUTE:
        found = reordered(call.operator, args, kwargs)
        if found is None:
            raise SkippedError("the order of elements matters, or is not known not to")
        changed, restored = found
        return Trial(changed[0], changed[1], unit, unit, restored=restored)
    if mode is Perturbation.ULP_NOISE:
        noise = Noise(call, lambda eps: eps / 2, spares_ends=spares_ends)
        return Trial(*noise.on(args, kwargs), unit, unit)
    size = (2 * unit) ** _RELATIVE_SHARE
    noise = Noise(call, lambda eps: eps**_RELATIVE_SHARE, spares_ends=spares_ends)
    return Trial(*noise.on(args, kwargs), size * math.sqrt(0.5), unit)


class Noise:
    """Moves about half of the elements of tensors toward zero.

    So infinities, NaN and zeros stay, and nothing leaves its range: a probability of 1 is none
    above. The same elements move in each run, and equal arguments stay equal.
    """

    def __init__(
        self, call: CallCopy, size: Callable[[float], float], *, spares_ends: bool
    ) -> None:
        """Move elements of a call's inputs.

        Args:
            call: the call. Parameters of a model have no noise of earlier calls, and stay, unless
                there are no other inputs.
            size: returns by which part of itself an element moves, for the epsilon of its type;
                half of epsilon moves it to the next number.
            spares_ends: see `trial_of`.
        """
        self._size = size
        self._spares_ends = spares_ends
        self._spared = call.parameters
        self._known: dict[Any, Tensor] = {}

    def on(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
        """Return the arguments with their floating-point tensors changed."""
        return (
            converted(args, self._moved, ARGS, PLAIN),
            converted(kwargs, self._moved, KWARGS, PLAIN),
        )

    def _moved(self, value: Tensor, place: PartPath) -> Tensor:
        if place in self._spared or value.dtype not in FLOATS or not value.numel():
            return value
        key = (value.data_ptr(), value.shape, value.stride(), value.dtype)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._product(value)
            if self._spares_ends:
                known.copy_(torch.where(_is_end(value), value, known))
        return known

    def _product(self, value: Tensor) -> Tensor:
        dtype = _PARTS.get(value.dtype, value.dtype)
        factors = _factors(dtype, value.device, self._size(epsilon(dtype)))
        count = value.numel()
        if value.is_contiguous():
            result = scratch(len(self._known), value)
            if NATIVE is not None and (kind := native_kind(value)) is not None:
                at, by, into = value.data_ptr(), factors.data_ptr(), result.data_ptr()
                NATIVE.products(kind, at, count, by, _PERIOD, into)
                return result
            source, target = value.view(-1), result.view(-1)
        else:  # in its order in memory, in which functions draw random numbers
            result = value.clone()
            source = target = result.as_strided((count,), (1,))
        rest = count % _PERIOD
        rows = slice(0, count - rest)
        torch.mul(source[rows].view(-1, _PERIOD), factors, out=target[rows].view(-1, _PERIOD))
        torch.mul(source[count - rest :], factors[:rest], out=target[count - rest :])
        return result


def holds_ends(tensor: Tensor) -> bool:
    """Return whether elements are at the end of their type: such a number stands for infinity."""
    return bool(_is_end(tensor).any())


def _is_end(tensor: Tensor) -> Tensor:
    return tensor.abs() > _END * torch.finfo(tensor.dtype).max


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
    wider = Raise(*raised_to(call, mode))
    args, kwargs = call.again()
    return Trial(converted(args, wider), converted(kwargs, wider), plain=True)


def raised_to(call: CallCopy, mode: Perturbation) -> tuple[torch.dtype, torch.device | None]:
    """Return type and device of a call in higher precision; None for its own device.

    Raises:
        SkippedError: there is none.
    """
    if mode is Perturbation.CPU_REFERENCE:
        return torch.float64, torch.device("cpu")
    types = {one.dtype for one in call.floats}
    if types <= {torch.float64, torch.complex128}:
        raise SkippedError("already in float64")
    return (torch.float32 if types & set(_HALVES) else torch.float64), None


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
