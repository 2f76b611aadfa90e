# SPDX-License-Identifier: Apache-2.0
"""`msprobe --completion SHELL`: the script that completes commands and options on the TAB key."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

from msprobe.cli.commands import COMMANDS
from msprobe.errors import UnsupportedError, UsageError

SHELLS: Final = ("bash", "zsh", "fish", "tcsh")


def completion_script(shell: str) -> str:
    """Return the script for a shell, one of `SHELLS`.

    Raises:
        UsageError: there is none for it.
        UnsupportedError: the package shtab is not installed.
    """
    if shell not in SHELLS:
        raise UsageError(f"--completion {shell}: use one of {', '.join(SHELLS)}")
    try:
        import shtab
    except ImportError as error:
        raise UnsupportedError("--completion needs a package: pip install shtab") from error
    parser = _whole_parser()
    for each in _with_children(parser):
        for action in each._actions:
            if action.type is Path:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    script: str = shtab.complete(parser, shell)
    return script


def _whole_parser() -> argparse.ArgumentParser:
    """Return one parser that has every command; it serves no other purpose."""
    whole = argparse.ArgumentParser(prog="msprobe")
    whole.add_argument("--version", action="store_true", help="print the version and exit")
    levels = {"": whole.add_subparsers()}
    for command in COMMANDS:
        above, _, name = command.name.rpartition(" ")
        if above not in levels:
            # shtab leaves out what has no help.
            below = [each.name for each in COMMANDS if each.name.startswith(f"{above} ")]
            levels[above] = levels[""].add_parser(above, help=", ".join(below)).add_subparsers()
        parser = levels[above].add_parser(name, help=command.help)
        command.load().add_options(parser)
    return whole


def _with_children(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    found = [parser]
    for action in parser._actions:
        choices: Any = action.choices
        if isinstance(action, argparse._SubParsersAction):
            for child in choices.values():
                found += _with_children(child)
    return found
