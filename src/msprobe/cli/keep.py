# SPDX-License-Identifier: Apache-2.0
"""`msprobe keep`: protect a recording from being replaced."""

from __future__ import annotations

import argparse

from msprobe.cli.options import add_dump


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the command and add its options."""
    parser.description = (
        "Mark a dump path, such as that of a reference, so that no later run records into it: the "
        "debugger refuses to be made, before the training starts."
    )
    parser.epilog = (
        "examples:\n  msprobe keep reference_dump\n  msprobe keep --release reference_dump"
    )
    add_dump(parser, "the dump_path of the recording, above step0")
    parser.add_argument("--release", action="store_true", help="undo it")


def run(options: argparse.Namespace) -> int:
    """Mark a folder, or undo that."""
    from msprobe.dump.reuse import keep, release

    if options.release:
        was_kept = release(options.dump)
        print(f"{options.dump} {'may be replaced again' if was_kept else 'was not kept'}")
    else:
        keep(options.dump)
        print(f"{options.dump} is kept; msprobe keep --release {options.dump} undoes it")
    return 0
