# SPDX-License-Identifier: Apache-2.0
"""Compare two dumps: their differences, where these originate, and how large they are.

Enter at `msprobe.compare.run.compare_dumps`. A comparison reads two sides (`sides`), pairs their
operations (`matching/`), measures pairs of values (`tensors/`), judges them and finds the culprit
(`verdicts/`), and becomes a `result.CompareResult`. `legacy/` makes the tables of mindstudio-probe
from it.
"""
