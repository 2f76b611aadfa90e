# SPDX-License-Identifier: Apache-2.0
"""Remember what was found out about a value while it is provably unchanged and alive.

The output of one API is the input of the next: it is summarised (and stored) once. A wrong hit
would be a wrong number in a record, so a value is known only if all of this holds:

- its storage was *born* in a call that was observed, and is alive: a weak reference to it is held,
  so its address cannot be given to another one;
- torch's version counter of the tensor has not moved;
- our own epoch of the storage has not moved: it counts every observed call that may write without
  moving the version (batch norm's running statistics, fused optimisers …);
- the storage is not *banned*: once a pointer to it escaped (``numpy()``, ``data_ptr()``, ``.data``,
  an operator outside aten, a collective), anything may write to it unseen.

Parameters, buffers and loader data are never remembered: they were born elsewhere. Writes can only
be observed while the function mode is on, so the memo is emptied whenever it is taken away.
"""

from __future__ import annotations

import math
from collections.abc import Container
from typing import Final

import msgspec
import torch
from torch import Tensor

from msprobe.capture.statistics import Summary
from msprobe.dump.records import TensorRecord

_PRUNE_AT: Final = 8192  # entries; those of dead storages are then dropped


class Value(msgspec.Struct, gc=False, eq=False):
    """What is known about one value.

    Attributes:
        summary: its statistics, shared with views of the same elements.
        id: small integer, the same wherever this value appears in the step; 0 when unknown.
        md5: its CRC-32, when it was asked for.
        file: name of the tensor file that holds it, when it was saved.
        record: its description, shared by the records in which nothing else stands about it.
    """

    summary: Summary
    id: int = 0
    md5: str | None = None
    file: str | None = None
    record: TensorRecord | None = None


class _Storage:
    """An observed storage, held by a weak reference that keeps its address taken."""

    __slots__ = ("_handle", "address", "banned", "epoch")

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self._handle = storage._weak_ref()
        self.address = storage._cdata
        self.epoch = 0
        self.banned = False

    def is_dead(self) -> bool:
        return bool(torch.UntypedStorage._expired(self._handle))

    def __del__(self, free: object = torch.UntypedStorage._free_weak_ref) -> None:
        free(self._handle)  # type: ignore[operator]


class _Known(msgspec.Struct, gc=False, eq=False):
    """A value, where it lies and in which state of the memory it was looked at."""

    storage: _Storage
    epoch: int
    version: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    is_dense: bool
    value: Value
    next: _Known | None  # another view that begins at the same address


class Memo:
    """Values by their place in memory, for the time that the function mode is on.

    Attributes:
        active: whether writes are being observed.
    """

    __slots__ = ("_known", "_next_id", "_storages", "active")

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}
        self._storages: dict[int, _Storage] = {}
        self._next_id = 0
        self.active = False

    def clear(self) -> None:
        """Forget everything."""
        self._known.clear()
        self._storages.clear()

    def next_step(self) -> None:
        """Forget everything and number values anew."""
        self.clear()
        self._next_id = 0

    def find(self, tensor: Tensor) -> Value | Summary | None:
        """Return what is known about a plain tensor.

        Returns:
            Its value; only the statistics, when another view of the same elements was looked at;
            None when it must be looked at.
        """
        known = self._known.get(tensor.data_ptr())
        if known is None or tensor.is_neg() or tensor.is_conj():
            return None
        storage = known.storage
        if tensor.untyped_storage()._cdata != storage.address:
            return None
        version, shape, dtype = tensor._version, tensor.shape, tensor.dtype
        summary = None
        while known is not None:
            if (
                known.version == version
                and known.epoch == known.storage.epoch
                and known.dtype is dtype
                and known.storage is storage
            ):
                if known.shape == shape and known.stride == tensor.stride():
                    return known.value
                if summary is None and known.is_dense and _has_elements_of(tensor, known):
                    summary = known.value.summary
            known = known.next
        return summary

    def remember(self, tensor: Tensor, summary: Summary) -> Value | None:
        """Keep what was found out about a plain tensor; None when it may not be kept."""
        storage = self._storages.get(tensor.untyped_storage()._cdata)
        if storage is None or storage.banned or tensor.is_inference():
            return None
        address = tensor.data_ptr()
        if not address or tensor.is_neg() or tensor.is_conj():
            return None
        if len(self._known) >= _PRUNE_AT:
            self._prune()
        self._next_id += 1
        value = Value(summary, self._next_id)
        before = self._known.get(address)
        self._known[address] = _Known(
            storage,
            storage.epoch,
            tensor._version,
            tensor.dtype,
            tuple(tensor.shape),
            tensor.stride(),
            is_dense(tensor),
            value,
            before if before is not None and _is_current(before, tensor, storage) else None,
        )
        return value

    def born(self, tensor: Tensor, foreign: Container[int]) -> None:
        """Note that an observed call made this tensor.

        Args:
            tensor: an output.
            foreign: the storages that the call received; a view of one is not new.
        """
        storage = tensor.untyped_storage()
        address = storage._cdata
        # A known one is alive or at least not given back: the weak reference keeps its address.
        if address in self._storages or address in foreign:
            return
        if len(self._storages) >= _PRUNE_AT:
            self._prune()
        self._storages[address] = _Storage(storage)

    def wrote(self, tensor: Tensor) -> None:
        """Note that a call may have written to this tensor."""
        storage = self._storages.get(tensor.untyped_storage()._cdata)
        if storage is not None:
            storage.epoch += 1

    def ban(self, tensor: Tensor) -> None:
        """Note that this tensor's storage may from now on change unseen."""
        storage = tensor.untyped_storage()
        known = self._storages.get(storage._cdata)
        if known is None:
            known = self._storages[storage._cdata] = _Storage(storage)
        known.banned = True
        known.epoch += 1

    def _prune(self) -> None:
        dead = {address for address, one in self._storages.items() if one.is_dead()}
        self._known = {
            key: known for key, known in self._known.items() if known.storage.address not in dead
        }
        for address in dead:
            del self._storages[address]


def _is_current(known: _Known, tensor: Tensor, storage: _Storage) -> bool:
    """Return whether an older entry is about the same state of the same memory."""
    return (
        known.storage is storage
        and known.epoch == storage.epoch
        and known.version == tensor._version
    )


def _has_elements_of(tensor: Tensor, known: _Known) -> bool:
    return tensor.numel() == math.prod(known.shape) and is_dense(tensor)


def is_dense(tensor: Tensor) -> bool:
    """Return whether the elements fill one block of memory without gaps or overlaps."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True
