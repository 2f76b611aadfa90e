# SPDX-License-Identifier: Apache-2.0
"""Run a training script that nobody edited, and record it.

Begin at `launching.Launch`. The script runs as Python would run it (`program.py`); msprobe waits
until it imports PyTorch (`imports.py`) and is installed then.
"""
