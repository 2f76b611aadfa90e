# SPDX-License-Identifier: Apache-2.0
"""Follow a shell script once: the trainings that it starts, and what may change them.

All branches of a condition that only the running shell can decide are followed, from one state.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Final

from msprobe.run_config.command_options import BLANK, Arguments
from msprobe.run_config.launches import InnerScript, Launch, find_launch
from msprobe.run_config.shell_commands import (
    Statement,
    are_apart,
    directive,
    first_error,
    reads_script,
    set_options,
)
from msprobe.run_config.shell_conditions import branches_of, holds
from msprobe.run_config.shell_files import ScriptFiles
from msprobe.run_config.shell_numbers import number_of, set_number
from msprobe.run_config.shell_redirects import (
    content_of,
    fields_of,
    is_plain_writer,
    redirected,
    targets_of,
)
from msprobe.run_config.shell_variables import Variables, Word, of_branches, shortened
from msprobe.run_config.shell_words import (
    assigned_in,
    opaque,
    plain_source,
    read_in,
    set_by_name,
    set_opaquely,
    shell_parser,
    text_of,
    value_of,
    walk,
    words_of,
)

if TYPE_CHECKING:
    from tree_sitter import Node

_MAX_STEPS: Final = 20_000
_MAX_DEPTH: Final = 100
_MAX_ROUNDS: Final = 64
_TOO_LONG: Final = "the script is too long or too deeply nested to be followed"
_DECLARES: Final = re.compile(r"(-[agrx]+)*")
_VARIABLE: Final = re.compile(r"\$(\w+)")
_LOCAL: Final = ("local", "declare", "typeset")
# They show something, or make folders: of these the source is compared, not the values in it.
_SHOW: Final = ("echo", "mkdir", "tee", "cat", "ls", "date", "touch", "tensorboard", "rm", "wait")
# Commands that scripts run for their status; others are taken to succeed before ``&&``.
_ASK: Final = ("grep", "egrep", "which", "type", "hash", "command", "test", "diff", "cmp", "pgrep")
_DECLARED: Final = ("variable_name", "word")
_DECIDED: Final = ("variable_assignment", "declaration_command", "test_command")
# Statements that are compared as text if one of their words does not come up.
_SIMPLE: Final = (
    *_DECIDED[:1],
    "herestring_redirect",
    "test_command",
    "command",
    "file_redirect",
    "heredoc_redirect",
)
_STATUS: Final = {"true": True, ":": True, "false": False}


class _Ended(Exception):  # noqa: N818 - not an error
    """The script, or a function, ends here."""


class _LeftRound(Exception):  # noqa: N818 - not an error
    """A round of a loop ends here; with ``break`` as its argument the loop does."""


class Walk:
    """What a script does, as far as its text tells.

    Attributes:
        launches: trainings that it starts.
        problems: what could not be followed, by its place.
        files: files that it reads and writes.
        directives: what it asks of a scheduler, by name.
        statements: what is compared as text, and the trainings among it, in order.
        simple: by node those that are only if one of their words did not come up, with places.
        visited: ids of the nodes that were followed.
        roots: the parsed texts: of the script under the empty name, of files that it runs.
    """

    def __init__(self, folder: Path) -> None:
        self.launches: list[Launch] = []
        self.problems: dict[str, str] = {}
        self.files = ScriptFiles(folder)
        self.directives: Arguments = {}
        self.statements: list[Statement] = []
        self._variables = Variables(read=self.files.content)
        self._own: list[str] = []  # variables set in front of the present command
        self._inside: list[str] = []  # branches, loops and traps around the present statement
        self._open: list[int] = []  # lines of their conditions, if the text does not decide them
        self._written_at: dict[str, int] = {}
        self._given: Word | None = None  # what the present command reads from ``<<<`` or ``<<``
        self._locals: list[dict[str, tuple[Word, ...] | None]] = []  # before functions set them
        self._trainings: set[int] = set()  # commands that start one
        self.simple: dict[int, tuple[int, Statement]] = {}
        self.visited: set[int] = set()
        self.roots: dict[str, Node] = {}
        self._steps = 0
        self._loop_names: dict[str, str] = {}
        self._depth = 0

    def follow(self, text: str) -> None:
        """Follow a whole script."""
        try:
            self._run_text(text, "")
        except (_Ended, _LeftRound):
            pass
        except RecursionError:
            self.problems["size"] = _TOO_LONG
        if self._variables.defaults:
            names = ", ".join(sorted(self._variables.defaults))
            self.statements.append(Statement(1, "default", names))

    def _run_text(self, text: str, name: str | None = None) -> None:
        """Follow a text; under a name it is parsed once, and its words are looked for."""
        root = self.roots.get(name or "") if name is not None else None
        if root is None:
            root = shell_parser().parse(text.encode(errors="surrogateescape")).root_node
            if name is not None:
                self.roots[name] = root
        if root.has_error:
            self.problems["syntax"] = f"line {first_error(root)} is not understood"
            self._note("syntax", root)
        self._variables.own.update(assigned_in(root))
        self._run_all(root)

    def _run_all(self, node: Node) -> bool | None:
        return self._run_each(node.named_children)

    def _run(self, node: Node) -> bool | None:
        """Follow a statement; return whether it succeeds, None if only the shell knows."""
        self._steps += 1
        if self._steps > _MAX_STEPS or self._depth > _MAX_DEPTH:
            self.problems["size"] = _TOO_LONG
            raise _Ended
        self._depth += 1
        follows = node.next_sibling
        is_apart = follows is not None and follows.type == "&"
        self._inside += ["the background"] * is_apart
        try:
            self._look_for(node)
            return _STATEMENTS.get(node.type, Walk._not_known)(self, node)
        finally:
            self._depth -= 1
            del self._inside[len(self._inside) - is_apart :]

    def _look_for(self, node: Node) -> None:
        """Keep a simple statement, which is compared as text if its words do not come up."""
        to = node.child_by_field_name("destination") if node.type == "file_redirect" else None
        if to is not None and to.type == "number":  # 2>&1
            self._note("redirect", node, self._plain(node))
        elif node.type in _SIMPLE and node.id not in self.visited:
            kind = node.type.partition("_")[0].replace("file", "redirect")
            if kind == "variable":
                kind += "." + text_of(node.children[0])
            one = self._statement(kind, node, self._plain(node))
            self.simple[node.id] = len(self.statements), one
        self.visited.add(node.id)

    def _note(self, name: str, node: Node, text: str | None = None) -> bool:
        """Keep what is not understood, to be compared as text; return whether that is enough."""
        word = opaque(node, self._variables) if text is None else Word(shortened(text))
        folder = f" in the folder {self.files.folder}" if self.files.folder else ""
        self.statements.append(self._statement(name, node, word.text + folder))
        return not word.doubts

    def _plain(self, node: Node) -> str:
        """Return the source of a statement, without the names of variables of loops."""
        names = self._loop_names
        return _VARIABLE.sub(lambda one: "$" + names.get(one[1], one[1]), plain_source(node))

    def _statement(self, name: str, node: Node, text: str) -> Statement:
        return Statement(node.start_point[0] + 1, name, " in ".join((text, *self._inside[::-1])))

    def written_files(self) -> dict[str, Statement]:
        """Return the files that the script writes for others, by name."""
        return {
            name: Statement(self._written_at[name], f"file.{name}", text)
            for name, text in self.files.written.items()
            if name in self._written_at
        }

    def _not_known(self, node: Node) -> bool | None:
        if node.is_named:
            self._note(node.type, node)
        return None

    def _compound(self, node: Node) -> bool | None:
        if node.children[0].type != "((":
            return self._run_all(node)
        text = text_of(node)[2:-2]
        found = set_number(text, self._variables)
        if found is None:
            found = number_of(text, self._variables)
            self._note("condition", node, None if found is None else self._plain(node))
            set_opaquely(assigned_in(node), self._variables)
        return None if found is None else found != 0

    def _declare(self, node: Node) -> bool | None:
        options = "".join(text_of(one) for one in node.named_children if one.type == "word")
        self._keep_outer(node, options)
        self._run_each([one for one in node.named_children if one.type not in _DECLARED])
        is_export = text_of(node.children[0]) == "export" or "x" in options
        if _DECLARES.fullmatch(options) is None or any(
            one.type not in (*_DECLARED, "variable_assignment") for one in node.named_children
        ):
            self._note("declare", node)
        elif is_export:
            names = (text_of(child).partition("=")[0] for child in node.named_children)
            self._variables.exported |= dict.fromkeys(names)
        if self._inside:  # which of the branches exports is not followed
            self._note("declare", node, text_of(node.children[0]))
        return True

    def _keep_outer(self, node: Node, options: str) -> None:
        """Keep what variables held that a function declares for itself."""
        if self._locals and text_of(node.children[0]) in _LOCAL and "g" not in options:
            for name in (text_of(one).partition("=")[0] for one in node.named_children):
                self._locals[-1].setdefault(name, self._variables.values.get(name))

    def _unset(self, node: Node) -> bool | None:
        for name in map(text_of, node.named_children):
            self._variables.values.pop(name, None)
            self._variables.exported.pop(name, None)
        self._note("unset", node, self._plain(node))
        return True

    def _in_subshell(self, node: Node) -> bool | None:
        before, place = self._variables.copy(), self.files.place
        self._inside.append("a subshell")
        with suppress(_Ended):
            self._run_all(node)
            before.own |= self._variables.own
        self._inside.pop()
        self._stop_if_too_long()
        self._variables, self.files.place = before, place
        return True

    def _stop_if_too_long(self) -> None:
        if "size" in self.problems:
            raise _Ended

    def _not(self, node: Node) -> bool | None:
        self._note("not", node, "!")
        status = self._status(node.named_children)
        return None if status is None else not status

    def _in_brackets(self, node: Node) -> bool | None:
        inner = node.named_children
        found = holds(inner[0], self._variables) if len(inner) == 1 else None
        self._note("condition", node, None if found is None else self._plain(node))
        return found

    def _loop(self, node: Node) -> bool | None:
        """Follow the body of a loop once: its head and what it assigns are compared as text."""
        body, known = node.child_by_field_name("body"), len(self.launches)
        head = [one for one in node.named_children if one != body]
        assigned = assigned_in(node)
        self._variables.rename(name for one in head for name in (*assigned_in(one), *read_in(one)))
        changes = [*head, *(one for one in assigned.values() if one not in head)]
        noted = [self._note("loop", one) for one in changes]
        self.visited.update(one.id for one in head)
        if node.children[0].type == "until":
            self._note("until", head[0])
        is_known = all(noted)
        line = node.start_point[0] + 1
        doubts = () if is_known else (f"is set in a loop (line {line})",)
        for name in assigned:
            self._variables.values[name] = (
                Word(f"${self._variables.renamed.get(name, name)}", doubts),
            )
        if body is not None:
            self._inside.append("a loop")
            for one in head if node.type == "while_statement" else ():
                self._run(one)
            self._round(body)
            self._inside.pop()
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

    def _trap(self, words: list[Word], _node: Node) -> None:
        self._inside.append("a trap on " + " ".join(word.text for word in words[1:]))
        self._run_inner(words[0].text if words else "")
        self._inside.pop()

    def _define(self, node: Node) -> bool | None:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if self._inside:
            self._note("function", node)
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
            elif one.type == "subshell":  # time ( … )
                self._run(one)
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
            if words and words[0].text in _BUILTINS:  # IFS=, read A B
                values = self._variables.values
                kept = {name: before.values.get(name, ()) for name in self._own}
                values |= {name: known for name, known in kept.items() if known}
            else:
                self._variables = before
            self._own = []

    def _call(self, words: list[Word], node: Node) -> bool | None:
        first, rest = words[0].text, words[1:]
        if first in ("exit", "return", "break", "continue"):
            self._note(f"command.{first}", node, self._plain(node))
            leaves = _LeftRound if first in ("break", "continue") else _Ended
            raise leaves(first, *(word.text for word in rest))
        if first in self._variables.functions:
            return self._function(self._variables.functions[first], rest)
        if first in _BUILTINS:
            _BUILTINS[first](self, rest, node)
        else:
            self._start(words, node)
        self._given = None
        return _STATUS.get(first, True)

    def _set(self, words: list[Word], node: Node) -> None:
        texts = [word.text for word in words]
        if "--" in texts:
            place = texts.index("--")
            self._variables.arguments = tuple(words[place + 1 :])
            self._note("set", node, "arguments")
            texts = texts[:place]
        for option in set_options(texts):
            self._note("set", node, option)
            if option.endswith("allexport"):
                self._variables.exports_all = option[0] == "-"

    def _change_folder(self, words: list[Word], node: Node) -> None:
        self._note("command.cd", node, self._plain(node))
        self.files.change_folder([Word(text_of(node).split()[0]), *words])

    def _export(self, words: list[Word], _node: Node) -> None:
        """Follow an ``export`` that the grammar takes for a command."""
        self._variables.exported |= dict.fromkeys(word.text for word in words)

    def _shift(self, words: list[Word], node: Node) -> None:
        self._note("command.shift", node, self._plain(node))
        arguments = self._variables.arguments
        if arguments is not None:
            count = int(words[0].text) if words and words[0].text.isdigit() else 1
            self._variables.arguments = arguments[count:]

    def _read(self, words: list[Word], node: Node) -> None:
        doubt = (f"is read when the script runs (line {node.start_point[0] + 1})",)
        plain = [word.text for word in words if not word.text.startswith("-")]
        names = [text for text in plain if text] or ["REPLY"]
        options = {sign for word in words if word.text.startswith("-") for sign in word.text[1:]}
        given, separators = self._given, self._variables.values.get("IFS", (Word(" \t"),))[0]
        is_one = given is not None and "\n" not in given.text.strip("\n")
        is_array = text_of(node).startswith(("mapfile", "readarray"))
        is_known = given is not None and given.is_known and (is_one or is_array)
        known = given if is_known and "a loop" not in self._inside else None
        if options == {"r", "d"} and "" in plain and given is not None and len(names) == 1:
            self._variables.values[names[0]] = (Word(given.text.strip(), given.doubts),)
            return
        if is_array:
            if known and options == {"t"}:
                self._variables.values[names[0]] = tuple(map(Word, known.text.splitlines()))
                return
        elif known and separators.is_known and options <= set("ra"):
            self._variables.values |= fields_of(
                known.text, separators.text, names, is_array="a" in options
            )
            return
        self._variables.rename(names)
        for name in names:
            how = "" if options <= {"r"} else f" by {self._plain(node)}".replace(" ", BLANK)
            found = Word(f"${self._variables.renamed.get(name, name)}{how}", doubt)
            if given is not None:
                text = f"{found.text} of {given.text}".replace(" ", BLANK)
                found = Word(text, given.doubts)
            self._variables.values[name] = (found,)

    def _function(self, body: Node, arguments: list[Word]) -> bool | None:
        before = self._variables.arguments
        self._variables.arguments = tuple(arguments)
        self._locals.append({})
        try:
            return self._run(body)
        except _Ended as ended:
            if ended.args[:1] != ("return",):
                raise
            return None if ended.args[1:] else True
        finally:
            self._variables.arguments = before
            for name, value in self._locals.pop().items():
                if value is None:
                    self._variables.values.pop(name, None)
                else:
                    self._variables.values[name] = value

    def _start(self, words: list[Word], node: Node) -> None:
        line = node.start_point[0] + 1
        found = find_launch(words, line, self._given)
        if isinstance(found, Launch):
            self.launches.append(self._with_environment(found))
            self._trainings.add(node.id)
            self._note("training", node, " ".join((found.programs, found.script)).strip())
        elif found is None:
            if words[0].text in ("cp", "ln", "mv"):
                self.files.copy(words[1:])
            texts = [word.text for word in (*words[1:], *filter(None, [self._given]))]
            name = PurePath(words[0].text).name
            text = self._plain(node) if name in _SHOW else " ".join(texts)
            self._note(f"command.{name}", node, text)
        elif isinstance(found, InnerScript):
            if found.programs:
                self._note("shell", node, found.programs)
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
        parts, status = node.named_children, None
        for number, one in enumerate(parts, 1):
            self._inside.append(f"part {number} of {len(parts)}")
            if one.next_sibling is not None and one.next_sibling.type == "|&":
                self._note("redirect", one, "2>&1")
            status = self._run(one)
            self._inside.pop()
        return status

    def _with_environment(self, launch: Launch) -> Launch:
        """Return a training with the variables that the script sets for it."""
        arguments, doubts = dict(launch.arguments), dict(launch.doubts)
        if self.files.folder:
            arguments["folder"] = self.files.folder
        for name in (*self._variables.exported, *self._own):
            known = self._variables.values.get(name)
            if known:
                arguments[f"env.{name}"] = known[0].text
                if known[0].doubts:
                    doubts[f"env.{name}"] = known[0].doubts
        if self._open:
            lines = ", ".join(map(str, self._open[:3]))
            doubts["script"] = (f"whether it is started depends on the condition in line {lines}",)
        return replace(launch, arguments=arguments, doubts=doubts)

    def _run_inner(self, text: str, name: str | None = None) -> None:
        with suppress(_Ended):
            self._run_text(text, name)
        self._stop_if_too_long()

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
            return
        self._run_inner(text, None if name in self.files.written else name)

    def _redirected(self, node: Node) -> bool | None:
        body = node.child_by_field_name("body")
        if body is None:
            return None
        texts = [one for one in node.named_children if one.type == "heredoc_redirect"]
        for one in node.named_children:
            self._look_for(one)
        inner = [each for one in texts for each in one.children if each.type == "heredoc_body"]
        text = value_of(inner[0], self._variables) if inner else None
        if text is not None and reads_script(body):
            self._run_inner(text.text)
            return True
        if text is None and text_of(body).startswith(("read", "mapfile")):
            text = next(map(self._variables.content, redirected(node, "<", self._variables)), None)
        self._given, known = text, len(self.launches)
        content = content_of(body, text, self._variables)
        if content is not None:
            self._write(node, body, content)
        if content is not None and not content.doubts and is_plain_writer(body):
            files = " ".join(word.text for word in targets_of(node, body, self._variables))
            self._note("write", node, f"writes {files}")
            self.visited.update(one.id for one in walk(body))
            status: bool | None = True
        else:
            self.visited.discard(body.id)
            status = self._run(body)
        self._with_input(node, known)
        for sign in (each for one in texts for each in one.children if not each.is_named):
            if sign.type not in ("<<", "<<-"):  # cat <<EOF || …
                self._note("list", sign, sign.type)
        for each in (each for one in texts for each in one.named_children):
            if each.type in ("pipeline", "command", "list"):  # cat <<EOF | python -
                self._given = text
                status = self._run(each)
        self._given = None
        return status

    def _with_input(self, node: Node, known: int) -> None:
        """Give the trainings from the `known`-th on the file that they read as their input."""
        files = redirected(node, "<", self._variables)
        if files:
            self.launches[known:] = [
                replace(one, arguments=one.arguments | {"input": files[-1].text})
                for one in self.launches[known:]
            ]

    def _write(self, node: Node, body: Node, content: Word) -> None:
        """Keep what ``cat > FILE <<EOF`` and ``echo … > FILE`` write."""
        appends = b">>" in (node.text or b"").partition(b"\n")[0]
        for word in targets_of(node, body, self._variables):
            if appends and word.text not in self.files.written:
                self._note("redirect", node, f">> {word.text}")
            if self.launches and word.text in self._written_at:  # those read what it held before
                self.statements.append(self.written_files()[word.text])
            self.files.write(word.text, content.text, appends=appends)
            self._written_at[word.text] = node.start_point[0] + 1
            if content.doubts:
                self.problems[f"file {word.text}"] = "; ".join(content.doubts)

    def _assign(self, node: Node) -> bool | None:
        """Set a variable; always succeeds."""
        name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        if name is None:
            return True
        appends = any(child.type == "+=" for child in node.children)
        if self._variables.exports_all:
            self._variables.exported[text_of(name)] = None
        values, key = self._variables.values, text_of(name)
        if appends and key not in values:
            self._variables.defaults[key] = None
        if value is not None and value.type == "array":
            parts = [one for one in value.named_children if one.type != "comment"]
            words = tuple(word for one in parts for word in words_of(one, self._variables))
            values[key] = (*values.get(key, ()), *words) if appends else words
            self._variables.exported.pop(key, None)  # arrays are not
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
        self._note("list", node, "&&" if wants else "||")
        if status is None:
            self._branches([left], [[right], []] if wants else [[], [right]])
            return None
        if status is wants:
            return self._run(right)
        if not wants and self._may_fail(left):  # as most commands: what is done then may differ
            self._branches([left], [[], [right]], reason="failure")
        return status

    def _may_fail(self, node: Node) -> bool:
        if node.type == "list":
            return any(self._may_fail(one) for one in (node.children[0], node.children[-1]))
        if node.type == "command":
            return text_of(node).split()[0] not in _STATUS
        is_decided = node.type == "compound_statement" and node.children[0].type == "(("
        return not is_decided and node.type not in _DECIDED

    def _if(self, node: Node) -> bool | None:
        """Follow the branch whose condition holds; from an open one on, all that may."""
        bodies: list[Sequence[Node]] = []
        opened: list[Node] = []
        is_decided = False
        for condition, body in branches_of(node):
            status = False if is_decided else self._status(condition)
            is_decided |= bool(status)
            if status is None:
                opened.append(condition[-1])
            if status is not False:
                bodies.append(body)
        if not is_decided:
            bodies.append([])
        if opened:
            self._branches(opened, bodies)
        else:
            self._run_each(bodies[0])
        return True

    def _status(self, condition: Sequence[Node]) -> bool | None:
        status: bool | None = True
        for one in condition:
            name = one.child_by_field_name("name")
            status = self._run(one)
            if one.type == "command":
                status = _STATUS.get("" if name is None else text_of(name))
        return status

    def _run_each(self, nodes: Sequence[Node]) -> bool | None:
        status: bool | None = True
        for one in nodes:
            status = self._run(one)
        return status

    def _branches(
        self,
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
        line, place_in_text = conditions[0].start_point[0] + 1, len(self.statements)
        noted = [] if reason else [*map(self._note_condition, conditions)]
        is_open, known = not all(noted), (len(self.statements), len(self.launches))
        before, place, written = self._variables, self.files.place, dict(self.files.written)
        self._open += [line] if is_open else []
        ends: list[tuple[Variables, tuple[str, Path]]] = []
        left: _Ended | _LeftRound = _Ended()
        for number, body in enumerate(bodies, 1):
            self._variables, self.files.place = before.copy(), place
            self._inside.append(reason or f"branch {number} of {len(bodies)}")
            try:
                self._run_each(body)
                ends.append((self._variables, self.files.place))
            except (_Ended, _LeftRound) as exc:
                self._stop_if_too_long()
                left = exc
            finally:
                self._inside.pop()
        del self._open[len(self._open) - is_open :]
        if not ends:
            raise left
        is_same = all(end == (before, place) for end in ends) and len(ends) == len(bodies)
        if is_same and known == (len(self.statements), len(self.launches)):
            if written == self.files.written:
                del self.statements[place_in_text:]
            return
        doubts = (f"depends on the condition in line {line}",) if is_open else ()
        self._variables = of_branches([each for each, _ in ends], doubts)
        folders = dict.fromkeys(folder for _, (folder, _) in ends)
        self.files.place = " or ".join(folders), ends[0][1][1]

    def _note_condition(self, node: Node) -> bool:
        if node.id in self._trainings or node.type == "list":  # their words are compared already
            self._note("condition", node, "it succeeds")
            return False
        if node.type in ("test_command", "compound_statement"):  # has been noted
            return not opaque(node, self._variables).doubts
        return self._note("condition", node)

    def _for(self, node: Node) -> bool | None:
        name, body = node.child_by_field_name("variable"), node.child_by_field_name("body")
        if name is None or body is None:
            return True
        if node.children[0].type == "select":
            self._note("select", node, "select")
        parts = node.children_by_field_name("value")
        words = [word for one in parts for word in words_of(one, self._variables)]
        if len(words) > _MAX_ROUNDS:
            rest = " ".join(word.text for word in words[_MAX_ROUNDS:])
            self._note("for", node, f"and {len(words) - _MAX_ROUNDS} more words, {rest}")
        self._loop_names.setdefault(text_of(name), f"variable{len(self._loop_names) + 1}")
        for word in words[:_MAX_ROUNDS]:
            self._variables.values[text_of(name)] = (word,)
            if not self._round(body):
                break
        return True

    def _case(self, node: Node) -> bool | None:
        value = node.child_by_field_name("value")
        items = [one for one in node.named_children if one.type == "case_item"]
        word = value_of(value, self._variables)
        bodies: list[Sequence[Node]] = []
        patterns: list[list[str]] = []
        for item in items:
            parts = item.children_by_field_name("value")
            patterns.append([text_of(one) for one in parts])
            bodies.append([one for one in item.named_children if one not in parts])
            ends = [one.type for one in item.children if one.type in (";&", ";;&")]
            self._note("case", item, " | ".join((*patterns[-1], *ends)))
        if not word.is_known:
            has_default = any("*" in each for each in patterns)
            bodies += [] if has_default else [[]]
            self._branches([value or node], bodies)
            return True
        is_found = False
        for names, body in zip(patterns, bodies, strict=True):
            if not is_found and any(fnmatchcase(word.text, one.strip("\"'")) for one in names):
                is_found = True
                self._run_each(body)
        return True


_STATEMENTS: Final[Mapping[str, Callable[[Walk, Node], bool | None]]] = {
    "command": Walk._command,
    "variable_assignment": Walk._assign,
    "redirected_statement": Walk._redirected,
    "subshell": Walk._in_subshell,
    "list": Walk._list,
    "negated_command": Walk._not,
    "test_command": Walk._in_brackets,
    "if_statement": Walk._if,
    "for_statement": Walk._for,
    **dict.fromkeys(("while_statement", "c_style_for_statement"), Walk._loop),
    "case_statement": Walk._case,
    "function_definition": Walk._define,
    **dict.fromkeys(
        ("variable_assignments", "do_group", "else_clause", "ERROR", "program"),
        Walk._run_all,
    ),
    "comment": Walk._directive,
    "pipeline": Walk._pipeline,
    "compound_statement": Walk._compound,
    "declaration_command": Walk._declare,
    "unset_command": Walk._unset,
}
_BUILTINS: Final[Mapping[str, Callable[[Walk, list[Word], Node], None]]] = {
    "source": Walk._source,
    ".": Walk._source,
    "eval": lambda way, words, _: way._run_inner(" ".join(word.text for word in words)),
    "trap": Walk._trap,
    **dict.fromkeys(
        ("let", "printf"), lambda way, words, node: set_by_name(words, node, way._variables)
    ),
    **dict.fromkeys(("cd", "pushd", "popd"), Walk._change_folder),
    "set": Walk._set,
    "export": Walk._export,
    "shift": Walk._shift,
    **dict.fromkeys(("read", "getopts", "mapfile", "readarray"), Walk._read),
}
