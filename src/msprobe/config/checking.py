# SPDX-License-Identifier: Apache-2.0
"""Convert raw JSON to typed keys; every refusal names the key, the value and what is allowed."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from msgspec import inspect

from msprobe.errors import ConfigError

_PATH: Final = re.compile(r" - at `\$\.?(.*)`$")
_ANY_KEY: Final = "..."
_PATH_STEP: Final = re.compile(r"\[(\d+)\]|(?<=\[)(\.{3})(?=\])|([^.\[\]]+)")

# Values that other generations or modes allow; keyed by the last part of the key's path.
_HINTS: Final[dict[tuple[str, str], str]] = {
    ("summary_mode", "xor"): "md5 tells bit equality on any device",
}

T = TypeVar("T", bound=msgspec.Struct)
C = TypeVar("C", bound=StrEnum)


def parse_choice(
    value: object,
    choices: type[C],
    key: str,
    *,
    source: str | Path,
    without: tuple[C, ...] = (),
) -> C:
    """Return the member of `choices` that `value` spells (case counts).

    Args:
        value: the value in the file.
        choices: the closed set of words.
        key: path of the key.
        source: the file, for messages.
        without: members that cannot be chosen here.

    Raises:
        ConfigError: it is no member; a near miss is pointed out.
    """
    words = [choice.value for choice in choices if choice not in without]
    if isinstance(value, str) and value in words:
        return choices(value)
    raise ConfigError(key, value, words, source=source, hint=_near_miss(value, words))


def _near_miss(value: object, words: list[str]) -> str:
    if isinstance(value, str):
        for word in words:
            if word.lower() == value.strip().lower():
                return f'write "{word}"'
    return ""


def convert(raw: dict[str, Any], keys: type[T], *, prefix: str, source: str | Path) -> T:
    """Return `raw` as an object of the type `keys`; keys of other names are skipped.

    Args:
        raw: decoded JSON, not checked yet.
        keys: the type to make.
        prefix: path of the object in the file, such as ``statistics``; empty at the top.
        source: where the values came from, for error messages.

    Raises:
        ConfigError: a value has the wrong type, is out of range or none of the allowed words.
    """
    try:
        return msgspec.convert(raw, keys)
    except msgspec.ValidationError as error:
        match = _PATH.search(str(error))
        inner = match[1] if match else ""
        steps: list[int | str] = [
            int(index) if index else any_key or name
            for index, any_key, name in _PATH_STEP.findall(inner)
        ]
        for place in [at for at, step in enumerate(steps) if step == _ANY_KEY]:
            steps[place] = _bad_key(raw, keys, steps[:place])
            inner = inner.replace(f"[{_ANY_KEY}]", f".{steps[place]}", 1)
        path = f"{prefix}.{inner}".strip(".")
        found, wanted = _value_at(raw, steps), _type_at(keys, steps)
        hint = _hint(path, found, wanted)
        raise ConfigError(path, found, describe_type(wanted), source=source, hint=hint) from error


def _bad_key(raw: Any, keys: type, steps: list[int | str]) -> str:
    """Return the key of a dictionary that cannot be used, which msgspec does not name."""
    for key, value in _value_at(raw, steps).items():
        try:
            msgspec.convert(_with_only(raw, steps, {key: value}), keys)
        except msgspec.ValidationError:
            return str(key)
    return _ANY_KEY


def _with_only(raw: Any, steps: list[int | str], value: Any) -> Any:
    """Return `raw` with another value behind the steps, all of which are keys or places."""
    if not steps:
        return value
    changed = raw.copy()
    changed[steps[0]] = _with_only(raw[steps[0]], steps[1:], value)
    return changed


def _hint(path: str, found: object, wanted: inspect.Type) -> str:
    plain = _plain(wanted)
    if isinstance(plain, inspect.EnumType):
        name = path.rpartition(".")[2]
        near = _near_miss(found, [word.value for word in plain.cls])
        return _HINTS.get((name, str(found)), near)
    if isinstance(plain, inspect.ListType) and isinstance(found, str):
        return "put it in square brackets"
    return ""


def _value_at(raw: Any, steps: list[int | str]) -> Any:
    for step in steps:
        raw = raw[step]
    return raw


def _type_at(keys: type[msgspec.Struct], steps: list[int | str]) -> inspect.Type:
    found: inspect.Type = inspect.type_info(keys)
    for step in steps:
        found = _plain(found)
        if isinstance(found, inspect.StructType):
            found = next(field.type for field in found.fields if field.encode_name == step)
        elif isinstance(found, inspect.ListType):
            found = found.item_type
        elif isinstance(found, inspect.DictType):
            found = found.value_type
    return found


def _plain(found: inspect.Type) -> inspect.Type:
    return found.type if isinstance(found, inspect.Metadata) else found


def describe_type(found: inspect.Type) -> str:
    """Return a type in words, such as ``true or false`` or ``a list of strings``."""
    found = _plain(found)
    match found:
        case inspect.EnumType():
            return "one of " + ", ".join(word.value for word in found.cls)
        case inspect.ListType():
            return f"a list of {_describe_many(found.item_type)}"
        case inspect.UnionType():
            return " or ".join(describe_type(member) for member in _members(found))
        case inspect.IntType():
            return f"a whole number{_limits(found)}"
        case inspect.FloatType():
            return f"a number{_limits(found)}"
        case inspect.NoneType():
            return "null"
        case inspect.BoolType():
            return "true or false"
        case inspect.StrType():
            return "a string"
        case _:
            return "an object {…}"


def _limits(found: inspect.IntType | inspect.FloatType) -> str:
    if found.le is not None:
        return f" from {found.ge} to {found.le}"
    return "" if found.ge is None else f" >= {found.ge}"


def _members(found: inspect.UnionType) -> list[inspect.Type]:
    """Return the types of a union; whole numbers are numbers, too."""
    has_any = any(isinstance(_plain(one), inspect.FloatType) for one in found.types)
    return [
        one for one in found.types if not (has_any and isinstance(_plain(one), inspect.IntType))
    ]


def _describe_many(found: inspect.Type) -> str:
    found = _plain(found)
    match found:
        case inspect.EnumType():
            return "words out of " + ", ".join(word.value for word in found.cls)
        case inspect.UnionType():
            return " and ".join(_describe_many(member) for member in _members(found))
        case inspect.IntType():
            return "whole numbers"
        case inspect.FloatType():
            return "numbers"
        case inspect.StrType():
            return "strings"
        case _:
            return "objects {…}"
