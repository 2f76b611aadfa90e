# SPDX-License-Identifier: Apache-2.0
"""Capture in PyTorch: the only room that imports torch.

Entry point: `PrecisionDebugger` (in ``debugger.py``); `observer.py` shows what is installed while
capturing. May import `msprobe.capture`, `msprobe.config`, `msprobe.dump`.
"""

from __future__ import annotations

from msprobe.pytorch.debugger import PrecisionDebugger


__all__ = ["PrecisionDebugger"]
