# SPDX-License-Identifier: Apache-2.0
"""`msprobe parse`: binary kernel dumps as .npy or .pt files; without a path a prompt for more."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from msprobe.cli.options import add_output

_EXIT_PROBLEMS: Final = 2
# Same as layouts.PLAIN and STORED; that module needs NumPy, which --help should not load.
FORMATS: Final = (
    "NCHW", "NHWC", "CHWN", "HWCN", "NCDHW", "NDHWC", "DHWCN", "NC", "CN", "NCL", "ND", "STORED",
)  # fmt: skip


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the command and add its options."""
    parser.description = (
        "Convert the binary files of kernel dumps (asynchronous Dump of MindSpore) to "
        "files of NumPy or PyTorch. Orders of elements that only the device has are changed into "
        "that of the program: NCHW, NCDHW, or plain dimensions. Notes on overflows become JSON. "
        "Without -d a prompt takes the commands cad, vc, dc, pt, pk, cn and run."
    )
    parser.epilog = "examples:\n  msprobe parse -d kernel_dump -o arrays -f NCHW"
    parser.add_argument("-d", "--dump-path", metavar="PATH", type=Path, help="a file or a folder")
    add_output(parser, "a folder (./)", default=Path(), aliases=("-out",))
    parser.add_argument(
        "-f",
        "--format",
        metavar="FORMAT",
        dest="layout",
        type=str.upper,
        choices=FORMATS,
        default="",
        help="order of elements where a tensor has these dimensions: "
        + ", ".join(FORMATS[:-1])
        + "; STORED leaves every tensor as the device has it",
    )
    parser.add_argument(
        "-t", "--type", dest="file_type", choices=("npy", "pt"), default="npy", help="(npy)"
    )


def run(options: argparse.Namespace) -> int:
    """Convert and print the result; 2 if something could not be converted."""
    if options.dump_path is None:
        from msprobe.cli.parse_prompt import run_prompt

        return run_prompt()
    from msprobe.kernels.convert_binary import FileType, convert_binary
    from msprobe.plain_text import count_text, plain

    done = convert_binary(
        options.dump_path,
        options.output,
        wanted=options.layout,
        file_type=FileType(options.file_type),
    )
    print(plain(f"{count_text(len(done.written), 'file')} written to {options.output}"))
    for path, problem in done.problems.items():
        print(plain(f"{path}: {problem}"), file=sys.stderr)
    return _EXIT_PROBLEMS if done.problems else 0
