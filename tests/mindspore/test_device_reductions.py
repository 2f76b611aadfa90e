# SPDX-License-Identifier: Apache-2.0
"""The numbers that MindSpore's operators give, run on the CPU, against rational arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
from device_tensors import FLOATS, INTEGERS, tensor_of, tried

import mindspore as ms
from mindspore import Tensor
from msprobe.capture.statistics import NonFinite, Summary
from msprobe.mindspore import device_reductions
from msprobe.mindspore.device_statistics import DeviceStatistics


@cache
def of_all_tests(accumulate: Any) -> DeviceStatistics:
    return DeviceStatistics(accumulate)


def summarise(*tensors: Tensor, accumulate: Any = None) -> list[Summary | None]:
    device = tried(of_all_tests(accumulate), *tensors)
    device.take_batch()
    found = [device.summarise(tensor, None) for tensor in tensors]
    collect = device.take_batch()
    if collect is not None:
        collect()
    return found


def exact(tensor: Tensor) -> tuple[Any, Any, float, float]:
    """Return max, min, mean and norm by rational arithmetic, of finite elements."""
    array = tensor.astype(ms.float32).asnumpy() if tensor.dtype == ms.bfloat16 else tensor.asnumpy()
    elements = array.ravel().tolist()
    if array.dtype.kind == "f":
        elements = [Fraction(one) for one in elements]
    squares = sum(one * one for one in elements)
    down = Fraction(1)
    while squares / down**2 > 1e300:
        down *= 2
    norm = math.sqrt(squares / down**2) * float(down)
    mean = float(sum(elements) / len(elements))
    return array.max().item(), array.min().item(), mean, norm


@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (257,), (2, 0, 3), (70, 1001)], ids=str)
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
def test_numbers_are_exact_or_nearly(dtype: str, shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(3).integers(-100, 100, shape)
    if dtype in FLOATS:
        values = values / 7
    if dtype.startswith("u"):
        values = abs(values)
    tensor = tensor_of(values, dtype)
    (found,) = summarise(tensor)
    assert found is not None
    assert found.ready
    assert found.nonfinite is None
    if 0 in shape:
        assert found.max is found.min is found.mean is found.norm is None
        return
    high, low, mean, norm = exact(tensor)
    assert (found.max, found.min) == (high, low)
    assert type(found.max) is type(found.min) is (float if dtype in FLOATS else int)
    scale = norm / math.sqrt(tensor.size)
    assert found.mean == pytest.approx(
        mean, rel=0 if dtype in INTEGERS else 1e-14, abs=scale * 1e-14
    )
    assert found.norm == pytest.approx(norm, rel=1e-14)


@pytest.mark.parametrize("shape", [(), (3, 5), (70, 1001)], ids=str)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", *INTEGERS])
def test_without_float64_sums_are_good_to_one_in_a_million(
    dtype: str, shape: tuple[int, ...]
) -> None:
    values = np.random.default_rng(4).integers(1, 100, shape)
    tensor = tensor_of(values / 7 if dtype in FLOATS else values, dtype)
    (found,) = summarise(tensor, accumulate=ms.float32)
    assert found is not None
    high, low, mean, norm = exact(tensor)
    assert (found.max, found.min) == (high, low)
    assert found.mean == pytest.approx(mean, rel=0 if dtype in INTEGERS else 1e-6)
    assert found.norm == pytest.approx(norm, rel=1e-6)


def test_what_needs_float64_is_left_to_the_host_without_it() -> None:
    assert summarise(tensor_of([1.0, 2.0], "float64"), accumulate=ms.float32) == [None]


ODD = [math.nan, math.inf, -math.inf]
NOT_FINITE = {
    "nan": [1.0, math.nan, -2.0],
    "inf": [1.0, math.inf, -2.0],
    "minus_inf": [1.0, -math.inf, -2.0],
    "both": [1.0, -math.inf, math.inf, -2.0],
    "all": [*ODD, -1.0, -3.0],
    "nothing_finite": ODD,
    "only_inf": [math.inf],
    "only_minus_inf": [-math.inf, -math.inf],
    "only_nan": [math.nan],
    "negative": [-5.0, math.nan, -7.0],
}


@pytest.mark.parametrize("accumulate", [None, ms.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kind", NOT_FINITE)
def test_nan_and_infinities_are_counted(kind: str, dtype: str, accumulate: Any) -> None:
    if dtype == "float64" and accumulate is not None:
        pytest.skip("is read on the host")
    values = np.array(NOT_FINITE[kind])
    (found,) = summarise(tensor_of(values, dtype), accumulate=accumulate)
    assert found is not None
    finite = values[np.isfinite(values)]
    nan, above, below = np.isnan(values), np.isposinf(values), np.isneginf(values)
    assert found.nonfinite == NonFinite(
        nan.sum(),
        above.sum(),
        below.sum(),
        *((finite.max(), finite.min()) if len(finite) else (None, None)),
    )
    np.testing.assert_equal(
        [found.max, found.min, found.mean, found.norm],
        [
            values.max(),
            values.min(),
            values.mean() if not (above.any() and below.any()) else math.nan,
            math.nan if nan.any() else math.inf,
        ],
    )


EXTREME = {
    "float32": [3e38, -3.2e38, 1e-40, 0.0],
    "float64": [1.7e308, -1.6e308, 1.5e308, 5e-324],
    "float64_small": [3e-320, -2e-322, 0.0],
    "float64_apart": [1e300, 1e-300, -1e300],
    "float16": [65504.0, -65504.0, 6e-8],
    "float32_zeros": [0.0, -0.0, -0.0],
    "int64": [2**63 - 1, 2**63 - 2, -5],
    "int64_low": [-(2**63), -(2**63), 2**53 + 1],
    "int64_near_2_53": [2**53 + 1, 2**53, 2**53 + 3],
    "int32": [2**31 - 1, -(2**31), 2**31 - 1],
    "uint32": [2**32 - 1, 2**32 - 1, 0],
}


@pytest.mark.parametrize("accumulate", [None, ms.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("kind", EXTREME)
def test_extreme_values(kind: str, accumulate: Any) -> None:
    dtype = kind.partition("_")[0]
    if dtype == "float64" and accumulate is not None:
        pytest.skip("is read on the host")
    tensor = tensor_of(np.array(EXTREME[kind], dtype), dtype)
    (found,) = summarise(tensor, accumulate=accumulate)
    assert found is not None
    high, low, mean, norm = exact(tensor)
    assert (found.max, found.min) == (high, low)
    assert math.copysign(1, found.max or 1) == math.copysign(1, high or 1)
    exactly = dtype in INTEGERS
    tolerance = 1e-14 if accumulate is None else 1e-6
    # Operators may take denormal numbers for zero.
    near = max(norm * tolerance, np.finfo(np.float64).tiny)
    assert found.mean == pytest.approx(
        mean, rel=0 if exactly else tolerance, abs=0 if exactly else near
    )
    assert found.norm == pytest.approx(norm, rel=tolerance, abs=near)


@pytest.mark.parametrize("values", [[True, False], [True, True], [False, False], True])
def test_bool(values: Any) -> None:
    (found,) = summarise(Tensor(np.array(values)))
    assert found is not None
    assert (found.max, found.min) == (np.any(values), np.all(values))
    assert type(found.max) is type(found.min) is bool
    assert found.mean is found.norm is None


@pytest.mark.parametrize("accumulate", [None, ms.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("dtype", ["float32", "int64", "int16"])
def test_pieces_make_a_whole(dtype: str, accumulate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_reductions, "PIECE_ELEMENTS", 2000)
    values = np.random.default_rng(5).integers(-9000, 9000, (61, 83))
    odd = values.astype(float)
    odd[[0, 60, 30], [0, 82, 5]] = ODD
    for array in (values, values + 1 if dtype == "int64" else odd)[
        : 2 if dtype == "float32" else 1
    ]:
        tensor = tensor_of(array, dtype)
        (found,) = summarise(tensor, accumulate=accumulate)
        assert found is not None
        if np.isfinite(array).all():
            high, low, mean, norm = exact(tensor)
            assert (found.max, found.min) == (high, low)
            assert found.mean == pytest.approx(mean, abs=norm / 71 * 1e-7)
            assert found.norm == pytest.approx(norm, rel=1e-6)
        else:
            finite = array[np.isfinite(array)]
            assert found.nonfinite == NonFinite(1, 1, 1, finite.max(), finite.min())


def test_sums_of_many_numbers_do_not_drift() -> None:
    values = np.full(1 << 21, 0.1)
    values[0] = 0.7  # the scale: sums of equal numbers might come out right by chance
    (found,) = summarise(Tensor(values))
    assert found is not None
    assert found.mean == pytest.approx(math.fsum(values) / len(values), rel=1e-14)
    assert found.norm == pytest.approx(math.sqrt(math.fsum(values**2)), rel=1e-14)


def test_views_are_summarised_by_their_elements() -> None:
    whole = Tensor(np.arange(30, dtype=np.float32).reshape(5, 6))
    found = summarise(whole.T, whole[1:3, ::2])
    assert [(one.max, one.min, one.mean) for one in found if one] == [(29, 0, 14.5), (16, 6, 11.0)]


@pytest.mark.parametrize("dtype", ["uint64", "complex64", "complex128"])
def test_some_types_are_left_to_the_host(dtype: str) -> None:
    assert summarise(tensor_of([1, 2], dtype)) == [None]
