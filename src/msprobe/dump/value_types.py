# SPDX-License-Identifier: Apache-2.0
"""The JSON forms of values that are no tensors: `describe_value` and, back again, `rebuild_value`.

A form is ``{"type", "value"}``; lists, tuples and dicts are lists and objects of these. A framework
has further forms (dtypes, devices …): it describes them itself, and gives `rebuild_value` a table
of how to make them. No method is run that a class of the user's may override.
"""

from __future__ import annotations

import enum
import math
import reprlib
from array import array
from collections import deque
from collections.abc import Callable, Mapping
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, Final

import numpy as np

from msprobe.dump.records import JsonTree

SCALARS: Final[Mapping[type, str]] = {int: "int", float: "float", bool: "bool", str: "str"}
"""Exact types that are written unchanged under ``value``, and their ``type``."""
OMITTED: Final = "omitted"
"""``type`` of the entry that counts, by type, the values that were left out."""

_LONGEST_TEXT: Final = 10_000
_CUT: Final = "…"
# Types whose repr shows their own value alone: that of containers may show their contents.
_SHOWN: Final = (bool, float, complex, bytes, bytearray, range, type(None))
_SHORTENED: Final = (tuple, list, dict, set, frozenset, deque, array, str, int)
_NAMED: Final = (type, FunctionType, BuiltinFunctionType, MethodType)

Maker = Callable[[dict[str, Any]], Any]
"""Makes a value of its JSON form."""


class NotRebuildableError(ValueError):
    """A value of this form cannot be made again: the form does not hold all of it."""


def describe_value(value: Any) -> JsonTree:
    """Return the JSON form of a value of Python's or NumPy's, `NotImplemented` for any other.

    Numbers, texts (cut after 10,000 characters), slices, ``...`` and NumPy's scalars.
    """
    kind = type(value)
    if kind in SCALARS:
        return describe_scalar(value)
    if kind is slice:
        bounds = [_bound(bound) for bound in (value.start, value.stop, value.step)]
        return {"type": "slice", "value": bounds}
    if value is Ellipsis:
        return {"type": "ellipsis", "value": "..."}
    if issubclass(kind, np.generic):
        plain = value.item()
        shown = plain if type(plain) in SCALARS else safe_repr(plain)
        return {"type": value.dtype.name, "value": shown}
    # Subclasses, such as IntEnum and StrEnum, without the conversions that they may override.
    if issubclass(kind, int):
        return describe_scalar(int.__int__(value))
    if issubclass(kind, float):
        return describe_scalar(float.__float__(value))
    return describe_scalar(str.__str__(value)) if issubclass(kind, str) else NotImplemented


def describe_scalar(value: Any) -> dict[str, Any]:
    """Return the JSON form of an int, float, bool or str, of exactly these types."""
    kind = type(value)
    if kind is str and len(value) > _LONGEST_TEXT:
        value = value[:_LONGEST_TEXT] + _CUT
    return {"type": SCALARS[kind], "value": value}


def is_quick(value: JsonTree) -> bool:
    """Return whether the quick encoder can write the ``value`` of a form (see `encode`)."""
    kind = type(value)
    if kind is float:
        return math.isfinite(value)
    if kind is int:
        return bool(-(2**63) <= value < 2**64)
    return kind is not list or all(map(is_quick, value))


def rebuild_value(tree: JsonTree, makers: Mapping[str, Maker]) -> Any:
    """Return the value that a JSON form describes: the inverse of `describe_value`.

    Tuples come back as lists, dataclasses and named tuples as dicts, keys as texts.

    Args:
        tree: parsed JSON: one form, or lists and objects of forms.
        makers: per ``type`` how a value of the framework's, or a tensor, is made of its form.

    Raises:
        NotRebuildableError: a form in it describes the value in words only.
    """
    if isinstance(tree, list):
        return [rebuild_value(item, makers) for item in tree]
    if not isinstance(tree, dict):
        return tree
    kind = tree.get("type")
    if not isinstance(kind, str):
        return {key: rebuild_value(item, makers) for key, item in tree.items()}
    make = makers.get(kind) or _MAKERS.get(kind)
    if make is None:
        raise NotRebuildableError(f"a {kind} cannot be rebuilt from a record")
    return make(tree)


def _rebuild_text(tree: dict[str, Any]) -> str:
    text: str = tree["value"]
    if len(text) > _LONGEST_TEXT and text.endswith(_CUT):
        raise NotRebuildableError(f"a text was cut after {_LONGEST_TEXT} characters")
    return text


def _rebuild_slice(tree: dict[str, Any]) -> slice:
    bounds = tree["value"]
    if any(isinstance(bound, str) for bound in bounds):
        raise NotRebuildableError(f"a bound of a slice is no number: {bounds}")
    return slice(*bounds)


def _rebuild_number(tree: dict[str, Any]) -> Any:
    if isinstance(tree["value"], str):
        raise NotRebuildableError(f"a {tree['type']} cannot be rebuilt from a record")
    return np.dtype(tree["type"]).type(tree["value"])


_NUMPY_NUMBERS: Final = (
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *("float16", "float32", "float64"),
)
_MAKERS: Final[Mapping[str, Maker]] = {
    **{name: lambda tree: tree["value"] for name in ("int", "float", "bool")},
    **dict.fromkeys(_NUMPY_NUMBERS, _rebuild_number),
    "str": _rebuild_text,
    "slice": _rebuild_slice,
    "ellipsis": lambda _: ...,
}


def type_name(kind: type) -> str:
    """Return a class as records name it: with its module, unless it is one of Python's own."""
    module = kind.__module__
    return kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"


class _ShortRepr(reprlib.Repr):
    """A repr that never runs a user's `__repr__`: it may read a device, and may hold an address."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 200
        self.maxlist = self.maxtuple = self.maxset = self.maxdict = 20
        self.maxlevel = 4

    def repr1(self, x: Any, level: int) -> str:
        # The inherited method goes by the name of the class, which any class may have.
        if type(x) in _SHORTENED:
            return super().repr1(x, level)
        return self.repr_instance(x, level)

    def repr_instance(self, x: Any, level: int) -> str:
        kind = type(x)
        if kind in _SHOWN:
            return super().repr_instance(x, level)
        if kind.__module__ == "builtins" and not callable(x):
            return f"<{kind.__qualname__}>"
        if issubclass(kind, enum.Enum):
            return f"{kind.__qualname__}.{x._name_}"
        name = x if issubclass(kind, _NAMED) else kind
        return f"<{name.__module__}.{name.__qualname__}>"

    def repr_set(self, x: Any, level: int) -> str:
        # Sorting compares: tensors would be read for it. Others have no order that lasts.
        if all(type(item) in SCALARS for item in x):
            return super().repr_set(x, level)
        return f"<{type(x).__qualname__} of {len(x)}>"

    def repr_frozenset(self, x: Any, level: int) -> str:
        if all(type(item) in SCALARS for item in x):
            return super().repr_frozenset(x, level)
        return f"<{type(x).__qualname__} of {len(x)}>"


_short_repr: Final = _ShortRepr()


def safe_repr(value: Any) -> str:
    """Return a short text for `value` that is the same in every run and never raises."""
    try:
        return _short_repr.repr(value)
    except Exception:  # noqa: BLE001 - a container's own iteration may raise anything
        return f"<{type(value).__qualname__}>"


def _bound(bound: Any) -> int | float | str | None:
    # A tensor as a bound would have to be read back from its device: its type must do.
    return bound if bound is None or type(bound) in (int, bool, float) else safe_repr(bound)
