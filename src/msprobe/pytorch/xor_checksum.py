# SPDX-License-Identifier: Apache-2.0
"""Checksums of a tensor's bytes, of any layout and type.

`checksum` tells every change of the bytes, their order included. `xor_checksum` is that of
mindstudio-probe, for comparing with its numbers: permuted words, and pairs of equal ones, cancel.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from msprobe.pytorch.interception.guard import guard
from msprobe.pytorch.values.checksum import crc32_hex

__all__ = ["checksum", "xor_checksum"]

_WORD: Final = 8


def checksum(tensor: Tensor) -> str | None:
    """Return the CRC-32 of a tensor's elements in logical order, as eight hexadecimal digits.

    None where its memory cannot be read.
    """
    with guard():
        return crc32_hex(tensor.detach())


def xor_checksum(tensor: Tensor) -> Tensor:
    """Return the XOR of all 8-byte words of a tensor's elements in logical order.

    The last word is filled with zero bytes; a tensor without elements gives 0.

    Args:
        tensor: of any shape, strided layout and type.

    Returns:
        An int64 tensor without dimensions, on the tensor's device.
    """
    with guard():
        plain = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
        count = plain.numel() * plain.element_size()
        found = torch.zeros(-(-count // _WORD), dtype=torch.int64, device=tensor.device)
        if count:
            found.view(torch.uint8)[:count] = plain.view(torch.uint8)
        while found.numel() > 1:
            half = found.numel() // 2
            found = torch.cat([found[:half] ^ found[half : 2 * half], found[2 * half :]])
        return found.sum()
