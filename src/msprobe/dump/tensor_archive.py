# SPDX-License-Identifier: Apache-2.0
"""A ``.pt`` file with one tensor, found and read without torch and without running a pickle.

Such a file is a zip archive with a small pickle, ``data.pkl``, that says how the tensor lies on its
storage, and the storage's bytes in ``data/{key}``. The pickle is not unpickled: its opcodes are
interpreted here as *data*. A "call" in it becomes a `_Call` object, which is then compared with the
few forms that torch writes for a plain tensor or parameter. So there is no way to make this
reader call anything.
"""

from __future__ import annotations

import math
import pickletools
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, chain
from operator import mul
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msprobe.dump.crc import crc32
from msprobe.dump.open_file import OpenFile
from msprobe.dump.stored_zip import Entry, NoArchiveError, content_offset, read_directory
from msprobe.errors import DumpFormatError

if TYPE_CHECKING:
    from numpy.typing import NDArray

# torch writes about 200 bytes; a tensor subclass a few thousand.
_MAX_PICKLE_BYTES: Final = 1 << 20
_USUAL_PICKLE_BYTES: Final = 1 << 11
_MARK: Final = object()

# dtype name -> NumPy type of the bytes
_DTYPES: Final = {
    "float32": "f4",
    "float64": "f8",
    "float16": "f2",
    "bfloat16": "u2",
    "int64": "i8",
    "int32": "i4",
    "int16": "i2",
    "int8": "i1",
    "uint8": "u1",
    "uint16": "u2",
    "uint32": "u4",
    "uint64": "u8",
    "bool": "b1",
    "complex64": "c8",
    "complex128": "c16",
    "float8_e4m3fn": "u1",
    "float8_e4m3fnuz": "u1",
    "float8_e5m2": "u1",
    "float8_e5m2fnuz": "u1",
    "float8_e8m0fnu": "u1",
    "float4_e2m1fn_x2": "u1",
}
_STORAGES: Final = {
    "FloatStorage": "float32",
    "DoubleStorage": "float64",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
}


class SpecialTensorError(Exception):
    """The file holds something else than a plain dense tensor; torch may be able to read it."""


@dataclass(frozen=True, slots=True)
class _Global:
    name: str


@dataclass(frozen=True, slots=True)
class _Call:
    function: Any
    arguments: Any


@dataclass(frozen=True, slots=True)
class _StorageId:
    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where a tensor's elements lie on its storage; offset and stride count elements.

    Attributes:
        key: name of the storage's entry.
        dtype: name of the type of the elements.
        storage_type: NumPy's type of the bytes of an element, without byte order.
        itemsize: bytes of an element.
        is_row_major: whether the elements lie one after the other, as they are counted.
        conjugate: whether the stored elements are to be conjugated.
        negative: whether they are to be negated.
    """

    key: str
    dtype: str
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    conjugate: bool
    negative: bool
    storage_type: str
    itemsize: int
    count: int
    is_row_major: bool


class ArchivedTensor(NamedTuple):
    """A tensor in an archive, its elements not read yet.

    Attributes:
        layout: where the elements lie on the storage.
        start: where the storage begins in the file.
        size: bytes of the storage.
        checksum: CRC-32 of the storage's bytes; 0 where torch was told not to compute it.
        is_big_endian: byte order of the machine that wrote.
        prefix: folder inside the archive that everything lies in.
        entries: the archive's entries by name.
    """

    layout: Layout
    start: int
    size: int
    checksum: int
    is_big_endian: bool
    prefix: bytes
    entries: Mapping[bytes, Sequence[Entry]]


def find_tensor(file: OpenFile) -> ArchivedTensor:
    """Return where the tensor in a ``.pt`` file lies; reads nothing of its elements.

    Raises:
        SpecialTensorError: not a plain dense tensor.
        DumpFormatError: the file is damaged, or its sizes contradict each other.
    """
    entries = _read_entries(file)
    prefix, pickled = _find_pickle(file, entries)
    layout = _layout(file.name, pickled)
    name = b"%b/data/%b" % (prefix, layout.key.encode())
    entry = _entry(file, entries, name)
    _check_extent(file.name, layout, entry.size // layout.itemsize)
    byte_order = prefix + b"/byteorder"
    big_endian = byte_order in entries and _content(file, entries, byte_order) == b"big"
    start = content_offset(file, name, entry)
    return ArchivedTensor(layout, start, entry.size, entry.checksum, big_endian, prefix, entries)


def read_archive(file: OpenFile) -> tuple[NDArray[Any], str]:
    """Return the tensor in a ``.pt`` file and its dtype's name.

    bfloat16 comes as uint16, float8 as uint8 bit patterns.

    Raises:
        SpecialTensorError: not a plain dense tensor.
        DumpFormatError: the file is damaged, or its sizes contradict each other.
    """
    found = find_tensor(file)
    raw = file.read(found.start, found.size)
    check_checksum(file.name, found.checksum, crc32(raw))
    return _build(found.layout, raw, ">" if found.is_big_endian else "<"), found.layout.dtype


def check_checksum(path: str | Path, written: int, computed: int) -> None:
    """Make sure that content is as it was written.

    Args:
        path: the file.
        written: the checksum in the archive; 0 stands for none.
        computed: the checksum of what was read.

    Raises:
        DumpFormatError: it is not.
    """
    if written not in (0, computed):
        raise DumpFormatError(path, "is damaged: its content does not fit its checksum")


def _read_entries(file: OpenFile) -> dict[bytes, list[Entry]]:
    try:
        return read_directory(file)
    except NoArchiveError as exc:
        if file.read(0, min(file.size, 1)) == b"\x80":
            # torch before 1.6 wrote bare pickles.
            raise SpecialTensorError("is in torch's old format") from exc
        raise DumpFormatError(file.name, f"is not a readable .pt archive: {exc}") from exc


def _find_pickle(file: OpenFile, entries: dict[bytes, list[Entry]]) -> tuple[bytes, bytes]:
    """Return the folder that everything lies in, and the content of ``data.pkl``."""
    pickles = [name for name in entries if name.endswith(b"/data.pkl")]
    count = sum(len(entries[name]) for name in pickles)
    if count != 1:
        raise DumpFormatError(file.name, f"holds {count} data.pkl entries instead of one")
    if _entry(file, entries, pickles[0]).size > _MAX_PICKLE_BYTES:
        raise SpecialTensorError("is far more than one tensor")
    return pickles[0].removesuffix(b"/data.pkl"), _content(file, entries, pickles[0])


def _entry(file: OpenFile, entries: dict[bytes, list[Entry]], name: bytes) -> Entry:
    if name not in entries:
        raise DumpFormatError(file.name, f"has no entry {name.decode(errors='replace')!r}")
    entry = entries[name][-1]
    # torch never compresses; an entry larger than the file can only be a decompression bomb.
    if not entry.is_stored or entry.size > file.size:
        raise DumpFormatError(
            file.name, f"entry {name.decode(errors='replace')!r} is compressed or its size is a lie"
        )
    return entry


def _content(file: OpenFile, entries: dict[bytes, list[Entry]], name: bytes) -> bytes:
    entry = _entry(file, entries, name)
    content = file.read(content_offset(file, name, entry), entry.size)
    check_checksum(file.name, entry.checksum, crc32(content))
    return content


def _layout(path: str, pickled: bytes) -> Layout:
    try:
        if len(pickled) <= _USUAL_PICKLE_BYTES:
            return _usual_layout(pickled)
        return _read_layout(pickled)
    except SpecialTensorError:
        raise
    except (ValueError, IndexError, KeyError, TypeError, AttributeError) as exc:
        raise DumpFormatError(path, f"data.pkl is damaged: {exc}") from exc


# A dump holds thousands of tensors of the same few shapes, and their pickles are alike to the byte.
@lru_cache(maxsize=1024)
def _usual_layout(pickled: bytes) -> Layout:
    return _read_layout(pickled)


def _read_layout(pickled: bytes) -> Layout:
    if b"\\" not in pickled:
        return _read_tensor_call(_PickleAsData().run(pickled))
    with warnings.catch_warnings():
        # pickletools warns of bad escapes in text of protocol 0, which torch never writes.
        warnings.simplefilter("ignore", DeprecationWarning)
        return _read_tensor_call(_PickleAsData().run(pickled))


class _PickleAsData:
    """A stack machine for the opcodes that torch uses; it builds `_Call`s and calls nothing."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self, pickled: bytes) -> Any:
        for opcode, argument, _ in pickletools.genops(pickled):
            if opcode.name == "STOP":
                return self._stack.pop()
            self._step(opcode.name, argument)
        raise ValueError("no end")

    def _step(self, name: str, argument: Any) -> None:
        if name in _CONSTANTS:
            self._stack.append(_CONSTANTS[name])
        elif name in _LITERALS:
            self._stack.append(argument)
        elif name in _GETS:
            self._stack.append(self._memo[argument])
        elif name in _PUTS:
            self._memo[argument] = self._stack[-1]
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = self._stack[-1]
        elif name not in ("PROTO", "FRAME"):
            self._build(name, argument)

    def _build(self, name: str, argument: Any) -> None:
        pop = self._stack.pop
        if name == "GLOBAL":
            self._stack.append(_Global(argument.replace(" ", ".")))
        elif name == "STACK_GLOBAL":
            attribute, module = pop(), pop()
            self._stack.append(_Global(f"{module}.{attribute}"))
        elif name == "REDUCE":
            arguments, function = pop(), pop()
            self._stack.append(_Call(function, arguments))
        elif name == "BINPERSID":
            self._stack.append(_StorageId(pop()))
        elif name == "SETITEM":
            value, key = pop(), pop()
            self._stack[-1][key] = value
        elif name in ("TUPLE", "SETITEMS"):
            items = self._pop_to_mark()
            if name == "TUPLE":
                self._stack.append(tuple(items))
            else:
                self._stack[-1].update(zip(items[::2], items[1::2], strict=True))
        elif name in _TUPLES:
            items = [pop() for _ in range(_TUPLES[name])]
            self._stack.append(tuple(reversed(items)))
        elif name == "EMPTY_DICT":
            self._stack.append({})
        else:
            raise SpecialTensorError(f"is no plain tensor (pickle opcode {name})")

    def _pop_to_mark(self) -> list[Any]:
        items: list[Any] = []
        while (item := self._stack.pop()) is not _MARK:
            items.append(item)
        return items[::-1]


_CONSTANTS: Final = {
    "NONE": None,
    "NEWTRUE": True,
    "NEWFALSE": False,
    "EMPTY_TUPLE": (),
    "MARK": _MARK,
}
_LITERALS: Final = frozenset(
    ("BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8")
)
_GETS: Final = frozenset(("BINGET", "LONG_BINGET"))
_PUTS: Final = frozenset(("BINPUT", "LONG_BINPUT"))
_TUPLES: Final = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def _read_tensor_call(tree: Any) -> Layout:
    if isinstance(tree, _Call) and tree.function == _Global("torch._utils._rebuild_parameter"):
        tree = tree.arguments[0]
    if not isinstance(tree, _Call) or not isinstance(tree.function, _Global):
        raise SpecialTensorError(f"holds no tensor but {type(tree).__name__.strip('_').lower()}")
    name, arguments = tree.function.name, tree.arguments
    if name == "torch._utils._rebuild_tensor_v2":
        dtype, metadata = None, arguments[6:7]
    elif name == "torch._utils._rebuild_tensor_v3":
        dtype, metadata = arguments[6].name.removeprefix("torch."), arguments[7:8]
    else:
        raise SpecialTensorError(f"holds a special tensor ({name})")
    storage, offset, shape, stride = arguments[:4]
    marker, storage_type, key, *_ = storage.value
    if marker != "storage" or not isinstance(key, str):
        raise ValueError("unknown kind of storage")
    if dtype is None:
        dtype = _STORAGES.get(storage_type.name.removeprefix("torch."))
    if dtype not in _DTYPES:
        raise SpecialTensorError(f"holds elements of an unusual type ({storage_type.name})")
    flags = metadata[0] if metadata and isinstance(metadata[0], dict) else {}
    sizes, steps = tuple(map(_size, shape)), tuple(map(_size, stride))
    return Layout(
        key=key,
        dtype=dtype,
        offset=_size(offset),
        shape=sizes,
        stride=steps,
        conjugate=flags.get("conj") is True,
        negative=flags.get("neg") is True,
        storage_type=_DTYPES[dtype],
        itemsize=int(_DTYPES[dtype][1:]),
        count=math.prod(sizes),
        is_row_major=_is_row_major(sizes, steps),
    )


def _is_row_major(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    if len(shape) != len(stride):
        return False
    if 0 in shape:
        return True
    wanted = tuple(accumulate(chain((1,), reversed(shape[1:])), mul))[::-1]
    # The stride of a dimension of size 1 means nothing.
    return all(
        size == 1 or step == dense for size, step, dense in zip(shape, stride, wanted, strict=False)
    )


def _size(value: Any) -> int:
    if type(value) is int and 0 <= value < 1 << 63:
        return value
    raise ValueError("a size is not a number of elements")


def _check_extent(path: str, layout: Layout, stored: int) -> None:
    """Make sure that all elements lie on the storage of `stored` elements."""
    if len(layout.shape) != len(layout.stride) or len(layout.shape) > 64:
        raise DumpFormatError(path, "shape and strides do not fit together")
    last = layout.offset + sum(
        (size - 1) * step for size, step in zip(layout.shape, layout.stride, strict=True)
    )
    # count: a stride of 0 would let a tiny file pose as a tensor of any size.
    if layout.count and (last >= stored or layout.count > stored):
        raise DumpFormatError(
            path, f"shape {list(layout.shape)} needs more than its {stored} stored elements"
        )


def _build(layout: Layout, raw: bytes, byte_order: str) -> NDArray[Any]:
    import numpy as np

    dtype = np.dtype(byte_order + layout.storage_type)
    if not layout.count:
        return np.zeros(layout.shape, dtype=dtype.newbyteorder("="))
    storage = np.frombuffer(raw, dtype=dtype, count=len(raw) // dtype.itemsize)
    steps = [step * dtype.itemsize for step in layout.stride]
    view = np.lib.stride_tricks.as_strided(
        storage[layout.offset :], shape=layout.shape, strides=steps, writeable=False
    )
    array = view.astype(dtype.newbyteorder("="), copy=False)
    if layout.conjugate:
        array = np.conj(array)
    return -array if layout.negative else array
