# SPDX-License-Identifier: Apache-2.0
"""CRC-32 as zip archives use it, by the fastest implementation there is."""

from __future__ import annotations

try:
    from isal.isal_zlib import crc32
except ImportError:  # no wheel for this processor
    from zlib import crc32

__all__ = ["crc32"]
