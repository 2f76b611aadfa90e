# SPDX-License-Identifier: Apache-2.0
"""Measure how two results of a call differ.

Most calls need the norms of the result and of the difference, and no more. Only where these are
remarkable, or not finite, elements are looked at.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import torch
from msgspec.structs import replace
from torch import Tensor

from msprobe.capture.statistics import NATIVE
from msprobe.checks.perturbation import WORST_ELEMENT, Change, digits_limits
from msprobe.numerics.number_types import epsilon_of
from msprobe.pytorch.perturbation.arguments import FLOATS
from msprobe.pytorch.perturbation.scratch import scratch
from msprobe.pytorch.values.tensor_search import output_slots

_KERNEL_KINDS: Final = (
    {}
    if NATIVE is None
    else {
        dtype: NATIVE.kinds[str(dtype).removeprefix("torch.")]
        for dtype in (torch.float32, torch.float64)
    }
)
_INTEGERS: Final = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@cache
def dtype_name(dtype: torch.dtype) -> str:
    """Return ``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


@cache
def epsilon(dtype: torch.dtype) -> float:
    """Return the distance from 1 to the next number."""
    return epsilon_of(dtype_name(dtype))


def native_kind(tensor: Tensor) -> int | None:
    """Return the number of a tensor's type in the C kernels; None where these do not read it."""
    if not tensor.is_cpu or not tensor.is_contiguous() or tensor.is_neg():
        return None
    return _KERNEL_KINDS.get(tensor.dtype)


def paired(result: Any, changed: Any) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield the tensors of two results of one function, with their places; no sparse ones."""
    if type(result) is Tensor and type(changed) is Tensor:
        if result.layout is changed.layout is torch.strided:
            yield 0, result.detach(), changed.detach()
        return
    slots = zip(output_slots(result), output_slots(changed), strict=False)
    for index, (one, other) in enumerate(slots):
        if _is_dense(one) and _is_dense(other):
            yield index, _detached(one), _detached(other)


def _detached(tensor: Tensor) -> Tensor:
    return tensor.detach() if tensor.requires_grad else tensor


def _is_dense(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout is torch.strided


def float_changes(result: Any, changed: Any) -> Iterator[Change]:
    """Yield how the floating-point results of a function differ; integers may jump."""
    for index, one, other in paired(result, changed):
        if one.dtype in FLOATS and other.dtype in FLOATS:
            yield change_of(index, one, other)


def change_of(index: int, result: Tensor, changed: Tensor) -> Change:
    """Return how a result differs from that of the perturbed call."""
    of_type, count = result.dtype, result.numel()
    dtype = dtype_name(of_type)
    found = Change(output_index=index, dtype=dtype, shape=tuple(result.shape), count=count)
    if result.shape != changed.shape:
        return replace(found, reshaped=tuple(changed.shape))
    if not count:
        return found
    if changed.dtype != result.dtype:
        # Of a half type and float32, the difference keeps the finer one's digits.
        result = result.to(torch.promote_types(result.dtype, changed.dtype))
        changed = changed.to(device=result.device, dtype=result.dtype)
    if result.dtype.is_complex:
        result = torch.view_as_real(result.resolve_conj())
        changed = torch.view_as_real(changed.resolve_conj())
    size, moved, largest = _sizes(result, changed)
    if not (math.isfinite(size + moved) and size):
        if not math.isfinite(size + moved):
            found = _with_nonfinite(found, result, changed)
        sound = result.isfinite() & changed.isfinite()
        result = torch.where(sound, result, 0).double()
        changed = torch.where(sound, changed.double(), result)
        size, moved, largest = _sizes(result, changed)
    eps = epsilon(of_type)
    if not size:
        return replace(found, relative=math.inf if moved else 0.0, cancels=True)
    scale = size / math.sqrt(result.numel())
    found = replace(found, relative=moved / size, size=scale)
    if largest <= eps * scale * WORST_ELEMENT * digits_limits(eps / 2)[0] and not found.nonfinite:
        return found
    return _with_elements(found, result.double(), changed.double(), scale, eps)


def rms(tensor: Tensor) -> float:
    """Return the root mean square of the elements, computed in float64."""
    wide = torch.complex128 if tensor.dtype.is_complex else torch.float64
    return float(torch.linalg.vector_norm(tensor, dtype=wide)) / math.sqrt(max(tensor.numel(), 1))


def _sizes(result: Tensor, changed: Tensor) -> tuple[float, float, float]:
    """Return the norms of a result and of its change, and what no change of an element exceeds.

    In one pass of C on a CPU; elsewhere by dot products, which are many times as fast as norms, and
    no element has changed by more than the norm. Squares that leave their type's range give an
    infinity or zero; the caller then asks in float64.
    """
    one, other = result, changed
    if one.stride() == other.stride() and _fills_its_memory(one):
        # Sums do not ask for the order of elements.
        shape = (one.numel(),)
        one, other = one.as_strided(shape, (1,)), other.as_strided(shape, (1,))
    kind, its_kind = native_kind(one), native_kind(other)
    if kind is None or its_kind is None:
        one, other = _flat(one), _flat(other)
        kind, its_kind = native_kind(one), native_kind(other)
    if NATIVE is not None and kind is not None and kind == its_kind:
        squares, moved, largest = NATIVE.difference(
            kind, one.data_ptr(), other.data_ptr(), one.numel()
        )
        return math.sqrt(squares), math.sqrt(moved), largest
    change = torch.sub(other, one, out=scratch("difference", one))
    squares, moved = torch.stack((torch.dot(one, one), torch.dot(change, change))).tolist()
    return math.sqrt(squares), math.sqrt(moved), math.sqrt(moved)


def _fills_its_memory(tensor: Tensor) -> bool:
    """Return whether the elements of a permuted tensor lie one behind the other."""
    if tensor.is_contiguous():
        return False
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True


def _flat(tensor: Tensor) -> Tensor:
    flat = tensor.resolve_neg().contiguous().view(-1)
    return flat if flat.dtype in (torch.float32, torch.float64) else flat.float()


def _with_nonfinite(found: Change, result: Tensor, changed: Tensor) -> Change:
    """Add how many elements are NaN or infinite on one side only, or not the same infinity."""
    same = (result == changed) | (result.isnan() & changed.isnan())
    odd = ~same & ~(result.isfinite() & changed.isfinite())
    count = int(odd.sum())
    return replace(
        found, nonfinite=count, first=int(odd.reshape(-1).int().argmax()) if count else None
    )


def _with_elements(
    found: Change, result: Tensor, changed: Tensor, scale: float, eps: float
) -> Change:
    """Add the change of the worst element, in units in the last place and as a ratio."""
    sizes, moved = result.abs(), (changed - result).abs()
    _, exponent = torch.frexp(sizes.clamp_min(scale))
    ulps = moved / torch.ldexp(torch.full_like(sizes, eps), exponent - 1)
    worst = float(ulps.max())
    floor = scale * math.sqrt(eps)
    smaller = torch.minimum(sizes, changed.abs()).clamp_min(floor)
    larger = torch.maximum(sizes, changed.abs()).clamp_min(floor)
    flips = bool(((result * changed) < -(floor**2)).any())
    first = found.first
    return replace(
        found,
        worst_ulp=worst,
        ratio=float((larger / smaller).max()) - 1.0,
        flips=flips,
        first=int(ulps.reshape(-1).argmax()) if first is None else first,
    )


def bit_changes(result: Any, again: Any) -> Iterator[Change]:
    """Yield how many elements of a function's results differ in any bit, and where first."""
    for index, one, other in paired(result, again):
        found = Change(
            output_index=index,
            dtype=dtype_name(one.dtype),
            shape=tuple(one.shape),
            count=one.numel(),
            differing=0,
        )
        if one.shape != other.shape or one.dtype != other.dtype:
            yield replace(found, reshaped=tuple(other.shape))
            continue
        first, second = _bits(one), _bits(other)
        if torch.equal(first, second):
            yield found
            continue
        different = (first != second).reshape(-1)
        if one.dtype.is_complex:
            different = different.reshape(-1, 2).any(1)
        detail = next(float_changes(one, other), found)
        yield replace(
            detail,
            output_index=index,
            differing=int(different.sum()),
            first=int(different.int().argmax()),
        )


def _bits(tensor: Tensor) -> Tensor:
    """Return the elements as integers of the same bits."""
    if tensor.dtype.is_complex:
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.dtype.is_floating_point:
        return tensor.resolve_neg().contiguous().view(_INTEGERS[tensor.element_size()])
    return tensor
