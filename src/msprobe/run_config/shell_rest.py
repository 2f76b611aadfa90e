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

from msprobe.run_config.environment import may_matter
from msprobe.run_config.shell_commands import (
    UNREACHED,
    Statement,
    is_without_effect,
    writes_results,
)
from msprobe.run_config.shell_files import ITS_OWN_FOLDER
from msprobe.run_config.shell_variables import shortened
from msprobe.run_config.shell_words import normal_text, shell_parser, text_of, walk

if TYPE_CHECKING:
    from tree_sitter import Node

Rows = list[tuple[int, str]]
"""Line and text of statements."""
_MAX_READ: Final = 150_000
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
_SIMPLE: Final = ("command", "variable_assignment", "declaration_command", "unset_command")
_STATEMENTS: Final = frozenset(
    (*_SIMPLE, "expansion", "test_command", "case_item", "redirected_statement")
)
_NESTS: Final = frozenset(
    (
        *("program", "do_group", "compound_statement", "case_item", "else_clause", "subshell"),
        *("elif_clause", "if_statement", "pipeline", "list", "for_statement", "while_statement"),
        *("c_style_for_statement", "case_statement", "function_definition", "negated_command"),
        *("variable_assignments", "redirected_statement"),
    )
)
_SUCCEED: Final = ("echo", "printf", "mkdir", "sleep", "date", "wait", "true", ":", "cd")
# Options of ``set`` and ``declare`` that show something, or make an array.
_SHOWING: Final = re.compile(r"[-+][arxvuhE]+|[-+]o|xtrace|verbose|nounset")
# What they do is followed, or shows something.
_SETS: Final = re.compile(r"[-+][aeEuxvh]*o?|errexit|pipefail|allexport|xtrace|verbose|nounset")
_SETS_DEFAULT: Final = re.compile(r"\$\{\w+:?=")
_FLAGS: Final = {"read": re.compile("-r"), "python": re.compile("-[uBsSEIqvd]+")}
_SEPARATOR: Final = re.compile(r"\s*;+\s*")
_VARIABLE: Final = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


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
    text: str, found: Callable[[str], object], unreached: Collection[str]
) -> list[Statement]:
    """Return the statements with a word whose change changes nothing of what is found.

    Args:
        text: the script.
        found: returns what is found in a text.
        unreached: conditions that known values decide, and the statements that they skip.
    """
    content = text.encode(errors="surrogateescape")
    root = shell_parser().parse(content).root_node
    idle = _Idle(root, unreached)
    left, rows = _waiting(content, list(_changes(root, idle)), found), dict[int, Statement]()
    budget, known = _MAX_READ // (1 + sum(1 for _ in walk(root))), found(text)
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


def _changes(root: Node, idle: _Idle) -> Iterator[_Change]:
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


class _Idle:
    """Statements of a script that change nothing: they show something, or ask for it."""

    def __init__(self, root: Node, unreached: Collection[str] = ()) -> None:
        self._unreached = {
            one.id for one in (walk(root) if unreached else ()) if text_of(one) in unreached
        }
        self._known: dict[int, bool] = {}
        self._functions: dict[str, Node] = {}
        self._uses: dict[str, list[Node]] = {}
        for node in walk(root):
            name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
            if node.type == "function_definition" and name is not None and body is not None:
                self._functions[text_of(name)] = body
            is_set = (
                node.prev_sibling is None
                and node.parent is not None
                and (node.parent.type == "variable_assignment")
            )
            if node.type == "variable_name" and not is_set:
                self._uses.setdefault(text_of(node), []).append(node)

    def as_row(self, node: Node) -> Statement:
        """Return a statement as it is compared."""
        text = _VARIABLE.sub(r"$\1\2", normal_text(node)).replace('"', "").replace(":=", ":-")
        name = re.match(r"[\w./-]+", text)
        kind = "variable" if node.type == "variable_assignment" else node.type.partition("_")[0]
        kind += f".{name[0]}" if name and node.type in _SIMPLE else ""
        uses = self._uses.get(name[0] if name else "", ())
        is_for_unreached = bool(uses) and all(map(self._is_unreached, uses))
        if self._is_unreached(node) or (kind.startswith("variable.") and is_for_unreached):
            kind = UNREACHED
        return Statement(node.start_point[0] + 1, kind, shortened(_SEPARATOR.sub(" ", text)))

    def _is_unreached(self, node: Node) -> bool:
        while node.id not in self._unreached:
            if node.parent is None:
                return False
            node = node.parent
        return True

    def statement(self, leaf: Node) -> Node | None:
        """Return the statement that a word is in; None if the word has no effect."""
        inner, node, inside = None, leaf, leaf
        while node.parent is not None:
            if node.type == "comment" or self._is_without_effect(node, inside):
                return None
            if self._is_idle(node) and self._is_for_itself(node, node.parent):
                return None
            inner = node if inner is None and node.type in _STATEMENTS else inner
            inside, node = node, node.parent
        return inner or inside

    def _is_without_effect(self, node: Node, inside: Node) -> bool:
        """Return whether the part of a node that a word is in never has an effect."""
        if node.type == "file_redirect":
            to = node.child_by_field_name("destination")
            return to is None or to.type == "number" or writes_results(text_of(to).strip("\"'"))
        name = text_of(node.children[0]) if node.children else ""
        if node.type == "list" and inside.type in ("&&", "||"):
            return text_of(node.children[-1]).split()[0] == "exit"
        if node.type == "command" and name == "exit":
            return inside != node.children[0]
        if node.type == "command" and name in ("cd", "pushd"):
            return any(part in text_of(node) for part in ITS_OWN_FOLDER)
        flags = _FLAGS.get(name.rstrip("0123456789."))
        if node.type == "command" and flags is not None:
            return flags.fullmatch(text_of(inside)) is not None
        is_option = node.type == "declaration_command" and inside.type == "word"
        return is_option and _SHOWING.fullmatch(text_of(inside)) is not None

    def _is_idle(self, node: Node) -> bool:
        if node.id not in self._known:
            self._known[node.id] = False  # of what asks for itself
            self._known[node.id] = self._asks_only(node)
        return self._known[node.id]

    def _asks_only(self, node: Node) -> bool:
        match node.type:
            case "command":
                return self._is_idle_command(node)
            case "variable_assignment":
                return self._is_idle_variable(text_of(node).partition("=")[0].rstrip("+"))
            case "declaration_command" | "unset_command":
                names = [text_of(one) for one in node.named_children if one.type == "variable_name"]
                others = [one for one in node.named_children if one.type == "variable_assignment"]
                names += [text_of(one).partition("=")[0] for one in others]
                is_export = text_of(node.children[0]) in ("export", "unset")
                return bool(names) and all(
                    not may_matter(one) if is_export else self._is_idle_variable(one)
                    for one in names
                )
            case "test_command" | "comment":
                return True
            case kind if kind in _NESTS:
                inner = [one for one in node.named_children if one.type in _NESTS | _STATEMENTS]
                redirects = [one for one in node.named_children if one.type == "file_redirect"]
                are_results = all(self._is_without_effect(one, one) for one in redirects)
                return bool(inner) and are_results and all(map(self._is_idle, inner))
        return False

    def _is_idle_command(self, node: Node) -> bool:
        parts = [text_of(one).strip("\"'") for one in node.named_children if one.type != "comment"]
        name, rest = parts[0], parts[1:]
        if any(one.type == "variable_assignment" for one in node.named_children):
            return False
        if name in self._functions:
            return self._is_idle(self._functions[name])
        if name == "set":
            return all(map(_SETS.fullmatch, rest))
        if name == "trap" and rest:
            inner = shell_parser().parse(rest[0].encode()).root_node
            body = self._functions.get(rest[0])
            return _Idle(inner)._is_idle(inner) if body is None else self._is_idle(body)
        sets = any(_SETS_DEFAULT.search(text_of(one)) for one in node.named_children)
        return not sets and is_without_effect(parts)

    def _is_idle_variable(self, name: str) -> bool:
        uses = self._uses.get(name, ())
        if not uses:
            return not may_matter(name)
        return (
            name.isidentifier()
            and name != "IFS"
            and all(self.statement(one) is None for one in uses)
        )

    def _is_for_itself(self, node: Node, parent: Node) -> bool:
        """Return whether nothing asks for the output or the status of a statement."""
        later = [one for one in parent.named_children if one.start_byte > node.start_byte]
        match parent.type:
            case "pipeline":
                return node.prev_named_sibling is not None and all(map(self._is_idle, later))
            case "list":
                return not later or text_of(node).split()[0] in _SUCCEED
            case "if_statement" | "elif_clause" | "while_statement":
                body = next(
                    (one for one in parent.children if one.type in ("then", "do_group")), None
                )
                return body is not None and node.start_byte >= body.start_byte
            case "command":
                return False
        return parent.type in _NESTS
