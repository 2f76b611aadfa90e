# SPDX-License-Identifier: Apache-2.0
"""`msprobe attach`: have a running program record its next steps."""

from __future__ import annotations

import argparse
import time
from typing import Final

from msprobe.cli.options import positive_number

_WAIT_S: Final = 60


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the command and add its options."""
    parser.description = (
        "Ask a running program to record its next steps. It was started with msprobe run "
        '--on-request, or has "dump_enable": false in its config.json.'
    )
    parser.epilog = "examples:\n  msprobe attach 4711 4712 --steps 2"
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
    from msprobe.capture.attaching import Request
    from msprobe.errors import UsageError

    requests = {process: Request(process, options.steps) for process in options.process}
    for request in requests.values():
        request.send()
    until = time.monotonic() + options.wait
    for process, request in requests.items():
        answer = request.answer(until)
        if answer is None:
            raise UsageError(
                f"process {process} began no step within {options.wait} s; it will record the "
                "next ones when it does"
            )
        last = answer.step + options.steps - 1
        steps = f"step {last}" if last == answer.step else f"steps {answer.step} to {last}"
        print(f"process {process} records {steps} into {answer.dump_path}")
    return 0
