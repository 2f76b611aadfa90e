# SPDX-License-Identifier: Apache-2.0
"""`msprobe config-schema`: the JSON schema of config.json, for editors."""

from __future__ import annotations

import argparse
from typing import Any


def add_parser(verbs: Any, formatter: type[argparse.HelpFormatter]) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser(
        "config-schema",
        help="print the JSON schema of config.json",
        description="Print the JSON schema of config.json. Editors that know it complete keys "
        'and mark mistakes: save it, and name it in config.json under "$schema".',
        formatter_class=formatter,
    )
    parser.set_defaults(run=run)


def run(_: argparse.Namespace) -> int:
    """Print the schema."""
    from msprobe.cli.terminal import print_json
    from msprobe.config import json_schema

    print_json(json_schema(), indent=2)
    return 0
