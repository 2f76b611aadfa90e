# SPDX-License-Identifier: Apache-2.0
"""Reads ``.safetensors`` files: a JSON header with each tensor's position, then the bytes.

Format: https://github.com/huggingface/safetensors. Eight bytes with the header's length (little
endian), the header, then the tensors' bytes; ``data_offsets`` count from the end of the header.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from msprobe.checkpoints.parameters import Content, Parameter, contiguous_parameter
from msprobe.checkpoints.spans import file_size
from msprobe.errors import CheckpointFormatError
from msprobe.json_text import JSON_ERRORS, json_problem, parse_json
from msprobe.plain_text import reason

# As the reference implementation limits it.
MAX_HEADER_BYTES: Final = 100_000_000

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
    begin, header = _read_header(path, size)
    header.pop("__metadata__", None)
    found: list[tuple[int, int, Parameter]] = []
    for name, entry in header.items():
        dtype, shape, first, last = _entry(path, name, entry)
        if not 0 <= first <= last <= size - begin:
            raise CheckpointFormatError(path, f"{name!r} lies outside the file")
        parameter = contiguous_parameter(
            name, dtype, shape, path=path, offset=begin + first, available=last - first
        )
        found.append((first, last, parameter))
    found.sort(key=lambda item: item[:2])
    for (_, end, before), (start, _, after) in pairwise(found):
        if start < end:
            raise CheckpointFormatError(path, f"{before.name!r} and {after.name!r} overlap")
    return Content(parameters=[parameter for _, _, parameter in found])


def _read_header(path: Path, size: int) -> tuple[int, dict[str, Any]]:
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
                raise CheckpointFormatError(path, f"has a header of {length} bytes")
            text = file.read(length)
    except OSError as exc:
        raise CheckpointFormatError(path, f"cannot be read: {reason(exc)}") from exc
    try:
        header = parse_json(text)
    except JSON_ERRORS as exc:
        raise CheckpointFormatError(path, f"header: {json_problem(exc)}") from exc
    if not isinstance(header, dict):
        raise CheckpointFormatError(path, "has a header that is no object")
    return 8 + length, header


def _entry(path: Path, name: str, entry: object) -> tuple[str, tuple[int, ...], int, int]:
    match entry:
        case {
            "dtype": str() as dtype,
            "shape": list() as shape,
            "data_offsets": [int() as first, int() as last],
        } if all(type(size) is int and 0 <= size < 1 << 63 for size in shape):
            return _DTYPES.get(dtype, dtype), tuple(shape), first, last
        case _:
            raise CheckpointFormatError(path, f"the entry of {name!r} is of an unknown form")
