# SPDX-License-Identifier: Apache-2.0
"""Capture in PyTorch: the only room that imports torch.

Entry point: `PrecisionDebugger` (in ``debugger.py``); ``observer.py`` shows what is installed while
capturing. ``docs/architecture.md`` says which file observes what.
Public names are loaded on first use (PEP 562): processes that run calls again start sooner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
_MODULES = {
    "PrecisionChecker": "compile_accuracy_checker.precision_checker",
    "PrecisionDebugger": "debugger",
    "PtdbgDispatch": "live.ptdbg_dispatch",
    "TrainerMon": "monitoring.trainer_mon",
    "compare": "comparing",
    "compare_distributed": "comparing",
    "live_compare": "live.live_compare",
    "module_dump": "single_module",
    "module_dump_end": "single_module",
    "seed_all": "training.seed",
}


def __getattr__(name: str) -> Any:
    """Load a public name on first use."""
    from importlib import import_module

    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names along with what is loaded."""
    return sorted({*globals(), *__all__})
