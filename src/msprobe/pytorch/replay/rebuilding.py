# SPDX-License-Identifier: Apache-2.0
"""Tensors of PyTorch, of stored elements and back."""

from __future__ import annotations

import warnings
from typing import Final

import numpy as np
import torch

from msprobe.dump.tensor_files import StoredTensor

# Types whose elements NumPy holds as bit patterns.
_PATTERNS: Final = {
    "bfloat16": (np.int16, torch.bfloat16),
    **{
        name: (np.uint8, getattr(torch, name))
        for name in ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
    },
    "float8_e8m0fnu": (np.uint8, getattr(torch, "float8_e8m0fnu", None)),
}


def to_torch(stored: StoredTensor) -> torch.Tensor:
    """Return a stored tensor as one of PyTorch's, on the CPU."""
    array = np.ascontiguousarray(stored.array).reshape(stored.array.shape)
    pattern = _PATTERNS.get(stored.dtype)
    with warnings.catch_warnings():
        # A memory that cannot be written: every run works on copies.
        warnings.simplefilter("ignore")
        if pattern is None:
            return torch.from_numpy(array)
        return torch.from_numpy(array.view(pattern[0])).view(pattern[1])


def from_torch(tensor: torch.Tensor) -> StoredTensor:
    """Return the elements of a tensor."""
    plain = tensor.detach()
    if plain.layout is not torch.strided:
        plain = plain.to_dense()
    plain = plain.resolve_conj().resolve_neg().cpu()
    dtype = str(plain.dtype).removeprefix("torch.")
    pattern = _PATTERNS.get(dtype)
    if pattern is None:
        return StoredTensor(array=plain.numpy(force=True), dtype=dtype)
    bits = plain.contiguous().view(torch.int16 if pattern[0] is np.int16 else torch.uint8)
    unsigned = np.uint16 if pattern[0] is np.int16 else np.uint8
    return StoredTensor(array=bits.numpy().view(unsigned), dtype=dtype)
