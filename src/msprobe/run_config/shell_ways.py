# SPDX-License-Identifier: Apache-2.0
"""Follow a shell script: the ways through it, and the trainings that each of them starts.

A condition that only the running shell can decide makes two ways, or one for each case.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Final

from msprobe.run_config.command_options import Arguments
from msprobe.run_config.environment import may_matter
from msprobe.run_config.launches import InnerScript, Launch, find_launch
from msprobe.run_config.secrets import hide_secrets
from msprobe.run_config.shell_commands import (
    Statement,
    are_apart,
    changes_something,
    directive,
    first_error,
    reads_script,
    writes_results,
)
from msprobe.run_config.shell_conditions import branches_of, holds
from msprobe.run_config.shell_files import ScriptFiles, redirected
from msprobe.run_config.shell_words import (
    Variables,
    Word,
    assigned_in,
    number_of,
    opaque,
    printed_by,
    set_by_name,
    set_opaquely,
    shell_parser,
    shortened,
    text_of,
    value_of,
    words_of,
)

if TYPE_CHECKING:
    from tree_sitter import Node

_MAX_STEPS: Final = 20_000
_MAX_DEPTH: Final = 100
_MAX_ROUNDS: Final = 64
_TOO_LONG: Final = "the script is too long or too deeply nested to be followed"
_EXPORT_ALL: Final = re.compile(r"[-+][a-z]*a[a-z]*|allexport")
# What the others do to the words of a script is not followed.
_SETS: Final = re.compile(r"[-+][aeuxvEh]*o?|allexport|errexit|nounset|xtrace|pipefail|verbose")
_DECLARES: Final = re.compile(r"(-[agrx]+)*")
# Commands that scripts run for their status; others are taken to succeed before ``&&``.
_ASK: Final = ("grep", "egrep", "which", "type", "hash", "command", "test", "diff", "cmp", "pgrep")
_STATUS: Final = {"true": True, ":": True, "false": False}


class _Ended(Exception):  # noqa: N818 - not an error
    """The script, or a function, ends here."""


class _LeftRound(Exception):  # noqa: N818 - not an error
    """A round of a loop ends here; with ``break`` as its argument the loop does."""


@dataclass(frozen=True, slots=True)
class _Decision:
    """A decision where the script's text does not tell; its condition is compared as text.

    Attributes:
        line: its line.
        taken: the number of the choice.
        count: number of choices.
        is_open: whether the same text may be decided otherwise in another run.
    """

    line: int
    taken: int
    count: int
    is_open: bool


class Way:
    """One way through a script.

    Attributes:
        launches: trainings that it starts.
        problems: what could not be followed, by its place.
        decisions: how open conditions were decided, in order.
        files: files that it reads and writes.
        directives: what it asks of a scheduler, by name.
        statements: what is not understood and may change a training, as ``module load``.
    """

    def __init__(self, folder: Path, decided: Sequence[int]) -> None:
        self.launches: list[Launch] = []
        self.problems: dict[str, str] = {}
        self.decisions: list[_Decision] = []
        self._decided = decided
        self.files = ScriptFiles(folder)
        self.directives: Arguments = {}
        self.statements: list[Statement] = []
        self._variables = Variables(read=self.files.content)
        self._exported: dict[str, None] = {}
        self._own: list[str] = []  # variables set in front of the present command
        self._exports_all = False
        self._given: Word | None = None  # what the present command reads from ``<<<`` or ``<<``
        self._steps = 0
        self._depth = 0

    def follow(self, text: str) -> None:
        """Follow a whole script."""
        try:
            self._run_text(text)
        except (_Ended, _LeftRound):
            return
        except RecursionError:
            self.problems["size"] = _TOO_LONG

    def _run_text(self, text: str) -> None:
        root = shell_parser().parse(text.encode(errors="surrogateescape")).root_node
        if root.has_error:
            self.problems["syntax"] = f"line {first_error(root)} is not understood"
            self._note("syntax", root)
        self._variables.own.update(assigned_in(root))
        self._run_all(root)

    def _run_all(self, node: Node) -> bool | None:
        for child in node.named_children:
            self._run(child)
        return True

    def _run(self, node: Node) -> bool | None:
        """Follow a statement; return whether it succeeds, None if only the shell knows."""
        self._steps += 1
        if self._steps > _MAX_STEPS or self._depth > _MAX_DEPTH:
            self.problems["size"] = _TOO_LONG
            raise _Ended
        self._depth += 1
        try:
            return self._dispatch(node)
        finally:
            self._depth -= 1

    def _dispatch(self, node: Node) -> bool | None:
        return _STATEMENTS.get(node.type, Way._not_known)(self, node)

    def _note(self, name: str, node: Node, text: str | None = None) -> bool:
        """Keep what is not understood, to be compared as text; return whether that is enough."""
        word = opaque(node, self._variables) if text is None else Word(shortened(text))
        found = Statement(node.start_point[0] + 1, name, word.text)
        if found not in self.statements:
            self.statements.append(found)
        return not word.doubts

    def _not_known(self, node: Node) -> bool | None:
        if node.is_named:
            self._note(node.type, node)
        return None

    def _compound(self, node: Node) -> bool | None:
        if node.children[0].type != "((":
            return self._run_all(node)
        found = number_of(text_of(node)[2:-2], self._variables)
        set_opaquely(assigned_in(node), self._variables)
        return None if found is None else found != 0

    def _declare(self, node: Node) -> bool | None:
        self._run_all(node)
        options = "".join(text_of(one) for one in node.named_children if one.type == "word")
        is_export = text_of(node.children[0]) == "export" or "x" in options
        if _DECLARES.fullmatch(options) is None:
            self._note("declare", node)
        elif is_export:
            names = (text_of(child).partition("=")[0] for child in node.named_children)
            self._exported |= dict.fromkeys(names)
        return True

    def _unset(self, node: Node) -> bool | None:
        for child in node.named_children:
            self._variables.values.pop(text_of(child), None)
            self._exported.pop(text_of(child), None)
        return True

    def _in_subshell(self, node: Node) -> bool | None:
        before = self._variables.copy()
        self._run_all(node)
        self._variables = before
        return True

    def _not(self, node: Node) -> bool | None:
        status = self._status(node.named_children)
        return None if status is None else not status

    def _in_brackets(self, node: Node) -> bool | None:
        inner = node.named_children
        return holds(inner[0], self._variables) if len(inner) == 1 else None

    def _loop(self, node: Node) -> bool | None:
        """Follow the body of a loop once: its head and what it assigns are compared as text."""
        body, known = node.child_by_field_name("body"), len(self.launches)
        head = [one for one in node.named_children if one != body]
        changes = [*head, *assigned_in(node).values()]
        noted = [self._note("loop", one) for one in changes]
        is_known = all(noted)
        line = node.start_point[0] + 1
        doubts = () if is_known else (f"is set in a loop (line {line})",)
        for name in assigned_in(node):
            self._variables.values[name] = (Word(f"${name}", doubts),)
        if body is not None:
            for one in head if node.type == "while_statement" else ():
                self._run(one)
            self._round(body)
        if len(self.launches) > known and not is_known:
            self.problems[f"loop in line {line}"] = "only the shell knows its rounds"
        return True

    def _round(self, body: Node) -> bool:
        """Follow a round of a loop; return whether there may be another one."""
        try:
            self._run(body)
        except _LeftRound as left:
            return left.args != ("break",)
        return True

    def _define(self, node: Node) -> bool | None:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None and body is not None:
            self._variables.functions[text_of(name)] = body
        return True

    def _command(self, node: Node) -> bool | None:
        name = node.child_by_field_name("name")
        if name is not None and text_of(name) == "test":
            return None
        for one in node.named_children:
            if one.type == "herestring_redirect":
                self._given = value_of(one.named_children[0], self._variables)
        assignments = [one for one in node.named_children if one.type == "variable_assignment"]
        before = self._variables.copy() if assignments else self._variables
        is_apart = name is None or not assignments or are_apart(node, assignments, name)
        for one in assignments:
            self._assign(one)
        if name is None:
            return True
        parts = [name, *node.children_by_field_name("argument")]
        if is_apart:
            words = [word for part in parts for word in words_of(part, self._variables)]
            return self._call(words, node) if words else True
        # The command has these variables, but its words are made without them.
        words = [word for part in parts for word in words_of(part, before)]
        self._own = [text_of(one).partition("=")[0] for one in assignments]
        try:
            return self._call(words, node) if words else True
        finally:
            self._own, self._variables = [], before

    def _call(self, words: list[Word], node: Node) -> bool | None:
        first, rest = words[0].text, words[1:]
        if first in ("exit", "return"):
            raise _Ended
        if first in ("break", "continue"):
            raise _LeftRound(first)
        if first in self._variables.functions:
            self._function(self._variables.functions[first], rest)
        elif first in _BUILTINS:
            _BUILTINS[first](self, rest, node)
        else:
            self._start(words, node)
        self._given = None
        return True

    def _set(self, words: list[Word], node: Node) -> None:
        for place, word in enumerate(words):
            if word.text == "--":
                self._variables.arguments = tuple(words[place + 1 :])
                return
            if _EXPORT_ALL.fullmatch(word.text):
                self._exports_all = word.text[0] != "+"
            if not _SETS.fullmatch(word.text):
                self._note("set", node, " ".join(one.text for one in words))

    def _shift(self, words: list[Word], _node: Node) -> None:
        arguments = self._variables.arguments
        if arguments is not None:
            count = int(words[0].text) if words and words[0].text.isdigit() else 1
            self._variables.arguments = arguments[count:]

    def _read(self, words: list[Word], node: Node) -> None:
        doubt = (f"is read when the script runs (line {node.start_point[0] + 1})",)
        names = [word.text for word in words if not word.text.startswith("-")]
        given = self._given
        for name in names:
            found = Word(f"${name}", doubt)
            if given is not None:
                found = Word(f"{name} of {given.text}", given.doubts, is_source=True)
            self._variables.values[name] = (found,)

    def _function(self, body: Node, arguments: list[Word]) -> None:
        before = self._variables.arguments
        self._variables.arguments = tuple(arguments)
        try:
            self._run(body)
        except _Ended:
            if self.problems.get("size"):
                raise
        finally:
            self._variables.arguments = before

    def _start(self, words: list[Word], node: Node) -> None:
        line = node.start_point[0] + 1
        found = find_launch(words, line, self._given)
        if isinstance(found, Launch):
            self.launches.append(self._with_environment(found))
        elif found is None and changes_something(words):
            if words[0].text in ("cp", "ln", "mv"):
                self.files.copy(words[1:])
            texts = [word.text for word in (*words[1:], *filter(None, [self._given]))]
            self._note(f"command.{PurePath(words[0].text).name}", node, " ".join(texts))
        elif isinstance(found, InnerScript):
            before, known = self._variables.copy(), len(self.launches)
            self._variables.arguments = found.arguments
            self._variables.values |= {"0": (found.name,)} if found.name else {}
            if found.text is not None:
                self._run_inner(found.text.text)
            else:
                self._run_file(found.file, line)
            self._variables = before
            self.launches[known:] = [
                replace(one, arguments=one.arguments | found.wrapper)
                for one in self.launches[known:]
            ]

    def _directive(self, node: Node) -> bool | None:
        self.directives |= directive(text_of(node))
        return True

    def _pipeline(self, node: Node) -> bool | None:
        """Follow all commands; what a training or another command is given is a part of that."""
        count, parts, status = len(self.statements), node.named_children, None
        for number, one in enumerate(parts):
            known = len(self.launches)
            status = self._run(one)
            is_given = number > 0 and len(self.launches) > known
            names = text_of(one).split()[:1]
            if is_given or names == ["xargs"] or (names == ["tee"] and not self.launches):
                count = -1
        if len(self.statements) > count:
            self._note("command.|", node)
        return status

    def _with_environment(self, launch: Launch) -> Launch:
        """Return a training with the variables that the script sets for it and that may matter."""
        arguments, doubts = dict(launch.arguments), dict(launch.doubts)
        if self.files.folder:
            arguments["folder"] = self.files.folder
        for name in (*self._exported, *self._own):
            known = self._variables.values.get(name)
            if known and may_matter(name):
                arguments[f"env.{name}"] = hide_secrets(name, known[0].text)
                if known[0].doubts:
                    doubts[f"env.{name}"] = known[0].doubts
        return replace(launch, arguments=arguments, doubts=doubts)

    def _run_inner(self, text: str) -> None:
        try:
            self._run_text(text)
        except _Ended:
            if self.problems.get("size"):
                raise

    def _source(self, words: list[Word], node: Node) -> None:
        if words:
            if len(words) > 1:
                self._variables.arguments = tuple(words[1:])
            self._run_file(words[0].text, node.start_point[0] + 1)

    def _run_file(self, name: str, line: int) -> None:
        text = self.files.content(name)
        if text is None:
            self.problems[f"file {name}"] = f"line {line} runs it, and it is not there"
            self.statements.append(Statement(line, "command.source", name))
        else:
            self._run_inner(text)

    def _redirected(self, node: Node) -> bool | None:
        body = node.child_by_field_name("body")
        if body is None:
            return None
        texts = [one for one in node.named_children if one.type == "heredoc_redirect"]
        inner = [each for one in texts for each in one.children if each.type == "heredoc_body"]
        text = value_of(inner[0], self._variables) if inner else None
        if text is not None and reads_script(body):
            self._run_inner(text.text)
            return True
        self._given, known = text, len(self.launches)
        content = self._content(body, text)
        if content is not None:
            self._write(node, body, content)
        for one in node.named_children if body.type != "command" else ():
            if one.type == "herestring_redirect":
                self._note("command.<<<", one)
        status = self._run(body)
        self._with_input(node, known)
        files = redirected(node, ">", self._variables)
        is_apart = len(self.launches) == known and body.type != "compound_statement"
        if content is None and is_apart and not all(writes_results(one.text) for one in files):
            self._note("command.>", node)
        for each in (each for one in texts for each in one.named_children):
            if each.type in ("pipeline", "command", "list"):  # cat <<EOF | python -
                self._given = text
                status = self._run(each)
        self._given = None
        return status

    def _content(self, body: Node, given: Word | None) -> Word | None:
        """Return what ``cat <<EOF`` and ``echo`` write; None of other commands."""
        name = text_of(body).split()[0]
        if given is not None:
            return given if name in ("cat", "tee") else None
        if name not in ("echo", "printf") or body.type != "command":
            return None
        text = printed_by(body, self._variables)
        return None if text is None else Word(text.text + "\n", text.doubts)

    def _with_input(self, node: Node, known: int) -> None:
        """Give the trainings from the `known`-th on the file that they read as their input."""
        files = redirected(node, "<", self._variables)
        is_given = any(one.type == "herestring_redirect" for one in node.named_children)
        if len(self.launches) == known and (files or is_given):
            self._note("command.<", node)
        elif files:
            self.launches[known:] = [
                replace(one, arguments=one.arguments | {"input": files[-1].text})
                for one in self.launches[known:]
            ]

    def _write(self, node: Node, body: Node, content: Word) -> None:
        """Keep what ``cat > FILE <<EOF`` and ``echo … > FILE`` write."""
        appends = b">>" in (node.text or b"").partition(b"\n")[0]
        targets = redirected(node, ">", self._variables)
        if not targets and text_of(body).startswith("tee"):
            parts = body.children_by_field_name("argument")
            targets = [word for part in parts for word in words_of(part, self._variables)]
        for word in targets:
            self.files.write(word.text, content.text, appends=appends)
            if content.doubts:
                self.problems[f"file {word.text}"] = "; ".join(content.doubts)

    def _assign(self, node: Node) -> bool | None:
        """Set a variable; always succeeds."""
        name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        if name is None:
            return True
        appends = any(child.type == "+=" for child in node.children)
        if text_of(name) == "IFS":
            self._note("IFS", node)
        if self._exports_all:
            self._exported[text_of(name)] = None
        values, key = self._variables.values, text_of(name)
        if value is not None and value.type == "array":
            parts = [one for one in value.named_children if one.type != "comment"]
            words = tuple(word for one in parts for word in words_of(one, self._variables))
            values[key] = (*values.get(key, ()), *words) if appends else words
            return True
        word = value_of(value, self._variables)
        if "[" in key:  # A[lr]=1, an entry like those of A=([lr]=1)
            key, _, index = key.partition("[")
            values[key] = (*values.get(key, ()), Word(f"[{index}={word.text}", word.doubts))
        elif appends and key in values:
            before = values[key][:1] or (Word(""),)
            joined = Word(before[0].text + word.text, before[0].doubts + word.doubts)
            values[key] = (joined, *values[key][1:])
        else:
            values[key] = (word,)
        return True

    def _list(self, node: Node) -> bool | None:
        left, right = node.children[0], node.children[-1]
        status = self._run(left)
        if text_of(left).split()[0] in _ASK:
            status = None
        wants = any(child.type == "&&" for child in node.children)
        if status is None:
            status = bool(self._decide(left, 2) == 0)
        return self._run(right) if status is wants else status

    def _if(self, node: Node) -> bool | None:
        for condition, body in branches_of(node):
            if self._holds(condition):
                for one in body:
                    self._run(one)
                break
        return True

    def _status(self, condition: Sequence[Node]) -> bool | None:
        status: bool | None = True
        for one in condition:
            name = one.child_by_field_name("name")
            status = self._run(one)
            if one.type == "command":
                status = _STATUS.get("" if name is None else text_of(name))
        return status

    def _holds(self, condition: Sequence[Node]) -> bool:
        status = self._status(condition)
        if status is None:
            return self._decide(condition[-1], 2) == 0
        return status

    def _decide(self, node: Node, count: int) -> int:
        """Return the number of the choice where only the shell knows; each way takes another."""
        place = len(self.decisions)
        taken = self._decided[place] if place < len(self._decided) else 0
        is_open = not self._note("condition", node)
        self.decisions.append(_Decision(node.start_point[0] + 1, taken, count, is_open))
        return taken

    def _for(self, node: Node) -> bool | None:
        name, body = node.child_by_field_name("variable"), node.child_by_field_name("body")
        if name is None or body is None:
            return True
        parts = node.children_by_field_name("value")
        words = [word for one in parts for word in words_of(one, self._variables)]
        if len(words) > _MAX_ROUNDS:
            rest = " ".join(word.text for word in words[_MAX_ROUNDS:])
            self._note("for", node, f"and {len(words) - _MAX_ROUNDS} more words, {rest}")
        for word in words[:_MAX_ROUNDS]:
            self._variables.values[text_of(name)] = (word,)
            if not self._round(body):
                break
        return True

    def _case(self, node: Node) -> bool | None:
        value = node.child_by_field_name("value")
        items = [one for one in node.named_children if one.type == "case_item"]
        word = value_of(value, self._variables)
        patterns = [
            [text_of(one) for one in item.children_by_field_name("value")] for item in items
        ]
        if word.doubts:
            has_default = any("*" in each for each in patterns)
            taken = self._decide(value or node, len(items) + (not has_default))
        else:
            fits = (
                any(fnmatchcase(word.text, each.strip("\"'")) for each in one) for one in patterns
            )
            taken = next((number for number, fit in enumerate(fits) if fit), len(items))
        if taken < len(items):
            values = items[taken].children_by_field_name("value")
            for one in items[taken].named_children:
                if one not in values:
                    self._run(one)
        return True


_STATEMENTS: Final[Mapping[str, Callable[[Way, Node], bool | None]]] = {
    "command": Way._command,
    "variable_assignment": Way._assign,
    "redirected_statement": Way._redirected,
    "subshell": Way._in_subshell,
    "list": Way._list,
    "negated_command": Way._not,
    "test_command": Way._in_brackets,
    "if_statement": Way._if,
    "for_statement": Way._for,
    **dict.fromkeys(("while_statement", "c_style_for_statement"), Way._loop),
    "case_statement": Way._case,
    "function_definition": Way._define,
    **dict.fromkeys(
        ("variable_assignments", "do_group", "else_clause", "ERROR", "program"),
        Way._run_all,
    ),
    "comment": Way._directive,
    "pipeline": Way._pipeline,
    "compound_statement": Way._compound,
    "declaration_command": Way._declare,
    "unset_command": Way._unset,
}
_BUILTINS: Final[Mapping[str, Callable[[Way, list[Word], Node], None]]] = {
    "source": Way._source,
    ".": Way._source,
    "eval": lambda way, words, _: way._run_inner(" ".join(word.text for word in words)),
    "trap": lambda way, words, _: way._run_inner(words[0].text if words else ""),
    **dict.fromkeys(
        ("let", "printf"), lambda way, words, node: set_by_name(words, node, way._variables)
    ),
    **dict.fromkeys(("cd", "pushd"), lambda way, words, _: way.files.change_folder(words)),
    "set": Way._set,
    "shift": Way._shift,
    **dict.fromkeys(("read", "getopts", "mapfile", "readarray"), Way._read),
}
