# SPDX-License-Identifier: Apache-2.0
"""`msprobe estimate`: what recording a script would cost, measured."""

from __future__ import annotations

import argparse
from pathlib import Path
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
    from msprobe.dump.estimates import Estimate

_TIMEOUT_S: Final = 600
_EXAMPLES: Final = """\
examples:
  msprobe estimate train.py --epochs 1                  all levels, statistics and tensors
  msprobe estimate --level mix --task tensor train.py   one of them
  msprobe estimate --step 0-99 -o /data/dump train.py   do 100 steps fit on that disk

exit codes: 0 done, 2 an error, or the disk does not suffice, 130 Ctrl-C
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the command and add its options."""
    from msprobe.dump.estimates import ESTIMATED_LEVELS, ESTIMATED_TASKS

    levels, tasks = ESTIMATED_LEVELS, ESTIMATED_TASKS
    parser.description = (
        "Measure records, time, disk and memory that recording costs for each step of a script "
        "of PyTorch or MindSpore. The script is started once for each level and task, recorded "
        "into a temporary folder, and stopped when the time of a step is known: after 6 to 13 "
        "steps, or earlier where steps are long or large."
    )
    parser.epilog = _EXAMPLES
    parser.usage = "msprobe estimate [options] SCRIPT ARGS"
    add = parser.add_argument
    add("--config", metavar="FILE", type=Path, help="a config.json; the options below win")
    add("--level", type=_levels, default=levels, metavar="L,L", help="levels (L0,L1,mix)")
    add("--task", type=_tasks, default=tasks, metavar="T,T", help="tasks (statistics,tensor)")
    add("--step", type=number_list, metavar="N,M-K", help="steps that will be recorded")
    add_output(parser, "folder that they will be recorded into (./msprobe_dump)")
    add(
        "--timeout",
        type=positive_number,
        default=_TIMEOUT_S,
        metavar="S",
        help=f"seconds to wait for the steps ({_TIMEOUT_S})",
    )
    add_json(parser)
    add_script(parser)


def run(options: argparse.Namespace) -> int:
    """Measure and print a table; 2 if the disk does not suffice for all wanted steps."""
    from msprobe.launch.estimating import estimate
    from msprobe.launch.launching import DEFAULT_FOLDER, Launch, Settings
    from msprobe.report.estimate_lines import refuse_small_disk

    words, is_module = script_words(options, "estimate")
    output = None if options.output is None else str(options.output)
    # For its errors, before the script is run.
    Launch(
        Settings(config=options.config, dump_path=output),
        words,
        is_module=is_module,
        step_function=options.step_function,
        command="msprobe estimate",
    )
    found = [
        estimate(
            words,
            is_module=is_module,
            level=level,
            task=task,
            timeout_s=options.timeout,
            config=options.config,
            step_function=options.step_function,
        )
        for task in options.task
        for level in options.level
    ]
    _print(found, as_json=options.json)
    if options.step is not None:
        folder = Path(DEFAULT_FOLDER if output is None else output)
        refuse_small_disk(found, folder, len(options.step))
    return 0


def _print(found: list[Estimate], *, as_json: bool) -> None:
    from dataclasses import asdict

    from msprobe.cli.terminal import print_json
    from msprobe.report.estimate_lines import estimate_lines

    if as_json:
        print_json([asdict(each) for each in found])
        print()
        return
    print("for each recorded step")
    print(*estimate_lines(found), sep="\n")


def _levels(text: str) -> list[str]:
    from msprobe.dump.estimates import ESTIMATED_LEVELS

    return _some_of(ESTIMATED_LEVELS, text)


def _tasks(text: str) -> list[str]:
    from msprobe.dump.estimates import ESTIMATED_TASKS

    return _some_of(ESTIMATED_TASKS, text)


def _some_of(known: tuple[str, ...], text: str) -> list[str]:
    words = text.split(",")
    for word in words:
        if word not in known:
            raise argparse.ArgumentTypeError(f"{word!r} is not known; use {', '.join(known)}")
    return words
