# SPDX-License-Identifier: Apache-2.0
"""The JSON form of MindSpore values that are not tensors, and names of types."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from mindspore.common import dtype as mstype

from msprobe.dump.records import JsonTree


def dtype_name(tensor: Any) -> str:
    """Return the type of a tensor's elements as MindSpore prints it: ``Float32``."""
    if isinstance(tensor, np.ndarray):  # a sum of gradients, see the adapter
        return _array_type_name(tensor.dtype)
    return str(tensor.dtype)


@cache
def _array_type_name(dtype: np.dtype[Any]) -> str:
    name = dtype.name
    return str(name.replace("bfloat", "BFloat") if "bfloat" in name else name.capitalize())


def describe(value: object) -> JsonTree:
    """Return the JSON form of a MindSpore value, `NotImplemented` for anything else."""
    if isinstance(value, mstype.Type):
        return {"type": "mindspore.dtype", "value": str(value)}
    return NotImplemented
