# SPDX-License-Identifier: Apache-2.0
"""Run and record an unedited training script.

Begin at `launching.Launch`. The script runs as Python would run it (`program.py`); msprobe waits
until it imports PyTorch (`imports.py`) and is installed then.
"""
