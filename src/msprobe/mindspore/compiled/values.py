# SPDX-License-Identifier: Apache-2.0
"""Values that a compiled graph handed over.

They are NumPy arrays: to ask MindSpore for the values of a tensor would, in the thread that runs
the graph, wait for that graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from mindspore.common.np_dtype import bfloat16 as _BFLOAT16  # noqa: N812 - a type of numbers
from numpy.typing import NDArray


class GraphValue(np.ndarray[Any, Any]):
    """An array that is recorded as a tensor."""


def graph_value(values: NDArray[Any], *, is_bfloat16: bool = False) -> GraphValue:
    """Return values in the memory they are in, or, of bfloat16 that came as float32, a copy."""
    return (values.astype(_BFLOAT16) if is_bfloat16 else values).view(GraphValue)


def empty_value(shape: Sequence[int], dtype: str) -> GraphValue:
    """Return a value without elements; `dtype` is named as MindSpore does, ``Float32``."""
    return np.empty(shape, _BFLOAT16 if dtype == "BFloat16" else dtype.lower()).view(GraphValue)
