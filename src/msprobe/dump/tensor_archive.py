# SPDX-License-Identifier: Apache-2.0
"""A ``.pt`` file with one tensor, read into NumPy without torch and without running a pickle.

Such a file is a zip archive with a small pickle, ``data.pkl``, that says how the tensor lies on its
storage, and the storage's bytes in ``data/{key}``. The pickle is not unpickled: its opcodes are
interpreted here as *data*. A "call" in it becomes a `_Call` object, which is then compared with the
few forms that torch writes for a plain tensor or parameter. So there is no way to make this
reader call anything.
"""

from __future__ import annotations

import math
import pickletools
import struct
import warnings
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msprobe.errors import DumpFormatError

if TYPE_CHECKING:
    from numpy.typing import NDArray

# torch writes about 200 bytes; a tensor subclass a few thousand.
_MAX_PICKLE_BYTES: Final = 1 << 20
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
class _Layout:
    """Where a tensor's elements lie on its storage; offset and stride count elements."""

    key: str
    dtype: str
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    conjugate: bool
    negative: bool


def read_archive(path: Path) -> tuple[NDArray[Any], str]:
    """Return the tensor in a ``.pt`` file and its dtype's name.

    bfloat16 comes as uint16, float8 as uint8 bit patterns.

    Raises:
        SpecialTensorError: not a plain dense tensor.
        DumpFormatError: the file is damaged, or its sizes contradict each other.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            prefix = _prefix(path, archive)
            layout = _layout(path, _read_member(path, archive, prefix + "data.pkl"))
            raw = _read_member(path, archive, f"{prefix}data/{layout.key}")
            big_endian = _is_big_endian(path, archive, prefix)
    except zipfile.BadZipFile as exc:
        with path.open("rb") as file:
            start = file.read(2)
        if start[:1] == b"\x80":
            # torch before 1.6 wrote bare pickles.
            raise SpecialTensorError("is in torch's old format") from exc
        raise DumpFormatError(path, f"is not a readable .pt archive: {exc}") from exc
    except (RuntimeError, NotImplementedError, KeyError, struct.error, zlib.error) as exc:
        raise DumpFormatError(path, f"is not a readable .pt archive: {exc}") from exc
    return _build(path, layout, raw, ">" if big_endian else "<"), layout.dtype


def _prefix(path: Path, archive: zipfile.ZipFile) -> str:
    pickles = [name for name in archive.namelist() if name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise DumpFormatError(path, f"holds {len(pickles)} data.pkl entries instead of one")
    return pickles[0].removesuffix("data.pkl")


def _read_member(path: Path, archive: zipfile.ZipFile, name: str) -> bytes:
    try:
        info = archive.getinfo(name)
    except KeyError as exc:
        raise DumpFormatError(path, f"has no entry {name!r}") from exc
    # torch never compresses; an entry larger than the file can only be a decompression bomb.
    if info.compress_type != zipfile.ZIP_STORED or info.file_size > path.stat().st_size:
        raise DumpFormatError(path, f"entry {name!r} is compressed or its size is a lie")
    if name.endswith("data.pkl") and info.file_size > _MAX_PICKLE_BYTES:
        raise SpecialTensorError("is far more than one tensor")
    return archive.read(info)


def _is_big_endian(path: Path, archive: zipfile.ZipFile, prefix: str) -> bool:
    if prefix + "byteorder" not in archive.namelist():
        return False
    return _read_member(path, archive, prefix + "byteorder") == b"big"


def _layout(path: Path, pickled: bytes) -> _Layout:
    try:
        with warnings.catch_warnings():
            # pickletools warns of bad escapes in text of protocol 0, which torch never writes.
            warnings.simplefilter("ignore", DeprecationWarning)
            tree = _PickleAsData().run(pickled)
        return _read_tensor_call(tree)
    except SpecialTensorError:
        raise
    except (ValueError, IndexError, KeyError, TypeError, AttributeError) as exc:
        raise DumpFormatError(path, f"data.pkl is damaged: {exc}") from exc


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


def _read_tensor_call(tree: Any) -> _Layout:
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
    return _Layout(
        key=key,
        dtype=dtype,
        offset=_size(offset),
        shape=tuple(map(_size, shape)),
        stride=tuple(map(_size, stride)),
        conjugate=flags.get("conj") is True,
        negative=flags.get("neg") is True,
    )


def _size(value: Any) -> int:
    if type(value) is int and 0 <= value < 1 << 63:
        return value
    raise ValueError("a size is not a number of elements")


def _build(path: Path, layout: _Layout, raw: bytes, byte_order: str) -> NDArray[Any]:
    import numpy as np

    dtype = np.dtype(byte_order + _DTYPES[layout.dtype])
    storage = np.frombuffer(raw[: len(raw) // dtype.itemsize * dtype.itemsize], dtype=dtype)
    count = math.prod(layout.shape)
    if len(layout.shape) != len(layout.stride) or len(layout.shape) > 64:
        raise DumpFormatError(path, "shape and strides do not fit together")
    last = layout.offset + sum(
        (size - 1) * step for size, step in zip(layout.shape, layout.stride, strict=True)
    )
    # count: a stride of 0 would let a tiny file pose as a tensor of any size.
    if count and (last >= len(storage) or count > len(storage)):
        raise DumpFormatError(
            path, f"shape {list(layout.shape)} needs more than its {len(storage)} stored elements"
        )
    if not count:
        return np.zeros(layout.shape, dtype=dtype.newbyteorder("="))
    steps = [step * dtype.itemsize for step in layout.stride]
    view = np.lib.stride_tricks.as_strided(
        storage[layout.offset :], shape=layout.shape, strides=steps, writeable=False
    )
    array = view.astype(dtype.newbyteorder("="), copy=False)
    if layout.conjugate:
        array = np.conj(array)
    return -array if layout.negative else array
