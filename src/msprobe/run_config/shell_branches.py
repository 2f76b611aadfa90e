# SPDX-License-Identifier: Apache-2.0
"""Branches and loops of a shell script: which of them `Walk` follows, and what they leave open."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msprobe.run_config.shell_conditions import branches_of, holds
from msprobe.run_config.shell_variables import Variables, Word, of_branches
from msprobe.run_config.shell_words import assigned_in, opaque, read_in, text_of, value_of, words_of

if TYPE_CHECKING:
    from tree_sitter import Node

    from msprobe.run_config.shell_walk import Walk

STATUS: Final = {"true": True, ":": True, "false": False}
"""Commands whose status is known."""
_MAX_ROUNDS: Final = 64
# Commands that scripts run for their status; others are taken to succeed before ``&&``.
_ASK: Final = ("grep", "egrep", "which", "type", "hash", "command", "test", "diff", "cmp", "pgrep")
_DECIDED: Final = ("variable_assignment", "declaration_command", "test_command")


class Ended(Exception):  # noqa: N818 - not an error
    """The script, or a function, ends here."""


class LeftRound(Exception):  # noqa: N818 - not an error
    """A round of a loop ends here; with ``break`` as its argument the loop does."""


def in_subshell(way: Walk, node: Node) -> bool | None:
    """Follow ``( … )``, whose variables are lost."""
    before, place = way.variables.copy(), way.files.place
    way.inside.append("a subshell")
    with suppress(Ended):
        way.run_each(node.named_children)
        before.own |= way.variables.own
    way.inside.pop()
    way.stop_if_too_long()
    way.variables, way.files.place = before, place
    return True


def negated(way: Walk, node: Node) -> bool | None:
    """Follow ``! …``."""
    way.note("not", node, "!")
    status = _status(way, node.named_children)
    return None if status is None else not status


def in_brackets(way: Walk, node: Node) -> bool | None:
    """Note a test in brackets; return whether it holds."""
    inner = node.named_children
    found = holds(inner[0], way.variables) if len(inner) == 1 else None
    way.note("condition", node, None if found is None else way.plain(node))
    return found


def loop(way: Walk, node: Node) -> bool | None:
    """Follow the body of a loop once: its head and what it assigns are compared as text."""
    body, known = node.child_by_field_name("body"), len(way.launches)
    head = [one for one in node.named_children if one != body]
    assigned = assigned_in(node)
    way.variables.rename(name for one in head for name in (*assigned_in(one), *read_in(one)))
    changes = [*head, *(one for one in assigned.values() if one not in head)]
    noted = [way.note("loop", one) for one in changes]
    way.visited.update(one.id for one in head)
    if node.children[0].type == "until":
        way.note("until", head[0])
    is_known = all(noted)
    line = node.start_point[0] + 1
    doubts = () if is_known else (f"is set in a loop (line {line})",)
    for name in assigned:
        way.variables.values[name] = (Word(f"${way.variables.renamed.get(name, name)}", doubts),)
    if body is not None:
        way.inside.append("a loop")
        for one in head if node.type == "while_statement" else ():
            way.run(one)
        _round(way, body)
        way.inside.pop()
    if len(way.launches) > known and not is_known:
        way.problems[f"loop in line {line}"] = "only the shell knows its rounds"
    return True


def _round(way: Walk, body: Node) -> bool:
    """Follow a round of a loop; return whether there may be another one."""
    try:
        way.run(body)
    except LeftRound as left:
        return left.args != ("break",)
    return True


def pipeline(way: Walk, node: Node) -> bool | None:
    """Follow the parts of a pipeline; the last one tells whether it succeeds."""
    parts, status = node.named_children, None
    for number, one in enumerate(parts, 1):
        way.inside.append(f"part {number} of {len(parts)}")
        if one.next_sibling is not None and one.next_sibling.type == "|&":
            way.note("redirect", one, "2>&1")
        status = way.run(one)
        way.inside.pop()
    return status


def one_then_other(way: Walk, node: Node) -> bool | None:
    """Follow ``A && B`` or ``A || B``."""
    left, right = node.children[0], node.children[-1]
    status = way.run(left)
    if text_of(left).split()[0] in _ASK:
        status = None
    wants = any(child.type == "&&" for child in node.children)
    way.note("list", node, "&&" if wants else "||")
    if status is None:
        branches(way, [left], [[right], []] if wants else [[], [right]])
        return None
    if status is wants:
        return way.run(right)
    if not wants and _may_fail(way, left):  # as most commands: what is done then may differ
        branches(way, [left], [[], [right]], reason="failure")
    return status


def _may_fail(way: Walk, node: Node) -> bool:
    if node.type == "list":
        return any(_may_fail(way, one) for one in (node.children[0], node.children[-1]))
    if node.type == "command":
        return text_of(node).split()[0] not in STATUS
    is_decided = node.type == "compound_statement" and node.children[0].type == "(("
    return not is_decided and node.type not in _DECIDED


def if_statement(way: Walk, node: Node) -> bool | None:
    """Follow the branch whose condition holds; from an open one on, all that may."""
    bodies: list[Sequence[Node]] = []
    opened: list[Node] = []
    is_decided = False
    for condition, body in branches_of(node):
        status = False if is_decided else _status(way, condition)
        is_decided |= bool(status)
        if status is None:
            opened.append(condition[-1])
        if status is not False:
            bodies.append(body)
    if not is_decided:
        bodies.append([])
    if opened:
        branches(way, opened, bodies)
    else:
        way.run_each(bodies[0])
    return True


def _status(way: Walk, condition: Sequence[Node]) -> bool | None:
    status: bool | None = True
    for one in condition:
        name = one.child_by_field_name("name")
        status = way.run(one)
        if one.type == "command":
            status = STATUS.get("" if name is None else text_of(name))
    return status


def branches(
    way: Walk,
    conditions: Sequence[Node],
    bodies: Sequence[Sequence[Node]],
    *,
    reason: str = "",
) -> None:
    """Follow each branch from the same state, and join what they set.

    Args:
        conditions: what decides, compared as text unless no branch does anything.
        bodies: the statements of each branch.
        reason: why the last one may be taken, if that is no condition.
    """
    line, place_in_text = conditions[0].start_point[0] + 1, len(way.statements)
    noted = [] if reason else [*map(partial(_note_condition, way), conditions)]
    is_open, known = not all(noted), (len(way.statements), len(way.launches))
    before, place, written = way.variables, way.files.place, dict(way.files.written)
    way.open_lines += [line] if is_open else []
    ends: list[tuple[Variables, tuple[str, Path]]] = []
    left: Ended | LeftRound = Ended()
    for number, body in enumerate(bodies, 1):
        way.variables, way.files.place = before.copy(), place
        way.inside.append(reason or f"branch {number} of {len(bodies)}")
        try:
            way.run_each(body)
            ends.append((way.variables, way.files.place))
        except (Ended, LeftRound) as exc:
            way.stop_if_too_long()
            left = exc
        finally:
            way.inside.pop()
    del way.open_lines[len(way.open_lines) - is_open :]
    if not ends:
        raise left
    is_same = all(end == (before, place) for end in ends) and len(ends) == len(bodies)
    if is_same and known == (len(way.statements), len(way.launches)):
        if written == way.files.written:
            del way.statements[place_in_text:]
        return
    doubts = (f"depends on the condition in line {line}",) if is_open else ()
    way.variables = of_branches([each for each, _ in ends], doubts)
    folders = dict.fromkeys(folder for _, (folder, _) in ends)
    way.files.place = " or ".join(folders), ends[0][1][1]


def _note_condition(way: Walk, node: Node) -> bool:
    if node.id in way.trainings or node.type == "list":  # their words are compared already
        way.note("condition", node, "it succeeds")
        return False
    if node.type in ("test_command", "compound_statement"):  # has been noted
        return not opaque(node, way.variables).doubts
    return way.note("condition", node)


def for_statement(way: Walk, node: Node) -> bool | None:
    """Follow each round of a ``for`` loop over words."""
    name, body = node.child_by_field_name("variable"), node.child_by_field_name("body")
    if name is None or body is None:
        return True
    if node.children[0].type == "select":
        way.note("select", node, "select")
    parts = node.children_by_field_name("value")
    words = [word for one in parts for word in words_of(one, way.variables)]
    if len(words) > _MAX_ROUNDS:
        rest = " ".join(word.text for word in words[_MAX_ROUNDS:])
        way.note("for", node, f"and {len(words) - _MAX_ROUNDS} more words, {rest}")
    way.loop_names.setdefault(text_of(name), f"variable{len(way.loop_names) + 1}")
    for word in words[:_MAX_ROUNDS]:
        way.variables.values[text_of(name)] = (word,)
        if not _round(way, body):
            break
    return True


def case_statement(way: Walk, node: Node) -> bool | None:
    """Follow the branch of a ``case`` that fits, or all that may."""
    value = node.child_by_field_name("value")
    items = [one for one in node.named_children if one.type == "case_item"]
    word = value_of(value, way.variables)
    bodies: list[Sequence[Node]] = []
    patterns: list[list[str]] = []
    for item in items:
        parts = item.children_by_field_name("value")
        patterns.append([text_of(one) for one in parts])
        bodies.append([one for one in item.named_children if one not in parts])
        ends = [one.type for one in item.children if one.type in (";&", ";;&")]
        way.note("case", item, " | ".join((*patterns[-1], *ends)))
    if not word.is_known:
        has_default = any("*" in each for each in patterns)
        bodies += [] if has_default else [[]]
        branches(way, [value or node], bodies)
        return True
    is_found = False
    for names, body in zip(patterns, bodies, strict=True):
        if not is_found and any(fnmatchcase(word.text, one.strip("\"'")) for one in names):
            is_found = True
            way.run_each(body)
    return True
