# SPDX-License-Identifier: Apache-2.0
"""Undefined memory: that of ``torch.empty``, until one call has filled all of it."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

# Storages; dead ones are then dropped, and again when there are twice as many as were alive.
_PRUNE_AT: Final = 1024
_Storage: Final[Any] = torch.UntypedStorage


class UndefinedMemory:
    """Storages with undefined content. Tensors without a storage of their own are never among them.

    Attributes:
        storages: by address, each with a weak reference that keeps the address taken.
    """

    __slots__ = ("_prune_at", "storages")

    def __init__(self) -> None:
        self.storages: Final[dict[int, Any]] = {}
        self._prune_at = _PRUNE_AT

    def add(self, tensor: Tensor) -> None:
        """Note that a call made this tensor and left its content undefined."""
        storage = _storage_of(tensor)
        if storage is None or storage._cdata in self.storages:
            return
        if len(self.storages) >= self._prune_at:
            self._prune()
        self.storages[storage._cdata] = storage._weak_ref()

    def holds(self, tensor: Tensor) -> bool:
        """Return whether the memory that this tensor lies in is undefined."""
        storage = _storage_of(tensor)
        return storage is not None and storage._cdata in self.storages

    def fill(self, tensor: Tensor) -> None:
        """Note that a call has written every element of this tensor."""
        storage = _storage_of(tensor)
        if storage is not None and tensor.numel() * tensor.element_size() == storage.nbytes():
            self.forget(tensor)

    def forget(self, tensor: Tensor) -> None:
        """Note that unobserved code may have filled the memory of this tensor."""
        storage = _storage_of(tensor)
        handle = None if storage is None else self.storages.pop(storage._cdata, None)
        if handle is not None:
            _Storage._free_weak_ref(handle)

    def clear(self) -> None:
        """Forget all."""
        for handle in self.storages.values():
            _Storage._free_weak_ref(handle)
        self.storages.clear()

    def _prune(self) -> None:
        for address, handle in list(self.storages.items()):
            if _Storage._expired(handle):
                _Storage._free_weak_ref(self.storages.pop(address))
        self._prune_at = max(_PRUNE_AT, 2 * len(self.storages))


def _storage_of(tensor: Tensor) -> Any:
    try:
        return tensor.untyped_storage()
    except RuntimeError:  # sparse, of a functorch transform …
        return None
