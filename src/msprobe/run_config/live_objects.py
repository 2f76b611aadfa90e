# SPDX-License-Identifier: Apache-2.0
"""Find objects of this process by their class, and write plain settings of objects as text.

A program keeps its arguments, schedulers and data loaders in variables that no hook can see.
Python's garbage collector knows every object, and looking at the classes of all costs about 0.1 s.
Nothing of an object is called or read while looking.
"""

from __future__ import annotations

import gc
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import lru_cache, partial
from io import IOBase
from itertools import compress, islice
from logging import Logger
from operator import itemgetter
from pathlib import PurePath
from threading import Thread
from types import (
    BuiltinFunctionType,
    FunctionType,
    GeneratorType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any, Final
from weakref import ref
from zlib import crc32

from msprobe.run_config.secrets import hide_secrets

_MAX_TEXT: Final = 200
_MAX_ELEMENTS: Final = 16
_MAX_NUMBERS: Final = 1 << 20
_MAX_DEPTH: Final = 3
_MAX_DESCRIBED: Final = 500
NOT_DESCRIBED: Final = "not compared"
"""End of the text of an object of which no more than its class is known."""
# They change while a program runs, or say where it lies; transformers' Trainer lists the columns
# that a model takes in the order of a set.
_PASSING: Final = re.compile(
    r"signature_columns|(.*_)?(time|start|elapsed|now|date|timestamp|path|logger|uuid|pid)s?|"
    r"(log|output|out|save|result|cache)s?_?(dir|directory|file|folder|root)"
)
_LEFT_ALONE: Final = (ModuleType, Thread, Logger, IOBase, GeneratorType, ref)

_PLAIN: Final = (
    *(bool, int, float, str, bytes, complex, range, slice, PurePath, Decimal, Fraction, re.Pattern),
)

Kinds = Mapping[str, list[Any]]
"""Objects by kind."""


class _KindsOfClasses(dict[type, str | None]):
    """Kinds of the objects of each class, asked of the recognisers once."""

    def __init__(self, recognisers: Sequence[Callable[[type], str | None]]) -> None:
        self._recognisers = recognisers

    def __missing__(self, of_type: type) -> str | None:
        answers = (recognise(of_type) for recognise in self._recognisers)
        self[of_type] = next((kind for kind in answers if kind is not None), None)
        return self[of_type]


def live_objects(*recognisers: Callable[[type], str | None]) -> Kinds:
    """Return the objects that a recogniser names a kind for, by kind, the oldest first.

    Args:
        recognisers: return the kind of the objects of a class, or None; the first answer counts.
    """
    kinds = _KindsOfClasses(recognisers)
    found: dict[str, list[Any]] = {}
    for generation in (2, 1, 0):
        objects = gc.get_objects(generation)
        # A million objects may be there: no Python runs for those of a class seen before.
        for one in compress(objects, map(kinds.__getitem__, map(type, objects))):
            found.setdefault(str(kinds[type(one)]), []).append(one)
    return found


def plain_settings(
    owner: Any, *, without: frozenset[str] = frozenset()
) -> Iterator[tuple[str, str]]:
    """Yield the public attributes of an object that are settings, as text.

    Args:
        owner: the object.
        without: names that are left out.
    """
    for name, value in getattr(owner, "__dict__", {}).items():
        if isinstance(name, str) and not name.startswith("_") and name not in without:
            text = setting_text(value)
            if text is not None:
                yield name, hide_secrets(name, text)


def described_settings(
    owner: Any,
    array_text: Callable[[Any], str | None],
    *,
    without: frozenset[str] = frozenset(),
) -> Iterator[tuple[str, str]]:
    """Yield `plain_settings`, and those of the objects that an object holds, under their places.

    Nothing of an object is called. What holds no plain attribute is told by its class.

    Args:
        owner: the object.
        array_text: returns a text for an array or tensor, None for everything else.
        without: names that are left out.
    """
    seen, waiting, count = {id(owner)}, [("", owner, 0)], 0
    while waiting and count < _MAX_DESCRIBED:
        begin, one, depth = waiting.pop()
        for key, value in _parts_of(one):
            is_public = key not in without and not key.startswith("_")
            if value is None or not is_public or _PASSING.fullmatch(key.lower()):
                continue
            name, count = f"{begin}{key}", count + 1
            text, of_array = setting_text(value), array_text(value) or _generator_text(value)
            if text is not None:
                yield name, hide_secrets(key, text)
            elif of_array is not None:
                yield f"{name}.values", of_array
            elif id(value) not in seen and not isinstance(value, _LEFT_ALONE):
                seen.add(id(value))
                goes_on = depth < _MAX_DEPTH and any(True for _ in _parts_of(value))
                shown = f"{type(value).__module__}.{type(value).__qualname__}"
                is_told = goes_on or _is_empty(value)
                yield f"{name}.class", shown if is_told else f"{shown}: {NOT_DESCRIBED}"
                if goes_on:
                    waiting.append((f"{name}.", value, depth + 1))


def _is_empty(value: Any) -> bool:
    """Return whether an object has nothing but its class: no attribute, and no state of C code."""
    of_type = type(value)
    has_slots = any(getattr(base, "__slots__", ()) for base in of_type.__mro__)
    return getattr(value, "__dict__", None) == {} and _is_of_python(of_type) and not has_slots


def _is_of_python(of_type: Any) -> bool:
    """Return whether objects of a class are made as plain ones are, without state of C code."""
    return of_type.__new__ is object.__new__


def _generator_text(value: Any) -> str | None:
    """Return a digest of the state of a random generator; None of everything else."""
    match f"{type(value).__module__}.{type(value).__qualname__}":
        case "random.Random":
            state = value.getstate()
        case "numpy.random._generator.Generator":
            state = value.bit_generator.state
        case _:
            return None
    return f"state {crc32(repr(state).encode()):08x}"


def _parts_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield attributes of an object, or entries of a dict or list, in a fixed order."""
    if isinstance(value, Mapping):
        yield from sorted((str(key), one) for key, one in _first(value.items()))
    elif isinstance(value, list | tuple | set | frozenset | deque):
        if isinstance(value, list | tuple | deque):
            yield from ((str(place), one) for place, one in enumerate(_first(value)))
        yield "size", len(value)
    else:
        of_type: type = type(value)
        slots = _slots_of(of_type)
        held = {name: getattr(value, name) for name in slots if hasattr(value, name)}
        attributes = getattr(value, "__dict__", {})
        held |= {name: one for name, one in attributes.items() if name[:1] != "_"}
        if not held and _is_of_python(of_type):  # private ones are all that it has
            held = {name.lstrip("_"): one for name, one in attributes.items()}
        yield from sorted(held.items(), key=itemgetter(0))


def _first(values: Iterable[Any]) -> Iterable[Any]:
    return islice(values, _MAX_ELEMENTS)


@lru_cache(maxsize=1024)
def _slots_of(of_type: type) -> tuple[str, ...]:
    return tuple(
        name
        for base in of_type.__mro__
        for name in getattr(base, "__slots__", ())
        if name[:1] != "_" and isinstance(getattr(of_type, name, None), MemberDescriptorType)
    )


def setting_text(value: Any) -> str | None:
    """Return a plain value, function, class or short list or dict of these, as text; else None.

    Of a longer list of numbers the first ones, their count and a checksum are told.
    None is no setting: what one run has set and the other has not is a difference all the same.
    """
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, _PLAIN):
        return _shortened(str(value))
    if isinstance(value, dict):
        return _dict_text(value)
    if isinstance(value, set | frozenset):
        texts = [setting_text(one) for one in value]
        return _shortened(", ".join(sorted(filter(None, texts)))) if None not in texts else None
    if isinstance(value, list | tuple):
        if _MAX_ELEMENTS < len(value) <= _MAX_NUMBERS:
            return _numbers_text(value)
        texts = [setting_text(one) for one in value[:_MAX_ELEMENTS]]
        known = [text for text in texts if text is not None]
        return ", ".join(known) if len(known) == len(value) else None
    if isinstance(value, partial):
        return _partial_text(value)
    if isinstance(value, FunctionType | BuiltinFunctionType | MethodType | MethodDescriptorType):
        return _function_text(value)
    return f"{value.__module__}.{value.__qualname__}" if isinstance(value, type) else None


def _shortened(text: str) -> str:
    if len(text) <= _MAX_TEXT:
        return text
    return f"{text[:_MAX_TEXT]}… ({len(text)}, {crc32(text.encode(errors='replace')):08x})"


def _dict_text(value: dict[Any, Any]) -> str | None:
    if len(value) > _MAX_NUMBERS:
        return None
    texts = [(setting_text(key), setting_text(one)) for key, one in value.items()]
    if any(text is None for pair in texts for text in pair):
        return None
    return _shortened(", ".join(sorted(f"{key}: {text}" for key, text in texts)))


def _numbers_text(values: Sequence[Any]) -> str | None:
    if not all(isinstance(one, bool | int | float) for one in values):
        return None
    first = ", ".join(map(str, values[:3]))
    return f"{first} … ({len(values)}, {crc32(repr(list(values)).encode()):08x})"


def _is_plain(value: Any) -> bool:
    return isinstance(value, bool | int | float | str)


def _partial_text(value: partial[Any]) -> str | None:
    given = [setting_text(one) for one in value.args]
    given += [f"{name}={setting_text(one)}" for name, one in value.keywords.items()]
    return f"{setting_text(value.func)}({', '.join(filter(None, given))})"


def _function_text(value: Any) -> str:
    """Return the name of a function, with the plain values that it takes from around it.

    Of a lambda the numbers and texts in it are told, as its name says nothing.
    """
    code = getattr(value, "__code__", None)
    cells = getattr(value, "__closure__", None) or ()
    around = []
    for name, cell in zip(code.co_freevars if code is not None else (), cells, strict=False):
        try:
            content = cell.cell_contents
        except ValueError:  # nothing was assigned yet
            continue
        if isinstance(content, bool | int | float | str):
            around.append(f"{name}={content!s:.40}")
    if code is not None and code.co_name == "<lambda>":
        plain = [one for one in (*code.co_consts, *(value.__defaults__ or ())) if _is_plain(one)]
        around += [f"{one!r:.40}" for one in plain] + [*code.co_names]
    shown: str = value.__name__ if code is None else value.__qualname__
    return shown + (f" with {', '.join(around)}" if around else "")
