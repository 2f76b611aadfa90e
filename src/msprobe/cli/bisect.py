# SPDX-License-Identifier: Apache-2.0
"""`msprobe bisect`: where two finished runs part, by their signatures."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from msprobe.cli.options import add_exit_code, add_json, add_pair

EXIT_JUMP: Final = 1
EXIT_DRIFT: Final = 3


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the command and add its options."""
    parser.description = (
        "Find the first step, phase and parameter in which two runs part that were "
        'recorded with "task": "signature". Nothing is run again. The configuration that records '
        "just that step in full is printed."
    )
    parser.epilog = (
        "examples:\n"
        "  msprobe bisect run_new run_old\n"
        "  msprobe bisect run_new run_old --again run_old2 --exit-code"
    )
    add_pair(parser, "a dump path, or one .msig", "the run to compare with")
    parser.add_argument(
        "--again",
        "--noise",
        metavar="DUMP",
        type=Path,
        help="a second recording of the reference: what differs there is noise",
    )
    add_json(parser)
    add_exit_code(parser, "exit with 1 if the runs part in a jump, with 3 if they only drift")


def run(options: argparse.Namespace) -> int:
    """Compare the signatures and print where the runs part."""
    from msprobe.cli.terminal import make_console, print_json, print_lines
    from msprobe.triage.bisect import bisect_runs
    from msprobe.triage.bisect_lines import as_json, lines

    found = bisect_runs(options.target, options.reference, options.again)
    if options.json:
        print_json(as_json(found))
    else:
        print_lines(make_console(), lines(found))
    if found.first is None or not options.exit_code:
        return 0
    return EXIT_DRIFT if found.first.parting.jump is None else EXIT_JUMP
