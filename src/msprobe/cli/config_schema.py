# SPDX-License-Identifier: Apache-2.0
"""`msprobe config-schema`: the JSON schema of config.json, for editors."""

from __future__ import annotations

import argparse


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the command and add its options."""
    parser.description = (
        "Print the JSON schema of config.json. Editors that know it complete keys "
        'and mark mistakes: save it, and name it in config.json under "$schema".'
    )
    parser.epilog = "examples:\n  msprobe config-schema > config.schema.json"
    parser.add_argument(
        "--monitor", action="store_true", help="that of the training monitor's file instead"
    )


def run(options: argparse.Namespace) -> int:
    """Print the schema."""
    from msprobe.cli.terminal import print_json
    from msprobe.config import json_schema
    from msprobe.monitor.settings import json_schema as monitor_schema

    print_json(monitor_schema() if options.monitor else json_schema(), indent=2)
    return 0
