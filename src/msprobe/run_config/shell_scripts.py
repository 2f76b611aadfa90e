# SPDX-License-Identifier: Apache-2.0
"""Parse the arguments of a training from its shell script. Nothing is executed.

Variables are followed (``MODEL_ARGS="--lr 1e-4"``, ``export``, arrays, ``${X:-default}``), so that
``torchrun train.py $MODEL_ARGS`` yields them. Values that only a shell can compute (``$(date)``,
loops, conditions) stay as they are written.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import PurePath
from typing import Final

_MAX_EXPANDED: Final = 1 << 15
_LAUNCH_MODULES: Final = ("torch.distributed.run", "torch.distributed.launch")
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_KEYWORDS: Final = re.compile(r"^\s*(?:export|declare(?:\s+-\w+)*|local|readonly|typeset)\s+")
_VARIABLE: Final = re.compile(
    r"\$(?:\{(?P<name>\w+)(?:\[[@*]\])?(?::?[-=](?P<default>[^{}]*))?\}|(?P<bare>\w+))"
)
_TOKEN: Final = re.compile(
    r"""(?P<comment>(?<![^\s;(])\#[^\n]*)
    | (?P<quoted>"(?:[^"\\]|\\.)*" | '[^']*' | \\.)
    | (?P<end>[\n;])
    | (?P<other>.)""",
    re.DOTALL | re.VERBOSE,
)
_LAUNCHERS: Final = frozenset(
    ("torchrun", "msrun", "deepspeed", "accelerate", "python", "python3", "mpirun", "bash", "sh")
)
_OPTION: Final = re.compile(r"--?[A-Za-z]")
_ENDS: Final = re.compile(r"^(?:[|&;<>]+|\d?>.*|\d?<.*)$")

Arguments = dict[str, str | bool | list[str]]


def parse_shell_script(text: str) -> Arguments:
    """Return the options of the launch command and of the script that it starts.

    The last command that starts a Python script counts. Names are given without leading dashes;
    an option without a value is True, one with several values is a list. ``script`` is the script.
    """
    variables: dict[str, str] = {}
    found: Arguments = {}
    for line in _statements(text):
        statement = _KEYWORDS.sub("", line)
        assigned = _ASSIGNMENT.fullmatch(statement)
        if assigned and _is_one_word(assigned[3]):
            name, appends, value = assigned.groups()
            value = _unquoted(_expand(value, variables))
            variables[name] = f"{variables.get(name, '')} {value}" if appends else value
            continue
        words = _split(_expand(statement, variables))
        if (start := _launcher(words)) is not None:
            parsed = _options(words[start:])
            if "script" in parsed or not found:
                found = parsed
    return found


def _statements(text: str) -> Iterator[str]:
    """Yield logical lines: quotes and arrays may span several, comments are dropped."""
    line: list[str] = []
    depth = 0
    for token in _TOKEN.finditer(re.sub(r"\\\r?\n", " ", text)):
        if token.lastgroup == "comment":
            continue
        if token.lastgroup == "end" and depth == 0:
            yield "".join(line).strip()
            line = []
            continue
        if token[0] == "(":
            depth += 1
        elif token[0] == ")":
            depth = max(depth - 1, 0)
        line.append(" " if token.lastgroup == "end" else token[0])
    yield "".join(line).strip()


def _is_one_word(value: str) -> bool:
    return value.startswith("(") or len(_split(value)) <= 1


def _unquoted(value: str) -> str:
    if value.startswith("(") and value.endswith(")"):
        return value[1:-1]
    return " ".join(_split(value))


def _expand(text: str, variables: dict[str, str]) -> str:
    """Put values in the place of variables; those that are not known stay as they are."""

    def value_of(found: re.Match[str]) -> str:
        value = variables.get(found["name"] or found["bare"])
        if value is None:
            return found[0] if found["default"] is None else found["default"]
        return value

    parts = re.split(r"('[^']*')", text)
    expanded = [part if part.startswith("'") else _VARIABLE.sub(value_of, part) for part in parts]
    result = "".join(expanded)
    # Variables that double themselves again and again must not fill the memory.
    return result if len(result) <= _MAX_EXPANDED else text


def _split(text: str) -> list[str]:
    if len(text) > 2 * _MAX_EXPANDED:  # shlex takes the square of a word's length
        return text.split()
    try:
        return shlex.split(text)
    except ValueError:  # a quote without an end
        return text.split()


def _launcher(words: list[str]) -> int | None:
    """Return the position of the program that starts the training; assignments may precede it."""
    for position, word in enumerate(words):
        if PurePath(word).name in _LAUNCHERS:
            rest = words[position:]
            starts = any(each.endswith(".py") for each in rest) or "-m" in rest
            return position if starts else None
        if not _ASSIGNMENT.fullmatch(word) and word not in ("nohup", "time", "env", "exec"):
            return None
    return None


def _options(words: list[str]) -> Arguments:
    found: Arguments = {}
    position = 1
    while position < len(words):
        word = words[position]
        position += 1
        if _ENDS.match(word):
            break
        if not _OPTION.match(word):
            if "script" not in found and word.endswith(".py"):
                found["script"] = word
            continue
        name, equals, value = word.lstrip("-").partition("=")
        if equals:
            found[name] = value
            continue
        values: list[str] = []
        while position < len(words) and not _OPTION.match(words[position]):
            if _ENDS.match(words[position]):
                break
            if "script" not in found and words[position].endswith(".py"):
                break
            values.append(words[position])
            position += 1
        if name == "m" and values:
            if values[0] not in _LAUNCH_MODULES:
                found.setdefault("script", values[0])
        elif len(word) > 2:
            found[name] = True if not values else values[0] if len(values) == 1 else values
    return found
