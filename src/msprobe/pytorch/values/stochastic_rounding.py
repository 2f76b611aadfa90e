# SPDX-License-Identifier: Apache-2.0
"""`Mover`: moves the elements of tensors by a unit in the last place, at random.

Each element is displaced by a number that is uniform in half a unit either way, and then rounded to
one of its two neighbours, to the nearer one more likely and so that the mean stays. That is what
stochastic rounding does to a result whose exact value is anywhere within half a unit of it (D. S.
Parker, Monte Carlo Arithmetic, UCLA CSD-970002, 1997; M. Croci et al., Stochastic rounding, R. Soc.
Open Sci. 9, 2022). Summed up, one element of eight goes to the next number upwards in size, one
downwards, and six stay.

Zero, powers of two and the numbers before them stay: most of these are constants (masks, ones, the
largest number of a type), which no rounding made. So NaN and infinities stay what they are, too.
Whole numbers that are alone in their tensor stay: they count something.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

# Type of the bits, and the mask of the fraction.
_BITS: Final = {
    torch.float64: (torch.int64, (1 << 52) - 1),
    torch.float32: (torch.int32, (1 << 23) - 1),
    torch.float16: (torch.int16, (1 << 10) - 1),
    torch.bfloat16: (torch.int16, (1 << 7) - 1),
}
_COMPLEX: Final = (torch.complex128, torch.complex64)
# So many steps are drawn at once: most tensors take theirs from what is there.
_POOL: Final = 1 << 20


@dataclass(slots=True)
class _Pool:
    """Steps that wait to be used, and how many were."""

    generator: torch.Generator
    steps: Tensor
    used: int


class Mover:
    """Moves tensors; each device has a generator of its own, the user's are not touched."""

    __slots__ = ("_pools", "_seed")

    def __init__(self) -> None:
        """Create it; the seed is 0."""
        self._pools: dict[torch.device, _Pool] = {}
        self._seed = 0

    def seed(self, seed: int) -> None:
        """Begin another sequence of moves."""
        self._seed = seed
        self._pools.clear()

    def move(self, tensor: Tensor) -> None:
        """Move the elements of a tensor; nothing happens to types that it does not know.

        Neither to sparse and nested tensors, whose elements lie in other tensors.
        """
        if tensor.layout is not torch.strided or tensor.is_nested:
            return
        if tensor.dtype in _COMPLEX:
            tensor = torch.view_as_real(tensor)
        kind = _BITS.get(tensor.dtype)
        count = tensor.numel()
        if kind is None or not count or _overlaps(tensor):
            return
        integer, mask = kind
        bits = tensor.view(integer)
        ends = bits.add(1).bitwise_and_(mask) > 1  # neither all zeros nor all ones
        steps = self._steps(tensor.device, count).view(tensor.shape)
        if count == 1:
            ends &= tensor != tensor.trunc()  # a counter, which is exact
        bits.add_(steps * ends)

    def _steps(self, device: torch.device, count: int) -> Tensor:
        """Return numbers -1, 0 and 1 as int8: every eighth is 1, every eighth -1."""
        pool = self._pools.get(device)
        if pool is None:
            generator = torch.Generator(device)
            generator.manual_seed(self._seed)
            pool = self._pools[device] = _Pool(generator, torch.empty(0, dtype=torch.int8), 0)
        if count > _POOL:
            return _draw(pool.generator, count)
        if pool.used + count > pool.steps.numel():
            pool.steps, pool.used = _draw(pool.generator, _POOL), 0
        pool.used += count
        return pool.steps[pool.used - count : pool.used]


def _draw(generator: torch.Generator, count: int) -> Tensor:
    words = torch.empty(math.ceil(count / 8), dtype=torch.int64, device=generator.device)
    words.random_(-(1 << 63), None, generator=generator)
    octets = words.view(torch.int8)[:count]
    signs = octets.bitwise_right_shift(6).bitwise_or_(1)
    return signs.mul_(octets.bitwise_and_(3) == 0)


def _overlaps(tensor: Tensor) -> bool:
    """Return whether several elements share memory, which would move them several times."""
    return any(
        not stride and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)
    )
