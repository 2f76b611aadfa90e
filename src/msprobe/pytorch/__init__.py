# SPDX-License-Identifier: Apache-2.0
"""Capture in PyTorch: the only room that imports torch.

Entry point: `PrecisionDebugger` (in ``debugger.py``); ``observer.py`` shows what is installed while
capturing. ``docs/architecture.md`` says which file observes what. May import `msprobe.capture`,
`msprobe.config`, `msprobe.dump`, `msprobe.run_config`, and `msprobe.compare` inside functions.
"""

from __future__ import annotations

from msprobe.pytorch.comparing import compare, compare_distributed
from msprobe.pytorch.compile_accuracy_checker.precision_checker import PrecisionChecker
from msprobe.pytorch.debugger import PrecisionDebugger
from msprobe.pytorch.live.live_compare import live_compare
from msprobe.pytorch.live.ptdbg_dispatch import PtdbgDispatch
from msprobe.pytorch.monitoring.trainer_mon import TrainerMon
from msprobe.pytorch.single_module import module_dump, module_dump_end
from msprobe.pytorch.training.seed import seed_all

__all__ = [
    "PrecisionChecker",
    "PrecisionDebugger",
    "PtdbgDispatch",
    "TrainerMon",
    "compare",
    "compare_distributed",
    "live_compare",
    "module_dump",
    "module_dump_end",
    "seed_all",
]
