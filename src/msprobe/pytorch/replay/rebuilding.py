# SPDX-License-Identifier: Apache-2.0
"""Arguments of a call, made again from their forms in a record."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch

from msprobe.dump.records import JsonTree
from msprobe.dump.tensor_files import StoredTensor
from msprobe.dump.value_types import Maker, NotRebuildableError, rebuild_value
from msprobe.dump.values import PartPath
from msprobe.errors import RecordNotFoundError, UnsupportedError
from msprobe.pytorch.values.describing import MAKERS
from msprobe.replay.runner import CannotReplayError, Reason
from msprobe.replay.tensors import TensorSource

# Types whose elements NumPy holds as bit patterns.
_PATTERNS: Final = {
    "bfloat16": (np.int16, torch.bfloat16),
    **{
        name: (np.uint8, getattr(torch, name))
        for name in ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
    },
    "float8_e8m0fnu": (np.uint8, getattr(torch, "float8_e8m0fnu", None)),
}
_TENSOR: Final = ("torch.Tensor", "numpy.ndarray")


def to_torch(stored: StoredTensor) -> torch.Tensor:
    """Return a stored tensor as one of PyTorch's, on the CPU."""
    array = np.ascontiguousarray(stored.array).reshape(stored.array.shape)
    pattern = _PATTERNS.get(stored.dtype)
    with warnings.catch_warnings():
        # A memory that cannot be written: every run works on copies.
        warnings.simplefilter("ignore")
        if pattern is None:
            return torch.from_numpy(array)
        return torch.from_numpy(array.view(pattern[0])).view(pattern[1])


def from_torch(tensor: torch.Tensor) -> StoredTensor:
    """Return the elements of a tensor."""
    plain = tensor.detach()
    if plain.layout is not torch.strided:
        plain = plain.to_dense()
    plain = plain.resolve_conj().resolve_neg().cpu()
    dtype = str(plain.dtype).removeprefix("torch.")
    pattern = _PATTERNS.get(dtype)
    if pattern is None:
        return StoredTensor(array=plain.numpy(force=True), dtype=dtype)
    bits = plain.contiguous().view(torch.int16 if pattern[0] is np.int16 else torch.uint8)
    unsigned = np.uint16 if pattern[0] is np.int16 else np.uint8
    return StoredTensor(array=bits.numpy().view(unsigned), dtype=dtype)


class Rebuilder:
    """Makes the values of one call of their forms; each tensor file is read once.

    Attributes:
        places: the form of each tensor made so far, by place.
    """

    def __init__(self, tensors: TensorSource) -> None:
        """Take the elements of tensors from `tensors`."""
        self._tensors = tensors
        self._place: PartPath = ()
        self._known: dict[int, torch.Tensor] = {}
        self._makers: dict[str, Maker] = {
            **MAKERS,
            **dict.fromkeys(_TENSOR, self._tensor),
        }

    def value(self, tree: JsonTree, place: PartPath) -> Any:
        """Return the value that a form describes.

        Raises:
            CannotReplayError: it cannot be made again.
            DumpFormatError: a tensor file is damaged.
        """
        self._place = place
        try:
            return self._rebuild(tree)
        except NotRebuildableError as exc:
            where = ".".join(map(str, place))
            raise CannotReplayError(Reason.ARGUMENT, f"{where}: {exc}") from exc
        except (RecordNotFoundError, UnsupportedError) as exc:
            raise CannotReplayError(Reason.MISSING, str(exc)) from exc
        except (AttributeError, KeyError, TypeError, RuntimeError) as exc:
            where = ".".join(map(str, place))
            raise CannotReplayError(Reason.ARGUMENT, f"{where}: {exc}") from exc

    def _rebuild(self, tree: JsonTree) -> Any:
        """Return containers by their parts, so that each tensor knows its place."""
        place = self._place
        if isinstance(tree, list):
            found = []
            for index, item in enumerate(tree):
                self._place = (*place, index)
                found.append(self._rebuild(item))
            return found
        if isinstance(tree, dict) and not isinstance(tree.get("type"), str):
            fields = {}
            for key, item in tree.items():
                self._place = (*place, key)
                fields[key] = self._rebuild(item)
            return fields
        return rebuild_value(tree, self._makers)

    def _tensor(self, tree: dict[str, Any]) -> Any:
        if tree.get("undefined") and not tree.get("written"):
            raise CannotReplayError(Reason.MEMORY, "memory that nothing had filled")
        if tree.get("written"):
            dtype = getattr(torch, str(tree["dtype"]).removeprefix("torch."))
            return torch.zeros(tuple(tree["shape"]), dtype=dtype)
        number = tree.get("value_id")
        if number is not None and number in self._known:
            return self._known[number]
        stored = self._tensors.read(tree, ".".join(map(str, self._place)))
        if tree["type"] == "numpy.ndarray":
            return stored.array
        tensor = to_torch(stored)
        if number is not None:
            self._known[number] = tensor
        return tensor


def converted(value: Any, change: Callable[[Any, PartPath], Any], place: PartPath = ()) -> Any:
    """Return nested arguments with each value in them changed.

    Args:
        value: lists, dicts, tensors, anything.
        change: makes the new value of an old one and its place.
        place: where `value` is.
    """
    if type(value) is list:
        return [converted(item, change, (*place, index)) for index, item in enumerate(value)]
    if type(value) is tuple:
        return tuple(converted(item, change, (*place, index)) for index, item in enumerate(value))
    if type(value) is dict:
        return {key: converted(item, change, (*place, key)) for key, item in value.items()}
    return change(value, place)


def result_at(result: Any, place: PartPath) -> Any:
    """Return the part of a function's result that a record has at a place.

    Raises:
        CannotReplayError: the result has another form.
    """
    first, *rest = place
    found = result
    if isinstance(first, int):
        if isinstance(result, tuple):
            found = result[first] if first < len(result) else None
        elif first != 0:
            found = None
    else:
        rest = [first, *rest]
    for key in rest:
        try:
            is_named = isinstance(key, str) and not isinstance(found, dict)
            found = getattr(found, str(key)) if is_named else found[key]
        except (AttributeError, IndexError, KeyError, TypeError) as exc:
            where = ".".join(map(str, place))
            raise CannotReplayError(Reason.STRUCTURE, f"no output.{where}") from exc
    return found
