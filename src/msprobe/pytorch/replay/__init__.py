# SPDX-License-Identifier: Apache-2.0
"""Runs recorded calls of PyTorch again. Enter at ``runner.py``.

``functions.py`` finds the function that a record names, ``rebuilding.py`` makes its arguments, and
``noise.py`` disturbs a run to measure how much rounding errors change its result, ``squares.py``
computes it where that is possible.
"""

from __future__ import annotations

import msprobe.pytorch.references  # noqa: F401 - registers the references that come with msprobe
