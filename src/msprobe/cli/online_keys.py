# SPDX-License-Identifier: Apache-2.0
"""`msprobe online-keys`: the keys of a training that sends its calls, and of who checks them."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the command and add its options."""
    parser.description = (
        "Make the keys with which a training sends its calls to acc-check --listen, encrypted. "
        "The training needs client.key, client.crt and server.crt; acc-check needs server.key, "
        "server.crt and client.crt."
    )
    parser.epilog = "examples:\n  msprobe online-keys keys"
    parser.add_argument("folder", metavar="DIR", type=Path, help="where the four files are written")


def run(options: argparse.Namespace) -> int:
    """Make keys and name their files."""
    from msprobe.online.keys import write_keys

    for path in write_keys(options.folder):
        print(path)
    return 0
