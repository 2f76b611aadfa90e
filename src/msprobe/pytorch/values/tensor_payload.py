# SPDX-License-Identifier: Apache-2.0
"""Tensor files: a private copy of a value, written as ``torch.save`` writes it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from msprobe.dump.tensor_archive_writer import (
    MAX_BYTES,
    TYPED_STORAGES,
    UNTYPED,
    write_archive,
)
from msprobe.pytorch.values.buffer_pool import LEAST_BYTES, BufferPool
from msprobe.pytorch.values.checksum import memory_at
from msprobe.pytorch.values.device_streams import Computed, current_stream
from msprobe.pytorch.values.readable import memory_of, readable

_PLAIN_DTYPES: Final = {
    getattr(torch, name): name for name in (*TYPED_STORAGES, *UNTYPED) if hasattr(torch, name)
}


class TensorFile:
    """A tensor on its way to a file.

    Attributes:
        size_bytes: memory that it occupies until it is written.
    """

    __slots__ = ("_buffer", "_computed", "_pool", "_tensor", "size_bytes")

    def __init__(
        self, tensor: Tensor, buffer: Tensor | None = None, pool: BufferPool | None = None
    ) -> None:
        """Take a tensor that no other code will change, made on its device's current stream.

        Args:
            tensor: the values.
            buffer: the memory they lie in, if it goes back to `pool` once they are written.
            pool: where `buffer` is from.
        """
        self._tensor = tensor
        self._buffer = buffer
        self._pool = pool
        held = tensor if buffer is None else buffer
        self.size_bytes = held.numel() * held.element_size()
        stream = None if tensor.is_cpu else current_stream(tensor.device)
        self._computed = None if stream is None else Computed(stream)

    def write(self, path: Path) -> None:
        """Write it so that ``torch.load(path, weights_only=True)`` reads it.

        Values on an accelerator are copied to the host here, beside the computation. May be called
        once: the memory is given back.
        """
        if self._computed is None:
            self._write(path)
        else:
            with self._computed.on_own_stream(self._tensor.device):
                self._write(path)

    def _write(self, path: Path) -> None:
        tensor = self._tensor
        dtype = _PLAIN_DTYPES.get(tensor.dtype)
        memory = memory_of(tensor) if _is_bare(tensor) and dtype is not None else None
        if memory is None or dtype is None or not 0 < memory[1] < MAX_BYTES:
            torch.save(tensor, path)
        else:
            write_archive(str(path), dtype, tuple(tensor.shape), memory_at(*memory))
        if self._pool is not None and self._buffer is not None:
            self._pool.give(self._buffer)
            self._pool = self._buffer = None


def _is_bare(tensor: Tensor) -> bool:
    """Return whether the values are all that ``torch.save`` would write."""
    return type(tensor) is Tensor and not tensor.requires_grad and not tensor.__dict__


def snapshot(tensor: Tensor, pool: BufferPool) -> TensorFile | None:
    """Return a contiguous copy of a value that shares nothing with it, None if it has none.

    The dtype and the device stay; a DTensor gives its local shard, nested ones their values.
    """
    if tensor.layout is not torch.strided and not tensor.is_nested:
        # sparse: the whole tensor is saved, indices included
        return TensorFile(tensor.detach().clone())
    found = readable(tensor)
    if isinstance(found, str):
        return None
    value = found.detach().resolve_conj().resolve_neg()
    size_bytes = value.numel() * value.element_size()
    if size_bytes < LEAST_BYTES or not value.is_cpu or value.dtype not in _PLAIN_DTYPES:
        return TensorFile(value.clone(memory_format=torch.contiguous_format))
    buffer = pool.take(size_bytes)
    copy = buffer[:size_bytes].view(value.dtype).view(value.shape)
    return TensorFile(copy.copy_(value), buffer, pool)
