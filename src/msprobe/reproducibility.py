# SPDX-License-Identifier: Apache-2.0
"""`record_random` and `seed_all` by their short name; both are of PyTorch.

    from msprobe.reproducibility import record_random

The code is in `msprobe.pytorch.reproducibility`. Importing this module imports no framework.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from msprobe.pytorch.reproducibility import record_random
    from msprobe.pytorch.training.seed import seed_all

__all__ = ["record_random", "seed_all"]

_PLACES: Final = {
    "record_random": "msprobe.pytorch.reproducibility",
    "seed_all": "msprobe.pytorch.training.seed",
}


def __getattr__(name: str) -> Any:
    """Load a name on first use, and the framework with it."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)
