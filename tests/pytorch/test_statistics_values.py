# SPDX-License-Identifier: Apache-2.0
"""Summaries of torch tensors: every number against exact arithmetic, on both kinds of kernels."""

from __future__ import annotations

import math
from decimal import Context, Decimal
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from msprobe.capture.statistics import NATIVE, NonFinite
from msprobe.pytorch.values.statistics import make_summarise

KERNELS = [pytest.param(make_summarise(None), id="reductions")]
if NATIVE is not None:
    KERNELS.append(pytest.param(make_summarise(NATIVE), id="native"))

FLOATS = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]
SIGNED = [torch.int8, torch.int16, torch.int32, torch.int64]
UNSIGNED = [torch.uint8, torch.uint16, torch.uint32, torch.uint64]
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@pytest.fixture(params=KERNELS, scope="module")
def summarise(request):
    return request.param


def exact_norm(values):
    """The L2 norm of finite numbers, correctly rounded (or inf)."""
    context = Context(prec=60, Emax=10**6, Emin=-(10**6))
    total = sum((Fraction(v) ** 2 for v in values), Fraction(0))
    ratio = context.divide(Decimal(total.numerator), Decimal(total.denominator))
    return float(context.sqrt(ratio))


def assert_agrees(found, values):
    """Check a summary against the Python numbers that the tensor holds."""
    finite = [v for v in values if math.isfinite(v)]
    nan = sum(map(math.isnan, values))
    if len(finite) < len(values):
        assert found.nonfinite == NonFinite(
            nan,
            values.count(math.inf),
            values.count(-math.inf),
            max(finite, default=None),
            min(finite, default=None),
        )
    if nan:
        assert all(map(math.isnan, (found.max, found.min, found.mean, found.norm)))
        return
    assert (found.max, found.min) == (max(values), min(values))
    if len(finite) < len(values):
        assert found.norm == math.inf
        assert str(found.mean) == str(
            found.max + found.min if finite == [] else sum_of_signs(values)
        )
        return
    assert found.nonfinite is None
    exact = sum(map(Fraction, values)) / len(values)
    magnitude = sum(abs(Fraction(v)) for v in values) / len(values)
    assert abs(Fraction(found.mean) - exact) <= magnitude / 10**15 + Fraction(5e-324)
    assert found.norm == pytest.approx(exact_norm(values), rel=1e-14, abs=1e-323)


def sum_of_signs(values):
    return sum(v for v in values if math.isinf(v))


def tensor_of_codes(codes, dtype):
    unsigned = torch.tensor(codes, dtype=torch.int64)
    return unsigned.to(BITS[dtype.itemsize]).view(dtype)


def numbers_of(t):
    return [float(v) for v in t.to(torch.float64).tolist()]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@settings(deadline=None)
@given(data=st.data())
def test_any_bit_pattern_of_any_float_type(summarise, dtype, data):
    top = 2 ** (8 * dtype.itemsize - 1)
    codes = data.draw(st.lists(st.integers(-top, top - 1), min_size=1, max_size=40))
    t = tensor_of_codes(codes, dtype)
    assert_agrees(summarise(t), numbers_of(t))


@pytest.mark.parametrize("dtype", [d for d in FLOATS if d.itemsize == 1], ids=str)
def test_every_code_of_the_8_bit_types_alone(summarise, dtype):
    for code in range(256):
        t = tensor_of_codes([code], dtype)
        assert_agrees(summarise(t), numbers_of(t))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_all_codes_of_the_16_bit_types_together_and_the_finite_ones(summarise, dtype):
    every = tensor_of_codes(range(-(2**15), 2**15), dtype)
    assert_agrees(summarise(every), numbers_of(every))
    finite = every[every.isfinite() & (every > 0)]
    assert_agrees(summarise(finite), numbers_of(finite))


@pytest.mark.parametrize("dtype", SIGNED + UNSIGNED, ids=str)
@settings(deadline=None)
@given(data=st.data())
def test_integers_are_exact(summarise, dtype, data):
    info = torch.iinfo(dtype)
    values = data.draw(st.lists(st.integers(info.min, info.max), min_size=1, max_size=40))
    found = summarise(torch.tensor(values, dtype=dtype))
    assert (found.max, found.min) == (max(values), min(values))
    assert {type(found.max), type(found.min)} == {int}
    assert found.mean == sum(values) / len(values)
    assert found.norm == pytest.approx(exact_norm(values), rel=2e-15)


def test_integer_sums_beyond_64_bits(summarise):
    found = summarise(torch.full((1000,), 2**63 - 1))
    assert (found.max, found.mean) == (2**63 - 1, float(2**63 - 1))
    found = summarise(torch.full((1000,), 2**64 - 1, dtype=torch.uint64))
    assert (found.max, found.mean) == (2**64 - 1, float(2**64 - 1))
    assert found.norm == pytest.approx(2**64 * math.sqrt(1000), rel=2e-15)


def test_half_precision_is_not_summed_in_half_precision(summarise):
    # 26.2.0 of the peer gives Infinity here.
    found = summarise(torch.full((1000,), 3000.0, dtype=torch.float16))
    assert (found.mean, found.norm) == (3000.0, pytest.approx(94868.329805, rel=1e-10))


def test_ten_million_equal_elements_have_their_mean(summarise):
    x = torch.full((10_000_000,), 0.1)
    found = summarise(x)
    assert found.mean == pytest.approx(float(x[0]), rel=1e-15)
    assert found.norm == pytest.approx(float(x[0]) * math.sqrt(10_000_000), rel=1e-14)


def test_sums_of_large_and_cancelling_elements(summarise):
    x = torch.tensor([3e38, 3e38, -3e38, 3e38])
    assert_agrees(summarise(x), numbers_of(x))
    y = torch.cat([x, torch.randn(100_000) * 1e-3, -x]).double()
    assert summarise(y).mean == pytest.approx(math.fsum(y.tolist()) / len(y), abs=1e23)


@pytest.mark.parametrize("value", [-2.5, 0.0, 7.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_the_norm_of_a_scalar_is_its_absolute_value(summarise, dtype, value):
    found = summarise(torch.tensor(value, dtype=dtype))
    assert (found.max, found.min, found.mean, found.norm) == (value, value, value, abs(value))


def test_bool_says_any_and_all(summarise):
    def extremes(*values):
        found = summarise(torch.tensor(values))
        assert (found.mean, found.norm) == (None, None)
        return found.max, found.min

    assert extremes(True, False) == (True, False)
    assert extremes(True, True) == (True, True)
    assert extremes(False) == (False, False)
    assert type(extremes(True)[0]) is bool


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_complex_numbers_count_by_their_absolute_value(summarise, dtype):
    found = summarise(torch.tensor([3 + 4j, -5 - 12j, 0], dtype=dtype))
    assert (found.max, found.min, found.mean) == (13.0, 0.0, 6.0)
    assert found.norm == pytest.approx(math.sqrt(194), rel=1e-15)
    inf, nan = math.inf, math.nan
    found = summarise(torch.tensor([complex(inf, nan), complex(nan, 1), 3 + 4j], dtype=dtype))
    assert found.nonfinite == NonFinite(1, 1, 0, 5.0, 5.0)
    tiny = torch.tensor([complex(3e-200, 4e-200)] * 4, dtype=torch.complex128)
    assert summarise(tiny).norm == pytest.approx(1e-199, rel=1e-14)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_complex_half(summarise):
    x = torch.tensor([3 + 4j, complex(0, math.inf)], dtype=torch.complex64).to(torch.complex32)
    assert summarise(x[:1]).max == 5.0
    assert summarise(x).nonfinite == NonFinite(0, 1, 0, 5.0, 5.0)


@pytest.mark.parametrize("dtype", [*FLOATS, *SIGNED, *UNSIGNED, torch.bool, torch.complex64])
@pytest.mark.parametrize("shape", [(0,), (3, 0, 2)])
def test_empty_tensors_have_no_statistics(summarise, dtype, shape):
    found = summarise(torch.empty(shape, dtype=dtype))
    assert (found.max, found.min, found.mean, found.norm) == (None,) * 4
    assert (found.note, found.nonfinite, found.ready) == (None, None, True)


def test_packed_float4_counts_both_halves():
    if NATIVE is None:
        pytest.skip("torch itself cannot read float4")
    codes = [c | (15 - c) << 4 for c in range(16)]
    t = torch.tensor(codes, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    found = make_summarise(NATIVE)(t)
    assert (found.max, found.min, found.mean) == (6.0, -6.0, 0.0)
    squares = sum(v * v for v in (0.5, 1, 1.5, 2, 3, 4, 6))
    assert found.norm == pytest.approx(math.sqrt(4 * squares), rel=1e-15)


def test_zeros_are_positive(summarise):
    for values in ([0.0, -0.0], [-0.0, 0.0], [-0.0, -0.0]):
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float8_e5m2):
            found = summarise(torch.tensor(values).to(dtype))
            assert [math.copysign(1, x) for x in (found.max, found.min, found.norm)] == [1.0] * 3


def test_subnormal_numbers_count_even_when_the_thread_flushes_them():
    if NATIVE is None:
        pytest.skip("torch's own reductions flush as the user asked")
    x = torch.tensor([1e-40, 3e-40], dtype=torch.float32)
    values = x.tolist()
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot")
    try:
        found = make_summarise(NATIVE)(x)
        assert (found.max, found.min) == (values[1], values[0])
        assert found.mean == pytest.approx(sum(values) / 2, rel=1e-15)
        assert float(x[0] * 1.0) == 0.0  # and the thread's setting is as it was
    finally:
        torch.set_flush_denormal(False)


@settings(deadline=None)
@given(st.permutations(range(60)))
def test_the_order_of_the_elements_does_not_show_in_extremes_and_counts(summarise, order):
    x = torch.linspace(-3, 3, 60)
    x[7], x[20], x[30], x[31] = math.inf, -math.inf, math.nan, -0.0
    a, b = summarise(x), summarise(x[list(order)])
    assert a.nonfinite == b.nonfinite == NonFinite(1, 1, 1, 3.0, -3.0)
    clean = x.nan_to_num(0, 0, 0)
    a, b = summarise(clean), summarise(clean[list(order)])
    assert (a.max, a.min) == (b.max, b.min)
    assert (a.mean, a.norm) == pytest.approx((b.mean, b.norm), rel=1e-14, abs=1e-16)


@st.composite
def views(draw):
    """A view, as models make them: permuted, sliced, stepped, expanded, overlapping."""
    base = torch.arange(-200.0, 232.0).reshape(2, 3, 8, 9)
    dtype = draw(st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int32]))
    t = base.to(dtype)
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["permute", "slice", "expand", "unfold", "select"]))
        if t.dim() == 0:
            break
        dim = draw(st.integers(0, t.dim() - 1))
        size = t.size(dim)
        if kind == "permute":
            t = t.permute(draw(st.permutations(range(t.dim()))))
        elif kind == "slice":
            start = draw(st.integers(0, size))
            t = t.narrow(dim, start, draw(st.integers(0, size - start)))
            t = t[(slice(None),) * dim + (slice(None, None, draw(st.integers(1, 3))),)]
        elif kind == "expand" and t.numel() < 5000:
            t = t.unsqueeze(dim).expand(*t.shape[:dim], 3, *t.shape[dim:])
        elif kind == "unfold" and size >= 2 and t.numel() < 5000:
            t = t.unfold(dim, 2, 1)
        elif kind == "select" and size:
            t = t.select(dim, draw(st.integers(0, size - 1)))
    return t


@settings(deadline=None)
@given(views())
def test_a_view_has_the_statistics_of_its_contiguous_copy(summarise, view):
    found, copy = summarise(view), summarise(view.clone(memory_format=torch.contiguous_format))
    assert (found.max, found.min) == (copy.max, copy.min)
    if view.numel():
        magnitude = float(view.abs().double().mean())
        assert found.mean == pytest.approx(copy.mean, rel=1e-14, abs=1e-15 * magnitude)
        assert found.norm == pytest.approx(copy.norm, rel=1e-14)


@pytest.mark.parametrize("shape", [(3, 70_001), (70_001, 3), (1, 70_001, 1, 2)])
def test_large_strided_tensors_are_read_in_pieces(summarise, shape):
    base = torch.arange(math.prod(shape) * 2, dtype=torch.float32).reshape(*shape, 2)
    view = base[..., 1].transpose(0, 1)
    found = summarise(view)
    assert (found.max, found.min) == (float(base.max()), 1.0)
    assert found.mean == float(view.double().mean())
    assert found.norm == pytest.approx(float(view.double().norm()), rel=1e-14)


def test_channels_last(summarise):
    x = torch.randn(2, 3, 5, 7)
    found, plain = summarise(x.contiguous(memory_format=torch.channels_last)), summarise(x)
    assert (found.max, found.min) == (plain.max, plain.min)
    assert found.mean == pytest.approx(plain.mean, abs=1e-16)


def test_lazily_negated_and_conjugated_views(summarise):
    z = torch.complex(torch.tensor([1.0, 2.0, 7.0]), torch.tensor([5.0, -3.0, 0.0]))
    imaginary = z.conj().imag  # values -5, 3, 0
    assert imaginary.is_neg()
    found = summarise(imaginary)
    assert (found.max, found.min, found.mean) == (3.0, -5.0, pytest.approx(-2 / 3))
    assert math.copysign(1, summarise(imaginary[2:]).max) == 1.0
    assert summarise(z.conj()).max == summarise(z).max == 7.0
    x = torch._neg_view(torch.tensor([math.inf, 1.0, -2.0]))
    found = summarise(x)
    assert (found.max, found.min, found.mean) == (2.0, -math.inf, -math.inf)
    assert found.nonfinite == NonFinite(0, 0, 1, 2.0, -1.0)
