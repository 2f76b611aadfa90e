# SPDX-License-Identifier: Apache-2.0
"""Statements of a shell script whose words do not reach a training: compared as text.

All words are marked and the script is followed again. A statement is followed if the marks of its
words come up in what is found; every other one is compared as text, and so is one that was not
reached. Rules of `Walk` can then be wrong in what they call equal words, but not pass over one.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from msprobe.run_config.launches import is_program
from msprobe.run_config.shell_commands import Statement
from msprobe.run_config.shell_variables import MARK
from msprobe.run_config.shell_words import plain_source, text_of, walk

if TYPE_CHECKING:
    from tree_sitter import Node

_MARKED: Final = re.compile(r"q(\d+)z")
_PIECE: Final = re.compile(rb"[^\s=,:;\"'`\\{}()\[\]$]+")
_LITERALS: Final = frozenset(
    (
        *("word", "number", "string_content", "raw_string", "ansi_c_string", "heredoc_content"),
        *("heredoc_body", "regex", "extglob_pattern"),
    )
)
_ARITHMETIC: Final = ("arithmetic_expansion", "compound_statement", "subscript")
_FOLLOWED: Final = re.compile(r"read|printf|mapfile|readarray|echo|let|eval|source|export|set|\.")
_DECLARE: Final = ("declare", "local", "typeset", "readonly", "export")
_FLAG: Final = re.compile(r"[-+]\w+")
_SET_VARIABLES: Final = ("read", "mapfile", "readarray", "let", "getopts")
_VARIABLE: Final = re.compile(r"[A-Za-z_]\w*[-+*/%]?")
_FOLLOWED_FLAGS: Final = re.compile(r"-[rtvnd]|--")
_NO_WORDS: Final = re.compile(r"[-+]|-[a-z]*c|-m|[\w./-]*\.sh|launch|--")
_STATEMENTS: Final = frozenset(
    (
        *("command", "variable_assignment", "declaration_command", "unset_command", "list"),
        *("test_command", "if_statement", "while_statement", "for_statement", "case_statement"),
        *("c_style_for_statement", "pipeline", "subshell", "compound_statement", "do_group"),
        *("negated_command", "redirected_statement", "variable_assignments"),
    )
)
_NESTS: Final = _STATEMENTS - {"command", "variable_assignment", "test_command"} | {
    *("program", "elif_clause", "else_clause", "case_item", "function_definition", "ERROR")
}


class Marks:
    """Marks at the words of a script, and which of them came up.

    Args:
        root: the script.
        found: returns what is found in a text.
    """

    def __init__(self, root: Node, found: Callable[[str], object]) -> None:
        places = [*_places(root)]
        content = root.text or b""
        parts, last = list[bytes](), 0
        for number, place in enumerate(places):
            sign = b"q%dz" % number if place.is_number else f"{MARK}q{number}z".encode()
            parts += [content[last : place.at], sign]
            last = place.at
        marked = b"".join((*parts, content[last:])).decode(errors="surrogateescape")
        seen = set(map(int, _MARKED.findall(repr(found(marked))))) if places else set()
        self._unseen = [one for number, one in enumerate(places) if number not in seen]
        self._starts = [one.at for one in self._unseen]

    def unseen(self, node: Node) -> list[str]:
        """Return the words of a node that did not come up."""
        begin = bisect_left(self._starts, node.start_byte)
        end = bisect_left(self._starts, node.end_byte + 1)
        return list(dict.fromkeys(one.word for one in self._unseen[begin:end]))


class _Place(NamedTuple):
    """Place of a mark: in front of a word, behind an option."""

    at: int
    word: str
    is_number: bool


def _places(root: Node) -> Iterator[_Place]:
    """Yield the places of marks, in order."""
    waiting: list[tuple[Node, bool, str, str]] = [(root, False, "", "")]
    while waiting:
        node, is_number, command, label = waiting.pop()
        if node.type in _ARITHMETIC:
            is_number |= node.type != "compound_statement" or node.children[0].type == "(("
        if node.type in ("command", "declaration_command"):
            name = node.child_by_field_name("name") or node.children[0]
            command = text_of(name)
            is_number |= command == "let"
        command = ">" if node.type == "file_redirect" else command
        if node.type == "variable_assignment" and not is_number:
            value = node.child_by_field_name("value")
            if value is None or not any(_pieces(one, command) for one in walk(value)):
                inside = value is not None and value.type == "array"
                at = node.end_byte if value is None else value.start_byte + inside
                if text_of(node)[-1:] != "=" or value is None:
                    yield _Place(at, text_of(node), False)
                continue
            label = text_of(node)  # with its name, by which secrets are known
        if node.type != "comment" and not (node.type == "command_name" and not node.children[1:]):
            for at, word in _pieces(node, command):
                yield _Place(at, label or word, is_number)
            is_function = node.type == "function_definition"
            children = node.children_by_field_name("body") if is_function else node.children
            waiting += [(one, is_number, command, label) for one in reversed(children)]


def _pieces(leaf: Node, command: str) -> list[tuple[int, str]]:
    """Return the words in a leaf that can be marked, with the places of their marks."""
    if leaf.children or leaf.type not in _LITERALS:
        return []
    flags = _FOLLOWED_FLAGS if _FOLLOWED.fullmatch(command) else _NO_WORDS
    flags = _FLAG if command in _DECLARE else flags
    found = []
    for piece in _PIECE.finditer(leaf.text or b"") if command != "set" else ():
        word = piece[0].decode(errors="replace")
        sets = (
            command in _SET_VARIABLES or (leaf.text or b"")[piece.end() : piece.end() + 1] == b"="
        )
        is_name = sets and _VARIABLE.fullmatch(word)
        is_meant = is_name or flags.fullmatch(word) or _NO_WORDS.fullmatch(word)
        if command != ">" and (is_meant or is_program(word)):
            continue
        at = leaf.start_byte + (piece.end() if word[0] in "-+" else piece.start())
        found.append((at, word))
    return found


def unreached(root: Node, visited: set[int]) -> Iterator[Statement]:
    """Yield the statements of a script that were not followed at all."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        body = node.child_by_field_name("body") if node.type == "function_definition" else None
        is_called = body is None or body.id in visited
        if not is_called or (node.type in _STATEMENTS and node.id not in visited):
            is_variable = node.type == "variable_assignment"
            name = f"unreached.{text_of(node.children[0])}" if is_variable else "unreached"
            yield Statement(node.start_point[0] + 1, name, plain_source(node))
        elif node.type in _NESTS:
            waiting += reversed(node.named_children)
