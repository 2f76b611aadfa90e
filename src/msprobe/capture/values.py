# SPDX-License-Identifier: Apache-2.0
"""Describe the arguments and results of a call as JSON, for any type of value.

Tensors and values of the framework go to the adapter, `msprobe.dump.value_types` has the forms of
Python's and NumPy's, `nested` the way through containers. Nothing of the user's is changed, run or
kept. Other values become ``{"type", "value": repr}``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from msprobe.capture.adapter import Adapter
from msprobe.capture.call import Draft
from msprobe.capture.nested import FLAT, Place, Walk, is_spread
from msprobe.dump.array_file import ArrayFile, fits_archive
from msprobe.dump.records import JsonTree, TensorRecord
from msprobe.dump.value_types import (
    describe_scalar,
    describe_value,
    is_quick,
    safe_repr,
    type_name,
)

# The position of a tensor: an index of the positional arguments, or a path of indices and keys.
Position = int | Place
Found = list[tuple[Any, Position]]

_INPUT: Final = tuple(f"input.{i}" for i in range(64))


def _input(index: int) -> str:
    return _INPUT[index] if index < 64 else f"input.{index}"


class Unread:
    """A tensor in the place of an argument or a result, to be described by a record made before.

    Attributes:
        tensor: the tensor, whose gradients are followed as those of any other.
        record: the record that replaces it.
    """

    __slots__ = ("record", "tensor")

    def __init__(self, tensor: Any, record: TensorRecord) -> None:
        self.tensor = tensor
        self.record = record


class Described:
    """In the place of an argument or a result: its description.

    Attributes:
        value: the description.
    """

    __slots__ = ("value",)

    def __init__(self, value: JsonTree) -> None:
        self.value = value


class Describer:
    """Turns Python values into the JSON of a draft; one for each session.

    Attributes:
        adapter: describes tensors and framework values.
    """

    __slots__ = ("_record_plain", "_record_tensor", "_tensor_types", "adapter")

    def __init__(self, adapter: Adapter, tensor_types: Sequence[type]) -> None:
        """Create it.

        Args:
            adapter: describes tensors and framework values.
            tensor_types: the exact types that are surely tensors, for the quick way.
        """
        self.adapter = adapter
        self._tensor_types = frozenset(tensor_types)
        self._record_tensor = adapter.record_tensor
        self._record_plain = adapter.record_plain

    def inputs(
        self, draft: Draft, args: Sequence[Any], kwargs: Mapping[str, Any] | None, found: Found
    ) -> tuple[JsonTree, JsonTree]:
        """Describe the arguments of a call; append each tensor with its position to `found`."""
        plain = self._record_plain(args, kwargs, draft, found)
        if plain is not None:
            return plain
        tensor_types, walk = self._tensor_types, None
        positional: list[JsonTree] = []
        for index, value in enumerate(args):
            kind = type(value)
            if kind in tensor_types:
                found.append((value, index))
                positional.append(self._record_tensor(value, draft, _input(index)))
            elif kind in FLAT:
                positional.append(_plain(value, draft))
            else:
                walk = walk or Description(self.adapter, draft, found)
                positional.append(walk.value(value, (index,), _input(index)))
        named: dict[str, JsonTree] = {}
        for key, value in (kwargs or {}).items():
            if type(value) in FLAT:
                named[key] = _plain(value, draft)
            else:
                walk = walk or Description(self.adapter, draft, found)
                named[key] = walk.value(value, (key,), f"kwargs.{key}")
        return positional, named

    def outputs(self, draft: Draft, output: Any) -> list[JsonTree]:
        """Describe a result: a tuple spreads, anything else is one element."""
        if type(output) in self._tensor_types:
            return [self._record_tensor(output, draft, "output.0")]
        walk = Description(self.adapter, draft, [])
        if is_spread(output):
            return [
                walk.value(value, (index,), f"output.{index}")
                for index, value in enumerate(tuple.__iter__(output))
            ]
        if issubclass(type(output), tuple) and hasattr(type(output), "_fields"):
            # A named tuple returned directly is an object by field instead of a list.
            return walk.value(output, (), "output")  # type: ignore[no-any-return]
        return [walk.value(output, (0,), "output.0")]

    def value(self, value: Any, draft: Draft, path: str) -> JsonTree:
        """Describe one value of any kind, whose part of file names is `path`."""
        if type(value) in self._tensor_types:
            return self._record_tensor(value, draft, path)
        return Description(self.adapter, draft, []).value(value, (), path)


class Description(Walk):
    """A walk that describes each value."""

    __slots__ = ("_adapter", "_draft", "_found")

    def __init__(self, adapter: Adapter, draft: Draft, found: Found) -> None:
        """Begin.

        Args:
            adapter: describes tensors and framework values.
            draft: the record that the description becomes part of.
            found: gets each tensor with its position.
        """
        super().__init__()
        self._adapter = adapter
        self._draft = draft
        self._found = found

    def is_tensor(self, value: object) -> bool:
        """Return whether the adapter knows it as a tensor."""
        return type(value) is Unread or self._adapter.is_tensor(value)

    def tensor(self, tensor: Any, place: Place, path: str) -> JsonTree:
        """Describe a tensor, and note its position."""
        first = place[0] if len(place) == 1 else None
        position = first if type(first) is int else place
        if type(tensor) is Unread:
            self._found.append((tensor.tensor, position))
            return tensor.record
        self._found.append((tensor, position))
        return self._adapter.record_tensor(tensor, self._draft, path)

    def scalar(self, value: Any) -> JsonTree:
        """Describe a number or a text."""
        return _plain(value, self._draft)

    def leaf(self, value: Any, place: Place, path: str) -> JsonTree:
        """Describe a value of the framework's, an array, or anything else."""
        if type(value) is Described:
            return value.value
        special = self._adapter.describe(value, str(place[-1]) if place else path)
        if special is not NotImplemented:
            return special
        if issubclass(type(value), np.ndarray):
            return describe_array(np.ndarray.view(value, np.ndarray), self._draft, path)
        described = describe_value(value)
        if described is NotImplemented:
            return self.other(value)
        if not is_quick(described["value"]):
            self._draft.nonfinite = True
        return described

    def other(self, value: Any) -> JsonTree:
        """Describe a value of any other type."""
        return {"type": type_name(type(value)), "value": safe_repr(value)}


def _plain(value: Any, draft: Draft) -> JsonTree:
    """Describe a value of one of the types `FLAT`."""
    if value is None:
        return None
    if not is_quick(value):
        draft.nonfinite = True
    return describe_scalar(value)


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
        # Arrays that cannot be tensors, such as text, go to a file of NumPy's.
        suffix = draft.suffix if fits_archive(array) else ".npy"
        described["data_name"] = name = draft.file_name(path, suffix)
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
