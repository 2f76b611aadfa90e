# SPDX-License-Identifier: Apache-2.0
"""The batch that brings only the extremes of tensors from a device."""

from __future__ import annotations

import math

import pytest
import torch

from msprobe.pytorch.values.statistics import DeviceBatch

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e5m2]
)
def test_extremes_are_exact_and_show_nan_and_infinities(dtype: torch.dtype) -> None:
    batch = DeviceBatch(only_extremes=True)
    values = [[1.0, -3.0, 0.5], [1.0, math.inf, 2.0], [-math.inf, 0.0, 1.0], [math.nan, 1.0, 2.0]]
    summaries = [batch.add(torch.tensor(one).to(dtype)) for one in values]
    assert not summaries[0].ready
    batch.collect()
    assert [(one.max, one.min) for one in summaries[:3]] == [
        (1.0, -3.0),
        (math.inf, 1.0),
        (1.0, -math.inf),
    ]
    assert math.isnan(summaries[3].max)
    assert math.isnan(summaries[3].min)


def test_other_tensors_are_not_read() -> None:
    batch = DeviceBatch(only_extremes=True)
    assert batch.add(torch.arange(3)).ready
    assert batch.add(torch.empty(0)).ready
    size = batch.add(torch.tensor([3 + 4j, 1j]))
    batch.collect()
    assert (size.max, size.min) == (5.0, 1.0)
