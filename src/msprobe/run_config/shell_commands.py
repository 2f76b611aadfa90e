# SPDX-License-Identifier: Apache-2.0
"""Statements of a shell script that start no training, and what comments ask of a scheduler."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from msprobe.run_config.command_options import Arguments, options_of
from msprobe.run_config.launches import SHELLS
from msprobe.run_config.shell_words import text_of

if TYPE_CHECKING:
    from tree_sitter import Node

# Commands to a scheduler, in comments.
_DIRECTIVE: Final = re.compile(r"#(SBATCH|PBS|BSUB|COBALT|PJM|\$)\s+(-.*)")
_OPTIONS: Final = {
    "a": "allexport",
    "e": "errexit",
    "E": "errtrace",
    "u": "nounset",
    "x": "xtrace",
    "v": "verbose",
    "f": "noglob",
    "h": "hashall",
    "T": "functrace",
}
_TAKE_A_SCRIPT: Final = (*SHELLS, "sbatch", "ssh", "qsub", "salloc")


class Statement(NamedTuple):
    """A part of a script that is compared as text.

    Attributes:
        line: its line.
        name: its kind, such as ``command.module`` or ``loop``.
        text: its source, without comments and needless blanks, and the values in it.
    """

    line: int
    name: str
    text: str


def directive(comment: str) -> Arguments:
    """Return what a comment asks of the scheduler: ``#SBATCH --nodes=2``; mostly nothing."""
    found = _DIRECTIVE.match(comment)
    if found is None:
        return {}
    try:
        words = shlex.split(found[2], comments=True)
    except ValueError:
        words = found[2].split()
    program = {"$": "qsub"}.get(found[1], found[1].lower())
    return {f"{program}.{name}": value for name, value in options_of(words).arguments.items()}


def set_options(words: Sequence[str]) -> list[str]:
    """Return the options that ``set`` is given by their names: ``-eu`` and ``-o errexit``."""
    found, sign = [], "-"
    for word in words:
        if word[:1] in ("-", "+"):
            sign = word[0]
            found += [sign + _OPTIONS.get(one, one) for one in word[1:] if one != "o"]
        else:
            found.append(sign + word)
    return found


def reads_script(body: Node) -> bool:
    """Return whether a command runs the script that it is given as its input."""
    words = text_of(body).split()
    ends = [word.rpartition("/")[2] for word in (*words[:1], *words[-1:])]
    return any(name in _TAKE_A_SCRIPT for name in ends)


def are_apart(command: Node, assignments: Sequence[Node], name: Node) -> bool:
    """Return whether assignments are statements of their own.

    The grammar joins several of them on one line with the command on the next.
    """
    if not assignments:
        return False
    begin, end = (each - command.start_byte for each in (assignments[-1].end_byte, name.start_byte))
    between = (command.text or b"")[begin:end]
    return b"\n" in between.replace(b"\\\n", b"")


def first_error(root: Node) -> int:
    """Return the first line that the grammar does not understand."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node.type == "ERROR" or node.is_missing:
            return node.start_point[0] + 1
        waiting += [child for child in reversed(node.children) if child.has_error]
    return 1
