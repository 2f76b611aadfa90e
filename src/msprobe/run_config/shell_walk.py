# SPDX-License-Identifier: Apache-2.0
"""Follow a shell script once: the trainings that it starts, and what may change them.

All branches of a condition that only the running shell can decide are followed, from one state.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Final

from msprobe.run_config.command_options import BLANK, Arguments
from msprobe.run_config.launches import InnerScript, Launch, find_launch
from msprobe.run_config.shell_branches import (
    STATUS,
    Ended,
    LeftRound,
    case_statement,
    for_statement,
    if_statement,
    in_brackets,
    in_subshell,
    loop,
    negated,
    one_then_other,
    pipeline,
)
from msprobe.run_config.shell_commands import (
    Statement,
    are_apart,
    directive,
    first_error,
    reads_script,
    set_options,
)
from msprobe.run_config.shell_files import ScriptFiles
from msprobe.run_config.shell_numbers import number_of, set_number
from msprobe.run_config.shell_redirects import (
    content_of,
    fields_of,
    is_plain_writer,
    redirected,
    targets_of,
)
from msprobe.run_config.shell_variables import Variables, Word, shortened
from msprobe.run_config.shell_words import (
    assigned_in,
    opaque,
    plain_source,
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
_TOO_LONG: Final = "the script is too long or too deeply nested to be followed"
_DECLARES: Final = re.compile(r"(-[agrx]+)*")
_VARIABLE: Final = re.compile(r"\$(\w+)")
_LOCAL: Final = ("local", "declare", "typeset")
# They show something, or make folders: of these the source is compared, not the values in it.
_SHOW: Final = ("echo", "mkdir", "tee", "cat", "ls", "date", "touch", "tensorboard", "rm", "wait")
_DECLARED: Final = ("variable_name", "word")
# Statements that are compared as text if one of their words does not come up.
_SIMPLE: Final = (
    "variable_assignment",
    "herestring_redirect",
    "test_command",
    "command",
    "file_redirect",
    "heredoc_redirect",
)


class Walk:
    """Effects of a script, as far as its text tells them.

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
        self.variables = Variables(read=self.files.content)
        self._own: list[str] = []  # variables set in front of the present command
        self.inside: list[str] = []  # branches, loops and traps around the present statement
        # Lines of their conditions, if the text does not decide them.
        self.open_lines: list[int] = []
        self._written_at: dict[str, int] = {}
        self._given: Word | None = None  # what the present command reads from ``<<<`` or ``<<``
        self._locals: list[dict[str, tuple[Word, ...] | None]] = []  # before functions set them
        self.trainings: set[int] = set()  # commands that start one
        self.simple: dict[int, tuple[int, Statement]] = {}
        self.visited: set[int] = set()
        self.roots: dict[str, Node] = {}
        self._steps = 0
        self.loop_names: dict[str, str] = {}
        self._depth = 0

    def follow(self, text: str) -> None:
        """Follow a whole script."""
        try:
            self._run_text(text, "")
        except (Ended, LeftRound):
            pass
        except RecursionError:
            self.problems["size"] = _TOO_LONG
        if self.variables.defaults:
            names = ", ".join(sorted(self.variables.defaults))
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
            self.note("syntax", root)
        self.variables.own.update(assigned_in(root))
        self.run_each(root.named_children)

    def run(self, node: Node) -> bool | None:
        """Follow a statement; return whether it succeeds, None if only the shell knows."""
        self._steps += 1
        if self._steps > _MAX_STEPS or self._depth > _MAX_DEPTH:
            self.problems["size"] = _TOO_LONG
            raise Ended
        self._depth += 1
        follows = node.next_sibling
        is_apart = follows is not None and follows.type == "&"
        self.inside += ["the background"] * is_apart
        try:
            self._look_for(node)
            return _STATEMENTS.get(node.type, Walk._not_known)(self, node)
        finally:
            self._depth -= 1
            del self.inside[len(self.inside) - is_apart :]

    def _look_for(self, node: Node) -> None:
        """Keep a simple statement, which is compared as text if its words do not come up."""
        to = node.child_by_field_name("destination") if node.type == "file_redirect" else None
        if to is not None and to.type == "number":  # 2>&1
            self.note("redirect", node, self.plain(node))
        elif node.type in _SIMPLE and node.id not in self.visited:
            kind = node.type.partition("_")[0].replace("file", "redirect")
            if kind == "variable":
                kind += "." + text_of(node.children[0])
            one = self._statement(kind, node, self.plain(node))
            self.simple[node.id] = len(self.statements), one
        self.visited.add(node.id)

    def note(self, name: str, node: Node, text: str | None = None) -> bool:
        """Keep what is not understood, to be compared as text; return whether that is enough."""
        word = opaque(node, self.variables) if text is None else Word(shortened(text))
        folder = f" in the folder {self.files.folder}" if self.files.folder else ""
        self.statements.append(self._statement(name, node, word.text + folder))
        return not word.doubts

    def plain(self, node: Node) -> str:
        """Return the source of a statement, without the names of variables of loops."""
        names = self.loop_names
        return _VARIABLE.sub(lambda one: "$" + names.get(one[1], one[1]), plain_source(node))

    def _statement(self, name: str, node: Node, text: str) -> Statement:
        return Statement(node.start_point[0] + 1, name, " in ".join((text, *self.inside[::-1])))

    def written_files(self) -> dict[str, Statement]:
        """Return the files that the script writes for others, by name."""
        return {
            name: Statement(self._written_at[name], f"file.{name}", text)
            for name, text in self.files.written.items()
            if name in self._written_at
        }

    def _not_known(self, node: Node) -> bool | None:
        if node.is_named:
            self.note(node.type, node)
        return None

    def _compound(self, node: Node) -> bool | None:
        if node.children[0].type != "((":
            return self.run_each(node.named_children)
        text = text_of(node)[2:-2]
        found = set_number(text, self.variables)
        if found is None:
            found = number_of(text, self.variables)
            self.note("condition", node, None if found is None else self.plain(node))
            set_opaquely(assigned_in(node), self.variables)
        return None if found is None else found != 0

    def _declare(self, node: Node) -> bool | None:
        options = "".join(text_of(one) for one in node.named_children if one.type == "word")
        self._keep_outer(node, options)
        self.run_each([one for one in node.named_children if one.type not in _DECLARED])
        is_export = text_of(node.children[0]) == "export" or "x" in options
        if _DECLARES.fullmatch(options) is None or any(
            one.type not in (*_DECLARED, "variable_assignment") for one in node.named_children
        ):
            self.note("declare", node)
        elif is_export:
            names = (text_of(child).partition("=")[0] for child in node.named_children)
            self.variables.exported |= dict.fromkeys(names)
        if self.inside:  # which of the branches exports is not followed
            self.note("declare", node, text_of(node.children[0]))
        return True

    def _keep_outer(self, node: Node, options: str) -> None:
        """Keep what variables held that a function declares for itself."""
        if self._locals and text_of(node.children[0]) in _LOCAL and "g" not in options:
            for name in (text_of(one).partition("=")[0] for one in node.named_children):
                self._locals[-1].setdefault(name, self.variables.values.get(name))

    def _unset(self, node: Node) -> bool | None:
        for name in map(text_of, node.named_children):
            self.variables.values.pop(name, None)
            self.variables.exported.pop(name, None)
        self.note("unset", node, self.plain(node))
        return True

    def stop_if_too_long(self) -> None:
        """End what a function, file or branch could not end."""
        if "size" in self.problems:
            raise Ended

    def _trap(self, words: list[Word], _node: Node) -> None:
        self.inside.append("a trap on " + " ".join(word.text for word in words[1:]))
        self._run_inner(words[0].text if words else "")
        self.inside.pop()

    def _define(self, node: Node) -> bool | None:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if self.inside:
            self.note("function", node)
        if name is not None and body is not None:
            self.variables.functions[text_of(name)] = body
        return True

    def _command(self, node: Node) -> bool | None:
        name = node.child_by_field_name("name")
        if name is not None and text_of(name) == "test":
            return None
        for one in node.named_children:
            if one.type == "herestring_redirect":
                self._given = value_of(one.named_children[0], self.variables)
            elif one.type == "subshell":  # time ( … )
                self.run(one)
        assignments = [one for one in node.named_children if one.type == "variable_assignment"]
        before = self.variables.copy() if assignments else self.variables
        is_apart = name is None or not assignments or are_apart(node, assignments, name)
        for one in assignments:
            self._assign(one)
        if name is None:
            return True
        parts = [name, *node.children_by_field_name("argument")]
        if is_apart:
            words = [word for part in parts for word in words_of(part, self.variables)]
            return self._call(words, node) if words else True
        # The command has these variables, but its words are made without them.
        words = [word for part in parts for word in words_of(part, before)]
        self._own = [text_of(one).partition("=")[0] for one in assignments]
        try:
            return self._call(words, node) if words else True
        finally:
            if words and words[0].text in _BUILTINS:  # IFS=, read A B
                values = self.variables.values
                kept = {name: before.values.get(name, ()) for name in self._own}
                values |= {name: known for name, known in kept.items() if known}
            else:
                self.variables = before
            self._own = []

    def _call(self, words: list[Word], node: Node) -> bool | None:
        first, rest = words[0].text, words[1:]
        if first in ("exit", "return", "break", "continue"):
            self.note(f"command.{first}", node, self.plain(node))
            leaves = LeftRound if first in ("break", "continue") else Ended
            raise leaves(first, *(word.text for word in rest))
        if first in self.variables.functions:
            return self._function(self.variables.functions[first], rest)
        if first in _BUILTINS:
            _BUILTINS[first](self, rest, node)
        else:
            self._start(words, node)
        self._given = None
        return STATUS.get(first, True)

    def _set(self, words: list[Word], node: Node) -> None:
        texts = [word.text for word in words]
        if "--" in texts:
            place = texts.index("--")
            self.variables.arguments = tuple(words[place + 1 :])
            self.note("set", node, "arguments")
            texts = texts[:place]
        for option in set_options(texts):
            self.note("set", node, option)
            if option.endswith("allexport"):
                self.variables.exports_all = option[0] == "-"

    def _change_folder(self, words: list[Word], node: Node) -> None:
        self.note("command.cd", node, self.plain(node))
        self.files.change_folder([Word(text_of(node).split()[0]), *words])

    def _export(self, words: list[Word], _node: Node) -> None:
        """Follow an ``export`` that the grammar takes for a command."""
        self.variables.exported |= dict.fromkeys(word.text for word in words)

    def _shift(self, words: list[Word], node: Node) -> None:
        self.note("command.shift", node, self.plain(node))
        arguments = self.variables.arguments
        if arguments is not None:
            count = int(words[0].text) if words and words[0].text.isdigit() else 1
            self.variables.arguments = arguments[count:]

    def _read(self, words: list[Word], node: Node) -> None:
        doubt = (f"is read when the script runs (line {node.start_point[0] + 1})",)
        plain = [word.text for word in words if not word.text.startswith("-")]
        names = [text for text in plain if text] or ["REPLY"]
        options = {sign for word in words if word.text.startswith("-") for sign in word.text[1:]}
        given, separators = self._given, self.variables.values.get("IFS", (Word(" \t"),))[0]
        is_one = given is not None and "\n" not in given.text.strip("\n")
        is_array = text_of(node).startswith(("mapfile", "readarray"))
        is_known = given is not None and given.is_known and (is_one or is_array)
        known = given if is_known and "a loop" not in self.inside else None
        if options == {"r", "d"} and "" in plain and given is not None and len(names) == 1:
            self.variables.values[names[0]] = (Word(given.text.strip(), given.doubts),)
            return
        if is_array:
            if known and options == {"t"}:
                self.variables.values[names[0]] = tuple(map(Word, known.text.splitlines()))
                return
        elif known and separators.is_known and options <= set("ra"):
            self.variables.values |= fields_of(
                known.text, separators.text, names, is_array="a" in options
            )
            return
        self.variables.rename(names)
        for name in names:
            how = "" if options <= {"r"} else f" by {self.plain(node)}".replace(" ", BLANK)
            found = Word(f"${self.variables.renamed.get(name, name)}{how}", doubt)
            if given is not None:
                text = f"{found.text} of {given.text}".replace(" ", BLANK)
                found = Word(text, given.doubts)
            self.variables.values[name] = (found,)

    def _function(self, body: Node, arguments: list[Word]) -> bool | None:
        before = self.variables.arguments
        self.variables.arguments = tuple(arguments)
        self._locals.append({})
        try:
            return self.run(body)
        except Ended as ended:
            if ended.args[:1] != ("return",):
                raise
            return None if ended.args[1:] else True
        finally:
            self.variables.arguments = before
            for name, value in self._locals.pop().items():
                if value is None:
                    self.variables.values.pop(name, None)
                else:
                    self.variables.values[name] = value

    def _start(self, words: list[Word], node: Node) -> None:
        line = node.start_point[0] + 1
        found = find_launch(words, line, self._given)
        if isinstance(found, Launch):
            self.launches.append(self._with_environment(found))
            self.trainings.add(node.id)
            self.note("training", node, " ".join((found.programs, found.script)).strip())
        elif found is None:
            if words[0].text in ("cp", "ln", "mv"):
                self.files.copy(words[1:])
            texts = [word.text for word in (*words[1:], *filter(None, [self._given]))]
            name = PurePath(words[0].text).name
            text = self.plain(node) if name in _SHOW else " ".join(texts)
            self.note(f"command.{name}", node, text)
        elif isinstance(found, InnerScript):
            if found.programs:
                self.note("shell", node, found.programs)
            before, known = self.variables.copy(), len(self.launches)
            self.variables.arguments = found.arguments
            self.variables.values |= {"0": (found.name,)} if found.name else {}
            if found.text is not None:
                self._run_inner(found.text.text)
            else:
                self._run_file(found.file, line)
            self.variables = before
            self.launches[known:] = [
                replace(one, arguments=one.arguments | found.wrapper)
                for one in self.launches[known:]
            ]

    def _directive(self, node: Node) -> bool | None:
        self.directives |= directive(text_of(node))
        return True

    def _with_environment(self, launch: Launch) -> Launch:
        """Return a training with the variables that the script sets for it."""
        arguments, doubts = dict(launch.arguments), dict(launch.doubts)
        if self.files.folder:
            arguments["folder"] = self.files.folder
        for name in (*self.variables.exported, *self._own):
            known = self.variables.values.get(name)
            if known:
                arguments[f"env.{name}"] = known[0].text
                if known[0].doubts:
                    doubts[f"env.{name}"] = known[0].doubts
        if self.open_lines:
            lines = ", ".join(map(str, self.open_lines[:3]))
            doubts["script"] = (f"whether it is started depends on the condition in line {lines}",)
        files = {
            name: self.files.written[value]
            for name, value in arguments.items()
            if isinstance(value, str) and value in self._written_at
        }
        return replace(launch, arguments=arguments, doubts=doubts, files=files)

    def _run_inner(self, text: str, name: str | None = None) -> None:
        with suppress(Ended):
            self._run_text(text, name)
        self.stop_if_too_long()

    def _source(self, words: list[Word], node: Node) -> None:
        if words:
            if len(words) > 1:
                self.variables.arguments = tuple(words[1:])
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
        text = value_of(inner[0], self.variables) if inner else None
        if text is not None and reads_script(body):
            self._run_inner(text.text)
            return True
        if text is None and text_of(body).startswith(("read", "mapfile")):
            text = next(map(self.variables.content, redirected(node, "<", self.variables)), None)
        self._given, known = text, len(self.launches)
        content = content_of(body, text, self.variables)
        if content is not None:
            self._write(node, body, content)
        if content is not None and not content.doubts and is_plain_writer(body):
            files = " ".join(word.text for word in targets_of(node, body, self.variables))
            self.note("write", node, f"writes {files}")
            self.visited.update(one.id for one in walk(body))
            status: bool | None = True
        else:
            self.visited.discard(body.id)
            status = self.run(body)
        self._with_input(node, known)
        for sign in (each for one in texts for each in one.children if not each.is_named):
            if sign.type not in ("<<", "<<-"):  # cat <<EOF || …
                self.note("list", sign, sign.type)
        for each in (each for one in texts for each in one.named_children):
            if each.type in ("pipeline", "command", "list"):  # cat <<EOF | python -
                self._given = text
                status = self.run(each)
        self._given = None
        return status

    def _with_input(self, node: Node, known: int) -> None:
        """Give the trainings from the `known`-th on the file that they read as their input."""
        files = redirected(node, "<", self.variables)
        if files:
            self.launches[known:] = [
                replace(one, arguments=one.arguments | {"input": files[-1].text})
                for one in self.launches[known:]
            ]

    def _write(self, node: Node, body: Node, content: Word) -> None:
        """Keep what ``cat > FILE <<EOF`` and ``echo … > FILE`` write."""
        appends = b">>" in (node.text or b"").partition(b"\n")[0]
        for word in targets_of(node, body, self.variables):
            if appends and word.text not in self.files.written:
                self.note("redirect", node, f">> {word.text}")
            is_read = any(word.text in map(one.arguments.get, one.files) for one in self.launches)
            if self.launches and word.text in self._written_at and not is_read:
                self.statements.append(self.written_files()[word.text])  # they may have read it
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
        if self.variables.exports_all:
            self.variables.exported[text_of(name)] = None
        values, key = self.variables.values, text_of(name)
        if appends and key not in values:
            self.variables.defaults[key] = None
        if value is not None and value.type == "array":
            parts = [one for one in value.named_children if one.type != "comment"]
            words = tuple(word for one in parts for word in words_of(one, self.variables))
            values[key] = (*values.get(key, ()), *words) if appends else words
            self.variables.exported.pop(key, None)  # arrays are not
            return True
        word = value_of(value, self.variables)
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

    def run_each(self, nodes: Sequence[Node]) -> bool | None:
        """Follow statements; return whether the last one succeeds."""
        status: bool | None = True
        for one in nodes:
            status = self.run(one)
        return status


_STATEMENTS: Final[Mapping[str, Callable[[Walk, Node], bool | None]]] = {
    "command": Walk._command,
    "variable_assignment": Walk._assign,
    "redirected_statement": Walk._redirected,
    "subshell": in_subshell,
    "list": one_then_other,
    "negated_command": negated,
    "test_command": in_brackets,
    "if_statement": if_statement,
    "for_statement": for_statement,
    **dict.fromkeys(("while_statement", "c_style_for_statement"), loop),
    "case_statement": case_statement,
    "function_definition": Walk._define,
    **dict.fromkeys(
        ("variable_assignments", "do_group", "else_clause", "ERROR", "program"),
        lambda way, node: way.run_each(node.named_children),
    ),
    "comment": Walk._directive,
    "pipeline": pipeline,
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
        ("let", "printf"), lambda way, words, node: set_by_name(words, node, way.variables)
    ),
    **dict.fromkeys(("cd", "pushd", "popd"), Walk._change_folder),
    "set": Walk._set,
    "export": Walk._export,
    "shift": Walk._shift,
    **dict.fromkeys(("read", "getopts", "mapfile", "readarray"), Walk._read),
}
