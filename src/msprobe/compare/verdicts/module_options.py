# SPDX-License-Identifier: Apache-2.0
"""What a module was made with, where it differs between two runs.

At level L0 no call inside a module is recorded, but its class, its ``extra_repr`` and its plain
attributes are, with the settings of the run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from msprobe.compare.verdicts.ranking import Culprit
from msprobe.dump.record_names import parse_record_name
from msprobe.dump.values import Role

_MODULE: Final = re.compile(r"(\w+)\(.*\)", re.DOTALL)
_SHOWN: Final = 2
_UNSET: Final = "not set"


@dataclass(frozen=True, slots=True)
class ModuleOptions:
    """Options of a module that differ.

    Attributes:
        words: each with its two values.
        are_values: each is set on both sides, to another value.
    """

    words: str
    are_values: bool


def other_options(culprit: Culprit) -> ModuleOptions | None:
    """Return what the module whose result is a culprit was made with; None if that is the same."""
    pair, row = culprit.row.pair, culprit.row
    if culprit.kind != "forward" or row.value.role is not Role.OUTPUT or not pair.is_matched:
        return None
    comparison = culprit.comparison
    sides = (comparison.target, pair.target), (comparison.reference, pair.reference)
    found = []
    for side, record in sides:
        parsed = parse_record_name(record or "")
        if side.view.facts is None or not parsed.is_module:
            return None
        found.append(_options(side.view.facts.settings, parsed.path))
    target, reference = found
    changed = [
        (name, target.get(name, _UNSET), reference.get(name, _UNSET))
        for name in sorted(target.keys() | reference.keys())
        if target.get(name) != reference.get(name)
    ]
    if not changed or not all(found):
        return None
    if not changed[0][0] and _class(changed[0][1]) == _class(changed[0][2]):
        changed = changed[:1]  # it tells the attributes behind it
    are_values = all(_UNSET not in values for _, *values in changed)
    words = "; ".join(
        f"{name or 'it'} is {value} in the target, {expected} in the reference"
        for name, value, expected in changed[:_SHOWN]
    )
    return ModuleOptions(words, are_values)


def _class(text: str) -> str:
    return text.partition("(")[0]


def _options(settings: Mapping[str, str], path: str) -> dict[str, str]:
    """Return what a module was made with, and its plain attributes; its children left out."""
    name = f"module.{path}" if path else "module"
    own = settings.get(name)
    return {} if own is None else {"": own, **dict(_attributes(settings, name))}


def _attributes(settings: Mapping[str, str], name: str) -> Iterator[tuple[str, str]]:
    start = f"{name}."
    for key, value in settings.items():
        if key.startswith(start) and "." not in key[len(start) :] and not _MODULE.fullmatch(value):
            yield key[len(start) :], value
