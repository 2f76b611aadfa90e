# SPDX-License-Identifier: Apache-2.0
"""`SeededTensors`: tensors that were not recorded, made so that a script makes the same ones."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import torch

from msprobe.dump.rank_view import RankView
from msprobe.dump.tensor_files import StoredTensor
from msprobe.pytorch.replay.rebuilding import from_torch
from msprobe.replay.tensors import TensorSource

_FLOATS: Final = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_INTEGERS: Final = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_SEEDS: Final = 10_000


class _Statistics(NamedTuple):
    low: float
    high: float
    mean: float
    spread: float


class SeededTensors(TensorSource):
    """Reads recorded tensors; makes the others of a seed, by an expression that is kept.

    Attributes:
        recipes: the expression of each tensor that was made, by its place.
    """

    def __init__(self, view: RankView, *, inline: int, seed: int | None = None) -> None:
        """Make tensors of more than `inline` elements by an expression.

        Args:
            view: the rank.
            inline: smaller ones are written as numbers.
            seed: makes those, too, that were recorded; None reads them.
        """
        super().__init__(view, seed=1234 if seed is None else seed)
        self._seed_of_all = seed
        self.recipes: dict[str, str] = {}
        self._inline = inline

    def read(self, tree: Mapping[str, Any], place: str) -> StoredTensor:
        """Return the elements of a tensor, as `TensorSource.read` does."""
        if self.has_values(tree):
            return super().read(tree, place)
        unrecorded = {key: value for key, value in tree.items() if key != "data_name"}
        if math.prod(tree.get("shape") or ()) <= self._inline or "simpler" in tree:
            return super().read(unrecorded, place)
        made = _made(tree, zlib.crc32(f"{self._seed_of_all or ''}{place}".encode()) % _SEEDS)
        if made is None:
            return super().read(unrecorded, place)
        self.generated = True
        self.recipes[place], tensor = made
        return from_torch(tensor)

    def has_values(self, tree: Mapping[str, Any]) -> bool:
        """Return whether a tensor is taken from the dump."""
        return self._seed_of_all is None and super().has_values(tree)


def _made(tree: Mapping[str, Any], seed: int) -> tuple[str, torch.Tensor] | None:
    """Return an expression and what it makes; None for a tensor that none describes."""
    dtype = getattr(torch, str(tree.get("dtype")).removeprefix("torch."), None)
    shape = tuple(tree["shape"])
    generator = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        text = f"torch.rand({shape}, generator=seeded({seed})) < 0.5"
        return text, torch.rand(shape, generator=generator) < 0.5
    found = _statistics(tree)
    if found is None or tree.get("ignored") == found.low:
        return None
    if dtype in _INTEGERS:
        ends = int(found.low), int(found.high) + 1
        text = f"torch.randint{(*ends, shape)}"[:-1] + f", generator=seeded({seed}), dtype={dtype})"
        return text, torch.randint(*ends, shape, generator=generator, dtype=dtype)
    if dtype not in _FLOATS:
        return None
    drawn = torch.randn(shape, generator=generator) * found.spread + found.mean
    text = (
        f"(torch.randn({shape}, generator=seeded({seed})) * {found.spread} + {found.mean})"
        f".clamp({found.low}, {found.high}).to({dtype})"
    )
    return text, drawn.clamp(found.low, found.high).to(dtype)


def _statistics(tree: Mapping[str, Any]) -> _Statistics | None:
    """Return rounded statistics; None where one is missing or not finite."""
    values = [tree.get(name) for name in ("Min", "Max", "Mean", "Norm")]
    numbers = [float(one) for one in values if isinstance(one, (int, float))]
    if len(numbers) < len(values) or not all(map(math.isfinite, numbers)):
        return None
    low, high, mean, norm = numbers
    spread = math.sqrt(max(norm * norm / math.prod(tree["shape"]) - mean * mean, 0.0))
    return _Statistics(low, high, float(f"{mean:.6g}"), float(f"{spread:.6g}"))
