# SPDX-License-Identifier: Apache-2.0
"""Find objects of this process by their class, and write plain settings of objects as text.

A program keeps its arguments, schedulers and data loaders in variables that no hook can see.
Python's garbage collector knows every object, and looking at the classes of all costs about 0.1 s.
Nothing of an object is called or read while looking.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, MethodType
from typing import Any, Final
from zlib import crc32

from msprobe.run_config.secrets import hide_secrets

_MAX_TEXT: Final = 200
_MAX_ELEMENTS: Final = 16
_MAX_NUMBERS: Final = 4096

Kinds = Mapping[str, list[Any]]
"""Objects by kind."""


def live_objects(*recognisers: Callable[[type], str | None]) -> Kinds:
    """Return the objects that a recogniser names a kind for, by kind, the oldest first.

    Args:
        recognisers: return the kind of the objects of a class, or None; the first answer counts.
    """
    kinds: dict[type, str | None] = {}
    found: dict[str, list[Any]] = {}
    for generation in (2, 1, 0):
        objects = gc.get_objects(generation)
        for of_type in set(map(type, objects)) - kinds.keys():
            answers = (recognise(of_type) for recognise in recognisers)
            kinds[of_type] = next((kind for kind in answers if kind is not None), None)
        sought = {of_type: kind for of_type, kind in kinds.items() if kind is not None}
        for one in objects if sought else ():
            if type(one) in sought:
                found.setdefault(sought[type(one)], []).append(one)
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


def setting_text(value: Any) -> str | None:
    """Return a plain value, function, class or short list or dict of these, as text; else None.

    Of a longer list of numbers the first ones, their count and a checksum are told.
    None is no setting: what one run has set and the other has not is a difference all the same.
    """
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, bool | int | float | str):
        return str(value)[:_MAX_TEXT]
    if isinstance(value, dict):
        return _dict_text(value)
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


def _dict_text(value: dict[Any, Any]) -> str | None:
    if len(value) > _MAX_ELEMENTS:
        return None
    texts = [(setting_text(key), setting_text(one)) for key, one in value.items()]
    if any(text is None for pair in texts for text in pair):
        return None
    return ", ".join(f"{key}: {text}" for key, text in texts)


def _numbers_text(values: Sequence[Any]) -> str | None:
    if not all(isinstance(one, bool | int | float) for one in values):
        return None
    first = ", ".join(map(str, values[:3]))
    return f"{first} … ({len(values)}, {crc32(repr(list(values)).encode()):08x})"


def _partial_text(value: partial[Any]) -> str | None:
    given = [setting_text(one) for one in value.args]
    given += [f"{name}={setting_text(one)}" for name, one in value.keywords.items()]
    return f"{setting_text(value.func)}({', '.join(filter(None, given))})"


def _function_text(value: Any) -> str:
    """Return the name of a function, with the plain values that it takes from around it."""
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
    shown: str = value.__name__ if code is None else value.__qualname__
    return shown + (f" with {', '.join(around)}" if around else "")
