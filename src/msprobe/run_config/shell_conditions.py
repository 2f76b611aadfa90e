# SPDX-License-Identifier: Apache-2.0
"""Conditions of a shell script: its branches, and whether the test in brackets holds."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from msprobe.run_config.shell_numbers import number_of
from msprobe.run_config.shell_variables import Variables
from msprobe.run_config.shell_words import text_of, value_of

if TYPE_CHECKING:
    from tree_sitter import Node

_NUMBERS: Final = {"-eq": "==", "-ne": "!=", "-lt": "<", "-le": "<=", "-gt": ">", "-ge": ">="}


def branches_of(node: Node) -> Iterator[tuple[list[Node], list[Node]]]:
    """Yield condition and body of each branch of an ``if``; the last has none."""
    condition: list[Node] = []
    body: list[Node] = []
    into = condition
    later: list[Node] = []
    for child in node.children:
        if child.type == "then":
            into = body
        elif child.type in ("elif_clause", "else_clause"):
            later.append(child)
        elif child.is_named and child.type != "comment":
            into.append(child)
    yield condition, body
    for one in later:
        if one.type == "elif_clause":
            yield from branches_of(one)
        else:
            yield [], [each for each in one.named_children if each.type != "comment"]


def holds(node: Node, variables: Variables) -> bool | None:
    """Return whether a condition in brackets holds; None if only the shell knows."""
    operator = node.child_by_field_name("operator")
    sign = "" if operator is None else text_of(operator)
    if node.type == "binary_expression":
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        return None if left is None or right is None else _binary(left, sign, right, variables)
    operands = [one for one in node.named_children if one != operator]
    if node.type == "parenthesized_expression" and len(operands) == 1:
        return holds(operands[0], variables)
    if node.type != "unary_expression" or len(operands) != 1:
        return None
    if sign == "!":
        inner = holds(operands[0], variables)
        return None if inner is None else not inner
    word = value_of(operands[0], variables)
    if sign not in ("-z", "-n") or not word.is_known:
        return None
    return (not word.text) is (sign == "-z")


def _binary(left: Node, sign: str, right: Node, variables: Variables) -> bool | None:
    if sign in ("&&", "||"):
        both = holds(left, variables), holds(right, variables)
        decisive = sign == "||"
        if decisive in both:
            return decisive
        return None if None in both else not decisive
    one, other = value_of(left, variables), value_of(right, variables)
    if not (one.is_known and other.is_known):
        return None
    if sign in ("=", "==", "!="):
        return fnmatchcase(one.text, other.text) is (sign != "!=")
    found = number_of(f"{one.text} {_NUMBERS.get(sign, '?')} {other.text}", variables)
    return None if found is None else found != 0
