# SPDX-License-Identifier: Apache-2.0
"""`msprobe monitor`: look at runs of the training monitor, and compare two."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from msprobe.monitor.reader import MonitorRun

EXIT_DIFFERENT: Final = 1
_LINES: Final = 30

_EXAMPLES: Final = """\
examples:
  msprobe monitor show monitor_output                   incidents, and a line for each layer
  msprobe monitor show RUN --stream actv --op absmax    another stream
  msprobe monitor compare RUN_A RUN_B                   the first step and layer where they part
  msprobe monitor view RUN_A RUN_B                      a page in the browser
  msprobe monitor view RUN --export run.html            the same as one file
"""


def add_parser(verbs: Any, formatter: type[argparse.HelpFormatter]) -> None:
    """Add the verb to the command line."""
    from rich_argparse import RawDescriptionRichHelpFormatter

    parser = verbs.add_parser(
        "monitor",
        help="look at statistics of a training run, and at where two runs part",
        description="Look at runs that TrainerMon recorded. RUN is the folder of a run, or a "
        "folder\nof runs (the newest is taken).",
        epilog=_EXAMPLES,
        formatter_class=RawDescriptionRichHelpFormatter,
    )
    parts = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_show(parts.add_parser("show", help="incidents and series", formatter_class=formatter))
    _add_compare(parts.add_parser("compare", help="where two runs part", formatter_class=formatter))
    _add_view(parts.add_parser("view", help="a page of pictures", formatter_class=formatter))


def _add_show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="RUN", type=Path)
    parser.add_argument("--stream", metavar="NAME", help="such as actv (default: gradients)")
    parser.add_argument("--op", metavar="NAME", help="such as absmax (default: norm)")
    parser.add_argument("--rank", metavar="N", type=int, help="of the series (default: the first)")
    parser.add_argument("--all", action="store_true", help="all series, not the first 30")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    parser.set_defaults(run=show)


def _add_compare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET", type=Path, help="the run under test")
    parser.add_argument("reference", metavar="REFERENCE", type=Path, help="the trusted run")
    parser.add_argument(
        "--rtol",
        type=float,
        default=1e-3,
        metavar="X",
        help="relative distance from which values may be apart (default: 0.001)",
    )
    parser.add_argument("--all", action="store_true", help="all series, not the first 30")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    parser.add_argument(
        "--exit-code", action="store_true", help="exit with 1 if the runs are not equal"
    )
    parser.set_defaults(run=compare)


def _add_view(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="RUN", type=Path)
    parser.add_argument("other", metavar="RUN2", type=Path, nargs="?", help="to compare with")
    parser.add_argument("--export", metavar="FILE", type=Path, help="write one file, and end")
    parser.add_argument("--port", type=int, default=0, help="of the server (default: any)")
    parser.add_argument("--no-browser", action="store_true", help="only print the address")
    parser.set_defaults(run=view)


def show(options: argparse.Namespace) -> int:
    """Print a run."""
    from msprobe.cli.terminal import make_console, print_json, print_lines, reader_may_leave
    from msprobe.monitor.overview import run_facts
    from msprobe.monitor.reader import open_monitor
    from msprobe.report.monitor_lines import run_lines

    with open_monitor(options.path) as run:
        facts = run_facts(run, stream=options.stream, op=options.op, rank=options.rank)
    with reader_may_leave():
        if options.json:
            print_json(facts)
        else:
            print_lines(make_console(), run_lines(facts, 0 if options.all else _LINES))
    return 0


def compare(options: argparse.Namespace) -> int:
    """Compare two runs and print where they part."""
    from msprobe.cli.terminal import make_console, print_json, print_lines, reader_may_leave
    from msprobe.errors import UsageError
    from msprobe.monitor.comparing import compare_runs
    from msprobe.monitor.reader import open_monitor
    from msprobe.report.monitor_lines import comparison_lines

    if not 0 <= options.rtol < float("inf"):
        raise UsageError(f"--rtol is {options.rtol}; use a number of 0 or more")
    with open_monitor(options.target) as target, open_monitor(options.reference) as reference:
        found = compare_runs(target, reference, rtol=options.rtol)
        names = str(target.path), str(reference.path)
    facts = found.as_json()
    with reader_may_leave():
        if options.json:
            print_json(facts)
        else:
            limit = 0 if options.all else _LINES
            print_lines(make_console(), comparison_lines(facts, names, limit))
    return EXIT_DIFFERENT if options.exit_code and not found.is_equal else 0


def view(options: argparse.Namespace) -> int:
    """Serve the page of one or two runs, or export it."""
    from contextlib import ExitStack

    from msprobe.monitor.reader import open_monitor
    from msprobe.monitor.serving import export_page

    with ExitStack() as stack:
        paths = [options.path, *([options.other] if options.other else [])]
        runs = [stack.enter_context(open_monitor(path)) for path in paths]
        if options.export is not None:
            print(export_page(options.export, runs))
            return 0
        _serve(runs, options.port, opens_browser=not options.no_browser)
    return 0


def _serve(runs: list[MonitorRun], port: int, *, opens_browser: bool) -> None:
    import webbrowser

    from msprobe.errors import UsageError
    from msprobe.monitor.serving import PageServer

    try:
        server = PageServer(runs, port)
    except OSError as exc:
        raise UsageError(f"--port {port}: {exc.strerror or exc}") from exc
    print(f"{server.url}   (Ctrl+C ends)", flush=True)
    if opens_browser:
        webbrowser.open(server.url)
    try:
        server.serve()
    except KeyboardInterrupt:
        return
