# SPDX-License-Identifier: Apache-2.0
"""Arguments of a call, made again from their forms in a record, and the parts of its results."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from msprobe.dump.formats.dtypes import STORAGE_TYPES, normal_dtype
from msprobe.dump.records import JsonTree
from msprobe.dump.tensor_files import StoredTensor
from msprobe.dump.value_types import Maker, NotRebuildableError, rebuild_value
from msprobe.dump.values import PartPath
from msprobe.errors import RecordNotFoundError, UnsupportedError
from msprobe.replay.recorded_calls import RecordedCall
from msprobe.replay.runner import CannotReplayError, Reason
from msprobe.replay.tensors import CallTensors

_NUMPY: Final = "numpy.ndarray"
_CONTAINERS: Final = (list, tuple, dict)
_TENSORS: Final = ("torch.Tensor", "mindspore.Tensor", "mindspore.Parameter", _NUMPY)


class Rebuilder:
    """Makes the values of one call of their forms; each tensor file is read once."""

    def __init__(
        self,
        tensors: CallTensors,
        make: Callable[[StoredTensor], Any],
        makers: Mapping[str, Maker],
    ) -> None:
        """Prepare for the values of one call.

        Args:
            tensors: has the elements of its tensors.
            make: returns a tensor of the framework's.
            makers: per ``type`` how another value of the framework's is made of its form.
        """
        self._tensors = tensors
        self._make = make
        self._place: PartPath = ()
        self._known: dict[int, Any] = {}
        self._makers: dict[str, Maker] = {**makers, **dict.fromkeys(_TENSORS, self._tensor)}

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
            dtype = normal_dtype(str(tree["dtype"]))
            zeros = np.zeros(tuple(tree["shape"]), STORAGE_TYPES[dtype])
            return self._make(StoredTensor(array=zeros, dtype=dtype))
        number = tree.get("value_id")
        if number is not None and number in self._known:
            return self._known[number]
        stored = self._tensors.read(tree, ".".join(map(str, self._place)))
        if tree["type"] == _NUMPY:
            return stored.array
        tensor = self._make(stored)
        if number is not None:
            self._known[number] = tensor
        return tensor


def converted(
    value: Any,
    change: Callable[[Any, PartPath], Any],
    place: PartPath = (),
    kinds: Collection[type] | None = None,
) -> Any:
    """Return nested arguments with each value in them changed.

    Args:
        value: lists, dicts, tensors, anything.
        change: makes the new value of an old one and its place.
        place: where `value` is.
        kinds: types of the values that change; None for all.
    """
    kind = type(value)
    if kind not in _CONTAINERS:
        return change(value, place) if kinds is None or kind in kinds else value
    if not value:
        return kind()
    # Without a call of this function for what is no container.
    found = [
        converted(item, change, (*place, key), kinds)
        if type(item) in _CONTAINERS
        else change(item, (*place, key))
        if kinds is None or type(item) in kinds
        else item
        for key, item in (value.items() if kind is dict else enumerate(value))
    ]
    if kind is list:
        return found
    return tuple(found) if kind is tuple else dict(zip(value, found, strict=True))


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


def readings(call: RecordedCall, args: Sequence[Any]) -> Iterator[list[Any]]:
    """Yield the arguments with lists as they are, then with those that may have been tuples.

    Records do not tell lists from tuples; indexing does.
    """
    plain = list(args)
    is_indexing = call.api in ("__getitem__", "__setitem__")
    if not is_indexing or len(plain) < 2 or not isinstance(plain[1], list):
        yield plain
        return
    yield [plain[0], tuple(plain[1]), *plain[2:]]
    yield plain
