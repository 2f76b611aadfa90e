# SPDX-License-Identifier: Apache-2.0
"""Statements of a shell script that change nothing: they show something, wait, or name results."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from msprobe.run_config.environment import may_matter
from msprobe.run_config.shell_commands import (
    SETS,
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
_SETS_DEFAULT: Final = re.compile(r"\$\{\w+:?=")
_FLAGS: Final = {"read": re.compile("-r"), "python": re.compile("-[uBsSEIqvd]+")}
_SEPARATOR: Final = re.compile(r"\s*;+\s*")
_VARIABLE: Final = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


class Idle:
    """Which statements of a script are without effect, and how the others are compared.

    Args:
        root: the script.
        unreached: texts of conditions that known values decide, and of what they skip.
    """

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
        # The list of all children of a long one would take long.
        first = node.child(0) if node.child_count else None
        name = text_of(first) if first else ""
        if node.type == "list" and inside.type in ("&&", "||"):
            return text_of(node.children[-1]).split()[0] == "exit"
        if node.type == "command" and name == "exit":
            return inside != first
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
            return all(map(SETS.fullmatch, rest))
        if name == "trap" and rest:
            inner = shell_parser().parse(rest[0].encode()).root_node
            body = self._functions.get(rest[0])
            return Idle(inner)._is_idle(inner) if body is None else self._is_idle(body)
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
