# SPDX-License-Identifier: Apache-2.0
"""`run_command_line`: choose the command, run it, turn errors into one line and an exit code."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NoReturn

from msprobe.cli.commands import Command, names_of_commands
from msprobe.cli.parser import EXIT_ERROR, FRAMEWORKS, overview, parse_command
from msprobe.cli.terminal import discard_stdout, guarded_stdout
from msprobe.errors import MsprobeError
from msprobe.near_misses import did_you_mean
from msprobe.plain_text import reason

EXIT_INTERRUPTED: Final = 130
_LOCAL_RANK: Final = re.compile(r"--local[-_]rank=\d+")
_CONTROLS: Final = dict.fromkeys((*range(32), *range(0x7F, 0xA0)), " ")

logger = logging.getLogger(__name__)


def run_command_line(words: Sequence[str]) -> int:
    """Run the command that the words after `msprobe` name; return the exit code."""
    try:
        with guarded_stdout():
            result = _run(list(words))
    except MsprobeError as exc:
        return _fail(str(exc))
    except BrokenPipeError:  # the reader (head, a pager) has seen enough
        discard_stdout()
        return 0
    except KeyboardInterrupt:
        return _interrupted()
    except OSError as exc:
        logger.debug("unexpected error", exc_info=True)
        return _fail(_words_of(exc))
    except MemoryError:
        return _fail("the memory does not suffice; choose fewer records with --step or --rank")
    except Exception as exc:
        if _came_of_an_interrupt(exc):
            return _interrupted()
        # A traceback does not help at a prompt.
        logger.debug("unexpected error", exc_info=True)
        hint = "set MSPROBE_LOG_LEVEL=0 to see where"
        return _fail(f"unexpected {type(exc).__name__}: {exc} ({hint})")
    return result() if callable(result) else result


def _run(words: list[str]) -> int | Callable[[], int]:
    """Run a command; return its exit code, or a function that runs a program of the user's."""
    from msprobe.log import ensure_handler

    framework, words = _take_framework(words)
    launched, words = _take_local_rank(words)
    if words[:1] == ["--version"]:
        import msprobe

        print(f"msprobe {msprobe.__version__}")
        return 0
    if words[:1] == ["--completion"]:
        from msprobe.cli.completion import completion_script

        print(completion_script(" ".join(words[1:])))
        return 0
    if words[:1] == ["help"] and words[1:]:
        words = [*words[1:], "--help"]
    command, rest = _choose(words)
    options = parse_command(command, rest)
    options.framework = framework
    options.launched = launched
    ensure_handler()
    return command.load().run(options)


def _choose(words: list[str]) -> tuple[Command, list[str]]:
    """Return the command that is named, and the words behind its name; or end with the help."""
    known = names_of_commands()
    for length in (2, 1):
        name = " ".join(words[:length])
        if len(words) >= length and name in known:
            return known[name], words[length:]
    return _end_without_command(words, known)


def _end_without_command(words: list[str], known: dict[str, Command]) -> NoReturn:
    first = words[0] if words else ""
    above = first if any(name.startswith(f"{first} ") for name in known) else ""
    wanted = words[1:] if above else words
    parser = overview(above)
    if wanted[:1] in (["-h"], ["--help"], ["help"]):
        parser.print_help()
        parser.exit()
    parser.error(_unknown(wanted[0], above, known) if wanted else "name a command")


def _unknown(word: str, above: str, known: dict[str, Command]) -> str:
    if word.startswith("-"):
        hint = did_you_mean(word, ("--version", "--help", "--completion", "--framework"))
        return f"there is no option {word} in front of the command{hint}"
    if word.endswith(".py"):
        return f"name a command in front of {word}: msprobe run {word} records it"
    if Path(word).exists():
        return f"name a command in front of {word}: show, compare …"
    if above:
        word = f"{above} {word}"
    hint = did_you_mean(word.replace("_", "-"), [name for name in known if "_" not in name])
    return f"there is no command {word}{hint}"


def _take_framework(words: list[str]) -> tuple[str | None, list[str]]:
    """Take ``-f pytorch`` out, which may be in front of the command or behind it.

    Before mindstudio-probe 26 the framework came first; dumps name it themselves. Behind the
    command ``-f`` may also be another option.
    """
    command = names_of_commands().get(words[0]) if words else None
    last = 0 if command is not None and command.takes_program else len(words) - 1
    for place in range(last):
        if words[place] in ("-f", "--framework") and words[place + 1] in FRAMEWORKS:
            return words[place + 1], [*words[:place], *words[place + 2 :]]
    if words[:1] in (["-f"], ["--framework"]):
        found = f"is {words[1]!r}" if words[1:] else "is missing"
        overview().error(f"the framework behind {words[0]} {found}; use {' or '.join(FRAMEWORKS)}")
    return None, words


def _take_local_rank(words: list[str]) -> tuple[list[str], list[str]]:
    """Take out ``--local_rank=0`` in front of a command that runs a script, whose word it is.

    `deepspeed --module` and `torch.distributed.launch` put it behind the module's name.
    """
    if len(words) > 1 and _LOCAL_RANK.fullmatch(words[0]):
        command = names_of_commands().get(words[1])
        if command is not None and command.takes_program:
            return words[:1], words[1:]
    return [], words


def _words_of(error: OSError) -> str:
    place = f"{error.filename}: " if error.filename is not None else ""
    return f"{place}{reason(error)}"


def _came_of_an_interrupt(error: BaseException | None) -> bool:
    """Return whether an interrupt came first, and the cleaning up behind it failed.

    `argparse` looks for attributes that it had not set yet.
    """
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _interrupted() -> int:
    _fail("interrupted")
    return EXIT_INTERRUPTED


def _fail(message: str) -> int:
    line = message.translate(_CONTROLS).encode(errors="replace").decode()
    print(f"msprobe: error: {line}", file=sys.stderr)
    return EXIT_ERROR
