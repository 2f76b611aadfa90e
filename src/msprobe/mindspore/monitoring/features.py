# SPDX-License-Identifier: Apache-2.0
"""The array library of the monitor's features: NumPy, with values on the host."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mindspore import Tensor, nn
from msprobe.mindspore.adapter import values_of
from msprobe.monitor.collecting.features import ArrayLibrary, weight_of


def _array(tensor: Any) -> NDArray[np.float32] | None:
    values = values_of(tensor)
    if values is None or values.dtype.kind not in "fV":  # V: bfloat16
        return None
    return values.astype(np.float32)


NUMPY: Final = ArrayLibrary(np, Tensor, _array, lambda values: list(map(float, values)))


def is_linear(cell: Any) -> bool:
    """Return whether a cell has a matrix that is no table of embeddings."""
    return weight_of(cell, Tensor) is not None and not isinstance(cell, nn.Embedding)
