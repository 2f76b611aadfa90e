# SPDX-License-Identifier: Apache-2.0
"""`msprobe dump-config`: check and explain the settings of MindSpore's own Dump."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

_EXIT_FAULTS: Final = 2


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the command and add its options."""
    parser.description = (
        "Check the file that MINDSPORE_DUMP_CONFIG names, key by key, and say in plain "
        "words what will be dumped, when, where, how large it may get, and what to mind."
    )
    parser.epilog = "examples:\n  msprobe dump-config data_dump.json --model-size 14GB"
    parser.add_argument("file", metavar="FILE", type=Path, help="the file, such as data_dump.json")
    parser.add_argument(
        "--model-size",
        metavar="SIZE",
        type=_size,
        help="size of the model's weights, as in 14GB, for an estimate of the dump's",
    )


def _size(text: str) -> int:
    from msprobe.kernels.dump_explanation import parse_size

    size = parse_size(text)
    if size is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; use a number of bytes, or 14GB")
    return size


def run(options: argparse.Namespace) -> int:
    """Check and explain a file; 2 if it has faults."""
    from msprobe.kernels.dump_explanation import explain_settings
    from msprobe.kernels.dump_settings import read_dump_settings
    from msprobe.plain_text import plain

    found = read_dump_settings(options.file)
    for fault in found.faults:
        print(plain(f"error: {fault}"), file=sys.stderr)
    for warning in found.warnings:
        print(plain(f"warning: {options.file}: {warning}"), file=sys.stderr)
    if found.settings is None:
        return _EXIT_FAULTS
    for subject in explain_settings(found.settings, model_bytes=options.model_size):
        print(f"{subject.title}:")
        for sentence in subject.sentences:
            print(plain(f"  {sentence}"))
    return 0
