# SPDX-License-Identifier: Apache-2.0
"""The rest of a shell script: words that were not followed, whatever rule dropped them.

Each word and each sign is changed in turn, and the script followed again. If what was found stays
the same, the word was not followed: its statement is compared as text. Rules of `Walk` can then be
wrong in what they call a difference, but not pass over one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from msprobe.run_config.shell_commands import Statement
from msprobe.run_config.shell_idle import Idle
from msprobe.run_config.shell_words import shell_parser, text_of, walk

if TYPE_CHECKING:
    from tree_sitter import Node

# Nodes in all searches, and those that one step is worth.
_MAX_READ: Final = 150_000
_NODES_OF_A_STEP: Final = 8
_MARKED: Final = re.compile(r"q\d+z")
_SHORT_OPTION: Final = re.compile(r"-\w+")
_VALUES: Final = ("command", "variable_assignment", "array", "string", "concatenation")
_PIECE: Final = re.compile(rb"[^\s=,:;\"'`\\{}()\[\]$]+")
_LITERALS: Final = frozenset(
    (
        *("word", "number", "string_content", "raw_string", "ansi_c_string", "heredoc_content"),
        *("heredoc_body", "regex", "extglob_pattern", "variable_name", "special_variable_name"),
    )
)
# What a sign is changed into; other words are lengthened, and left out.
_OTHERS: Final[Mapping[str, str]] = {
    one: other
    for pair in (
        *("&& ||", "== !=", "while until", "-eq -ne", "-lt -ge", "-gt -le", "-z -n", "+ -", "* +"),
        *("/ *", ":- :+", "# %", "## %", "%% #", "break continue", "true false"),
    )
    for one, other in (pair.split(), pair.split()[::-1])
} | {"!": " ", "+": "-", "*": "+"}


class _Change(NamedTuple):
    """A word or sign of a script, and what it is changed into.

    Attributes:
        statement: the statement that it is in.
        start: its first byte.
        end: the byte behind it.
        others: what it is changed into, one after the other.
        is_marked: whether it can be changed together with others, and be looked for.
    """

    statement: Node
    start: int
    end: int
    others: Sequence[bytes]
    is_marked: bool


def not_followed(
    text: str, found: Callable[[str], object], unreached: Collection[str], steps: int
) -> list[Statement]:
    """Return the statements with a word whose change changes nothing of what is found.

    Args:
        text: the script.
        found: returns what is found in a text.
        unreached: conditions that known values decide, and the statements that they skip.
        steps: of one search.
    """
    content = text.encode(errors="surrogateescape")
    root = shell_parser().parse(content).root_node
    idle = Idle(root, unreached)
    left, rows = _waiting(content, list(_changes(root, idle)), found), dict[int, Statement]()
    budget, known = (
        _MAX_READ // (1 + sum(1 for _ in walk(root)) + _NODES_OF_A_STEP * steps),
        found(text),
    )
    for statement, start, end, others, _ in left:
        if statement.id in rows:
            continue
        budget -= len(others)
        changed = (_decoded(content[:start] + one + content[end:]) for one in others)
        if budget < 0 or any(found(one) == known for one in changed):
            rows[statement.id] = idle.as_row(statement)
    return list(rows.values())


def _waiting(
    content: bytes, changes: list[_Change], found: Callable[[str], object]
) -> list[_Change]:
    """Return the changes but those of words that come up, marked all at once, in what is found."""
    marked = content
    for number, change in reversed([*enumerate(changes)]):
        if change.is_marked:
            # In front: the end of a name says what kind of file it is.
            at = change.end if marked[change.start : change.start + 1] == b"-" else change.start
            marked = marked[:at] + b"q%dz" % number + marked[at:]
    seen = set(_MARKED.findall(repr(found(_decoded(marked)))))
    return [one for number, one in enumerate(changes) if f"q{number}z" not in seen]


def _decoded(content: bytes) -> str:
    return content.decode(errors="surrogateescape")


def _changes(root: Node, idle: Idle) -> Iterator[_Change]:
    """Yield the changes of the words that may have an effect."""
    for leaf in walk(root):
        text = text_of(leaf)
        other = _OTHERS.get(text)
        if leaf.children or (other is None and leaf.type not in _LITERALS):
            continue
        statement = idle.statement(leaf)
        if statement is None or leaf.parent is None:
            continue
        if other is not None:
            yield _Change(statement, leaf.start_byte, leaf.end_byte, [other.encode()], False)
            continue
        # What decides where a script goes is changed alone.
        is_value = leaf.type not in ("variable_name", "special_variable_name") and (
            leaf.parent.type in _VALUES and not text.startswith("-")
        )
        for piece in _PIECE.finditer(leaf.text or b""):
            start = leaf.start_byte + piece.start()
            longer = piece[0] + (b"7" if piece[0].isdigit() else b"x7")
            others = [longer, b""] if _SHORT_OPTION.fullmatch(text) else [longer]
            is_marked = is_value or text.startswith("--")
            yield _Change(statement, start, start + len(piece[0]), others, is_marked)
