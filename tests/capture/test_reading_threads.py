# SPDX-License-Identifier: Apache-2.0
"""Large buffers are read by several threads: the numbers are the same for any number of them."""

from __future__ import annotations

import os

import numpy as np
import pytest

from msprobe.capture.array_statistics import summarise_array, summarise_by_numpy

native = pytest.importorskip("msprobe.capture._native")

BLOCK = 16 * 1008  # bytes
PART = 64 * BLOCK


@pytest.fixture(params=native.use_isa(None), autouse=True)
def isa(request):
    native.use_isa(request.param)
    yield request.param
    native.use_isa(None)
    native.use_threads(1)


def values(dtype: str, size: int) -> np.ndarray:
    return np.random.default_rng(size).standard_normal(size).astype(dtype)


def raw(array: np.ndarray, threads: int) -> tuple:
    native.use_threads(threads)
    return native.stats(native.KINDS[array.dtype.name], array.ctypes.data, array.size)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int32"])
@pytest.mark.parametrize("size_bytes", [4 * PART - 8, 4 * PART, 4 * PART + 8, 66 * PART + 4])
def test_any_number_of_threads_finds_the_same_numbers(dtype, size_bytes):
    array = values(dtype, size_bytes // np.dtype(dtype).itemsize)
    one = raw(array, 1)
    assert all(repr(raw(array, threads)) == repr(one) for threads in (2, 3, 100))
    found, wanted = summarise_array(array), summarise_by_numpy(array)
    wide = array.astype(np.float64)
    assert (found.max, found.min) == (array.max(), array.min())
    assert found.norm == pytest.approx(np.sqrt((wide * wide).sum()), rel=1e-13)
    assert found.mean == pytest.approx(wide.mean(), rel=1e-9)
    weight = float(np.abs(wide).sum())
    for got, want in zip(found.projections, wanted.projections, strict=True):
        assert got == pytest.approx(want, rel=0, abs=2.0**-43 * weight)


@pytest.mark.parametrize("place", [0, 4 * PART // 4 - 1, 2 * PART // 4])
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_found_in_every_part(place, odd):
    array = values("float32", PART)
    array[place] = odd
    two = raw(array, 2)
    assert repr(two) == repr(raw(array, 1))
    wanted = summarise_by_numpy(array).nonfinite
    assert two[4][:3] == (wanted.nan_count, wanted.pos_inf_count, wanted.neg_inf_count)


def test_an_extreme_is_found_in_every_part():
    array = values("float32", PART)
    for part in range(4):
        array[part * PART // 4 + 5] = 100 + part
        array[part * PART // 4 + 7] = -100 - part
        assert raw(array, 4)[:2] == (100 + part, -100 - part)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_reads_with_threads_of_its_own():
    array = values("float32", PART)
    one = raw(array, 2)
    child = os.fork()
    if not child:
        os._exit(0 if raw(array, 2) == one else 1)
    assert os.waitpid(child, 0)[1] == 0
