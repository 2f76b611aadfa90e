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

import weakref
from typing import Final

import torch
from torch import Tensor

from msprobe.capture.statistics import Summary

_PRUNE_AT: Final = 8192  # entries; those of dead storages are then dropped


class Value:
    """What is known about one value.

    Attributes:
        summary: its statistics, shared with views of the same elements.
        id: small integer, the same wherever this value appears in the step.
        md5: its CRC-32, when it was asked for.
        file: name of the tensor file that holds it, when it was saved.
    """

    __slots__ = ("file", "id", "md5", "summary")

    def __init__(self, summary: Summary, number: int) -> None:
        self.summary = summary
        self.id = number
        self.md5: str | None = None
        self.file: str | None = None


class _Storage:
    """An observed storage, held by a weak reference that keeps its address taken."""

    __slots__ = ("__weakref__", "_handle", "banned", "dense", "epoch", "values")

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self._handle = storage._weak_ref()  # type: ignore[no-untyped-call]
        self.epoch = 0
        self.banned = False
        self.values: dict[tuple[object, ...], Value] = {}
        self.dense: dict[tuple[object, ...], Summary] = {}

    def is_dead(self) -> bool:
        return bool(torch.UntypedStorage._expired(self._handle))  # type: ignore[no-untyped-call]

    def __del__(self, free: object = torch.UntypedStorage._free_weak_ref) -> None:
        free(self._handle)  # type: ignore[operator]


_Entry = tuple["weakref.ref[Tensor]", int, int, _Storage, int, Value]


class Memo:
    """Values by tensor and by storage, for the time that the function mode is on."""

    __slots__ = ("_next_id", "_objects", "_storages", "active")

    def __init__(self) -> None:
        self._objects: dict[int, _Entry] = {}
        self._storages: dict[int, _Storage] = {}
        self._next_id = 0
        self.active = False

    def clear(self) -> None:
        """Forget everything."""
        self._objects.clear()
        self._storages.clear()

    def next_step(self) -> None:
        """Forget everything and number values anew."""
        self.clear()
        self._next_id = 0

    def find(self, tensor: Tensor) -> Value | None:
        """Return what is known about a plain tensor, None when it must be looked at."""
        entry = self._objects.get(id(tensor))
        if (
            entry is not None
            and entry[0]() is tensor
            and entry[1] == tensor._version
            and entry[2] == tensor.data_ptr()
            and entry[4] == entry[3].epoch
        ):
            return entry[5]
        return None

    def find_alias(self, tensor: Tensor) -> Value | Summary | None:
        """Return what is known through another tensor on the same storage.

        Returns:
            The value, when that tensor has the same elements in the same order; the statistics,
            when it has the same elements; else None.
        """
        storage = self._storages.get(tensor.untyped_storage()._cdata)
        if storage is None or storage.banned:
            return None
        value = storage.values.get(_geometry(tensor, storage.epoch))
        if value is not None:
            return value
        if not storage.dense or not _is_dense(tensor):
            return None
        return storage.dense.get(_elements(tensor, storage.epoch))

    def remember(self, tensor: Tensor, known: Summary) -> Value | None:
        """Keep what was found out about a plain tensor; None when it may not be kept."""
        storage = self._storages.get(tensor.untyped_storage()._cdata)
        if storage is None or storage.banned or tensor.is_inference():
            return None
        self._next_id += 1
        value = Value(known, self._next_id)
        storage.values[_geometry(tensor, storage.epoch)] = value
        if _is_dense(tensor):
            storage.dense[_elements(tensor, storage.epoch)] = known
        self.attach(tensor, value, storage)
        return value

    def attach(self, tensor: Tensor, value: Value, storage: _Storage | None = None) -> None:
        """Let the tensor object itself lead to a value that was found through an alias."""
        if storage is None:
            storage = self._storages[tensor.untyped_storage()._cdata]
        if len(self._objects) >= _PRUNE_AT:
            self._prune()
        self._objects[id(tensor)] = (
            weakref.ref(tensor),
            tensor._version,
            tensor.data_ptr(),
            storage,
            storage.epoch,
            value,
        )

    def born(self, tensor: Tensor, foreign: set[int]) -> None:
        """Note that an observed call made this tensor.

        Args:
            tensor: an output.
            foreign: the storages that the call received; a view of one is not new.
        """
        storage = tensor.untyped_storage()
        address = storage._cdata
        known = self._storages.get(address)
        if known is not None:
            return  # alive: the weak reference keeps the address taken
        if address in foreign:
            return
        if len(self._storages) >= _PRUNE_AT:
            self._prune()
        self._storages[address] = _Storage(storage)

    def wrote(self, tensor: Tensor) -> None:
        """Note that a call may have written to this tensor."""
        storage = self._storages.get(tensor.untyped_storage()._cdata)
        if storage is not None:
            storage.epoch += 1
            storage.values.clear()
            storage.dense.clear()

    def ban(self, tensor: Tensor) -> None:
        """Note that this tensor's storage may from now on change unseen."""
        storage = tensor.untyped_storage()
        known = self._storages.get(storage._cdata)
        if known is None:
            known = self._storages[storage._cdata] = _Storage(storage)
        known.banned = True
        known.epoch += 1
        known.values.clear()
        known.dense.clear()

    def _prune(self) -> None:
        self._objects = {k: e for k, e in self._objects.items() if e[0]() is not None}
        self._storages = {k: s for k, s in self._storages.items() if not s.is_dead()}


def _geometry(tensor: Tensor, epoch: int) -> tuple[object, ...]:
    return (
        tensor.data_ptr(),
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
        tensor.is_conj(),
        tensor.is_neg(),
        tensor._version,
        epoch,
    )


def _elements(tensor: Tensor, epoch: int) -> tuple[object, ...]:
    return (
        tensor.data_ptr(),
        tensor.numel(),
        tensor.dtype,
        tensor.is_conj(),
        tensor.is_neg(),
        tensor._version,
        epoch,
    )


def _is_dense(tensor: Tensor) -> bool:
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
