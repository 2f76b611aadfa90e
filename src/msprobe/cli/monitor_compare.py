# SPDX-License-Identifier: Apache-2.0
"""`msprobe monitor compare`: the first step and layer where two runs part."""

from __future__ import annotations

import argparse
from typing import Final

from msprobe.cli.options import add_exit_code, add_json, add_limit, add_pair, decimal

EXIT_DIFFERENT: Final = 1
_LINES: Final = 30
_EXAMPLES: Final = """\
examples:
  msprobe monitor compare RUN_A RUN_B
  msprobe monitor compare RUN_A RUN_B --exit-code --json    for scripts
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the command and add its options."""
    parser.description = (
        "Compare two runs that TrainerMon recorded: where they first differ, and where they are\n"
        "apart by more than noise."
    )
    parser.epilog = _EXAMPLES
    add_pair(parser, "the run under test", "the trusted run")
    parser.add_argument(
        "--rtol",
        type=decimal,
        default=1e-3,
        metavar="X",
        help="relative distance from which values may be apart (default: 0.001)",
    )
    add_limit(parser, "series", _LINES)
    add_json(parser)
    add_exit_code(parser, "exit with 1 unless all values are equal")


def run(options: argparse.Namespace) -> int:
    """Compare two runs and print where they part."""
    from msprobe.cli.terminal import make_console, print_json, print_lines, reader_may_leave
    from msprobe.monitor.comparing import compare_runs
    from msprobe.monitor.reader import open_monitor
    from msprobe.report.monitor_lines import comparison_lines

    with open_monitor(options.target) as target, open_monitor(options.reference) as reference:
        found = compare_runs(target, reference, rtol=options.rtol)
        names = str(target.path), str(reference.path)
    facts = found.as_json()
    with reader_may_leave():
        if options.json:
            print_json(facts)
        else:
            print_lines(make_console(), comparison_lines(facts, names, options.limit))
    return EXIT_DIFFERENT if options.exit_code and not found.is_equal else 0
