# SPDX-License-Identifier: Apache-2.0
"""Tensors with NaN and Inf, as records have them."""

from __future__ import annotations

import math

from builders import records


def tensor(value: float = 1.0) -> records.Entry:
    """Return a tensor whose largest (or only bad) value is `value`."""
    low = value if not math.isfinite(value) and value < 0 else (math.nan if value != value else 0.0)
    high = 1.0 if value == -math.inf else value
    norm = value if not math.isfinite(value) else abs(value) * math.sqrt(6)
    return records.tensor((2, 3), Max=high, Min=low, Mean=value, Norm=norm)
