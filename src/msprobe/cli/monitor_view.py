# SPDX-License-Identifier: Apache-2.0
"""`msprobe monitor view`: heat maps and series of runs in the browser."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msprobe.cli.options import add_output, port_number
from msprobe.plain_text import reason

if TYPE_CHECKING:
    from msprobe.monitor.reader import MonitorRun

_EXAMPLES: Final = """\
examples:
  msprobe monitor view RUN                a page of this machine; follows the run
  msprobe monitor view RUN_A RUN_B        two runs over each other
  msprobe monitor view RUN -o run.html    the same as one file
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the command and add its options."""
    parser.description = (
        "Show runs that TrainerMon recorded in the browser. The page is served on this machine\n"
        "only, until Ctrl+C."
    )
    parser.epilog = _EXAMPLES
    parser.add_argument("target", metavar="TARGET", type=Path, help="the run")
    parser.add_argument(
        "reference", metavar="REFERENCE", type=Path, nargs="?", help="a run to compare with"
    )
    add_output(parser, "write one file, and end", metavar="FILE", aliases=("--export",))
    parser.add_argument(
        "--port", metavar="N", type=port_number, default=0, help="of the server (default: any)"
    )
    parser.add_argument("--no-browser", action="store_true", help="only print the address")


def run(options: argparse.Namespace) -> int:
    """Serve the page of one or two runs, or export it."""
    from contextlib import ExitStack

    from msprobe.monitor.reader import open_monitor
    from msprobe.monitor.serving import export_page

    with ExitStack() as stack:
        paths = [options.target, *([options.reference] if options.reference else [])]
        runs = [stack.enter_context(open_monitor(path)) for path in paths]
        if options.output is not None:
            print(export_page(options.output, runs))
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
        raise UsageError(f"--port {port}: {reason(exc)}") from exc
    print(f"{server.url}   (Ctrl+C ends)", flush=True)
    if opens_browser:
        webbrowser.open(server.url)
    try:
        server.run()
    except KeyboardInterrupt:
        return
