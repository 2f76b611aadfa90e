# SPDX-License-Identifier: Apache-2.0
"""`main`: choose the verb, run it, turn errors into one line and an exit code."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from typing import Final, NoReturn

from msprobe.cli import (
    bisect,
    code_mapping,
    compare,
    compare_ckpt,
    config_check,
    dump_config,
    merge_result,
    overflow_check,
    parse,
    repair,
    run,
    schema,
    show,
    triage,
)
from msprobe.cli.terminal import discard_stdout, guarded_stdout
from msprobe.errors import MsprobeError

EXIT_ERROR: Final = 2
_VERBS: Final = (
    run,
    compare,
    triage,
    show,
    overflow_check,
    bisect,
    compare_ckpt,
    config_check,
    merge_result,
    repair,
    schema,
    code_mapping,
    parse,
    dump_config,
)
# Before 26 the framework came before the command; dumps name it themselves.
_FRAMEWORKS: Final = ("pytorch", "mindspore")
_CONTROLS: Final = dict.fromkeys((*range(32), *range(0x7F, 0xA0)), " ")

logger = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: the words after `msprobe`; None takes those of the process.

    Returns:
        The exit code: 0 done, 2 an error.
    """
    try:
        with guarded_stdout():
            result = _run(arguments)
    except MsprobeError as exc:
        return _fail(str(exc))
    except BrokenPipeError:  # the reader (head, a pager) has seen enough
        discard_stdout()
        return 0
    except KeyboardInterrupt:
        return _fail("interrupted")
    except Exception as exc:
        # A traceback does not help at a prompt.
        logger.debug("unexpected error", exc_info=True)
        hint = "set MSPROBE_LOG_LEVEL=0 to see where"
        return _fail(f"unexpected {type(exc).__name__}: {exc} ({hint})")
    return result() if callable(result) else result


def _run(arguments: Sequence[str] | None) -> int | Callable[[], int]:
    """Run a command; return its exit code, or what runs a program of the user's."""
    from msprobe.log import ensure_handler

    options = _parse(arguments)
    ensure_handler()
    result: int | Callable[[], int] = options.run(options)
    return result


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = build_parser()
    words = _framework_first(sys.argv[1:] if arguments is None else list(arguments))
    options, rest = parser.parse_known_args(words)
    # With options between DUMP and NAME, argparse takes NAME as absent and leaves it over; so it
    # does with the second of two dumps.
    plain = not any(word.startswith("-") for word in rest)
    if len(rest) == 1 and plain and getattr(options, "name", "") is None:
        options.name = rest.pop()
    elif plain and isinstance(getattr(options, "dumps", None), list):
        options.dumps += rest
        rest = []
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return options


def _framework_first(words: list[str]) -> list[str]:
    """Move ``-f pytorch`` to the front: after the command, ``-f`` may mean another option."""
    if words[:1] == ["run"]:  # what follows belongs to the user's program
        return words
    for place in range(1, len(words) - 1):
        if words[place] in ("-f", "--framework") and words[place + 1] in _FRAMEWORKS:
            return [*words[place : place + 2], *words[:place], *words[place + 2 :]]
    return words


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    from rich_argparse import RichHelpFormatter

    parser = _Parser(
        prog="msprobe",
        description="Find where a training run first goes wrong, and whether it is a bug or "
        "rounding.",
        formatter_class=RichHelpFormatter,
    )
    parser.add_argument("-f", "--framework", choices=_FRAMEWORKS, help=argparse.SUPPRESS)
    parser.add_argument("--version", action=_PrintVersion, help="print the version and exit")
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for verb in _VERBS:
        verb.add_parser(verbs, RichHelpFormatter)
    return parser


class _Parser(argparse.ArgumentParser):
    """Reports errors in one line, like all other errors, without the whole usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_ERROR, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


class _PrintVersion(argparse.Action):
    """Prints the version; unlike argparse's own action, looks it up only when used."""

    def __init__(self, option_strings: Sequence[str], dest: str, *, help: str) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        import msprobe

        print(f"msprobe {msprobe.__version__}")
        parser.exit()


def _fail(message: str) -> int:
    line = message.translate(_CONTROLS).encode(errors="replace").decode()
    print(f"msprobe: error: {line}", file=sys.stderr)
    return EXIT_ERROR
