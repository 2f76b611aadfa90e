# SPDX-License-Identifier: Apache-2.0
"""`msprobe noise`: how many digits of each value can be trusted, and which calls lose them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from msprobe.cli.options import (
    add_exit_code,
    add_json,
    add_limit,
    add_output,
    add_quiet,
    add_ranks,
    add_steps,
    decimal,
)

RESULT_FILE: Final = "noise.json"
EXIT_FOUND: Final = 1
EXIT_UNJUDGED: Final = 2
_LEAST: Final = 1.0
_LISTED: Final = 20


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the command and add its options."""
    parser.description = (
        "Compare recordings of one program with task noise_floor with each other: say how many "
        "digits of each value can be trusted, and rank the calls that lose digits."
    )
    parser.epilog = "examples:\n  msprobe noise run1 run2 run3"
    parser.add_argument(
        "recordings",
        nargs="+",
        metavar="DUMP",
        type=Path,
        help="recordings with task noise_floor, two or more; three tell much more than two",
    )
    add_output(parser, f"folder for {RESULT_FILE} (no file)")
    add_steps(parser)
    add_ranks(parser)
    parser.add_argument(
        "--least",
        type=decimal,
        default=_LEAST,
        metavar="DIGITS",
        help=f"results with fewer digits are not trusted ({_LEAST:g})",
    )
    add_limit(parser, "calls", _LISTED)
    add_json(parser, f"print {RESULT_FILE} instead of a table")
    add_quiet(parser, "print only the answer, one sentence")
    add_exit_code(
        parser, "exit with 1 if a result has fewer digits, with 2 if no result could be judged"
    )


def run(options: argparse.Namespace) -> int:
    """Measure the digits and print the answer."""
    from msprobe.cli.terminal import make_console, print_json, print_lines
    from msprobe.compare.noise.digits import trusted_digits
    from msprobe.compare.noise.digits_lines import answer_lines, sentence
    from msprobe.compare.options import CompareOptions
    from msprobe.files import write_report
    from msprobe.json_text import strict_json

    chosen = CompareOptions(steps=options.step, ranks=options.rank)
    report = trusted_digits(options.recordings, chosen)
    if options.output is not None:
        write_report(options.output / RESULT_FILE, strict_json(report.as_json(), indent=None))
    if options.json:
        print_json(report.as_json())
    elif options.quiet:
        print(sentence(report, options.least))
    else:
        print_lines(make_console(), answer_lines(report, options.least, options.limit))
    if not options.exit_code:
        return 0
    if report.below(options.least):
        return EXIT_FOUND
    return 0 if any(call.worst is not None for call in report.calls) else EXIT_UNJUDGED
