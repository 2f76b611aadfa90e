# SPDX-License-Identifier: Apache-2.0
"""Walk through nested arguments, to describe, save or search them.

- Only containers whose content lies open are entered: lists, tuples and dicts (of any class, read
  with the methods of the base class), named tuples, dataclasses, `UserDict`. Reading others would
  run code of the user's, which may draw random numbers or load a file.
- A container is entered once. Where it comes again it is said to be the same, unless it is flat.
- Of one call's arguments, and of its result, at most `MOST_VALUES` each of tensors, containers and
  other values are looked at, and at most so many of one container; the rest is counted by type.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections import Counter, UserDict
from collections.abc import Callable, Iterable, Sequence, Set
from functools import lru_cache
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, Final

from msprobe.dump.records import JsonTree
from msprobe.dump.value_types import OMITTED, SCALARS, safe_repr, type_name

MOST_VALUES: Final = 10_000
_DEPTH_LIMIT: Final = 400  # deeper nesting is cut off, as readers would overflow on it
FLAT: Final = frozenset({*SCALARS, type(None)})
"""Types of values that hold nothing else."""
# The rest of a list is searched for tensors if it is no longer than this.
_SHORT_REST: Final = 100
_LEFT_OUT: Final = object()

Place = tuple[int | str, ...]
"""The indices and keys that lead to a value."""
Content = tuple[Sequence[Any] | None, Sequence[Any]]
"""Keys (None for a sequence) and values of a container."""


class Walk(ABC):
    """One pass through the arguments, or the result, of a call."""

    __slots__ = ("_containers", "_seen", "_tensors", "_values")

    def __init__(self) -> None:
        # How many of each have been looked at.
        self._tensors = self._values = self._containers = 0
        # Where each container was entered that holds others; and those that the walk is inside of.
        self._seen: dict[int, str] = {}

    @abstractmethod
    def is_tensor(self, value: object) -> bool:
        """Return whether a value is one of the tensors to find; goes by its type alone."""

    @abstractmethod
    def tensor(self, tensor: Any, place: Place, path: str) -> JsonTree:
        """Take a tensor; return the value that replaces it."""

    @abstractmethod
    def scalar(self, value: Any) -> JsonTree:
        """Take a value of one of the types `SCALARS`; return the value that replaces it."""

    @abstractmethod
    def leaf(self, value: Any, place: Place, path: str) -> JsonTree:
        """Take any other value that is no container; return the value that replaces it."""

    def value(self, value: Any, place: Place, path: str) -> JsonTree:
        """Go through a value of any kind.

        Args:
            value: the value; it is only read.
            place: its position in the call.
            path: its part of file names.
        """
        found = self._value(value, place, path)
        return _omitted([value]) if found is _LEFT_OUT else found

    def _value(self, value: Any, place: Place, path: str) -> JsonTree:
        if value is None:
            return None
        kind = type(value)
        if kind in SCALARS:
            self._values += 1
            return self.scalar(value) if self._values <= MOST_VALUES else _LEFT_OUT
        if self.is_tensor(value):
            self._tensors += 1
            return self.tensor(value, place, path) if self._tensors <= MOST_VALUES else _LEFT_OUT
        read = _reader(kind)  # type: ignore[arg-type]  # classes are hashable
        content = None if read is None else read(value)
        if content is None:
            self._values += 1
            return self.leaf(value, place, path) if self._values <= MOST_VALUES else _LEFT_OUT
        self._containers += 1
        if self._containers > MOST_VALUES:
            return _LEFT_OUT
        if len(place) >= _DEPTH_LIMIT:
            return {"type": type_name(kind), "value": "…"}
        first = self._seen.get(id(value))
        if first is not None:
            return {"type": type_name(kind), "value": f"same as {first}"}
        self._seen[id(value)] = path
        before = self._containers
        keys, values = content
        found = (
            self._sequence(values, place, path)
            if keys is None
            else self._object(key_texts(keys[:MOST_VALUES]), values, place, path)
        )
        if self._containers == before:
            del self._seen[id(value)]
        return found

    def _sequence(self, values: Sequence[Any], place: Place, path: str) -> JsonTree:
        kinds = set(map(type, values))
        if kinds <= FLAT:
            return self._flat(values, kinds)
        found: list[JsonTree] = []
        for index, value in enumerate(values):
            one = _LEFT_OUT
            if index < MOST_VALUES:
                one = self._value(value, (*place, index), f"{path}.{index}")
            if one is _LEFT_OUT:
                if len(values) - index > _SHORT_REST:
                    found.append(_omitted(values[index:]))
                    break
                one = _omitted([value])
            found.append(one)
        return found

    def _flat(self, values: Sequence[Any], kinds: Set[type]) -> JsonTree:
        """Take numbers, texts and None, without a look at those that are too many."""
        left = max(0, MOST_VALUES - self._values)
        self._values += len(values)
        scalar = self.scalar
        found = [None if value is None else scalar(value) for value in values[:left]]
        if len(values) > left:
            # Counting a million by type takes longer than the call itself.
            only = f"{len(values) - left} {type_name(*kinds)}" if len(kinds) == 1 else None
            found.append({"type": OMITTED, "value": only} if only else _omitted(values[left:]))
        return found

    def _object(
        self, keys: Sequence[str], values: Sequence[Any], place: Place, path: str
    ) -> JsonTree:
        found: dict[str, JsonTree] = {}
        left_out = list(values[MOST_VALUES:])
        for key, part, value in zip(keys, _file_parts(keys), values, strict=False):
            one = self._value(value, (*place, key), f"{path}.{part}")
            if one is _LEFT_OUT:
                left_out.append(value)
            else:
                found[key] = one
        if left_out:
            found[_unused("…", set(keys))] = _omitted(left_out)
        return found


def _omitted(values: Iterable[Any]) -> JsonTree:
    counts = Counter(map(type, values)).most_common()
    return {"type": OMITTED, "value": ", ".join(f"{n} {type_name(kind)}" for kind, n in counts)}


# -- containers --------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _reader(kind: type) -> Callable[[Any], Content | None] | None:
    """Return functions that read a container of a class without the methods of that class.

    None for a class that is none, or whose content lies behind its methods.
    """
    if kind is list or kind is tuple:
        return _of_sequence
    if issubclass(kind, dict):
        return _of_dict
    if issubclass(kind, list):
        return _of_list
    if issubclass(kind, tuple):
        return _tuple_reader(kind)
    dict_of = _instance_dict(kind)
    if UserDict in kind.__mro__ and dict_of is not None:
        return lambda value: _of_user_dict(dict_of(value))
    if _attribute_of_class(kind, "__dataclass_fields__") is not None:
        return _dataclass_reader(kind, dict_of)
    return None


def is_spread(value: Any) -> bool:
    """Return whether a result is several results: a tuple without names for its elements."""
    kind = type(value)
    return kind is tuple or (issubclass(kind, tuple) and hasattr(kind, "n_sequence_fields"))


def _of_sequence(value: Sequence[Any]) -> Content:
    return None, value


def _of_list(value: list[Any]) -> Content:
    return None, list(list.__iter__(value))


def _of_dict(value: dict[Any, Any]) -> Content:
    items = list(dict.items(value))
    return [key for key, _ in items], [item for _, item in items]


def _of_user_dict(attributes: dict[str, Any]) -> Content | None:
    data: Any = attributes.get("data")
    return _of_dict(data) if issubclass(type(data), dict) else None


def _tuple_reader(kind: type) -> Callable[[Any], Content] | None:
    if kind.__name__ == "Size":  # torch.Size: the adapter describes it
        return None
    names: Any = _attribute_of_class(kind, "_fields")

    def read(value: tuple[Any, ...]) -> Content:
        values = list(tuple.__iter__(value))
        is_named = type(names) is tuple and len(names) == len(values)
        return names if is_named else None, values

    return read


def _dataclass_reader(
    kind: type, dict_of: Callable[[Any], dict[str, Any]] | None
) -> Callable[[Any], Content]:
    names = [field.name for field in dataclasses.fields(kind)]
    slots = {name: _attribute_of_class(kind, name) for name in names}

    def read(value: Any) -> Content:
        attributes = {} if dict_of is None else dict_of(value)
        found: dict[str, Any] = {}
        for name in names:
            slot = slots[name]
            if type(slot) is MemberDescriptorType:
                try:
                    found[name] = slot.__get__(value)
                except AttributeError:  # never set, or deleted
                    continue
            elif name in attributes:
                found[name] = attributes[name]
        return list(found), list(found.values())

    return read


def _instance_dict(kind: type) -> Callable[[Any], dict[str, Any]] | None:
    """Return a reader of an instance's attributes that skips its class's `__getattribute__`."""
    found: Any = _attribute_of_class(kind, "__dict__")
    return found.__get__ if type(found) is GetSetDescriptorType else None


def _attribute_of_class(kind: type, name: str) -> object:
    return next((base.__dict__[name] for base in kind.__mro__ if name in base.__dict__), None)


# -- keys --------------------------------------------------------------------------------------


def key_texts(keys: Sequence[Any]) -> list[str]:
    """Return the keys of a mapping as texts that differ, also where ``1`` and ``"1"`` meet."""
    if set(map(type, keys)) <= {str}:
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


def _file_parts(keys: Sequence[str]) -> Sequence[str]:
    """Return the part of file names for each key.

    It is the key, but where "a.b" is beside "a" it could also mean the value at "b" inside "a".
    """
    dotted = [key for key in keys if "." in key]
    if not dotted:
        return keys
    taken = set(keys)
    parts: dict[str, str] = {}
    for key in dotted:
        pieces = key.split(".")
        if any(".".join(pieces[:count]) in taken for count in range(1, len(pieces))):
            parts[key] = _unused("_".join(pieces), taken)
            taken.add(parts[key])
    return [parts.get(key, key) for key in keys]


def _unused(wanted: str, taken: Set[str]) -> str:
    text, number = wanted, 1
    while text in taken:
        text, number = f"{wanted}_{number}", number + 1
    return text
