# SPDX-License-Identifier: Apache-2.0
"""The array library of the monitor's features: torch, wherever the tensors are."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, nn

from msprobe.monitor.collecting.features import ArrayLibrary, weight_of
from msprobe.pytorch.values.readable import readable


def _array(tensor: Tensor) -> Tensor | None:
    found = readable(tensor.detach())
    return found.float() if isinstance(found, Tensor) and found.is_floating_point() else None


def _numbers(values: list[Tensor]) -> list[float]:
    """Return values as numbers; those of one device come to the host together."""
    places: dict[torch.device, list[int]] = {}
    for place, value in enumerate(values):
        places.setdefault(value.device, []).append(place)
    result = [0.0] * len(values)
    for chosen in places.values():
        fetched = torch.stack([values[place] for place in chosen]).tolist()
        for place, number in zip(chosen, fetched, strict=True):
            result[place] = number
    return result


TORCH: Final = ArrayLibrary(torch, Tensor, _array, _numbers)


def is_linear(module: Any) -> bool:
    """Return whether a module has a matrix that is no table of embeddings."""
    tables = (nn.Embedding, nn.EmbeddingBag)
    return weight_of(module, Tensor) is not None and not isinstance(module, tables)
