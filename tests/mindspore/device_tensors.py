# SPDX-License-Identifier: Apache-2.0
"""Tensors of every type, and device statistics that have tried their types."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

import mindspore as ms
from mindspore import Tensor
from msprobe.mindspore.device_statistics import DeviceStatistics

FLOATS: Final = ("float16", "bfloat16", "float32", "float64")
INTEGERS: Final = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")


def tensor_of(values: Any, dtype: str) -> Tensor:
    if dtype == "bfloat16":
        return Tensor(np.asarray(values, np.float32)).astype(ms.bfloat16)
    return Tensor(np.asarray(values).astype(dtype))


def prepared(*tensors: Tensor) -> DeviceStatistics:
    """Return what has tried the usual types and those of these tensors."""
    return tried(DeviceStatistics(), *tensors)


def tried(device: DeviceStatistics, *tensors: Tensor) -> DeviceStatistics:
    for tensor in tensors:
        device.summarise(tensor, None)
    device.prepare()
    return device
