# SPDX-License-Identifier: Apache-2.0
"""The JSON form of MindSpore values that are not tensors, and names of types."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from mindspore.common import dtype as mstype

from msprobe.dump.records import JsonTree
from msprobe.dump.value_types import describe_value


def dtype_name(tensor: Any) -> str:
    """Return the type of a tensor's elements as MindSpore prints it: ``Float32``."""
    dtype = tensor.dtype
    # NumPy's: a sum of gradients, see the adapter, or what a graph has handed over
    return _array_type_name(dtype) if isinstance(dtype, np.dtype) else str(dtype)


@cache
def _array_type_name(dtype: np.dtype[Any]) -> str:
    name = dtype.name
    return str(name.replace("bfloat", "BFloat") if "bfloat" in name else name.capitalize())


def describe(value: object) -> JsonTree:
    """Return the JSON form of a MindSpore value, `NotImplemented` for anything else."""
    if isinstance(value, mstype.Type):
        return {"type": "mindspore.dtype", "value": str(value)}
    return NotImplemented


def describe_attributes(attributes: Mapping[str, Any]) -> dict[str, JsonTree]:
    """Return the JSON forms of what an operator object was made with; others are left out."""
    found = {name: _attribute(value) for name, value in attributes.items()}
    return {name: form for name, form in found.items() if form is not NotImplemented}


def _attribute(value: object) -> JsonTree:
    if value is None:
        return None
    if isinstance(value, (list, tuple)):
        forms = [_attribute(one) for one in value]
        return NotImplemented if NotImplemented in forms else forms
    form = describe(value)
    return describe_value(value) if form is NotImplemented else form
