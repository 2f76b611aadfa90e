# SPDX-License-Identifier: Apache-2.0
"""`msprobe code-mapping`: which line of the program each kernel comes from."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from msprobe.cli.options import add_output

_SHOWN: Final = 10


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the command and add its options."""
    parser.description = (
        "Write for every value of a kernel dump the calls of the program that it comes "
        "from. Gradients take those of their forward kernel, parameters those of their cell. New "
        "files are written; nothing in the dump is changed."
    )
    parser.epilog = "examples:\n  msprobe code-mapping --ir rank_0/graphs --dump-data statistic.csv"
    parser.add_argument(
        "--ir",
        metavar="IR",
        type=Path,
        required=True,
        help="the graph as text (*.ir), or a folder of them, such as rank_0/graphs of the dump",
    )
    parser.add_argument(
        "--dump-data",
        metavar="PATH",
        type=Path,
        required=True,
        help="a file of values, a statistic.csv, or a folder of a kernel dump",
    )
    add_output(
        parser,
        "folder of code_mapping_{time}.csv (./); a copy of statistic.csv is put beside each",
        default=Path(),
    )


def run(options: argparse.Namespace) -> int:
    """Map a dump and print which files were written."""
    from msprobe.kernels.code_mapping import map_code
    from msprobe.plain_text import few_text, plain

    done = map_code(options.ir, options.dump_data, options.output)
    for path in done.written:
        print(plain(str(path)))
    print(f"{done.mapped} of {done.values} values have a place in the program")
    if done.renumbered:
        pairs = [f"{name} is {there}" for name, there in done.renumbered.items()]
        print(
            plain(
                "found under another number, as the only one of their scope and type: "
                + few_text(pairs, _SHOWN)
            )
        )
    if done.unmapped:
        print(plain(f"not found in the graph: {few_text(done.unmapped, _SHOWN)}"))
    return 0
