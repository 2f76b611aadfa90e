# SPDX-License-Identifier: Apache-2.0
"""`msprobe determinism`: run a script twice, and name the first call that is not deterministic."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from msprobe.cli.options import (
    add_json,
    add_output,
    add_script,
    number_list,
    positive_number,
    script_words,
)

if TYPE_CHECKING:
    from msprobe.launch.twice import Script
    from msprobe.triage.determinism import Determinism

_TIMEOUT_S: Final = 600
_EXAMPLES: Final = """\
examples:
  msprobe determinism train.py --epochs 1             are the first two steps the same twice
  msprobe determinism --step 0-9 --confirm train.py   ten steps; prove where chance comes from
  msprobe determinism --json -m package.train         for programs

exit codes: 0 deterministic, 1 not deterministic, 2 an error, 130 Ctrl-C
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the command and add its options."""
    parser.description = (
        "Run a script of PyTorch or MindSpore twice and compare every recorded value to the "
        "bit. If the runs differ, name the first call that does, and whether it is the data, "
        "random numbers, the environment or a kernel. Each run is stopped after its last "
        "recorded step."
    )
    parser.epilog = _EXAMPLES
    parser.usage = "msprobe determinism [options] SCRIPT ARGS"
    add = parser.add_argument
    add("--step", type=_steps, default="0-1", metavar="N,M-K", help="steps (0-1), or all")
    add("--level", choices=("L0", "L1", "mix"), default="mix", help="level to record at (mix)")
    add(
        "--confirm",
        action="store_true",
        help="fix hashes, seeds, kernels and threads in turn until two runs are equal",
    )
    add_output(parser, "folder to keep both recordings in (a temporary one)")
    add("--timeout", type=positive_number, default=_TIMEOUT_S, metavar="S", help="for each run")
    add_json(parser)
    add_script(parser)


def _steps(text: str) -> str:
    if text != "all":
        number_list(text)
    return text


def run(options: argparse.Namespace) -> int:
    """Record twice, compare, and print; 1 if the script is not deterministic."""
    from msprobe.cli.terminal import make_console, print_json, print_lines, reader_may_leave
    from msprobe.triage.determinism_lines import as_json, lines

    with _folder(options.output) as folder:
        found = _judge(_script(options), folder, confirm=options.confirm)
    with reader_may_leave():
        if options.json:
            print_json(as_json(found))
        else:
            screen = make_console()
            print_lines(screen, lines(found, screen.width))
    return 0 if found.is_deterministic else 1


def _script(options: argparse.Namespace) -> Script:
    """Return the script, after all errors that can be known before it runs."""
    from msprobe.launch.launching import Launch, Settings
    from msprobe.launch.twice import Script

    words, is_module = script_words(options, "determinism")
    Launch(
        Settings(),
        words,
        is_module=is_module,
        step_function=options.step_function,
        command="msprobe determinism",
    )
    return Script(
        words=words,
        is_module=is_module,
        level=options.level,
        step=options.step,
        step_function=options.step_function,
        timeout_s=options.timeout,
    )


def _judge(script: Script, folder: Path, *, confirm: bool) -> Determinism:
    from msprobe.launch.twice import record_twice
    from msprobe.triage.determinism import judge_determinism
    from msprobe.triage.trials import try_out

    found = judge_determinism(*record_twice(script, folder))
    if not confirm:
        return found
    with TemporaryDirectory(prefix="msprobe-", ignore_cleanup_errors=True) as name:
        trials = count()

        def record(options: Sequence[str], environment: Mapping[str, str]) -> tuple[Path, Path]:
            own = Path(name) / str(next(trials))
            own.mkdir()
            return record_twice(script, own, options=options, environment=environment)

        return try_out(record, found)


@contextmanager
def _folder(kept: Path | None) -> Iterator[Path]:
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept.absolute()
        return
    with TemporaryDirectory(prefix="msprobe-", ignore_cleanup_errors=True) as name:
        yield Path(name)
