# SPDX-License-Identifier: Apache-2.0
"""`msprobe triage`: why two runs part, asked from the cheapest question to the dearest."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from msprobe.cli.options import add_exit_code, add_json, add_pair

_EXAMPLES: Final = """\
examples:
  msprobe triage dump_new dump_old                     why do they part
  msprobe triage dump_new dump_old --again dump_old2   and is the old run equal to itself
  msprobe triage dump_new dump_old --json --exit-code  for scripts
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the command and add its options."""
    parser.description = (
        "Ask why two recorded runs part: settings, data, start state, random numbers,\n"
        "and only then the calls of the first step that differs. Stops at the first\n"
        "answer that explains it. TARGET is the run under test, REFERENCE the trusted one."
    )
    parser.epilog = _EXAMPLES
    add_pair(parser, "the dump under test", "the trusted dump")
    parser.add_argument(
        "--again",
        metavar="DUMP",
        type=Path,
        help="a second recording of the reference: is it equal to itself?",
    )
    add_json(parser)
    add_exit_code(
        parser, "exit with the number of the cause's class (see docs); 0 if equal, or rounding"
    )


def run(options: argparse.Namespace) -> int:
    """Ask the questions, and print the answers."""
    from msprobe.cli.terminal import make_console, print_json, print_lines, reader_may_leave
    from msprobe.triage.ladder import climb
    from msprobe.triage.ladder_lines import as_json, exit_code, lines

    found = climb(options.target, options.reference, options.again)
    with reader_may_leave():
        if options.json:
            print_json(as_json(found, options.target, options.reference, options.again))
        else:
            screen = make_console()
            print_lines(screen, lines(found, screen.width))
    return exit_code(found) if options.exit_code else 0
