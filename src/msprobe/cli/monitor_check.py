# SPDX-License-Identifier: Apache-2.0
"""`msprobe monitor check`: a recorded run against the log of its training, and against itself."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from msprobe.cli.options import add_exit_code, add_json, whole_number
from msprobe.errors import UsageError

EXIT_APART: Final = 1
_EXAMPLES: Final = """\
examples:
  msprobe monitor check monitor_output                                  only its gradients
  msprobe monitor check monitor_output --log train.log
  msprobe monitor check RUN --log train.log --first 1001 --exit-code    a resumed training
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the command and add its options."""
    parser.description = (
        "Check the losses, gradient norms, learning rates and loss scales that TrainerMon\n"
        "recorded against the log of the training (Megatron-LM, transformers, or lines such as\n"
        '"step 3 loss 2.31 grad_norm 0.8"). They agree where they are equal up to the log\'s\n'
        "last digit. The norm of grad_reduced over all ranks is checked against the log's, and\n"
        "each mean of grad_reduced against those of grad_unreduced on the ranks that average."
    )
    parser.epilog = _EXAMPLES
    parser.add_argument("path", metavar="RUN", type=Path, help="the run")
    parser.add_argument("-l", "--log", metavar="FILE", type=Path, help="text of the training")
    parser.add_argument(
        "--first",
        metavar="N",
        type=whole_number,
        help="the log's number of the run's first step (default: counted from 0 or 1)",
    )
    add_json(parser)
    add_exit_code(parser, "exit with 1 if a number is apart")


def run(options: argparse.Namespace) -> int:
    """Print where log and run agree."""
    from msprobe.cli.terminal import make_console, print_json, print_lines, reader_may_leave
    from msprobe.monitor.log_check import check_log
    from msprobe.monitor.reader import open_monitor
    from msprobe.monitor.reduction_check import check_reduction
    from msprobe.report.monitor_lines import agreement_lines

    with open_monitor(options.path) as found:
        checked = check_log(found, options.log, first=options.first) if options.log else []
        checked += check_reduction(found)
        if not checked:
            rule = "both need the op mean, and parts must be reduced once in a step"
            raise UsageError(
                f"{options.path}: nothing to check: no log is named, and grad_reduced cannot be "
                f"held against grad_unreduced: {rule}"
            )
        facts = [one.as_json() for one in checked]
    with reader_may_leave():
        if options.json:
            print_json(facts)
        else:
            print_lines(make_console(), agreement_lines(facts))
    is_apart = any(one["apart"] for one in facts)
    return EXIT_APART if options.exit_code and is_apart else 0
