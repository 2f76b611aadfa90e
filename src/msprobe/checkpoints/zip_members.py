# SPDX-License-Identifier: Apache-2.0
"""Where the bytes of a zip archive's uncompressed members lie in the file."""

from __future__ import annotations

import struct
import zipfile
import zlib
from pathlib import Path
from typing import Final

from msprobe.errors import CheckpointFormatError

ZIP_ERRORS: Final = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    OSError,
    RuntimeError,  # encrypted; and NotImplementedError, an unknown compression
    ValueError,  # names that are no text, negative positions
    EOFError,
    KeyError,
    OverflowError,
    MemoryError,
)
"""What `zipfile` raises for damaged archives."""

_LOCAL_HEADER_BYTES: Final = 30
_SIGNATURE: Final = b"PK\x03\x04"


def member_offset(path: Path, info: zipfile.ZipInfo) -> int:
    """Return where the bytes of a member begin.

    Raises:
        CheckpointFormatError: it is compressed or encrypted, or its entry points nowhere.
    """
    if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
        raise CheckpointFormatError(path, f"entry {info.filename!r} is compressed or encrypted")
    try:
        with path.open("rb") as file:
            file.seek(info.header_offset)
            header = file.read(_LOCAL_HEADER_BYTES)
            size = file.seek(0, 2)
    except (OSError, ValueError) as exc:
        raise CheckpointFormatError(path, f"cannot be read: {exc}") from exc
    if len(header) < _LOCAL_HEADER_BYTES or header[:4] != _SIGNATURE:
        raise CheckpointFormatError(path, f"entry {info.filename!r} points nowhere")
    name_bytes, extra_bytes = struct.unpack("<HH", header[26:30])
    begin = info.header_offset + _LOCAL_HEADER_BYTES + int(name_bytes) + int(extra_bytes)
    if begin + info.file_size > size:
        raise CheckpointFormatError(path, f"entry {info.filename!r} reaches beyond the file")
    return begin
