# SPDX-License-Identifier: Apache-2.0
"""An import path of scripts written for mindstudio-probe; the function is at home in `training`."""

from msprobe.pytorch.training.seed import seed_all

__all__ = ["seed_all"]
