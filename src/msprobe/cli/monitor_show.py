# SPDX-License-Identifier: Apache-2.0
"""`msprobe monitor show`: incidents and series of a recorded training run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from msprobe.cli.options import add_json, add_limit, whole_number

_LINES: Final = 30
_EXAMPLES: Final = """\
examples:
  msprobe monitor show monitor_output                   incidents, and a line for each layer
  msprobe monitor show RUN --stream actv --op absmax    another stream
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the command and add its options."""
    parser.description = (
        "Show a run that TrainerMon recorded: incidents first, then a line for each series.\n"
        "RUN is the folder of a run, or a folder of runs (the newest is taken)."
    )
    parser.epilog = _EXAMPLES
    parser.add_argument("path", metavar="RUN", type=Path, help="the run")
    parser.add_argument("--stream", metavar="NAME", help="such as actv (default: gradients)")
    parser.add_argument("--op", metavar="NAME", help="such as absmax (default: norm)")
    parser.add_argument(
        "--rank", metavar="N", type=whole_number, help="of the series (default: the first)"
    )
    add_limit(parser, "series", _LINES)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print a run."""
    from msprobe.cli.terminal import make_console, print_json, print_lines, reader_may_leave
    from msprobe.monitor.overview import run_facts
    from msprobe.monitor.reader import open_monitor
    from msprobe.report.monitor_lines import run_lines

    with open_monitor(options.path) as found:
        facts = run_facts(found, stream=options.stream, op=options.op, rank=options.rank)
    with reader_may_leave():
        if options.json:
            print_json(facts)
        else:
            print_lines(make_console(), run_lines(facts, options.limit))
    return 0
