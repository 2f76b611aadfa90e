# SPDX-License-Identifier: Apache-2.0
"""Ask whether tensors are finite: the checks of NaN, infinities and numbers near the largest one.

Plain tensors on the CPU are read in C (`memo`), whose storages are read once while they are
unchanged. Others go through the statistics; those of accelerators stay on the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import Parameter

from msprobe.capture.statistics import Summary
from msprobe.capture.value_states import State, state_of
from msprobe.capture.values import Found, Position
from msprobe.pytorch.values.memo import Memo
from msprobe.pytorch.values.readable import readable
from msprobe.pytorch.values.tensor_search import output_slots, tensors_in

_transforms_active: Final = torch._C._are_functorch_transforms_active


class TorchValueWatch:
    """See `msprobe.capture.value_states.ValueWatch`.

    Attributes:
        reads_parameters: whether parameters among the arguments are read.
    """

    __slots__ = ("_memo", "_share", "_summarise", "_underflow", "_waits", "reads_parameters")

    def __init__(
        self,
        memo: Memo,
        summarise: Callable[[Tensor], Summary],
        *,
        share: float,
        reads_parameters: bool,
        underflow: float,
        waits: bool,
    ) -> None:
        """Create it.

        Args:
            memo: reads plain tensors.
            summarise: summarises any other tensor.
            share: of the largest number of a type, from which a value is near it; 0 for none.
            reads_parameters: whether parameters among the arguments are read.
            underflow: results and gradients with this share of subnormal numbers, or of zeros, are
                to be described; 0 for none.
            waits: whether the state of tensors on an accelerator stays unknown for now.
        """
        memo.share = share
        self._memo = memo
        self._summarise = summarise
        self._share = share
        self.reads_parameters = reads_parameters
        self._underflow = underflow
        self._waits = waits

    def arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None, found: Found) -> int:
        """Return the worst state of the arguments of a call; see `ValueWatch`."""
        named: Any = kwargs or None
        is_plain = isinstance(args, tuple) and (named is None or type(named) is dict)
        if is_plain and not _transforms_active():
            state = self._memo.check_call(tuple(args), named, found, self.reads_parameters)
            if state >= 0:
                return state
        tensors_in(args, kwargs, found)
        is_read = self.reads_parameters
        return max(
            (self.tensor(one) for one, _ in found if is_read or type(one) is not Parameter),
            default=State.SOUND,
        )

    def result(self, output: Any) -> int:
        """Return the worst state of the tensors in a result."""
        if type(output) is Tensor:
            return max(self.tensor(output), self._small(output))
        slots = [one for one in output_slots(output) if one is not None]
        states = (max(self.tensor(one), self._small(one)) for one in slots)
        return max(states, default=State.SOUND)

    def _small(self, tensor: Tensor) -> int:
        """Return `State.NEAR` for a tensor that may have underflowed, where that is asked for."""
        shares = small_shares(tensor) if self._underflow else None
        return State.NEAR if shares and max(shares) >= self._underflow else State.SOUND

    def tensor(self, tensor: Tensor) -> int:
        """Return the state of a tensor."""
        if not _transforms_active():
            state = self._memo.check(tensor)
            if state >= 0:
                return state
        if self._waits and not (tensor.is_cpu or tensor.is_meta):
            return State.UNKNOWN
        return state_of(self._summarise(tensor), self._limit(tensor.dtype))

    def gradients(self, arrived: Sequence[tuple[Any, str, Position]]) -> tuple[int, int]:
        """Return the worst states of gradients; see `ValueWatch`."""
        reads_each = self._underflow or _transforms_active()
        both = -1 if reads_each else self._memo.check_gradients(arrived)
        if both >= 0:
            return both & 3, both >> 2
        states = {"input": 0, "output": 0}
        for tensor, side, _ in arrived:
            states[side] = max(states[side], self.tensor(tensor), self._small(tensor))
        return states["input"], states["output"]

    def version(self, tensor: Tensor) -> int:
        """Return torch's counter of writes to a tensor; -1 where there is none."""
        try:
            return tensor._version
        except RuntimeError:  # inference tensors
            return -1

    def share_memory(self, one: Tensor, other: Tensor) -> bool:
        """Return whether two tensors have the same storage."""
        try:
            return bool(one.untyped_storage()._cdata == other.untyped_storage()._cdata)
        except (RuntimeError, NotImplementedError):  # no storage of their own
            return one is other

    def _limit(self, dtype: torch.dtype) -> float:
        if not self._share or not (dtype.is_floating_point or dtype.is_complex):
            return math.inf
        return self._share * torch.finfo(dtype).max


def first_positions(tensor: Tensor) -> dict[str, list[int]]:
    """Return the index of the first NaN, +Inf and -Inf, under ``nan``, ``inf`` and ``-inf``."""
    found = readable(tensor)
    if isinstance(found, str) or found.is_quantized or found.is_complex():
        return {}
    if not found.is_floating_point() or found.layout is not torch.strided:
        return {}
    if found.element_size() == 1:
        found = found.float()
    masks = {"nan": found.isnan(), "inf": found == math.inf, "-inf": found == -math.inf}
    return {name: _first(mask) for name, mask in masks.items() if mask.any()}


def small_shares(tensor: Tensor) -> tuple[float, float] | None:
    """Return the share of subnormal numbers among the nonzero ones, and that of zeros.

    None of tensors whose elements do not underflow, or cannot be read.
    """
    found = readable(tensor)
    if isinstance(found, str) or not found.is_floating_point() or found.is_quantized:
        return None
    if found.layout is not torch.strided or not found.numel() or found.element_size() == 1:
        return None
    sizes = found.abs()
    small = sizes < torch.finfo(found.dtype).smallest_normal
    counts = torch.stack((torch.count_nonzero(found), torch.count_nonzero(small)))
    nonzero, tiny = (int(one) for one in counts.tolist())
    zeros = found.numel() - nonzero
    return (tiny - zeros) / max(nonzero, 1), zeros / found.numel()


def _first(mask: Tensor) -> list[int]:
    """Return the index of the first true element."""
    place = mask.flatten().to(torch.uint8).argmax()
    return [int(one) for one in torch.unravel_index(place, mask.shape)]
