# SPDX-License-Identifier: Apache-2.0
"""``python -m msprobe.pytorch.parse`` is ``msprobe parse``, as mindstudio-probe has it."""

from __future__ import annotations

import sys

from msprobe.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["parse", *sys.argv[1:]]))
