# SPDX-License-Identifier: Apache-2.0
"""NumPy arrays, bytes, sets and complex numbers, made from what a pickle says of them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from msprobe.dump.formats.pickle import Described

_NUMBERS: Final = re.compile(r"[biufcSUV?]\d{0,6}")
_NAMED: Final = re.compile(r"numpy\.(?:_?core\.)?(multiarray|numeric)\.(\w+)")


class UnknownArrayError(Exception):
    """An array whose elements cannot be read."""


class ObjectArrayError(Exception):
    """An array of Python objects, to be compared one by one.

    Attributes:
        shape: its shape.
        items: its elements in row-major order.
    """

    def __init__(self, shape: tuple[int, ...], items: list[Any]) -> None:
        self.shape = shape
        self.items = items
        super().__init__("holds Python objects")


def simplified(node: Described) -> Any:
    """Return the array, bytes, set … that an object of a pickle is; itself if it is none of these.

    Sets come sorted, as their order means nothing.

    Raises:
        ObjectArrayError: it is an array of Python objects.
        UnknownArrayError: it is an array of another kind than numbers and text, or damaged.
    """
    maker = _MAKERS.get(node.name.removeprefix("__builtin__.").removeprefix("builtins."))
    try:
        if maker is not None:
            return maker(node)
        named = _NAMED.fullmatch(node.name)
        if named is not None and named[2] in _ARRAY_MAKERS:
            return _ARRAY_MAKERS[named[2]](node)
    except (ValueError, TypeError, IndexError, AttributeError, KeyError, OverflowError) as exc:
        raise UnknownArrayError(f"is a damaged array ({exc})") from exc
    return node


def _encoded(node: Described) -> Any:
    text, encoding = node.arguments
    return text.encode("latin-1") if encoding == "latin1" else node


def _bytes(node: Described) -> Any:
    if not node.arguments:
        return b""
    inner = node.arguments[0]
    if isinstance(inner, str) and len(node.arguments) == 2:
        return inner.encode("latin-1")
    return inner if isinstance(inner, bytes) else node


def _set(node: Described) -> Any:
    items = node.arguments[0] if node.arguments else ()
    return sorted(items, key=repr) if isinstance(items, (list, tuple)) else node


def _complex(node: Described) -> Any:
    return complex(*node.arguments)


def _reconstructed(node: Described) -> np.ndarray[Any, Any]:
    _, shape, dtype, by_columns, content = node.state
    return _array(_shape(shape), dtype, _plain_bytes(content), by_columns=by_columns is True)


def _from_buffer(node: Described) -> np.ndarray[Any, Any]:
    content, dtype, shape, order = node.arguments
    return _array(_shape(shape), dtype, _plain_bytes(content), by_columns=order == "F")


def _scalar(node: Described) -> Any:
    dtype, content = node.arguments
    return _array((), dtype, _plain_bytes(content), by_columns=False)


def _array(
    shape: tuple[int, ...], dtype: Any, content: Any, *, by_columns: bool
) -> np.ndarray[Any, Any]:
    kind = dtype.arguments[0]
    is_big_endian = isinstance(dtype.state, tuple) and dtype.state[1] == ">"
    if kind == "O8" and isinstance(content, list):
        raise ObjectArrayError(shape, content)
    if not isinstance(kind, str) or not _NUMBERS.fullmatch(kind) or kind[0] == "V":
        raise UnknownArrayError(f"is an array of {kind}")
    numpy_type = np.dtype(kind).newbyteorder(">" if is_big_endian else "<")
    if not isinstance(content, bytes) or math.prod(shape) * numpy_type.itemsize != len(content):
        raise UnknownArrayError("is an array whose size and content contradict each other")
    array = np.frombuffer(content, numpy_type)
    if numpy_type.kind in "SU":
        raise ObjectArrayError(shape, array.tolist())
    if by_columns:
        array = array.reshape(shape, order="F")
    return np.ascontiguousarray(array).reshape(shape)


def _shape(shape: Any) -> tuple[int, ...]:
    if not all(type(size) is int and 0 <= size < 1 << 63 for size in shape) or len(shape) > 64:
        raise ValueError("impossible shape")
    return tuple(shape)


def _plain_bytes(content: Any) -> Any:
    found = simplified(content) if isinstance(content, Described) else content
    return bytes(found) if isinstance(found, bytearray) else found


_MAKERS: Final[dict[str, Callable[[Described], Any]]] = {
    "_codecs.encode": _encoded,
    "bytes": _bytes,
    "bytearray": _bytes,
    "set": _set,
    "frozenset": _set,
    "complex": _complex,
}
_ARRAY_MAKERS: Final[dict[str, Callable[[Described], Any]]] = {
    "_reconstruct": _reconstructed,
    "_frombuffer": _from_buffer,
    "scalar": _scalar,
}
