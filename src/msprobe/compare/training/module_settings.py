# SPDX-License-Identifier: Apache-2.0
"""Settings of modules that differ between two runs.

At level L0 no call inside a module is recorded, but its class, its ``extra_repr`` and its plain
attributes are, and the objects in which models keep their settings (``config``, a dataclass, a
namespace).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from msprobe.dump.formats.dtypes import normal_dtype
from msprobe.numerics.number_types import epsilon_of

Settings = Mapping[str, str]

_MODULE: Final = re.compile(r"(\w+)\(.*\)", re.DOTALL)
# With its value: within brackets it may hold commas.
_KEYWORD: Final = re.compile(r"\b(\w+)=((?:[^=,()]|\([^()]*\))*)")
_VALUE: Final = re.compile(r"'[^']*'|-?\b\d+(?:\.\d+)?(?:e[-+]?\d+)?\b")
_SHOWN: Final = 2
_CHANCES: Final = ("p", "dropout")
_ZEROS: Final = frozenset(("0", "0.0"))
_UNSET: Final = "not set"


@dataclass(frozen=True, slots=True)
class ModuleOptions:
    """Options of a module that differ.

    Attributes:
        words: each with its two values.
        are_values: each is set on both sides, to another value.
        are_types: each is a floating type on one side.
    """

    words: str
    are_values: bool
    are_types: bool = False


def changed_options(sides: Sequence[Settings], paths: Sequence[str]) -> ModuleOptions | None:
    """Return what a module was made with; None if that is the same or was not recorded."""
    own = [_options(*each) for each in zip(sides, map(_name, paths), strict=True)]
    if not all(own):
        return None
    changed = _changed(*own)
    if changed and not changed[0][0] and _class(changed[0][1]) == _class(changed[0][2]):
        # It tells the attributes behind it.
        changed = _changed_keywords(*changed[0][1:]) or changed[:1]
    return _made(changed)


def draws_nothing(settings: Settings, path: str) -> bool:
    """Return whether a module that may drop elements is known to drop none."""
    known = {settings.get(f"{_name(path)}.{key}") for key in _CHANCES} - {None}
    return bool(known) and known <= _ZEROS


def changed_values(sides: Sequence[Settings]) -> dict[str, str]:
    """Return path of a module → its options that differ in numbers and words alone, in words.

    Only modules that are at the same place on both sides, and of the same class.
    """
    found: dict[str, str] = {}
    for name, text in sides[0].items():
        other = sides[1].get(name, text)
        is_module = name.startswith("module") and _MODULE.fullmatch(text)
        if is_module and text != other and _VALUE.sub("", text) == _VALUE.sub("", other):
            path = name.removeprefix("module").removeprefix(".")
            options = changed_options(sides, (path, path))
            found[path] = "" if options is None else options.words
    return found


def options_of_class(sides: Sequence[Settings], kind: str) -> str:
    """Return what a module was made with otherwise, in words; empty if none was.

    At level L1 no record tells the module around a call: that of ``BatchNorm`` is a BatchNorm2d.
    """
    for name, text in sides[0].items() if kind else ():
        path = name.removeprefix("module").removeprefix(".")
        is_of_class = _class(text).lower().startswith(kind.lower())
        options = changed_options(sides, (path, path)) if is_of_class else None
        if options is not None and options.are_values:
            return f"of {path or 'the model'} {options.words}"
    return ""


def owner_words(sides: Sequence[Settings], name: str) -> tuple[str, bool]:
    """Return which options of the module of a buffer differ, in words; empty if none does.

    Returns:
        The words, and whether the differences are numbers or flags.
    """
    module = name.rpartition(".")[0]
    options = changed_options(sides, (module, module))
    if options is None:
        return "", False
    owner = f"module {module}" if module else "the model"
    return f"; of {owner} {options.words}", options.are_values


def setting_words(name: str, target: str, reference: str) -> str:
    """Return a setting that differs, in words; of a module the options that do."""
    changed = _changed_keywords(target, reference)
    named = [(f"{name}.{key}", value, expected) for key, value, expected in changed]
    return _words(named or [(name, target, reference)])


def changed_settings(sides: Sequence[Settings], paths: Sequence[str]) -> ModuleOptions | None:
    """Return the settings that differ in objects which a module, or one around it, holds."""
    while True:
        held = [dict(_held(*each)) for each in zip(sides, map(_name, paths), strict=True)]
        found = _made(_changed(*held))
        if found is not None or not any(paths):
            return found
        paths = [path.rpartition(".")[0] for path in paths]


def _name(path: str) -> str:
    return f"module.{path}" if path else "module"


def _changed(target: Settings, reference: Settings) -> list[tuple[str, str, str]]:
    return [
        (name, target.get(name, _UNSET), reference.get(name, _UNSET))
        for name in sorted(target.keys() | reference.keys())
        if target.get(name) != reference.get(name)
    ]


def _made(changed: list[tuple[str, str, str]]) -> ModuleOptions | None:
    words = _words(changed)
    are_values = all(_UNSET not in values for _, *values in changed)
    are_types = all(any(epsilon_of(normal_dtype(v)) for v in values) for _, *values in changed)
    return ModuleOptions(words, are_values, are_types) if changed else None


def _words(changed: Sequence[tuple[str, str, str]]) -> str:
    return "; ".join(
        f"{name or 'it'} is {value} in the target, {expected} in the reference"
        for name, value, expected in changed[:_SHOWN]
    )


def _class(text: str) -> str:
    return text.partition("(")[0]


def _changed_keywords(target: str, reference: str) -> list[tuple[str, str, str]]:
    """Return the keywords that differ in the texts of two modules of a class.

    Empty where something else differs (a positional argument, say), or where they are no modules.
    """
    if not (_MODULE.fullmatch(target) and _MODULE.fullmatch(reference)):
        return []
    own, other = (dict(_KEYWORD.findall(text)) for text in (target, reference))
    is_alike = own.keys() == other.keys() and _bare(target) == _bare(reference)
    return _changed(own, other) if is_alike else []


def _bare(text: str) -> str:
    return _KEYWORD.sub("", text)


def _options(settings: Settings, name: str) -> dict[str, str]:
    """Return what a module was made with, and its plain attributes; its children left out."""
    own = settings.get(name)
    if own is None:
        return {}
    plain = (
        (key, value)
        for key, value in _inside(settings, name)
        if "." not in key and not _MODULE.fullmatch(value)
    )
    return {"": own, **dict(plain)}


def _held(settings: Settings, name: str) -> Iterator[tuple[str, str]]:
    for key, value in _inside(settings, name):
        holder, dot, _ = key.partition(".")
        if dot and f"{name}.{holder}" not in settings:  # modules have an entry of their own
            yield key, value


def _inside(settings: Settings, name: str) -> Iterator[tuple[str, str]]:
    start = f"{name}."
    return ((key[len(start) :], value) for key, value in settings.items() if key.startswith(start))
