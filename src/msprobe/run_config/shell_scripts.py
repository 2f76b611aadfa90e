# SPDX-License-Identifier: Apache-2.0
"""The trainings that a shell script starts, with their arguments. Nothing is executed.

The script is parsed with bash's grammar and followed: variables, arrays, functions, loops over
known words, sourced files, scripts inside ``bash -c``. A condition that only the running shell can
decide is followed both ways; an argument that depends on it has all its values, and a reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msprobe.run_config.command_options import Arguments
from msprobe.run_config.launches import Launch
from msprobe.run_config.secrets import hide_secrets
from msprobe.run_config.shell_commands import Statement
from msprobe.run_config.shell_ways import Way

_MAX_WAYS: Final = 32
_VALUE: Final = re.compile(r"(--?[A-Za-z][\w-]*|\b[A-Za-z_]\w*(?==))([= ])([^\s,]+)")


@dataclass(frozen=True, slots=True)
class ShellScript:
    """Programs that a shell script starts.

    Attributes:
        arguments: by name; of several trainings with the script before a colon.
        unresolved: why an argument is not known for sure, or what could not be followed.
        statements: what is not understood, in order.
        files: texts of files that it writes, by their names.
    """

    arguments: Arguments
    unresolved: dict[str, str]
    statements: list[Statement]
    files: dict[str, str]


def parse_shell_script(text: str, folder: Path | None = None) -> ShellScript:
    """Return the trainings that a script starts.

    Args:
        text: the script.
        folder: where files that it sources are looked for; None for the current folder.
    """
    ways = list(_ways_through(text, folder or Path()))
    launches = _merged(ways)
    problems = {name: reason for way in ways for name, reason in way.problems.items()}
    if not launches:
        problems["launch"] = "no command that starts a training was found"
    arguments: Arguments = {}
    unresolved: dict[str, str] = {}
    for prefix, launch in zip(_prefixes(launches), launches, strict=True):
        arguments |= {prefix + name: value for name, value in launch.arguments.items()}
        unresolved |= {prefix + name: "; ".join(why) for name, why in launch.doubts.items()}
    arguments |= {name: value for way in ways for name, value in way.directives.items()}
    files = {name: text for way in ways for name, text in way.files.written.items()}
    found = dict.fromkeys(each for way in ways for each in way.statements)
    statements = [one._replace(text=_without_secrets(one.text)) for one in found]
    return ShellScript(arguments, {**unresolved, **problems}, statements, files)


def _without_secrets(text: str) -> str:
    hidden = _VALUE.sub(lambda one: one[1] + one[2] + hide_secrets(one[1], one[3]), text)
    return hide_secrets("", hidden)


def _ways_through(text: str, folder: Path) -> Iterator[Way]:
    """Yield the script followed in every way in which its open conditions can be decided.

    Args:
        text: the script.
        folder: where files that it sources are looked for.
    """
    decided: list[int] = []
    for number in range(_MAX_WAYS):
        way = Way(folder, decided)
        way.follow(text)
        left = list(way.decisions)
        while left and left[-1].taken + 1 >= left[-1].count:
            left.pop()
        decided = [each.taken for each in left]
        if not decided or way.problems.get("size"):
            yield way
            return
        decided[-1] += 1
        if number == _MAX_WAYS - 1:
            way.problems["branches"] = f"only the first {_MAX_WAYS} ways through are followed"
        yield way


def _prefixes(launches: Sequence[Launch]) -> list[str]:
    """Return what is put before the names of each training's arguments: nothing if it is alone."""
    if len(launches) == 1:
        return [""]
    seen: dict[str, int] = {}
    found = []
    for launch in launches:
        seen[launch.script] = seen.get(launch.script, 0) + 1
        number = f"#{seen[launch.script]}" if seen[launch.script] > 1 else ""
        found.append(f"{launch.script}{number}:")
    return found


def _merged(ways: Sequence[Way]) -> list[Launch]:
    """Return each training once, with all values that an argument has in one way or another."""
    by_place: dict[tuple[int, str, int], list[tuple[Way, Launch]]] = {}
    for way in ways:
        counts: dict[tuple[int, str], int] = {}
        for launch in way.launches:
            place = launch.line, launch.script
            counts[place] = counts.get(place, 0) + 1
            by_place.setdefault((*place, counts[place]), []).append((way, launch))
    return [_of_all_ways(found, len(ways)) for found in by_place.values()]


def _of_all_ways(found: Sequence[tuple[Way, Launch]], count: int) -> Launch:
    launches = [launch for _, launch in found]
    lines = sorted({each.line for way, _ in found for each in way.decisions if each.is_open})
    reason = f"depends on the condition in line {', '.join(map(str, lines[:3]))}"
    arguments: Arguments = {}
    doubts = {name: why for launch in launches for name, why in launch.doubts.items()}
    for name in dict.fromkeys(name for launch in launches for name in launch.arguments):
        values = [launch.arguments.get(name, "not given") for launch in launches]
        different = list(dict.fromkeys(map(str, values)))
        arguments[name] = values[0] if len(different) == 1 else " or ".join(different)
        if len(different) > 1 and lines:
            doubts[name] = (*doubts.get(name, ()), reason)
    if len(launches) < count and lines:
        doubts["script"] = (*doubts.get("script", ()), f"whether it is started {reason}")
    first = launches[0]
    return Launch(line=first.line, script=first.script, arguments=arguments, doubts=doubts)
