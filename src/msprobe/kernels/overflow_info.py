# SPDX-License-Identifier: Apache-2.0
"""Decodes an Ascend device's notes about an overflow (files ``Opdebug.Node_OpDebug.…``).

A block of 2048 bytes with numbers of 8 bytes, little-endian:

    0      128     256      512                 768                1024
    DHA    L2      AI Core  status of DHA       status of L2       AI Core: code, block, status

The first three parts each have the same six numbers.
"""

from __future__ import annotations

from pathlib import Path
from struct import unpack_from
from typing import Any, Final

from msprobe.errors import DumpFormatError

_COMMON: Final = ("model_id", "stream_id", "task_id", "task_type", "pc_start", "para_base")
_ADDRESSES: Final = ("pc_start", "para_base", "kernel_code")
_PARTS: Final = {"DHA Atomic Add": (0, 512), "L2 Atomic Add": (128, 768), "AI Core": (256, 1040)}
"""Name of each part → offset of its numbers, and of its status."""
_KERNEL_CODE: Final = 1024
_END: Final = 1048

OverflowInfo = dict[str, dict[str, int | str]]


def decode_overflow(raw: bytes, path: Path) -> OverflowInfo:
    """Return a decoded block: part of the device → its numbers; addresses as hexadecimal text.

    Raises:
        DumpFormatError: the block is too short.
    """
    if len(raw) < _END:
        raise DumpFormatError(path, f"the note on an overflow has {len(raw)} bytes, not {_END}")
    found: OverflowInfo = {}
    for part, (start, status) in _PARTS.items():
        numbers = dict(zip(_COMMON, unpack_from("<6Q", raw, start), strict=True))
        if part == "AI Core":
            numbers["kernel_code"], numbers["block_idx"] = unpack_from("<2Q", raw, _KERNEL_CODE)
        (numbers["status"],) = unpack_from("<Q", raw, status)
        found[part] = {
            name: hex(number) if name in _ADDRESSES else number for name, number in numbers.items()
        }
    return found


def overflowed_parts(info: dict[str, Any]) -> list[str]:
    """Return the parts of the device that saw an overflow, with their status."""
    return [
        f"{part}: status {numbers['status']}"
        for part, numbers in info.items()
        if isinstance(numbers, dict) and numbers.get("status")
    ]
