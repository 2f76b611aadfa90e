# SPDX-License-Identifier: Apache-2.0
"""`msprobe run-overflow-check`: is an overflow unavoidable in its type, or the device's fault?"""

from __future__ import annotations

import argparse
from typing import Final

from msprobe.cli.acc_check import add_input, checked_devices, named_recording, resolve_devices
from msprobe.cli.options import add_imports, add_workers, whole_number

EXIT_FOUND: Final = 1
EXIT_UNABLE: Final = 2


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the command and add its options."""
    parser.description = (
        "Run the forward calls of a recording again, on a device and in float64, and "
        "list those with NaN or Inf. Normal: float64 has the same, or the value is beyond the "
        "range of the type. Abnormal: neither."
    )
    parser.epilog = (
        "examples:\n  msprobe run-overflow-check dump/step0/rank\n\n"
        "exit codes: 0 none abnormal, 1 some, 2 none run, 130 Ctrl-C"
    )
    add_input(parser)
    parser.add_argument(
        "-d", "--device", metavar="DEVICE", default="", help="cpu, cuda:1 or a number"
    )
    add_imports(parser)
    add_workers(parser, "processes (1)", kind=whole_number, default=1)
    parser.add_argument(
        "-j", "--jit-compile", action="store_true", help="let an NPU compile operators"
    )
    parser.add_argument(
        "--seed", type=whole_number, default=1234, metavar="N", help="of generated inputs (1234)"
    )


def run(options: argparse.Namespace) -> int:
    """Run the calls of a recording again and print those with NaN or Inf."""
    from collections import Counter

    from msprobe.checks.accuracy_check import CheckPlan, CheckSettings, wanted_calls
    from msprobe.checks.overflow_replay import OverflowKind, find_overflows
    from msprobe.replay.references import whole_path

    recording = named_recording(options)
    view = recording.view()
    names = wanted_calls(view, CheckSettings())
    if options.device:
        resolve_devices(checked_devices([options.device]), view.head.framework)
    plan = CheckPlan(
        recording=recording,
        seed=options.seed,
        jit_compile=options.jit_compile,
        imports=tuple(map(whole_path, options.imports)),
    )
    counts: Counter[OverflowKind] = Counter()
    for name, found in find_overflows(plan, names, device=options.device, workers=options.workers):
        counts[found.kind] += 1
        if found.kind in (OverflowKind.NORMAL, OverflowKind.ABNORMAL):
            print(f"  {found.kind}: {name}: {found.words}")
    print(", ".join(f"{counts[kind]} {kind}" for kind in OverflowKind))
    if counts[OverflowKind.ABNORMAL]:
        return EXIT_FOUND
    return EXIT_UNABLE if counts[OverflowKind.UNKNOWN] == len(names) else 0
