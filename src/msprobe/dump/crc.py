# SPDX-License-Identifier: Apache-2.0
"""CRC-32 of zip archives, by the fastest installed implementation."""

from __future__ import annotations

try:
    from isal.isal_zlib import crc32
except ImportError:  # no wheel for this processor
    from zlib import crc32

__all__ = ["crc32"]
