# SPDX-License-Identifier: Apache-2.0
"""``.ckpt`` of MindSpore: a protocol buffer, read without MindSpore and without a generated parser.

    message Checkpoint  { repeated Value value = 1; }
    message Value       { string tag = 1; TensorProto tensor = 2; }
    message TensorProto { repeated int64 dims = 1; string tensor_type = 2;
                          bytes tensor_content = 3; }

A large parameter is stored in slices: entries of one tag, whose contents follow each other. Only
the structure is read; the contents stay in the file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

from msprobe.checkpoints.parameters import Content, Parameter, Unread, Value, storage_dtype
from msprobe.checkpoints.spans import FileSpan, JoinedSpan, Span
from msprobe.dump.formats.dtypes import STORAGE_TYPES
from msprobe.dump.formats.protobuf import Field, MalformedMessageError, Message, Wire
from msprobe.dump.formats.torch_archive import MAX_DIMENSIONS
from msprobe.dump.open_file import OpenFile
from msprobe.errors import CheckpointFormatError
from msprobe.plain_text import reason

_MAX_TEXT_BYTES: Final = 1 << 16
_MAX_ENTRIES: Final = 5_000_000
_MAX_FIELDS: Final = 1_000
# Suffix behind the message when it was saved with a checksum.
_CHECKSUM_MARK: Final = b"crc_num"


def read_mindspore_file(path: Path) -> Content:
    """Return the parameters of a file, and notes about entries that hold no numbers.

    Raises:
        CheckpointFormatError: the file is damaged, encrypted, or no checkpoint.
    """
    found: dict[str, _Pending] = {}
    try:
        with OpenFile(path) as file:
            whole = Message(file, 0, file.size)
            for entry in _at_most(_MAX_ENTRIES, whole.fields(end_mark=_CHECKSUM_MARK)):
                if entry.number == 1 and entry.wire is Wire.BYTES:
                    _read_value(entry.data, found)
    except MalformedMessageError as exc:
        raise CheckpointFormatError(path, f"is no checkpoint of MindSpore: {reason(exc)}") from exc
    content = Content()
    for tag, pending in found.items():
        text = _text(path, pending)
        if text is not None:
            content.values.append(Value(name=tag, path=(tag,), content=text, file=path))
            continue
        if pending.dtype in STORAGE_TYPES:
            content.parameters.append(_parameter(path, tag, pending))
        else:
            problem = f"its type is {pending.dtype or 'not given'}"
            content.unread.append(Unread(name=tag, path=(tag,), problem=problem))
    return content


@dataclass(slots=True)
class _Pending:
    dims: tuple[int, ...]
    dtype: str
    contents: list[tuple[int, int]] = field(default_factory=list)


def _read_value(value: Message, found: dict[str, _Pending]) -> None:
    tag, tensor = "", None
    for entry in _at_most(_MAX_FIELDS, value.fields()):
        if entry.wire is Wire.BYTES and entry.number == 1:
            tag = entry.data.text(_MAX_TEXT_BYTES)
        elif entry.wire is Wire.BYTES and entry.number == 2:
            tensor = entry.data
    if not tag:
        raise MalformedMessageError("an entry has no name")
    if tensor is None:
        found.setdefault(tag, _Pending((), ""))
    else:
        _read_tensor(tag, tensor, found)


def _read_tensor(tag: str, tensor: Message, found: dict[str, _Pending]) -> None:
    dims: list[int] = []
    dtype, content = "", None
    for entry in _at_most(_MAX_FIELDS, tensor.fields()):
        if entry.number == 1:
            dims += islice(entry.integers(), MAX_DIMENSIONS + 1)
        elif entry.number == 2 and entry.wire is Wire.BYTES:
            dtype = entry.data.text(_MAX_TEXT_BYTES)
        elif entry.number == 3 and entry.wire is Wire.BYTES:
            content = (entry.data.start, entry.data.stop)
    if len(dims) > MAX_DIMENSIONS:
        raise MalformedMessageError(f"{tag!r} has {len(dims)} dimensions")
    # A single 0 means a scalar, without dimensions.
    shape = () if dims == [0] else tuple(dims)
    pending = found.setdefault(tag, _Pending(shape, dtype.lower()))
    if (pending.dims, pending.dtype) != (shape, dtype.lower()):
        raise MalformedMessageError(f"the slices of {tag!r} contradict each other")
    if content is not None:
        pending.contents.append(content)


def _at_most(limit: int, fields: Iterator[Field]) -> Iterator[Field]:
    for count, entry in enumerate(fields):
        if count == limit:
            raise MalformedMessageError(f"has more than {limit:,} entries")
        yield entry


def _text(path: Path, pending: _Pending) -> str | None:
    """Return an entry of text, None for one of another type or too long."""
    sizes = [stop - start for start, stop in pending.contents]
    if pending.dtype not in ("str", "string") or sum(sizes) > _MAX_TEXT_BYTES:
        return None
    with OpenFile(path) as file:
        parts = [
            file.read(start, size) for (start, _), size in zip(pending.contents, sizes, strict=True)
        ]
    return b"".join(parts).decode(errors="backslashreplace")


def _parameter(path: Path, tag: str, pending: _Pending) -> Parameter:
    numpy_type = storage_dtype(pending.dtype).newbyteorder("<")
    parts: list[tuple[Span, int]] = []
    for start, stop in pending.contents:
        if (stop - start) % numpy_type.itemsize:
            raise CheckpointFormatError(path, f"{tag!r} is cut within an element")
        count = (stop - start) // numpy_type.itemsize
        parts.append((FileSpan(path, start, numpy_type), count))
    needed, stored = math.prod(pending.dims), sum(count for _, count in parts)
    if needed != stored:
        raise CheckpointFormatError(
            path, f"{tag!r}: shape {list(pending.dims)} has {needed} elements, {stored} are stored"
        )
    span = (
        parts[0][0]
        if len(parts) == 1
        else JoinedSpan(parts or [(FileSpan(path, 0, numpy_type), 0)])
    )
    return Parameter(
        name=tag, dtype=pending.dtype, shape=pending.dims, span=span, file=path, path=(tag,)
    )
