# SPDX-License-Identifier: Apache-2.0
"""Files of `torch.save`: a zip archive with a pickle and the bytes of storages.

The pickle, ``data.pkl``, says how each tensor lies on its storage, whose bytes are in
``data/{key}``. It is read as data (`formats.pickle`), and what it describes is compared with the
few forms that torch has for a plain tensor or parameter.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import accumulate, chain
from operator import mul
from typing import Any, Final, NamedTuple

import msgspec

from msprobe.dump.formats.dtypes import STORAGE_TYPES, TORCH_STORAGES, item_size
from msprobe.dump.formats.pickle import Described, GlobalName
from msprobe.dump.formats.zip import (
    Directory,
    Entry,
    content_offset,
    read_directory,
    stored_content,
    stored_entry,
)
from msprobe.dump.open_file import FileWindow, OpenFile
from msprobe.errors import DumpFormatError

MAX_DIMENSIONS: Final = 64

_PICKLE: Final = b"/data.pkl"
_REBUILD: Final = "torch._utils._rebuild_"
_TENSOR_V2: Final = _REBUILD + "tensor_v2"
_TENSOR_V3: Final = _REBUILD + "tensor_v3"
_PARAMETER: Final = _REBUILD + "parameter"
_SUBCLASS: Final = "torch._tensor._rebuild_from_type_v2"
_DEEPEST_WRAPPING: Final = 4


class SpecialTensorError(Exception):
    """Something else than a plain dense tensor; torch may be able to read it."""


class TorchArchive(NamedTuple):
    """An archive, its tensors not read yet.

    Attributes:
        file: the file.
        directory: its entries by name.
        prefix: folder inside the archive that everything lies in.
        is_big_endian: byte order of the machine that wrote.
    """

    file: OpenFile | FileWindow
    directory: Directory
    prefix: bytes
    is_big_endian: bool

    def pickle(self, max_bytes: int) -> bytes:
        """Return ``data.pkl``.

        Raises:
            SpecialTensorError: it is larger than that.
            DumpFormatError: it is damaged.
        """
        name = self.prefix + _PICKLE
        entry = stored_entry(self.file, self.directory, name)
        if entry.size > max_bytes:
            raise SpecialTensorError("is far more than one tensor")
        return stored_content(self.file, name, entry)

    def storage(self, key: str) -> tuple[int, Entry]:
        """Return where a storage begins in the file, and its entry.

        Raises:
            DumpFormatError: there is none, or it is compressed.
        """
        name = b"%b/data/%b" % (self.prefix, key.encode())
        entry = stored_entry(self.file, self.directory, name)
        return content_offset(self.file, name, entry), entry


def open_torch_archive(
    file: OpenFile | FileWindow, directory: Directory | None = None
) -> TorchArchive:
    """Return the archive in a file of `torch.save`, with its tensors not read yet.

    Args:
        file: the file.
        directory: its entries, if they were read before.

    Raises:
        NoArchiveError: it is no zip archive.
        DumpFormatError: it is damaged, or not one of torch's.
    """
    directory = directory or read_directory(file)
    pickles = [name for name in directory if name.endswith(_PICKLE)]
    count = sum(len(directory[name]) for name in pickles)
    if count != 1:
        raise DumpFormatError(file.name, f"holds {count} data.pkl entries instead of one")
    prefix = pickles[0].removesuffix(_PICKLE)
    name = prefix + b"/byteorder"
    order = b""
    if name in directory:
        order = stored_content(file, name, stored_entry(file, directory, name))
    return TorchArchive(file, directory, prefix, order == b"big")


class Layout(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Layout of a tensor on its storage; offset and stride count elements.

    Attributes:
        dtype: name of the type of the elements.
        storage_type: NumPy's type of the bytes of an element, without byte order.
        itemsize: bytes of an element.
        needed: elements that the storage must have.
        is_row_major: whether the elements lie one after the other, as they are counted.
        conjugate: whether the stored elements are to be conjugated.
        negative: whether they are to be negated.
    """

    dtype: str
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    conjugate: bool
    negative: bool
    storage_type: str
    itemsize: int
    count: int
    needed: int
    is_row_major: bool

    def check_extent(self, path: str, stored: int, *, most_repeated: int = 0) -> None:
        """Check that all elements lie on a storage of `stored` elements.

        Args:
            path: the file, for messages.
            stored: elements of the storage.
            most_repeated: elements that a tensor may have although fewer are stored (``expand``).

        Raises:
            DumpFormatError: they do not.
        """
        if len(self.shape) != len(self.stride) or len(self.shape) > MAX_DIMENSIONS:
            raise DumpFormatError(path, "shape and strides do not fit together")
        # A stride of 0 would let a tiny file pose as a tensor of any size.
        if self.needed > stored or self.count > max(stored, most_repeated):
            raise DumpFormatError(
                path, f"shape {list(self.shape)} needs more than its {stored} stored elements"
            )


def read_layout(tree: Any, *, accepts_subclasses: bool = False) -> tuple[str, Layout]:
    """Return the storage of a tensor, by the name of its entry, and how the tensor lies on it.

    Args:
        tree: the content of a pickle.
        accepts_subclasses: whether a subclass of tensors is read as its plain tensor, without the
            attributes that it adds.

    Raises:
        SpecialTensorError: it is no plain dense tensor.
        ValueError, KeyError …: the description is damaged.
    """
    name, arguments = _unwrapped(tree, accepts_subclasses=accepts_subclasses)
    if name == _TENSOR_V2:
        dtype, metadata = None, arguments[6:7]
    elif name == _TENSOR_V3:
        dtype, metadata = arguments[6].name.removeprefix("torch."), arguments[7:8]
    else:
        raise SpecialTensorError(f"holds a special tensor ({name or 'of unknown make'})")
    storage, offset, shape, stride = arguments[:4]
    marker, storage_type, key, *_ = storage.value
    if marker != "storage" or not isinstance(key, str):
        raise ValueError("unknown kind of storage")
    dtype = storage_type_name(storage_type) if dtype is None else dtype
    flags = metadata[0] if metadata and isinstance(metadata[0], dict) else {}
    is_conjugate, is_negative = flags.get("conj") is True, flags.get("neg") is True
    return key, _layout(dtype, offset, tuple(shape), tuple(stride), is_conjugate, is_negative)


@lru_cache(maxsize=1024)  # the tensors of a model have few shapes
def _layout(
    dtype: str,
    offset: Any,
    shape: tuple[Any, ...],
    stride: tuple[Any, ...],
    conjugate: bool,
    negative: bool,
) -> Layout:
    if dtype not in STORAGE_TYPES:
        raise SpecialTensorError(f"holds elements of an unusual type ({dtype})")
    for value in (offset, *shape, *stride):
        if type(value) is not int or not 0 <= value < 1 << 62:
            raise ValueError("a size is not a number of elements")
    count = math.prod(shape)
    reach = sum((size - 1) * step for size, step in zip(shape, stride, strict=False))
    return Layout(
        dtype=dtype,
        offset=offset,
        shape=shape,
        stride=stride,
        conjugate=conjugate,
        negative=negative,
        storage_type=STORAGE_TYPES[dtype],
        itemsize=item_size(dtype),
        count=count,
        needed=offset + reach + 1 if count else 0,
        is_row_major=_is_row_major(shape, stride),
    )


def storage_type_name(storage_type: Any) -> str:
    """Return the type of a storage's elements, ``float32`` for ``torch.FloatStorage``."""
    return _elements_of_storage(storage_type.name)


@lru_cache(maxsize=64)
def _elements_of_storage(full_name: str) -> str:
    name = full_name.removeprefix("torch.")
    return TORCH_STORAGES.get(name, name)


def _unwrapped(tree: Any, *, accepts_subclasses: bool) -> tuple[str, Any]:
    """Return the function that makes a plain tensor, and its arguments."""
    for _ in range(_DEEPEST_WRAPPING):
        if not isinstance(tree, Described) or tree.state is not None or tree.items is not None:
            is_named = isinstance(tree, (Described, GlobalName)) and tree.name
            found = tree.name if is_named else type(tree).__name__
            raise SpecialTensorError(f"holds no tensor but {found}")
        name = tree.name
        if name == _TENSOR_V2:
            return name, tree.arguments
        if name.startswith(_PARAMETER):
            tree = tree.arguments[0]
        elif accepts_subclasses and name == _SUBCLASS:
            function, _, arguments, *_ = tree.arguments
            tree = Described(function, arguments)
        else:
            return name, tree.arguments
    raise SpecialTensorError("holds a tensor that is wrapped too often")


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
