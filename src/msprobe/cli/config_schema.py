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


def run(_: argparse.Namespace) -> int:
    """Print the schema."""
    from msprobe.cli.terminal import print_json
    from msprobe.config import json_schema

    print_json(json_schema(), indent=2)
    return 0
