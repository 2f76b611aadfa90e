# SPDX-License-Identifier: Apache-2.0
"""CRC-32 of the bytes of a tensor, as `md5` in a record (the key's name is historical).

The bytes are those of the contiguous tensor, little-endian, in its own dtype: a transposed view
has the checksum of its contiguous copy, and bfloat16 is hashed as its 16 bits. The polynomial is
zlib's.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Final

import torch

from msprobe.capture.statistics import native_module
from msprobe.dump.crc import crc32
from msprobe.pytorch.values.readable import memory_of, readable, storage_address

PIECE_BYTES: Final = 1 << 20
"""Size of one copy where the memory cannot be hashed in place (CPU)."""
DEVICE_PIECE_BYTES: Final = 1 << 26

# Copying bits needs no knowledge of the type, and some types (float4) have no copy of their own.
_BITS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_SPARSE_INDEX: Final = {
    torch.sparse_csr: (torch.Tensor.crow_indices, torch.Tensor.col_indices),
    torch.sparse_bsr: (torch.Tensor.crow_indices, torch.Tensor.col_indices),
    torch.sparse_csc: (torch.Tensor.ccol_indices, torch.Tensor.row_indices),
    torch.sparse_bsc: (torch.Tensor.ccol_indices, torch.Tensor.row_indices),
    torch.sparse_coo: (torch.Tensor._indices,),
}


def crc32_hex(t: torch.Tensor) -> str | None:
    """Return the CRC-32 of the contiguous little-endian bytes of `t` as 8 hex digits.

    Reads CPU memory in place where it is contiguous, else in copies of `PIECE_BYTES`. On an
    accelerator each `DEVICE_PIECE_BYTES` are copied to the host, and every copy waits for the
    device. Sparse tensors: indices, then values. DTensor: this rank's shard.

    Grad mode must be off, and torch functions of subclasses and the user's modes disabled.

    Args:
        t: any tensor; it is only read.

    Returns:
        ``"00000000"`` for an empty tensor; None when there are no bytes to read (meta, released …).
    """
    plain = memory_of(t)
    if plain is not None:
        return f"{crc32(memory_at(*plain)):08x}"
    crc = 0
    for part in (*(index(t) for index in _SPARSE_INDEX.get(t.layout, ())), t):
        dense = readable(part)
        if isinstance(dense, str):
            return None
        crc = _crc_of(dense, crc)
    return f"{crc:08x}"


def _crc_of(t: torch.Tensor, crc: int) -> int:
    if t.numel() == 0:
        return crc
    if t.is_conj() or t.is_neg():
        # Lazy views: their memory is not their value.
        for piece in row_pieces(t, PIECE_BYTES):
            crc = _crc_of_memory(piece.resolve_conj().resolve_neg().contiguous().cpu(), crc)
        return crc
    if t.is_cpu and t.is_contiguous():
        return _crc_of_memory(t, crc)
    bits = t if t.is_quantized else t.view(_BITS.get(t.element_size(), t.dtype))
    for piece in row_pieces(bits, PIECE_BYTES if t.is_cpu else DEVICE_PIECE_BYTES):
        crc = _crc_of_memory(piece.contiguous().cpu(), crc)
    return crc


def row_pieces(t: torch.Tensor, limit_bytes: int) -> Iterator[torch.Tensor]:
    """Yield views of about `limit_bytes` that together are `t`, in row-major order."""
    size_bytes = t.numel() * t.element_size()
    if size_bytes <= limit_bytes or t.dim() == 0:
        yield t
    elif t.shape[0] == 1:
        yield from row_pieces(t[0], limit_bytes)
    else:
        step = max(1, t.shape[0] * limit_bytes // size_bytes)
        for start in range(0, t.shape[0], step):
            yield from row_pieces(t[start : start + step], limit_bytes)


def _crc_of_memory(t: torch.Tensor, crc: int) -> int:
    """Go on with the checksum over a contiguous CPU tensor, which `t` keeps alive meanwhile."""
    item_bytes = t.element_size()
    start = storage_address(t) + int(t.storage_offset()) * item_bytes
    return crc32(memory_at(start, t.numel() * item_bytes), crc)


def _memory_by_ctypes(address: int, size_bytes: int) -> memoryview:
    return memoryview((ctypes.c_char * size_bytes).from_address(address)).toreadonly()


def _choose_memory() -> Callable[[int, int], memoryview]:
    native = native_module()
    return _memory_by_ctypes if native is None else native.memory


memory_at: Final = _choose_memory()
