# SPDX-License-Identifier: Apache-2.0
"""Projections: the documented signs, the same numbers in C and NumPy, within the stated error."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from msprobe.capture.array_statistics import summarise_array, summarise_by_numpy
from msprobe.capture.projections import project

native = pytest.importorskip("msprobe.capture._native")

TYPES = (
    *("float16", "float32", "float64", "complex64", "complex128", "bool"),
    *("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
)
SIZES = (1, 2, 15, 17, 143, 145, 1007, 1009, 4032, 16129, 40_001)
MASK = 2**64 - 1


@pytest.fixture(params=native.use_isa(None), autouse=True)
def isa(request):
    native.use_isa(request.param)
    yield request.param
    native.use_isa(None)


def random_array(dtype: str, size: int) -> np.ndarray:
    rng = np.random.default_rng(size)
    values = rng.standard_normal(size) * 60
    if dtype == "bool":
        return values > 0
    if dtype.startswith("complex"):
        return (values + 1j * rng.standard_normal(size)).astype(dtype)
    return np.abs(values).astype(dtype) if dtype.startswith("u") else values.astype(dtype)


def numbers_of(array: np.ndarray) -> np.ndarray:
    return array.view(array.real.dtype) if array.dtype.kind == "c" else array


def documented_signs(count: int) -> list[tuple[int, int]]:
    """Return the signs as docs/metrics.md defines them."""

    def random(n: int) -> int:
        z = (2035 + (n + 1) * 0x9E3779B97F4A7C15) & MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    table = [1 if random(j // 64) >> (j % 64) & 1 else -1 for j in range(704)]
    signs = []
    for index in range(count):
        drawn, at = random(11 + index // 1008), index % 1008 % 144
        signs.append((table[(drawn >> 55) + at], table[(drawn >> 46) % 512 + at]))
    return signs


@pytest.mark.parametrize("dtype", TYPES)
def test_c_and_numpy_agree_within_the_documented_error(dtype):
    for size in SIZES:
        array = random_array(dtype, size)
        weight = float(np.abs(numbers_of(array).astype(np.float64)).sum())
        for got, want in zip(
            summarise_array(array).projections, summarise_by_numpy(array).projections, strict=True
        ):
            assert got == pytest.approx(want, rel=0, abs=2.0**-43 * weight)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int64"])
def test_projections_are_sums_with_the_documented_signs(dtype):
    array = random_array(dtype, 3001)
    if dtype == "int64":
        array[7:400] += 2**53 - 5
    signs = documented_signs(array.size)
    weight = sum(abs(Fraction(x)) for x in array.tolist())
    for k, got in enumerate(summarise_array(array).projections):
        exact = sum(Fraction(x) * sign[k] for x, sign in zip(array.tolist(), signs, strict=True))
        assert abs(Fraction(got) - exact) <= weight / 2**43


def test_every_instruction_set_gives_the_same_bits(isa):
    array = random_array("float32", 50_000)
    raw = native.stats(native.KINDS["float32"], array.ctypes.data, array.size)
    native.use_isa("generic")
    assert raw == native.stats(native.KINDS["float32"], array.ctypes.data, array.size)


def test_only_finite_elements_count():
    array = random_array("float32", 5000)
    array[[3, 1200, 4999]] = np.nan, np.inf, -np.inf
    kept = np.where(np.isfinite(array), array, 0)
    assert summarise_array(array).projections == pytest.approx(project(kept), rel=1e-12)
    assert summarise_by_numpy(array).projections == project(kept)


def test_there_are_none_of_no_elements_and_beyond_the_range():
    assert summarise_array(np.zeros(0)).projections is None
    huge = np.full(6000, 1.7e308)
    assert summarise_array(huge).projections is None
    assert summarise_by_numpy(huge).projections is None


def test_views_count_in_the_order_of_memory_and_what_repeats_once():
    array = random_array("float32", 60_000).reshape(100, 600)
    kind, place = native.KINDS["float32"], array.ctypes.data
    cut = native.stats_strided(kind, place, (100, 37), (600, 1), array.nbytes)
    assert cut[5] == pytest.approx(project(array[:, :37]), rel=1e-12)
    long_rows = native.stats_strided(kind, place, (50, 599), (1200, 1), array.nbytes)
    assert long_rows[5] == pytest.approx(project(array[::2, :599]), rel=1e-12)
    transposed = native.stats_strided(kind, place, (600, 100), (1, 600), array.nbytes)
    assert transposed == native.stats(kind, place, array.size)
    long_columns = native.stats_strided(kind, place, (4999, 12), (1, 5000), array.nbytes)
    assert long_columns[5] == pytest.approx(project(array.reshape(12, 5000)[:, :-1]), rel=1e-12)
    repeated = native.stats_strided(kind, place, (100, 600), (0, 1), array.nbytes)
    assert repeated[5] == native.stats(kind, place, 600)[5]


def test_a_difference_shows_its_norm():
    rng = np.random.default_rng(0)
    ratios = []
    for _ in range(400):
        a = rng.standard_normal(4000)
        permuted = a.reshape(40, 100)[rng.permutation(40)].ravel()
        moved = np.array(project(permuted)) - project(a)
        ratios.append(np.square(moved).mean() / np.square(permuted - a).sum())
    assert 0.8 < np.mean(ratios) < 1.2


def test_elements_at_the_first_four_places_are_told_apart():
    assert len(set(documented_signs(4))) == 4


def test_norm_and_projections_of_small_floats():
    codes = np.arange(256, dtype=np.uint8)
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float4_e2m1fn_x2"):
        raw = native.stats(native.KINDS[name], codes.ctypes.data, codes.size)
        assert all(math.isfinite(number) for number in raw[5])
