# SPDX-License-Identifier: Apache-2.0
"""`msprobe overflow-check`: where NaN and Inf begin in a finished dump."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msprobe.cli.options import add_exit_code, add_json, add_output, add_steps

if TYPE_CHECKING:
    from msprobe.dump.dump_steps import Dump
    from msprobe.overflow.findings import StepFindings

EXIT_FOUND: Final = 1
EXIT_UNSEEN: Final = 2


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the command and add its options."""
    parser.description = (
        "Find the first NaN or Inf of a dump in order of execution, and where it came "
        "from: made by a call, brought in by a parameter or from outside, or received from another "
        "rank. What was found is also written to a file, anomaly_analyze_{time}.json."
    )
    parser.epilog = (
        "examples:\n"
        "  msprobe overflow-check dump\n"
        "  msprobe overflow-check dump --step 3 --json --exit-code"
    )
    parser.add_argument("dump", metavar="DUMP", nargs="?", help="a dump path, step or rank folder")
    parser.add_argument("-i", "--input-path", metavar="DUMP", help="the same, as an option")
    add_output(parser, "folder of the result file (./output)", default=Path("output"))
    add_steps(parser)
    add_json(parser, "print JSON for programs; no file")
    add_exit_code(
        parser,
        "exit with 1 if a source of NaN or Inf is found, with 2 if a rank cannot be looked at",
    )


def run(options: argparse.Namespace) -> int:
    """Analyse a dump and print where NaN and Inf begin."""
    from msprobe.dump.reader import open_dump
    from msprobe.errors import UsageError
    from msprobe.overflow.analysis import analyze_overflow

    path = options.input_path or options.dump
    if path is None or (options.input_path and options.dump):
        raise UsageError("name one dump to look at: msprobe overflow-check DUMP (or -i DUMP)")
    dump = open_dump(path)
    steps = analyze_overflow(dump, steps=options.step)
    if options.json:
        from msprobe.cli.terminal import print_json
        from msprobe.overflow.anomaly_file import findings_json

        print_json(findings_json(steps))
    else:
        _print_answer(dump, steps, options.output)
    if not options.exit_code:
        return 0
    if any(step.first for step in steps):
        return EXIT_FOUND
    return EXIT_UNSEEN if any(step.unseen for step in steps) else 0


def _print_answer(dump: Dump, steps: list[StepFindings], directory: Path) -> None:
    from msprobe.cli.terminal import make_console, print_lines
    from msprobe.overflow.anomaly_file import write_anomalies
    from msprobe.overflow.answer_lines import answer_lines

    console = make_console()
    for position, found in enumerate(steps):
        if position:
            console.print()
        print_lines(console, answer_lines(found))
        if found.findings:
            path = write_anomalies(directory, dump.step(found.step), found)
            console.print(f"  details: {path}", style="dim")
