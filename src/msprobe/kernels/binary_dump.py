# SPDX-License-Identifier: Apache-2.0
"""Binary files of kernel dumps: all inputs and outputs of one execution of a kernel.

A file is the length of its header (8 bytes, little-endian), the header, a protobuf message, and the
raw elements of all outputs and then of all inputs, without gaps.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msprobe.dump.formats.protobuf import MalformedMessageError, Memory, Message, Wire
from msprobe.dump.open_file import OpenFile
from msprobe.errors import DumpFormatError
from msprobe.plain_text import reason

_LENGTH_BYTES: Final = 8
# Headers have no elements in them: a kernel with a thousand inputs has 100 KB.
_MAX_HEADER_BYTES: Final = 64 << 20
_MAX_VALUES: Final = 100_000
_MAX_RANK: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class BinaryValue:
    """One input or output in a binary file.

    Attributes:
        io: ``input`` or ``output``.
        index: which one.
        data_type: number of the type of its elements.
        layout: number of the order of its elements.
        sub_layout: a further number of it: groups of a convolution's weight.
        shape: sizes as the elements are stored.
        original_shape: sizes as the program sees them; empty if the file does not tell.
        offset: where the elements begin in the file.
        size_bytes: how many bytes they take.
    """

    io: str
    index: int
    data_type: int
    layout: int
    sub_layout: int
    shape: tuple[int, ...]
    original_shape: tuple[int, ...]
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BinaryDump:
    """The header of a binary file.

    Attributes:
        version: version of the format, as text.
        op_name: full name of the kernel; may be empty.
        time: when it was written.
        values: outputs, then inputs.
    """

    version: str
    op_name: str
    time: int
    values: list[BinaryValue]


@dataclass(slots=True)
class _Draft:
    """A value whose position in the file is not known yet."""

    data_type: int = 0
    layout: int = 0
    sub_layout: int = 0
    shape: tuple[int, ...] = ()
    original_shape: tuple[int, ...] = ()
    size_bytes: int = 0


# Which field of an output, and of an input, holds what.
_OUTPUT_FIELDS: Final = {
    1: "data_type", 2: "layout", 3: "shape", 6: "size_bytes", 7: "original_shape", 8: "sub_layout",
}  # fmt: skip
_INPUT_FIELDS: Final = {
    1: "data_type", 2: "layout", 3: "shape", 5: "size_bytes", 6: "original_shape", 7: "sub_layout",
}  # fmt: skip
_SHAPES: Final = ("shape", "original_shape")


def read_binary_dump(path: Path) -> BinaryDump:
    """Return header and positions of the values of a binary file, without reading values.

    Raises:
        DumpFormatError: the file is no binary dump, or is cut off.
    """
    with OpenFile(path) as file:
        return _read(file)


def _read(file: OpenFile) -> BinaryDump:
    length = int.from_bytes(file.read(0, min(file.size, _LENGTH_BYTES)), "little")
    if file.size < _LENGTH_BYTES or length > file.size - _LENGTH_BYTES:
        raise DumpFormatError(
            file.path, f"is no binary dump: a header of {length} bytes, a file of {file.size}"
        )
    if length > _MAX_HEADER_BYTES:
        raise DumpFormatError(file.path, f"has a header of {length} bytes, which none needs")
    header = Message(Memory(file.read(_LENGTH_BYTES, length)), 0, length)
    try:
        return _parse(header, file.path, _LENGTH_BYTES + length, file.size)
    except MalformedMessageError as exc:
        raise DumpFormatError(file.path, f"is no binary dump: {reason(exc)}") from exc


def _parse(header: Message, path: Path, start: int, end: int) -> BinaryDump:
    outputs: list[_Draft] = []
    inputs: list[_Draft] = []
    version = op_name = ""
    time = 0
    for field in header.fields():
        match field.number, field.wire:
            case 1, Wire.BYTES:
                version = field.data.text(header.size)
            case 2, Wire.VARINT:
                time = field.integer
            case 3, Wire.BYTES:
                outputs.append(_value(field.data, _OUTPUT_FIELDS))
            case 4, Wire.BYTES:
                inputs.append(_value(field.data, _INPUT_FIELDS))
            case 6, Wire.BYTES:
                op_name = field.data.text(header.size)
        if len(outputs) + len(inputs) > _MAX_VALUES:
            raise DumpFormatError(path, f"has more than {_MAX_VALUES} inputs and outputs")
    values: list[BinaryValue] = []
    for io, drafts in (("output", outputs), ("input", inputs)):
        for index, draft in enumerate(drafts):
            values.append(_placed(draft, io, index, start, end, path))
            start += draft.size_bytes
    return BinaryDump(version=version, op_name=op_name, time=time, values=values)


def _placed(draft: _Draft, io: str, index: int, start: int, end: int, path: Path) -> BinaryValue:
    where = f"{io} {index}"
    if draft.size_bytes > end - start:
        raise DumpFormatError(
            path, f"{where} has {draft.size_bytes} bytes, but the file ends after {end - start}"
        )
    for shape in (draft.shape, draft.original_shape):
        if len(shape) > _MAX_RANK:
            raise DumpFormatError(path, f"{where} has {len(shape)} dimensions")
    return BinaryValue(
        io=io,
        index=index,
        data_type=draft.data_type,
        layout=draft.layout,
        sub_layout=draft.sub_layout,
        shape=draft.shape,
        original_shape=draft.original_shape,
        offset=start,
        size_bytes=draft.size_bytes,
    )


def _value(message: Message, fields: dict[int, str]) -> _Draft:
    draft = _Draft()
    for field in message.fields():
        name = fields.get(field.number)
        if name is None:
            continue
        if (name in _SHAPES) != (field.wire is Wire.BYTES):
            raise MalformedMessageError(f"{name} is written in another way")
        setattr(draft, name, _sizes(field.data) if name in _SHAPES else field.integer)
    return draft


def _sizes(message: Message) -> tuple[int, ...]:
    sizes: list[int] = []
    for dimension in message.fields():
        if dimension.number == 1:
            for size in dimension.integers():
                sizes.append(size)
                if len(sizes) > _MAX_RANK:
                    raise MalformedMessageError(f"a shape has more than {_MAX_RANK} dimensions")
    return tuple(sizes)
