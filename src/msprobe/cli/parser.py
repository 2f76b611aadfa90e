# SPDX-License-Identifier: Apache-2.0
"""The parser of one command: hyphens or underscores, any order, errors in one line."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from textwrap import fill
from typing import Final, NoReturn

from msprobe.cli.commands import COMMANDS, Command, Group
from msprobe.near_misses import did_you_mean, near_misses

EXIT_ERROR: Final = 2
_WIDTH: Final = 90
FRAMEWORKS: Final = ("pytorch", "mindspore")


class CommandParser(argparse.ArgumentParser):
    """Reports errors in one line, like all other errors, without the whole usage."""

    def error(self, message: str) -> NoReturn:
        """End with a message."""
        from msprobe.plain_text import plain

        self.exit(EXIT_ERROR, f"{self.prog}: error: {plain(message)} (see {self.prog} --help)\n")

    def options(self) -> dict[str, argparse.Action]:
        """Return every option, under each of its spellings."""
        return self._option_string_actions

    def accept_both_spellings(self) -> None:
        """Accept every long option with underscores for hyphens, and the other way round."""
        for flag, action in list(self.options().items()):
            if flag.startswith("--"):
                for twin in (flag[2:].replace("-", "_"), flag[2:].replace("_", "-")):
                    self.options().setdefault(f"--{twin}", action)

    def refuse_unknown(self, words: Sequence[str]) -> None:
        """End with a message if one of the words is an option that does not exist."""
        for word in words:
            if word == "--":
                return
            if not word.startswith("--"):
                continue
            name, equals, _ = word.partition("=")
            if name not in self.options():
                self.error(f"there is no option {name}{self.meant(name)}")
            if equals and self.options()[name].nargs == 0:
                self.error(f"{name} takes no value")

    def refuse_values(self, words: Sequence[str]) -> None:
        """End with a message if an option in front of a program has a value that it does not take.

        `refuse_unknown` would look at the program's own options, too.
        """
        following = iter(words)
        for word in following:
            name, equals, _ = word.partition("=")
            action = self.options().get(name)
            if action is None or action.nargs == argparse.REMAINDER:
                return
            if equals and action.nargs == 0:
                self.error(f"{name} takes no value")
            count = 0 if equals else action.nargs if isinstance(action.nargs, int) else 1
            for _ in range(count):
                next(following, "")

    def meant(self, option: str) -> str:
        """Return a suggestion for an option that does not exist."""
        shown = [flag for action in self._actions for flag in action.option_strings]
        by_word = {flag.lstrip("-"): flag for flag in sorted(shown, key=len)}
        found = near_misses(option.lstrip("-").replace("_", "-"), by_word)
        return f"; did you mean {by_word[found[0]]}?" if found else ""

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            text = f"{value!r} is not known; use {_one_of(known)}{did_you_mean(str(value), known)}"
            raise argparse.ArgumentError(action, text)


def parse_command(command: Command, words: Sequence[str]) -> argparse.Namespace:
    """Return the options of a command; end the process if they cannot be used, or with the help."""
    parser = make_parser(command)
    if "" in words and not command.takes_program:
        parser.error("one of the words is empty; leave it out, or give it a value")
    if command.takes_program:
        parser.refuse_values(words)
        options, rest = parser.parse_known_args(words)
        rest += options.program[:1]
    else:
        parser.refuse_unknown(words)
        options, rest = parser.parse_known_intermixed_args(words)
    for word in rest:
        if word.startswith("-") and word not in ("-", "--"):
            name = word.partition("=")[0]
            parser.error(f"there is no option {name}{parser.meant(name)}")
    if rest and not command.takes_program:
        parser.error(f"{rest[0]!r} is too much: leave it out")
    return options


def make_parser(command: Command) -> CommandParser:
    """Return the parser of a command."""
    from rich_argparse import RawDescriptionRichHelpFormatter

    parser = CommandParser(
        prog=f"msprobe {command.name}",
        description=command.help,
        formatter_class=RawDescriptionRichHelpFormatter,
        allow_abbrev=False,
    )
    command.load().add_options(parser)
    parser.description = fill(" ".join((parser.description or "").split()), _WIDTH)
    if "exit code" not in (epilog := (parser.epilog or "").rstrip()):
        also = " (with --exit-code: see there)" if "--exit-code" in parser.options() else ""
        parser.epilog = f"{epilog}\n\nexit codes: 0 done{also}, 2 an error, 130 Ctrl-C"
    parser.accept_both_spellings()
    return parser


def overview(words: str = "") -> CommandParser:
    """Return a parser that has the help of all commands, or of those below one: ``monitor``.

    Args:
        words: beginning of the names; empty for all.
    """
    from rich_argparse import RichHelpFormatter

    parser = CommandParser(
        prog=f"msprobe {words}".rstrip(),
        usage=f"{f'msprobe {words}'.rstrip()} COMMAND [options]",
        description="Find where a training run first goes wrong, and whether it is a bug or "
        "rounding.",
        epilog="msprobe COMMAND --help says more about one of them.",
        formatter_class=RichHelpFormatter,
    )
    for group in Group:
        found = list(_listed(group, words))
        section = parser.add_argument_group(group.value) if found else None
        for name, text in found:
            if section is not None:
                section.add_argument(name, help=text)
    if not words:
        parser.add_argument("--version", action="store_true", help="print the version and exit")
        parser.add_argument(
            "--completion", metavar="SHELL", help="print what completes words in bash, zsh, fish"
        )
    return parser


def _listed(group: Group, words: str) -> Iterator[tuple[str, str]]:
    for command in COMMANDS:
        if command.group is group and (not words or command.name.startswith(f"{words} ")):
            yield command.name.removeprefix(f"{words} "), command.help


def _one_of(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
