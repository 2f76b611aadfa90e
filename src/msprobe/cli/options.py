# SPDX-License-Identifier: Apache-2.0
"""Options that several commands have: one name, one form and one meaning in all of them."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Final

_LAST_PORT: Final = 65535
_LONGEST_NUMBER: Final = 18
# A parser, or a group of its options.
_Options = argparse.ArgumentParser | argparse._ArgumentGroup


def add_dump(options: _Options, text: str = "a dump, a step or rank folder of it, a file") -> None:
    """Add DUMP, as ``options.dump``."""
    options.add_argument("dump", metavar="DUMP", type=Path, help=text)


def add_pair(options: _Options, target: str, reference: str) -> None:
    """Add TARGET and REFERENCE, as ``options.target`` and ``options.reference``."""
    options.add_argument("target", metavar="TARGET", type=Path, help=target)
    options.add_argument("reference", metavar="REFERENCE", type=Path, help=reference)


def add_output(
    options: _Options,
    text: str,
    *,
    default: Path | None = None,
    metavar: str = "DIR",
    aliases: tuple[str, ...] = (),
    required: bool = False,
) -> None:
    """Add ``-o``, ``--output`` and ``--output-path``, as ``options.output``."""
    options.add_argument(
        "-o",
        "--output",
        "--output-path",
        *aliases,
        dest="output",
        metavar=metavar,
        type=Path,
        default=default,
        required=required,
        help=text,
    )


def add_steps(options: _Options, text: str = "only these steps, such as 0,5-7 (all)") -> None:
    """Add ``--step``, as ``options.step``: a tuple of numbers, or None."""
    options.add_argument("--step", metavar="N,M-K", type=number_list, help=text)


def add_ranks(options: _Options) -> None:
    """Add ``--rank``, as ``options.rank``: a tuple of numbers, or None."""
    text = "only these ranks, such as 0,4-7 (all)"
    options.add_argument("--rank", metavar="N,M-K", type=number_list, help=text)


def add_workers(
    options: _Options,
    text: str,
    *,
    kind: Callable[[str], int],
    default: int | None = None,
    aliases: tuple[str, ...] = (),
) -> None:
    """Add ``-n`` and ``--workers``, as ``options.workers``.

    Args:
        options: gets it.
        text: its help.
        kind: checks the number.
        default: the number if none is given.
        aliases: further spellings.
    """
    options.add_argument(
        *("-n", "--workers", *aliases),
        dest="workers",
        metavar="N",
        type=kind,
        default=default,
        help=text,
    )


def add_limit(options: _Options, what: str, default: int) -> None:
    """Add ``--limit`` and ``--all``, as ``options.limit``: the longest list; 0 for all."""
    options.add_argument(
        "--limit",
        type=whole_number,
        default=default,
        metavar="N",
        help=f"{what} to list, 0 for all ({default})",
    )
    options.add_argument(
        "--all", dest="limit", action="store_const", const=0, help="same as --limit 0"
    )


def add_name_filters(options: _Options) -> None:
    """Add ``--list``, texts, and ``--scope``, two names."""
    options.add_argument(
        "--list",
        metavar="TEXT,TEXT",
        type=parts,
        default=(),
        help="only calls with one of these in their name",
    )
    options.add_argument(
        "--scope", nargs=2, metavar=("FIRST", "LAST"), help="only calls from one to another"
    )


def add_script(options: _Options) -> None:
    """Add ``--step-function``, ``-m MODULE`` and SCRIPT ARGS; read by `script_words`."""
    options.add_argument(
        "--step-function",
        metavar="[MOD:]FUNC",
        help="each call of this function is a step, whatever optimizers do",
    )
    rest = argparse.REMAINDER
    options.add_argument(
        "-m", dest="module", nargs=rest, metavar="MODULE", help="run a module, as python -m"
    )
    options.add_argument(
        "program", nargs=rest, metavar="SCRIPT ARGS", help="the script and its arguments"
    )


def script_words(options: argparse.Namespace, command: str) -> tuple[list[str], bool]:
    """Return the words of the program that is to run, and whether the first names a module.

    Raises:
        UsageError: there are none.
    """
    from msprobe.errors import UsageError

    is_module = options.module is not None
    words = options.module if is_module else options.program
    if words[:1] == ["--"] and not is_module:
        words = words[1:]
    if not words:
        raise UsageError(f"name the script to run, as in msprobe {command} train.py")
    return [words[0], *options.launched, *words[1:]], is_module


def add_json(options: _Options, text: str = "print JSON for programs") -> None:
    """Add ``--json``."""
    options.add_argument("--json", action="store_true", help=text)


def add_quiet(options: _Options, text: str = "print nothing") -> None:
    """Add ``-q`` and ``--quiet``."""
    options.add_argument("-q", "--quiet", action="store_true", help=text)


def add_scripts(options: _Options, text: str) -> None:
    """Add ``--scripts``: for how many of the worst calls scripts are written."""
    options.add_argument(
        "--scripts", type=whole_number, default=3, metavar="N", help=f"{text} (%(default)s)"
    )


def add_imports(options: _Options) -> None:
    """Add ``--import``, as ``options.imports``: names for `import_definitions`."""
    options.add_argument(
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="MODULE",
        help="import this first, a module or a file: it defines custom operators, functions or "
        "references; repeatable",
    )


def add_exit_code(options: _Options, text: str) -> None:
    """Add ``--exit-code``."""
    options.add_argument("--exit-code", action="store_true", help=text)


def whole_number(text: str) -> int:
    """Return a number of 0 or more."""
    if not _is_digits(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of 0 or more")
    return int(text)


def positive_number(text: str) -> int:
    """Return a whole number of 1 or more."""
    if not _is_digits(text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of 1 or more")
    return int(text)


def port_number(text: str) -> int:
    """Return the number of a port; 0 for any that is free."""
    if not _is_digits(text) or int(text) > _LAST_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: use 0 to {_LAST_PORT}, 0 for any")
    return int(text)


def decimal(text: str) -> float:
    """Return a finite number of 0 or more."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of 0 or more, such as 1e-3")
    return number


def parts(text: str) -> list[str]:
    """Return the texts between commas."""
    return [part for part in text.split(",") if part]


def number_list(text: str) -> tuple[int, ...]:
    """Return the numbers in a text such as ``0,5-7``, sorted; brackets around it are allowed."""
    from msprobe.config.numbers import parse_number_list
    from msprobe.errors import ConfigError

    try:
        return parse_number_list(text.strip("[] ").split(","), "numbers")
    except ConfigError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} cannot be used: give {error.allowed}, or several as in 0,5-7"
        ) from error


def _is_digits(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _LONGEST_NUMBER


def add_scheduler(parser: _Options) -> None:
    """Add the option that names a cluster."""
    parser.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        type=_scheduler,
        help="a dask cluster to work on, tcp://host:port",
    )


def _scheduler(text: str) -> str:
    if not _is_digits(text.rpartition(":")[2]):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no address of a cluster: use tcp://host:port"
        )
    return text
