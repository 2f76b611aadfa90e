# SPDX-License-Identifier: Apache-2.0
"""Records of small dumps that are written rather than captured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from msprobe.dump.records import TensorRecord

Entry = tuple[str, str | None, Mapping[str, Any]]
"""A record: its name, the record it ran inside, and its parts."""


def tensor(value: float = 1.0, shape: tuple[int, ...] = (2, 3), **more: Any) -> TensorRecord:
    """Return a tensor whose largest (or only bad) value is `value`."""
    low = value if not math.isfinite(value) and value < 0 else (math.nan if value != value else 0.0)
    high = 1.0 if value == -math.inf else value
    norm = value if not math.isfinite(value) else abs(value) * math.sqrt(math.prod(shape))
    facts = {"max": high, "min": low, "mean": value, "norm": norm, "requires_grad": False}
    return TensorRecord("torch.Tensor", "torch.float32", shape, **{**facts, **more})
