# SPDX-License-Identifier: Apache-2.0
"""`python -m msprobe` is the command `msprobe`."""

from __future__ import annotations

import sys

from msprobe.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
