# SPDX-License-Identifier: Apache-2.0
"""`msprobe verify`: which calls of one dump returned what their type cannot explain."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from msprobe.cli.options import (
    add_dump,
    add_exit_code,
    add_imports,
    add_json,
    add_name_filters,
    add_output,
    add_ranks,
    add_scheduler,
    add_scripts,
    add_steps,
    add_workers,
    decimal,
    whole_number,
)

if TYPE_CHECKING:
    from msprobe.checks.verify_dump import VerifiedDump
    from msprobe.dump.dump_steps import Dump

RESULT_FILE: Final = "verify.json"
PAGE_FILE: Final = "verify.html"
EXIT_FOUND: Final = 1
EXIT_UNJUDGED: Final = 2


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the command and add its options."""
    parser.description = (
        "Run every recorded call again in float64 on the CPU, forward and backward, "
        "and say which recorded results have an error that their type cannot explain. No second "
        "dump and no accelerator is needed; a dump with tensors is judged as it was recorded."
    )
    parser.epilog = (
        "examples:\n"
        "  msprobe verify dump\n"
        "  msprobe verify dump --step 0 --list softmax -o result --html"
    )
    add_dump(parser)
    add_output(parser, f"folder for {RESULT_FILE} (no file)")
    parser.add_argument(
        "--format",
        choices=("csv", "xlsx", "parquet"),
        help="also write a table, a row for each result, to verify.csv and so on in DIR",
    )
    parser.add_argument(
        "--html", action="store_true", help=f"also write a page to click through, {PAGE_FILE}"
    )
    add_steps(parser)
    add_ranks(parser)
    add_name_filters(parser)
    parser.add_argument(
        "-d", "--device", default="cpu", help="where calls without recorded results run (cpu)"
    )
    add_imports(parser)
    add_workers(
        parser,
        "processes (as many as pay off); 0 for none, then a crash ends it all",
        kind=whole_number,
    )
    add_scheduler(parser)
    parser.add_argument(
        "--timeout", type=decimal, default=60.0, metavar="S", help="seconds a call may take (60)"
    )
    parser.add_argument(
        "--memory", type=decimal, metavar="GB", help="memory that a call may take (no limit)"
    )
    add_scripts(parser, "scripts that show the worst N calls, in DIR/scripts")
    add_json(parser, f"print {RESULT_FILE} instead of a table")
    add_exit_code(
        parser, "exit with 1 if a call is wrong or suspicious, with 2 if none could be judged"
    )


def run(options: argparse.Namespace) -> int:
    """Verify a dump and print the answer."""
    from msprobe.checks.verify_dump import Selection, verify_dump
    from msprobe.dump.reader import open_dump
    from msprobe.errors import UsageError
    from msprobe.replay.workers import Limits
    from msprobe.report.call_progress import call_progress

    if options.html and options.output is None:
        raise UsageError("--html needs a folder for its page: -o DIR")
    memory = None if options.memory is None else int(options.memory * 1e9)
    dump = open_dump(options.dump)
    with call_progress() as progress:
        found = verify_dump(
            dump,
            selection=Selection(
                steps=options.step or (),
                ranks=options.rank or (),
                names=tuple(options.list),
                scope=options.scope and tuple(options.scope),
            ),
            device=options.device,
            imports=options.imports,
            workers=options.workers,
            limits=Limits(seconds=options.timeout, memory_bytes=memory),
            scheduler=options.scheduler,
            progress=progress,
        )
    _show(found, options)
    if options.output is not None and options.scripts:
        _write_scripts(dump, found, options)
    if not options.exit_code:
        return 0
    if any(call.is_fault for call in found.calls):
        return EXIT_FOUND
    return 0 if found.judged else EXIT_UNJUDGED


def _show(found: VerifiedDump, options: argparse.Namespace) -> None:
    from msprobe.checks.verify_json import verify_json
    from msprobe.checks.verify_lines import answer_lines
    from msprobe.checks.verify_page import write_verify_page
    from msprobe.checks.verify_table import verify_table
    from msprobe.cli.terminal import make_console, print_json, print_lines
    from msprobe.files import write_report
    from msprobe.json_text import strict_json
    from msprobe.report.table_files import write_table

    paths = []
    if options.output is not None:
        text = strict_json(verify_json(found), indent=None)
        paths.append(write_report(options.output / RESULT_FILE, text))
        if options.html:
            paths.append(write_verify_page(found, options.output / PAGE_FILE))
        if options.format is not None:
            write_table(verify_table(found), options.output / RESULT_FILE[:-5], options.format)
    if options.json:
        print_json(verify_json(found))
        return
    console = make_console()
    print_lines(console, answer_lines(found))
    for path in paths:
        console.print(f"  details: {path}", style="dim")


def _write_scripts(dump: Dump, found: VerifiedDump, options: argparse.Namespace) -> None:
    """Write scripts of the worst calls, and name them."""
    from msprobe.checks.op_scripts import FaultyCall, write_worst_scripts
    from msprobe.cli.terminal import make_console
    from msprobe.replay.references import import_definitions

    for name in options.imports:
        import_definitions(name)
    calls = (
        FaultyCall(
            dump.step(call.step).ranks[call.rank],
            call.report.name,
            call.worst is not None and call.worst.record != call.report.name,
            call.step,
        )
        for call in found.worst
        if call.is_fault
    )
    for path in write_worst_scripts(calls, options.output / "scripts", options.scripts):
        if not options.json:
            make_console().print(f"  script: {path}", style="dim")
