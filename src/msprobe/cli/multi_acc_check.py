# SPDX-License-Identifier: Apache-2.0
"""`msprobe multi-acc-check`: `acc-check` in several processes."""

from __future__ import annotations

import argparse
from typing import Final

from msprobe.cli.acc_check import add_check_options, run

__all__ = ["add_options", "run"]

_WORKERS: Final = 8


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the command and add its options."""
    add_check_options(parser, most_workers=_WORKERS)
