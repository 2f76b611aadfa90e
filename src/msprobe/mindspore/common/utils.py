# SPDX-License-Identifier: Apache-2.0
"""The callbacks under the import path that existing scripts use."""

from __future__ import annotations

from msprobe.mindspore.callbacks import MsprobeInitStep, MsprobeStep

__all__ = ["MsprobeInitStep", "MsprobeStep"]
