# SPDX-License-Identifier: Apache-2.0
"""The part of `seed_all` that is the same for every framework: arguments, Python, NumPy."""

from __future__ import annotations

import os
import random
from typing import Any, Final

import numpy as np

from msprobe.errors import ConfigError

_LARGEST_SEED: Final = 2**32 - 1  # NumPy's limit
_SOURCE: Final = "seed_all()"


def check_arguments(seed: Any, **switches: Any) -> None:
    """Refuse arguments of `seed_all` that cannot be used.

    Raises:
        ConfigError: `seed` is no integer from 0 to 2**32 - 1, or a switch is not True or False.
    """
    is_int = isinstance(seed, int) and not isinstance(seed, bool)
    if not is_int or not 0 <= seed <= _LARGEST_SEED:
        raise ConfigError("seed", seed, f"an integer from 0 to {_LARGEST_SEED}", source=_SOURCE)
    for name, value in switches.items():
        if not isinstance(value, bool):
            raise ConfigError(name, value, "True or False", source=_SOURCE)


def seed_python_and_numpy(seed: int) -> None:
    """Seed random numbers outside the framework; hashes only in processes started from here."""
    os.environ["PYTHONHASHSEED"] = str(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the generator that users' scripts share
