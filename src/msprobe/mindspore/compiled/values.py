# SPDX-License-Identifier: Apache-2.0
"""Values that a compiled graph handed over.

They are NumPy arrays: to ask MindSpore for the values of a tensor would, in the thread that runs
the graph, wait for that graph. Where nothing but statistics is wanted, these come alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
from mindspore.common.np_dtype import bfloat16 as _BFLOAT16  # noqa: N812 - a type of numbers
from numpy.typing import NDArray

from msprobe.capture.statistics import Summary

Kind = tuple[np.dtype[Any], tuple[int, ...]]
"""Type of the elements, and shape, of a tensor."""


class GraphValue(np.ndarray[Any, Any]):
    """An array that is recorded as a tensor."""


@dataclass(slots=True)
class Summarised:
    """Statistics of a tensor whose elements are not known.

    Attributes:
        dtype: type of the elements.
        shape: shape of the tensor.
        summary: the statistics.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    summary: Summary

    def copy(self) -> Summarised:
        """Return this: nothing in it changes."""
        return self


GRAPH_VALUES: Final = (GraphValue, Summarised)
"""The types of the tensors that graphs hand over."""


@cache
def array_type(dtype: object) -> np.dtype[Any]:
    """Return NumPy's type for a type of MindSpore's."""
    name = str(dtype)
    return np.dtype(_BFLOAT16 if name == "BFloat16" else name.lower())


def graph_value(values: NDArray[Any], *, is_bfloat16: bool = False) -> GraphValue:
    """Return values in the memory they are in, or, of bfloat16 that came as float32, a copy."""
    return (values.astype(_BFLOAT16) if is_bfloat16 else values).view(GraphValue)


def empty_value(shape: Sequence[int], dtype: object) -> GraphValue:
    """Return a value without elements, of a type of MindSpore's."""
    return np.empty(shape, array_type(dtype)).view(GraphValue)
