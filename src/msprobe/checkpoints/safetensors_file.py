# SPDX-License-Identifier: Apache-2.0
"""Reads ``.safetensors`` files: a JSON header with each tensor's position, then the bytes.

Format: https://github.com/huggingface/safetensors. Eight bytes with the header's length (little
endian), the header, then the tensors' bytes; ``data_offsets`` count from the end of the header.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from msprobe.checkpoints.key_paths import path_name
from msprobe.checkpoints.parameters import Content, Parameter, Value, contiguous_parameter
from msprobe.checkpoints.spans import file_size
from msprobe.errors import CheckpointFormatError
from msprobe.files import reading
from msprobe.json_text import JSON_ERRORS, json_problem, parse_json

# As the reference implementation limits it.
MAX_HEADER_BYTES: Final = 100_000_000

_METADATA: Final = "__metadata__"
_DTYPES: Final = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "C64": "complex64",
    "C128": "complex128",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
}


def looks_like_safetensors(start: bytes, size: int) -> bool:
    """Return whether a file of this size and with these first bytes is a safetensors file."""
    length = int.from_bytes(start[:8], "little")
    return len(start) > 8 and 2 <= length <= size - 8 and start[8:9] == b"{"


def read_safetensors(path: Path) -> Content:
    """Return the tensors of a file, in the order of their bytes.

    Raises:
        CheckpointFormatError: the file is damaged, or its offsets contradict each other.
    """
    size = file_size(path)
    begin, header, metadata = _read_header(path, size)
    parameters: list[Parameter] = []
    end, before = 0, ""
    for name, entry in sorted(header.items(), key=lambda item: item[1].data_offsets):
        first, last = entry.data_offsets
        if not 0 <= first <= last <= size - begin:
            raise CheckpointFormatError(path, f"{name!r} lies outside the file")
        if first < end:
            raise CheckpointFormatError(path, f"{before!r} and {name!r} overlap")
        if first > end:
            raise _unclaimed(path, end, first)
        end, before = last, name
        dtype = _DTYPES.get(entry.dtype, entry.dtype)
        offset, available = begin + first, last - first
        parameters.append(
            contiguous_parameter(
                name, dtype, entry.shape, path=path, offset=offset, available=available
            )
        )
    if end < size - begin:
        raise _unclaimed(path, end, size - begin)
    return Content(parameters=parameters, values=_values(path, metadata))


def _unclaimed(path: Path, first: int, last: int) -> CheckpointFormatError:
    """Return the refusal of bytes that would not be compared, as of a name that occurs twice."""
    return CheckpointFormatError(path, f"bytes {first} to {last} of the data belong to no tensor")


def _values(path: Path, metadata: object) -> list[Value]:
    """Return the words that a file says of itself, but for the framework that wrote it."""
    if metadata is None:
        return []
    if not isinstance(metadata, dict):
        raise CheckpointFormatError(path, f"the entry of {_METADATA!r} is of an unknown form")
    return [
        Value(name=path_name((_METADATA, key)), path=(_METADATA, key), content=word, file=path)
        for key, word in metadata.items()
        if key != "format"
    ]


class _Entry(msgspec.Struct, gc=False):
    """A tensor in the header; the offsets of one that has none are negative."""

    dtype: str = ""
    shape: tuple[int, ...] = ()
    data_offsets: tuple[int, int] = (-1, -1)


class _Metadata(msgspec.Struct):
    """The entry of the header that is no tensor."""

    words: Any = msgspec.field(default=None, name=_METADATA)


def _read_header(path: Path, size: int) -> tuple[int, dict[str, _Entry], object]:
    """Return where the tensors begin, what is said of each, and the file's own entry."""
    with reading(path, CheckpointFormatError), path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
            raise CheckpointFormatError(path, f"has a header of {length} bytes")
        text = file.read(length)
    try:
        # A quarter of the memory that dicts and lists would take.
        header = msgspec.json.decode(text, type=dict[str, _Entry])
        metadata = msgspec.json.decode(text, type=_Metadata).words
    except (msgspec.MsgspecError, *JSON_ERRORS):
        header, metadata = _checked_header(path, text)
    header.pop(_METADATA, None)
    for name, entry in header.items():
        if not entry.dtype or entry.data_offsets[1] < 0 or min(entry.shape, default=0) < 0:
            raise CheckpointFormatError(path, f"the entry of {name!r} is of an unknown form")
    return 8 + length, header, metadata


def _checked_header(path: Path, text: bytes) -> tuple[dict[str, _Entry], object]:
    """Return a header that is not as usual, checked entry by entry."""
    try:
        tree = parse_json(text)
    except JSON_ERRORS as exc:
        raise CheckpointFormatError(path, f"header: {json_problem(exc)}") from exc
    if not isinstance(tree, dict):
        raise CheckpointFormatError(path, "has a header that is no object")
    metadata = tree.pop(_METADATA, None)
    header: dict[str, _Entry] = {}
    for name, entry in tree.items():
        try:
            header[name] = msgspec.convert(entry, _Entry)
        except msgspec.ValidationError as exc:
            problem = f"the entry of {name!r} is of an unknown form ({exc})"
            raise CheckpointFormatError(path, problem) from exc
    return header, metadata
