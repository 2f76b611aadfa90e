# SPDX-License-Identifier: Apache-2.0
"""Capture in MindSpore: the only room that imports mindspore.

Entry point: `PrecisionDebugger` (in ``debugger.py``); ``observer.py`` lists what is installed while
capturing. ``docs/architecture.md`` says which file observes what.
"""

from __future__ import annotations

from msprobe.mindspore.callbacks import MsprobeInitStep, MsprobeStep
from msprobe.mindspore.compile_check import PrecisionChecker
from msprobe.mindspore.debugger import PrecisionDebugger
from msprobe.mindspore.live_compare import live_compare
from msprobe.mindspore.monitoring.trainer_mon import TrainerMon
from msprobe.mindspore.seed import seed_all

__all__ = [
    "MsprobeInitStep",
    "MsprobeStep",
    "PrecisionChecker",
    "PrecisionDebugger",
    "TrainerMon",
    "live_compare",
    "seed_all",
]
