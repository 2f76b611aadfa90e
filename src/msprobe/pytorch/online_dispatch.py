# SPDX-License-Identifier: Apache-2.0
"""The documented import path: ``from msprobe.pytorch.online_dispatch import PtdbgDispatch``."""

from __future__ import annotations

from msprobe.pytorch.live.ptdbg_dispatch import PtdbgDispatch

__all__ = ["PtdbgDispatch"]
