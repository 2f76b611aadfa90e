# SPDX-License-Identifier: Apache-2.0
"""The documented place of `ConfigChecker` in mindstudio-probe."""

from __future__ import annotations

from msprobe.config_check import ConfigChecker

__all__ = ["ConfigChecker"]
