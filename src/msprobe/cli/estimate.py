# SPDX-License-Identifier: Apache-2.0
"""`msprobe estimate`: what recording a script would cost, measured."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msprobe.cli.options import add_json, add_output, number_list, positive_number

if TYPE_CHECKING:
    from msprobe.launch.estimating import Estimate

_LEVELS: Final = ("L0", "L1", "mix")
_TASKS: Final = ("statistics", "tensor")
_TIMEOUT_S: Final = 600
_EXAMPLES: Final = """\
examples:
  msprobe estimate train.py --epochs 1                  all levels, statistics and tensors
  msprobe estimate --level mix --task tensor train.py   one of them
  msprobe estimate --step 0-99 -o /data/dump train.py   do 100 steps fit on that disk

exit codes: 0 done, 2 an error, or the disk does not suffice
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the command and add its options."""
    parser.description = (
        "Measure records, time, disk and memory that recording costs for each step of a PyTorch "
        "script. The script is started once for each level and task, recorded into a temporary "
        "folder, and stopped after its second step."
    )
    parser.epilog = _EXAMPLES
    parser.usage = "msprobe estimate [options] SCRIPT ARGS"
    add = parser.add_argument
    add("--level", type=_levels, default=_LEVELS, metavar="L,L", help="levels (L0,L1,mix)")
    add("--task", type=_tasks, default=_TASKS, metavar="T,T", help="tasks (statistics,tensor)")
    add("--step", type=number_list, metavar="N,M-K", help="steps that will be recorded")
    add_output(parser, "folder that they will be recorded into (./msprobe_dump)")
    add(
        "--timeout",
        type=positive_number,
        default=_TIMEOUT_S,
        metavar="S",
        help=f"seconds to wait for the second step ({_TIMEOUT_S})",
    )
    add_json(parser)
    rest = argparse.REMAINDER
    add("-m", dest="module", nargs=rest, metavar="MODULE", help="a module, as python -m")
    add("program", nargs=rest, metavar="SCRIPT ARGS", help="the script and its arguments")


def run(options: argparse.Namespace) -> int:
    """Measure and print a table; 2 if the disk does not suffice for all wanted steps."""
    from msprobe.errors import UsageError
    from msprobe.launch.estimating import estimate
    from msprobe.launch.launching import Launch, Settings

    words = options.program if options.module is None else options.module
    if not words:
        raise UsageError("name the script to estimate, as in msprobe estimate train.py")
    is_module = options.module is not None
    output = None if options.output is None else str(options.output)
    # For its errors, before the script is run.
    Launch(Settings(dump_path=output), words, is_module=is_module, step_function=None)
    found = [
        estimate(
            words,
            is_module=is_module,
            level=level,
            task=task,
            timeout_s=options.timeout,
        )
        for task in options.task
        for level in options.level
    ]
    _print(found, options)
    return _check_disk(found, options)


def _print(found: list[Estimate], options: argparse.Namespace) -> None:
    from dataclasses import asdict

    from msprobe.cli.terminal import print_json
    from msprobe.report.value_text import size_text

    if options.json:
        print_json([asdict(each) for each in found])
        print()
        return
    print("for each recorded step")
    print(f"{'level':6}{'task':12}{'records':>9}{'time':>11}{'disk':>11}{'memory':>11}")
    for each in found:
        memory = "" if each.memory_bytes is None else size_text(each.memory_bytes)
        print(
            f"{each.level:6}{each.task:12}{each.records:9,}{each.capture_s * 1e3:8.1f} ms"
            f"{size_text(each.size_bytes):>11}{memory:>11}"
        )


def _check_disk(found: list[Estimate], options: argparse.Namespace) -> int:
    from msprobe.errors import UsageError
    from msprobe.report.value_text import size_text

    if options.step is None:
        return 0
    folder = Path(options.output or "msprobe_dump").absolute()
    existing = next(each for each in (folder, *folder.parents) if each.exists())
    free = shutil.disk_usage(existing).free
    too_large = [each for each in found if each.size_bytes * len(options.step) > free]
    if too_large:
        names = ", ".join(f"{each.level} {each.task}" for each in too_large)
        needed = size_text(max(each.size_bytes for each in too_large) * len(options.step))
        raise UsageError(
            f"{existing} has {size_text(free)} left, and {len(options.step)} steps of {names} need "
            f"up to {needed}: record fewer steps, or filter with --list or --scope"
        )
    return 0


def _levels(text: str) -> list[str]:
    return _some_of(_LEVELS, text)


def _tasks(text: str) -> list[str]:
    return _some_of(_TASKS, text)


def _some_of(known: tuple[str, ...], text: str) -> list[str]:
    words = text.split(",")
    for word in words:
        if word not in known:
            raise argparse.ArgumentTypeError(f"{word!r} is not known; use {', '.join(known)}")
    return words
