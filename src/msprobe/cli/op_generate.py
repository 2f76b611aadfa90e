# SPDX-License-Identifier: Apache-2.0
"""`msprobe op-generate`: scripts of one call, asked for by a `config_op.json`."""

from __future__ import annotations

import argparse
from pathlib import Path

from msprobe.cli.options import add_output


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.description = (
        "Write the script of one recorded call, as a config_op.json of mindstudio-probe asks for "
        "it. The script needs PyTorch only; op-script does the same without a file."
    )
    parser.epilog = "examples:\n  msprobe op-generate -i config_op.json -o scripts"
    parser.add_argument(
        "-i",
        "--config-input",
        type=Path,
        required=True,
        metavar="FILE",
        help="config_op.json: dump_json_path, api_name, extract_api_path, propagation, data_mode, "
        "random_seed, iter_times",
    )
    add_output(parser, "folder of the scripts (.)", default=Path(), aliases=("--api-output-path",))


def run(options: argparse.Namespace) -> int:
    """Write the scripts."""
    from msprobe.checks.op_config import generate_op_scripts, read_op_config

    for path in generate_op_scripts(read_op_config(options.config_input), options.output):
        print(path)
    return 0
