# SPDX-License-Identifier: Apache-2.0
"""`msprobe run`: record an unedited training script."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Final

from msprobe.cli.options import (
    add_name_filters,
    add_output,
    add_script,
    number_list,
    parts,
    script_words,
    whole_number,
)

_EXAMPLES: Final = """\
examples:
  msprobe run train.py --epochs 1                      steps 0 and 1, statistics of modules and APIs
  msprobe run --step 0,5-7 -o dump train.py            other steps, another folder
  msprobe run -m package.train --epochs 1              as python -m
  torchrun --nproc-per-node 2 -m msprobe run train.py  behind a launcher, not in front of it

exit code: that of the script; 2 with one line where it cannot be started
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the command and add its options."""
    parser.description = (
        "Run a script of PyTorch or MindSpore and record its first steps. Models are what it\n"
        "calls outermost; a step ends with optimizer.step(). Output, exit code and results\n"
        "of the script stay as they are."
    )
    parser.epilog = _EXAMPLES
    parser.usage = "msprobe run [options] SCRIPT ARGS"
    add = parser.add_argument
    add("--config", metavar="FILE", type=Path, help="a config.json; the options below win")
    add("--level", help="L0 modules, L1 APIs, mix both (default), L2 kernels")
    add("--task", help="statistics (default), tensor, nan_check, signature … as in config.json")
    add_output(parser, "folder of the dump (default ./msprobe_dump)", aliases=("--out",))
    add("--step", metavar="N,M-K", type=_steps, help="steps to record (default 0-1), or all")
    add("--rank", metavar="N,M-K", type=_ranks, help="ranks to record (default all)")
    add_name_filters(parser)
    add(
        "--on-request",
        action="store_true",
        help="record only the steps that msprobe attach or SIGUSR1 ask for",
    )
    add("--seed", type=whole_number, metavar="N", help="seed Python, NumPy and the framework first")
    add("--deterministic", action="store_true", help="prefer deterministic kernels")
    add("--random-log", metavar="DIR", type=Path, help="write down each draw of random numbers")
    add_script(parser)


def _ranks(text: str) -> list[str]:
    number_list(text)
    return parts(text)


def _steps(text: str) -> list[str]:
    return ["all"] if text == "all" else _ranks(text)


def run(options: argparse.Namespace) -> Callable[[], int]:
    """Check the options; return what runs the script, whose exceptions are its own."""
    from msprobe.launch.launching import Launch, Settings

    settings = Settings(
        config=options.config,
        level=options.level,
        task=options.task,
        dump_path=None if options.output is None else str(options.output),
        step=options.step,
        rank=options.rank,
        name_filters=options.list or None,
        scope=options.scope,
        on_request=options.on_request,
        seed=options.seed,
        deterministic=options.deterministic,
        random_log=options.random_log,
    )
    words, is_module = script_words(options, "run")
    return Launch(settings, words, is_module=is_module, step_function=options.step_function).run
