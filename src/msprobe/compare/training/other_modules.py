# SPDX-License-Identifier: Apache-2.0
"""Modules that one side's model has alone, or that are of another class, by their parameters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from msprobe.compare.training.differences import are, shown_names
from msprobe.compare.training.facts_pair import FactsPair
from msprobe.compare.training.frameworks import are_of_two_frameworks
from msprobe.replay.module_settings import OWN_CLASS

_MODULE: Final = re.compile(r"(\w+)\(.*\)", re.DOTALL)
_SHOWN: Final = 2


class _Kind(NamedTuple):
    """How a module is another one: its classes, None on the side that lacks it."""

    target: str | None
    reference: str | None


def other_modules(pair: FactsPair, names: Iterable[str]) -> tuple[str, frozenset[str]]:
    """Return which modules make parameters of one side alone, in words, and these parameters.

    The outermost module that one side lacks, unless the one around it is of another class: that is
    what the program put in its place. A class of the whole model has another name in any program.
    """
    if are_of_two_frameworks(*pair.sides):
        return "", frozenset()
    found = {name: _other_module(pair, name.rpartition(".")[0]) for name in names}
    explained = {name: module for name, module in found.items() if module is not None}
    by_kind: dict[_Kind, dict[str, None]] = {}
    for path, kind in explained.values():
        by_kind.setdefault(_Kind(*kind), {})[path] = None
    words = [_words(kind, [*paths]) for kind, paths in [*by_kind.items()][:_SHOWN]]
    return "; ".join(words), frozenset(explained)


def _words(kind: _Kind, paths: list[str]) -> str:
    if kind.target and kind.reference:
        return (
            f"{shown_names(paths)} {are(paths)} {kind.target} in the target, "
            f"{kind.reference} in the reference"
        )
    side = "reference" if kind.target is None else "target"
    return f"only the {side} has module{'s' * (len(paths) > 1)} {shown_names(paths)}"


def _other_module(pair: FactsPair, path: str) -> tuple[str, _Kind] | None:
    """Return path and kind of the module in which two models differ, from a path outwards."""
    lone = None
    settings = [facts.settings for facts in pair.sides]
    while path:
        kind = _Kind(*(_class_of(each, path) for each in settings))
        if kind.target and kind.reference:
            is_whole = not any(_class_of(each, _around(path)) for each in settings)
            return lone if is_whole or kind.target == kind.reference else (path, kind)
        lacking = [s for s, known in zip(settings, kind, strict=True) if known is None]
        if not (kind.target or kind.reference) or any(_is_inside(s, path) for s in lacking):
            return lone  # what a side holds was not recorded, or the module wraps another one
        lone, path = (path, kind), _around(path)
    return lone


def _is_inside(settings: Mapping[str, str], path: str) -> bool:
    """Return whether a side holds modules at a path that it has no module of."""
    return any(name.startswith(f"module.{path}.") for name in settings)


def _around(path: str) -> str:
    return path.rpartition(".")[0]


def _class_of(settings: Mapping[str, str], path: str) -> str | None:
    """Return the class of a module; None where a model has none of this path."""
    name = f"module.{path}" if path else "module"
    found = _MODULE.fullmatch(settings.get(name, ""))
    return None if found is None else settings.get(f"{name}.{OWN_CLASS}", found[1])
