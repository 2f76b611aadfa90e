# SPDX-License-Identifier: Apache-2.0
"""The trainings that a shell script starts, with their arguments. Nothing is executed.

The script is parsed with bash's grammar and followed once: variables, arrays, functions, loops over
known words, sourced files, scripts inside ``bash -c``. Of a condition that only the running shell
can decide all branches are followed; an argument that depends on it has all its values, and a
reason. What is not understood is compared as text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from msprobe.run_config.command_options import Arguments
from msprobe.run_config.launches import Launch
from msprobe.run_config.secrets import hide_secrets
from msprobe.run_config.shell_commands import Statement
from msprobe.run_config.shell_rest import Marks, unreached
from msprobe.run_config.shell_variables import shown
from msprobe.run_config.shell_walk import Walk
from msprobe.run_config.shell_words import text_of
from msprobe.run_config.shell_words import walk as tree

_SHEBANG: Final = re.compile(r"\A#!\s*\S*sh\s+(?=[-+])")
_VALUE: Final = re.compile(r"(--?[A-Za-z][\w-]*|\b[A-Za-z_]\w*(?==))([= ])([^\s,]+)")


@dataclass(frozen=True, slots=True)
class ShellScript:
    """Programs that a shell script starts.

    Attributes:
        arguments: by name; of several trainings with the script before a colon.
        unresolved: why an argument is not known for sure, or what could not be followed.
        statements: what is not understood, in order.
        files: files that it writes, with their texts, by their names.
        read: texts of those that an argument names, by the argument.
    """

    arguments: Arguments
    unresolved: dict[str, str]
    statements: list[Statement]
    files: dict[str, Statement]
    read: dict[str, str]


def parse_shell_script(text: str, folder: Path | None = None) -> ShellScript:
    """Return the trainings that a script starts.

    Args:
        text: the script.
        folder: where files that it sources are looked for; None for the current folder.
    """
    text = _SHEBANG.sub("set ", text)  # bash -e
    walk = _followed(text, folder or Path(), {})
    launches, problems = walk.launches, walk.problems
    if not launches:
        problems["launch"] = "no command that starts a training was found"
    arguments: Arguments = {}
    unresolved: dict[str, str] = {}
    read: dict[str, str] = {}
    for prefix, launch in zip(_prefixes(launches), launches, strict=True):
        arguments |= {
            shown(prefix + name): _shown(name, of) for name, of in launch.arguments.items()
        }
        read |= {shown(prefix + name): shown(text) for name, text in launch.files.items()}
        doubts = launch.doubts.items()
        unresolved |= {shown(prefix + name): shown("; ".join(why)) for name, why in doubts}
    arguments |= walk.directives
    rows = _with_rest(text, folder or Path(), walk)
    statements = [one._replace(text=without_secrets(shown(one.text))) for one in rows]
    files = {name: one._replace(text=shown(one.text)) for name, one in walk.written_files().items()}
    return ShellScript(arguments, {**unresolved, **problems}, statements, files, read)


def _followed(text: str, folder: Path, files: Mapping[str, str]) -> Walk:
    """Return the walk through a script, with other texts of some of the files that it runs."""
    walk = Walk(folder)
    walk.files.written |= files
    walk.follow(text)
    return walk


def _with_rest(text: str, folder: Path, walk: Walk) -> Iterator[Statement]:
    """Yield what is compared as text, also the statements with words that reach no training."""
    rest: dict[int, list[Statement]] = {}
    skipped: list[Statement] = []
    for name, root in walk.roots.items():
        marks = Marks(root, partial(_found_with, text, folder, name))
        for node in tree(root):
            place, row = walk.simple.get(node.id, (0, None))
            words = [] if row is None else marks.unseen(node)
            if row is not None and words:
                if node.type == "command":
                    program = text_of(node.child_by_field_name("name") or node)
                    row = row._replace(name=f"command.{program}", text=" ".join(words))
                rest.setdefault(place, []).append(row)
        skipped += unreached(root, walk.visited)
    for place, one in enumerate((*walk.statements, None)):
        yield from rest.get(place, ())
        if one is not None:
            yield one
    yield from skipped


def _found_with(text: str, folder: Path, name: str, content: str) -> tuple[object, ...]:
    """Return all that a walk finds if the script, or a file that it runs, has other content."""
    walk = _followed(text, folder, {name: content}) if name else _followed(content, folder, {})
    launches = [(one.script, one.arguments, one.programs, one.files) for one in walk.launches]
    texts = [one[1:] for one in (*walk.statements, *walk.written_files().values())]
    return launches, walk.directives, texts


def _shown(name: str, value: str | bool | list[str]) -> str | bool | list[str]:
    if isinstance(value, list):
        return [shown(one) for one in value]
    variable = name.partition("env.")[2]
    text = shown(value) if isinstance(value, str) else value
    return hide_secrets(variable, text) if variable and isinstance(text, str) else text


def without_secrets(text: str) -> str:
    """Return a text with its secrets hidden."""
    hidden = _VALUE.sub(lambda one: one[1] + one[2] + hide_secrets(one[1], one[3]), text)
    return hide_secrets("", hidden)


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
