# SPDX-License-Identifier: Apache-2.0
"""Options of a command line by name, as a program may have parsed them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

Arguments = dict[str, str | bool | list[str]]

SETTINGS_FILES: Final = (".json", ".yaml", ".yml", ".toml", ".ini", ".cfg", ".py")
"""Ends of the names of files whose contents are arguments."""
BLANK: Final = "\ue001"
"""A blank inside a word, where a script does not tell which words there are."""
_OPTION: Final = re.compile(r"--?[A-Za-z]")
_SHORT_WITH_NUMBER: Final = re.compile(r"-([A-Za-z])(\d[\d.e+-]*)")
# Overrides of Hydra: lr=1e-4, +opt=adam, ~model.norm, model.dim=512.
_OVERRIDE: Final = re.compile(r"[+~]{0,2}[A-Za-z_][\w./@-]*=.*", re.DOTALL)
# Arguments of a script that are not known: no values of the option before them.
_FURTHER: Final = re.compile(r"\$[@*]|\$\{[@*].*\}")


class Options(NamedTuple):
    """Options and arguments of a command line.

    Attributes:
        arguments: by name, without dashes: True for an option without a value, a list for one with
            several; ``positional`` holds words that belong to no option.
        script: the first word that names a Python script; empty if there is none.
    """

    arguments: Arguments
    script: str


def options_of(words: Sequence[str]) -> Options:
    """Return the options in the words behind a program's name.

    Which words are values of an option only the program knows: all up to the next option count.
    """
    found: Arguments = {}
    script = ""
    others: list[str] = []
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        if not _OPTION.match(word):
            if not script and word.endswith(".py"):
                script = word
            elif _OVERRIDE.fullmatch(word):
                name, _, value = word.partition("=")
                _add(found, name.lstrip("+~"), value)
            elif word != "--":
                others.append(word)
            continue
        # A word such as "--wd 0.1", in quotes, is no option that a program knows; its value counts.
        name, equals, value = re.split(r"([= ]|$)", word.lstrip("-"), maxsplit=1)
        if BLANK in name:  # --flag or nothing
            name, _, value = word.lstrip("-").partition(BLANK)
            is_flag = value.startswith(f"or{BLANK}")
            _add(found, name, f"True{BLANK}{value}" if is_flag else value)
        elif short := _SHORT_WITH_NUMBER.fullmatch(word):
            _add(found, short[1], short[2])
        elif equals and not _OVERRIDE.fullmatch(value):
            _add(found, name, value)
        else:
            behind = [value, *words[position:]] if equals else words[position:]
            values = _values(behind, has_script=bool(script))
            _add(found, name, True if not values else values[0] if len(values) == 1 else values)
            if not values and behind and _OVERRIDE.fullmatch(behind[0]):  # --env A=1, --env=A=1
                key, _, value = behind[0].partition("=")
                _add(found, f"{name}.{key.lstrip('+~')}", value)
                position += not equals
            position += len(values)
    if others:
        found["positional"] = others
    return Options(found, script)


def _add(found: Arguments, name: str, value: str | bool | list[str]) -> None:
    """Set an option; of one that is given again only the program knows whether all values count."""
    if name in found and found[name] != value:
        sides = [one if isinstance(one, list) else [str(one)] for one in (found[name], value)]
        value = [*sides[0], *sides[1]]
    found[name] = value


def _values(words: Sequence[str], *, has_script: bool) -> list[str]:
    values = []
    for word in words:
        is_script = not has_script and word.endswith(".py")
        ends = _OVERRIDE.fullmatch(word) or _FURTHER.fullmatch(word) or is_script or word == "--"
        if _OPTION.match(word) or ends:
            break
        values.append(word)
    return values
