# SPDX-License-Identifier: Apache-2.0
"""Tensor files: a private copy of a value, written as ``torch.save`` writes it."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from msprobe.pytorch.readable import readable


def snapshot(tensor: Tensor) -> Tensor | None:
    """Return a contiguous copy of a value that shares nothing with it, None if it has none.

    The dtype and the device stay; a DTensor gives its local shard, nested ones their values.
    """
    if tensor.layout is not torch.strided and not tensor.is_nested:
        return tensor.detach().clone()  # sparse: the whole tensor is saved, indices included
    found = readable(tensor)
    if isinstance(found, str):
        return None
    copy = found.detach().resolve_conj().resolve_neg()
    return copy.clone(memory_format=torch.contiguous_format)


class TensorFile:
    """A tensor on its way to a file.

    Attributes:
        size_bytes: what it occupies until it is written.
    """

    __slots__ = ("_tensor", "size_bytes")

    def __init__(self, tensor: Tensor) -> None:
        """Take a tensor that nobody else will change."""
        self._tensor = tensor
        self.size_bytes = tensor.numel() * tensor.element_size()

    def write(self, path: Path) -> None:
        """Write it so that ``torch.load(path, weights_only=True)`` reads it."""
        torch.save(self._tensor, path)
