# SPDX-License-Identifier: Apache-2.0
"""Describe the arguments and results of a call as JSON, whatever a user passes.

Tensors go to the adapter; everything else is described here. Nothing of the user's is changed,
iterated twice or kept. What cannot be described becomes ``{"type", "value": repr}``.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import reprlib
from collections.abc import Mapping, Sequence, Set
from typing import Any, Final

import numpy as np

from msprobe.capture.adapter import Adapter
from msprobe.capture.call import Draft
from msprobe.dump.array_file import ArrayFile, fits_archive
from msprobe.dump.layout import safe_file_name
from msprobe.dump.records import JsonTree

# Where a tensor stood: an index of the positional arguments, or a path of indices and keys.
Position = int | tuple[int | str, ...]
Found = list[tuple[Any, Position]]

_INPUT: Final = tuple(f"input.{i}" for i in range(64))
_OUTPUT: Final = tuple(f"output.{i}" for i in range(64))
_DEPTH_LIMIT: Final = 400  # deeper nesting is cut off, as readers would overflow on it
_SCALARS: Final = {int: "int", float: "float", bool: "bool", str: "str"}
_LONGEST_TEXT: Final = 10_000
# Whose repr shows their own value alone: that of other built-in types may show what is inside.
_SHOWN: Final = (bool, float, complex, bytes, bytearray, range, type(None))


class _ShortRepr(reprlib.Repr):
    """A repr that never runs a user's `__repr__`: it may read a device, and may hold an address."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 200
        self.maxlist = self.maxtuple = self.maxset = self.maxdict = 20
        self.maxlevel = 4

    def repr_instance(self, x: Any, level: int) -> str:
        if type(x) in _SHOWN:
            return super().repr_instance(x, level)
        if type(x).__module__ == "builtins" and not callable(x):
            return f"<{type(x).__qualname__}>"
        if isinstance(x, enum.Enum):
            return f"{type(x).__qualname__}.{x.name}"
        name = x if hasattr(x, "__qualname__") else type(x)
        return f"<{name.__module__}.{name.__qualname__}>"

    def repr_set(self, x: Set[Any], level: int) -> str:
        # Sorting compares: tensors would be read for it. Others have no order that lasts.
        if all(type(item) in _SCALARS for item in x):
            return super().repr_set(x, level)  # type: ignore[arg-type]
        return f"<{type(x).__qualname__} of {len(x)}>"

    def repr_frozenset(self, x: Set[Any], level: int) -> str:
        if all(type(item) in _SCALARS for item in x):
            return super().repr_frozenset(x, level)  # type: ignore[arg-type]
        return f"<{type(x).__qualname__} of {len(x)}>"


_short_repr: Final = _ShortRepr()


def _part(table: tuple[str, ...], stem: str, index: int) -> str:
    return table[index] if index < 64 else f"{stem}.{index}"


class Describer:
    """Turns Python values into the JSON of a draft; one for each session."""

    __slots__ = ("_adapter", "_is_tensor", "_record_tensor", "_tensor_types")

    def __init__(self, adapter: Adapter, tensor_types: Sequence[type]) -> None:
        """Create it.

        Args:
            adapter: describes tensors and framework values.
            tensor_types: the exact types that are surely tensors, for the quick way.
        """
        self._adapter = adapter
        self._tensor_types = frozenset(tensor_types)
        self._is_tensor = adapter.is_tensor
        self._record_tensor = adapter.record_tensor

    def arguments(self, draft: Draft, args: Sequence[Any], found: Found) -> list[JsonTree]:
        """Describe positional arguments; append each tensor with its position to `found`."""
        described: list[JsonTree] = []
        for index, value in enumerate(args):
            if type(value) in self._tensor_types:
                found.append((value, index))
                path = _part(_INPUT, "input", index)
                described.append(self._record_tensor(value, draft, path))
            else:
                described.append(
                    self._value(value, draft, _part(_INPUT, "input", index), found, (index,))
                )
        return described

    def keywords(
        self, draft: Draft, kwargs: Mapping[str, Any], found: Found
    ) -> dict[str, JsonTree]:
        """Describe keyword arguments, likewise."""
        return {
            key: self._value(value, draft, f"kwargs.{key}", found, (key,))
            for key, value in kwargs.items()
        }

    def outputs(self, draft: Draft, output: Any) -> list[JsonTree]:
        """Describe a result: a tuple spreads, anything else is one element."""
        if type(output) in self._tensor_types:
            return [self._record_tensor(output, draft, "output.0")]
        ignored: Found = []
        if type(output) is tuple or _is_structseq(output):
            return [
                self._value(value, draft, _part(_OUTPUT, "output", index), ignored, (index,))
                for index, value in enumerate(output)
            ]
        if isinstance(output, tuple) and hasattr(output, "_fields"):
            # A named tuple returned directly is an object by field instead of a list.
            return self._value(output, draft, "output", ignored, ())  # type: ignore[no-any-return]
        return [self._value(output, draft, "output.0", ignored, (0,))]

    def value(self, value: Any, draft: Draft, path: str, found: Found) -> JsonTree:
        """Describe one value of any kind, whose part of file names is `path`."""
        return self._value(value, draft, path, found, ())

    def _value(
        self,
        value: Any,
        draft: Draft,
        path: str,
        found: Found,
        position: tuple[int | str, ...],
    ) -> JsonTree:
        if value is None:
            return None
        kind = type(value)
        name = _SCALARS.get(kind)
        if name is not None:
            return _scalar(name, value, draft)
        if kind in self._tensor_types or self._is_tensor(value):
            found.append((value, _plain(position)))
            return self._record_tensor(value, draft, path)
        if len(position) >= _DEPTH_LIMIT:
            return {"type": _type_name(kind), "value": "…"}
        children = _children(value)
        if children is None:
            return self._leaf(value, draft, path, position)
        keys, values, is_object = children
        parts = _file_parts(keys) if is_object else keys
        described = [
            self._value(child, draft, f"{path}.{part}", found, (*position, key))
            for key, part, child in zip(keys, parts, values, strict=True)
        ]
        if is_object:
            return dict(zip(map(str, keys), described, strict=True))
        return described

    def _leaf(
        self, value: Any, draft: Draft, path: str, position: tuple[int | str, ...]
    ) -> JsonTree:
        key = str(position[-1]) if position else path
        special = self._adapter.describe(value, key)
        if special is not NotImplemented:
            return special
        if isinstance(value, slice):
            bounds = [_slice_bound(bound) for bound in (value.start, value.stop, value.step)]
            return {"type": "slice", "value": bounds}
        if value is Ellipsis:
            return {"type": "ellipsis", "value": "..."}
        if isinstance(value, np.ndarray):
            return describe_array(value, draft, path)
        if isinstance(value, np.generic):
            return _numpy_scalar(value, draft)
        for kind, name in _SCALARS.items():  # subclasses: IntEnum, StrEnum, user's own
            if isinstance(value, kind):
                return _scalar(name, kind(value), draft)
        return {"type": _type_name(type(value)), "value": safe_repr(value)}


def _plain(position: tuple[int | str, ...]) -> Position:
    first = position[0] if len(position) == 1 else None
    return first if isinstance(first, int) else position


def _is_structseq(value: Any) -> bool:
    # torch.return_types.max and its like: tuples made in C, described as lists.
    return isinstance(value, tuple) and hasattr(value, "n_sequence_fields")


def _children(value: Any) -> tuple[Sequence[int | str], Sequence[Any], bool] | None:
    """Return (keys, values, whether it is described as an object) of a container."""
    if isinstance(value, Mapping):
        items = list(value.items())
        return key_texts([key for key, _ in items]), [child for _, child in items], True
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(value._fields), list(value), True
    if isinstance(value, tuple | list):
        if type(value).__name__ == "Size":  # torch.Size is a tuple; the adapter describes it
            return None
        return range(len(value)), value, False
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [f.name for f in dataclasses.fields(value) if f.name in _attributes(value)]
        return fields, [getattr(value, name) for name in fields], True
    return None


def _attributes(value: Any) -> Sequence[str] | Mapping[str, Any]:
    # Slotted dataclasses have no __dict__; a field that was deleted must not raise.
    own = getattr(value, "__dict__", None)
    return own if own is not None else [f.name for f in dataclasses.fields(value)]


def key_texts(keys: Sequence[Any]) -> list[str]:
    """Return the keys of a mapping as texts that differ, also where ``1`` and ``"1"`` meet."""
    if all(type(key) is str for key in keys):
        return list(keys)
    taken = {key for key in keys if type(key) is str}
    texts: list[str] = []
    for key in keys:
        if type(key) is str:
            texts.append(key)
            continue
        text = _unused(safe_repr(key), taken)
        taken.add(text)
        texts.append(text)
    return texts


def _file_parts(keys: Sequence[int | str]) -> Sequence[int | str]:
    """Return what stands for each key in file names.

    It is the key, but where "a.b" stands beside "a" it could also mean what is at "b" inside "a".
    """
    dotted = [key for key in keys if type(key) is str and "." in key]
    if not dotted:
        return keys
    taken = set(keys)
    parts: dict[int | str, int | str] = {}
    for key in dotted:
        pieces = key.split(".")
        if any(".".join(pieces[:count]) in taken for count in range(1, len(pieces))):
            parts[key] = _unused("_".join(pieces), taken)
            taken.add(parts[key])
    return [parts.get(key, key) for key in keys]


def _unused(wanted: str, taken: Set[Any]) -> str:
    text, number = wanted, 1
    while text in taken:
        text, number = f"{wanted}_{number}", number + 1
    return text


def _slice_bound(bound: Any) -> int | float | str | None:
    if bound is None or type(bound) in (int, bool):
        return bound  # type: ignore[no-any-return]
    # A tensor as a bound would have to be read back from its device: its type must do.
    return bound if type(bound) is float else safe_repr(bound)


def _scalar(name: str, value: Any, draft: Draft) -> JsonTree:
    if name == "float":
        if not math.isfinite(value):
            draft.nonfinite = True
    elif name == "str" and len(value) > _LONGEST_TEXT:
        value = value[:_LONGEST_TEXT] + "…"
    elif name == "int" and not -(2**63) <= value < 2**64:
        draft.nonfinite = True  # too long for the quick encoder; Python's json writes any int
    return {"type": name, "value": value}


def _numpy_scalar(value: np.generic, draft: Draft) -> JsonTree:
    plain = value.item()
    if type(plain) in _SCALARS:
        _scalar(_SCALARS[type(plain)], plain, draft)
        return {"type": value.dtype.name, "value": plain}
    return {"type": value.dtype.name, "value": safe_repr(value)}


def describe_array(array: np.ndarray[Any, Any], draft: Draft, path: str) -> JsonTree:
    """Describe a numpy array: dtype, shape, its four statistics in float64, its file."""
    described: dict[str, JsonTree] = {
        "type": "numpy.ndarray",
        "dtype": str(array.dtype),
        "shape": list(array.shape),
        "Max": None,
        "Min": None,
        "Mean": None,
        "Norm": None,
    }
    if draft.files is not None and draft.held is None and array.size and not array.dtype.hasobject:
        # What a tensor cannot be, such as text, is a file of NumPy's.
        suffix = draft.suffix if fits_archive(array) else ".npy"
        described["data_name"] = name = safe_file_name(f"{draft.stem}.{path}{suffix}")
        draft.files.put_tensor(name, ArrayFile(np.array(array, order="C", copy=True)))
    if array.size == 0 or array.dtype.kind not in "biuf":
        return described
    described["Max"], described["Min"] = array.max().item(), array.min().item()
    if array.dtype.kind != "b":
        with np.errstate(all="ignore"):  # infinities are described, not warned of
            wide = array.astype(np.float64, copy=False)
            described["Mean"] = float(wide.mean())
            described["Norm"] = float(np.sqrt(np.square(wide).sum()))
    if not all(math.isfinite(described[key] or 0) for key in ("Max", "Min", "Mean", "Norm")):
        draft.nonfinite = True
    return described


def _type_name(kind: type) -> str:
    module = kind.__module__
    return kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"


def safe_repr(value: Any) -> str:
    """Return a short text for `value` that is the same in every run and never raises."""
    try:
        return _short_repr.repr(value)
    except Exception:  # noqa: BLE001 - a container's own iteration may raise anything
        return f"<{type(value).__qualname__}>"
