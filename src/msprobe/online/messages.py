# SPDX-License-Identifier: Apache-2.0
"""Messages between sender and receiver: a head in JSON, and bytes of a file.

``hello`` begins, ``data`` carries a piece of a file, ``gone`` says that a file was removed, ``end``
ends. The receiver answers each with ``ok``, or with ``error`` and does not go on.
"""

from __future__ import annotations

import re
import zlib
from pathlib import PurePosixPath
from typing import Final

import msgspec

from msprobe.dump import layout
from msprobe.files import TEMPORARY_PREFIX

PROTOCOL: Final = 1
"""Version of the messages; both sides must speak the same."""
PIECE_BYTES: Final = 1 << 20
"""Largest number of bytes of a file in one message."""
_NAME: Final = re.compile(r"[^/\\\x00-\x1f\x7f]{1,255}")


class Head(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The head of a message.

    Attributes:
        kind: ``hello``, ``data``, ``gone``, ``end``; of answers ``ok``, ``error``.
        protocol: of ``hello``, the version of messages that the sender speaks.
        version: of ``hello``, its version of msprobe.
        rank: of ``hello``, the rank folder that it sends.
        run: of ``hello``, a number that no other run has.
        path: of the file, from the folder of the dump.
        offset: place of the bytes in the file.
        is_last: whether the file is complete with them.
        checksum: CRC-32 of the bytes.
        problem: of ``error``, what went wrong.
    """

    kind: str
    protocol: int = 0
    version: str = ""
    rank: str = ""
    run: str = ""
    path: str = ""
    offset: int = 0
    is_last: bool = False
    checksum: int = 0
    problem: str = ""


class MessageError(Exception):
    """A message that cannot be understood."""


def encode(head: Head) -> bytes:
    """Return the bytes of a head."""
    return msgspec.json.encode(head)


def decode(message: bytes) -> Head:
    """Return a head.

    Raises:
        MessageError: it is none.
    """
    try:
        return msgspec.json.decode(message, type=Head)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise MessageError(f"a message cannot be read: {exc}") from exc


def checksum(piece: bytes) -> int:
    """Return the checksum of bytes."""
    return zlib.crc32(piece)


def checked_path(path: str, rank: str) -> PurePosixPath:
    """Return the path of a file of a dump, if it can be nothing else.

    Args:
        path: ``step0/rank0/dump.json``, as a sender says it.
        rank: the rank folder that this sender may write.

    Raises:
        MessageError: it leads elsewhere.
    """
    parts = path.split("/")
    is_file = len(parts) == 3 or (len(parts) == 4 and parts[2] == layout.TENSOR_FOLDER)
    if (
        not is_file
        or not layout.STEP_FOLDER.fullmatch(parts[0])
        or parts[1] != rank
        or not layout.RANK_FOLDER.fullmatch(rank)
        or not _NAME.fullmatch(parts[-1])
        or parts[-1].startswith((".", TEMPORARY_PREFIX))
    ):
        raise MessageError(f"{path!r} is no file of the dump of {rank!r}")
    return PurePosixPath(*parts)
