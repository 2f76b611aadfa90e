# SPDX-License-Identifier: Apache-2.0
"""`msprobe attach`: have a running program record its next steps."""

from __future__ import annotations

import argparse
import time
from typing import Final

from msprobe.cli.options import positive_number

_WAIT_S: Final = 60
_POLL_S: Final = 0.1


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the command and add its options."""
    parser.description = (
        "Ask a running program to record its next steps. It was started with msprobe run "
        '--on-request, or has "dump_enable": false in its config.json.'
    )
    parser.add_argument(
        "process", metavar="PID", nargs="+", type=positive_number, help="processes, one for a rank"
    )
    parser.add_argument(
        "--steps", type=positive_number, default=1, metavar="N", help="how many steps (1)"
    )
    parser.add_argument(
        "--wait",
        type=positive_number,
        default=_WAIT_S,
        metavar="S",
        help=f"seconds to wait until the next step begins ({_WAIT_S})",
    )


def run(options: argparse.Namespace) -> int:
    """Ask, wait for the answer and print where the recording will be."""
    from msprobe.capture.attaching import announcement, request
    from msprobe.errors import UsageError

    before = {process: announcement(process).requests for process in options.process}
    for process in options.process:
        request(process, options.steps)
    until = time.monotonic() + options.wait
    for process, requests in before.items():
        while (announced := announcement(process)).requests == requests:
            if time.monotonic() > until:
                raise UsageError(
                    f"process {process} began no step within {options.wait} s; it will record the "
                    "next ones when it does"
                )
            time.sleep(_POLL_S)
        last = announced.step + options.steps - 1
        steps = f"step {last}" if last == announced.step else f"steps {announced.step} to {last}"
        print(f"process {process} records {steps} into {announced.dump_path}")
    return 0
