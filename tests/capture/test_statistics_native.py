# SPDX-License-Identifier: Apache-2.0
"""The C kernels called with plain memory, without a framework."""

from __future__ import annotations

import ctypes
import math
import subprocess
import sys
import threading
from array import array
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msprobe.capture.statistics import NATIVE, NonFinite, from_raw, native_module

native = native_module()
pytestmark = pytest.mark.skipif(native is None, reason="the C extension is not built")

CODES = {
    "float32": "f",
    "float64": "d",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "uint64": "Q",
    "int8": "b",
    "uint8": "B",
}
INTEGER_LIMITS = {
    name: (0, 2 ** int(name[4:]) - 1)
    if name.startswith("u")
    else (-(2 ** (int(name[3:]) - 1)), 2 ** (int(name[3:]) - 1) - 1)
    for name in CODES
    if "int" in name
}


def stats(name, values):
    memory = array(CODES[name], values)
    address, count = memory.buffer_info()
    return from_raw(native.stats(native.KINDS[name], address, count))


def stats_strided(name, memory, shape, strides, offset=0):
    address, count = memory.buffer_info()
    start = offset * memory.itemsize
    readable = count * memory.itemsize - start
    kind = native.KINDS[name]
    return from_raw(native.stats_strided(kind, address + start, shape, strides, readable))


@settings(deadline=None)
@given(st.data(), st.sampled_from(sorted(INTEGER_LIMITS)))
def test_integers_are_exact(data, name):
    low, high = INTEGER_LIMITS[name]
    values = data.draw(st.lists(st.integers(low, high), min_size=1, max_size=70))
    found = stats(name, values)
    assert (found.max, found.min) == (max(values), min(values))
    assert type(found.max) is int
    assert found.mean == sum(values) / len(values)  # integer division: one rounding
    assert found.norm == pytest.approx(math.sqrt(sum(v * v for v in values)), rel=1e-15)


@settings(deadline=None)
@given(
    st.lists(
        st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=True),
        min_size=1,
        max_size=70,
    )
)
def test_float64_mean_has_no_error_that_a_double_could_show(values):
    found = stats("float64", values)
    exact = sum(map(Fraction, values)) / len(values)
    magnitude = sum(map(abs, map(Fraction, values))) / len(values)
    assert (found.max, found.min) == (max(values), min(values))
    assert abs(Fraction(found.mean) - exact) <= abs(exact) / 2**51 + magnitude / 2**95 + 5e-324


@pytest.mark.parametrize(
    ("values", "mean", "norm"),
    [
        ([1e16, 1.0, -1e16], 1 / 3, math.sqrt(2) * 1e16),
        ([1e200, 1e200], 1e200, math.sqrt(2) * 1e200),
        ([3e-200, 4e-200], 3.5e-200, 5e-200),
        ([5e-324, 5e-324, 5e-324, 5e-324], 5e-324, 1e-323),
        ([1.5e308, 1.5e308, -1e308], 1e308 / 3 * 2, math.inf),
        ([1.7e308] * 4 + [0.0] * 4, 0.85e308, math.inf),
        ([0.0, -0.0], 0.0, 0.0),
        ([2.0**-520, 2.0**520], 2.0**519, 2.0**520),
    ],
)
def test_float64_neither_overflows_nor_underflows_on_the_way(values, mean, norm):
    found = stats("float64", values)
    assert found.mean == pytest.approx(mean, rel=1e-15)
    assert found.norm == pytest.approx(norm, rel=1e-15)


@pytest.mark.parametrize("name", ["float32", "float64"])
@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 31, 33, 2047, 2048, 2049, 4097, 20_000])
def test_every_element_counts_once_at_every_length(name, count):
    values = [float(i % 1013 - 500) for i in range(count)]
    found = stats(name, values)
    assert (found.max, found.min) == (max(values), min(values))
    assert found.mean == sum(values) / count  # small integers: every sum is exact
    assert found.norm == pytest.approx(math.sqrt(sum(v * v for v in values)), rel=1e-15)


@pytest.mark.parametrize("position", [0, 1, 15, 16, 4095, 4096, 9999])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_single_nonfinite_element_is_found_wherever_it_is(position, value):
    values = [float(i % 7) for i in range(10_000)]
    values[position] = value
    found = stats("float32", values)
    wanted = (int(math.isnan(value)), int(value == math.inf), int(value == -math.inf))
    assert found.nonfinite == NonFinite(*wanted, 6.0, 0.0)
    if math.isnan(value):
        assert all(map(math.isnan, (found.max, found.min, found.mean, found.norm)))
    else:
        assert (found.mean, found.norm) == (value, math.inf)
        assert (found.max, found.min) == ((value, 0.0) if value > 0 else (6.0, value))


def test_infinities_of_both_signs_have_no_mean_and_only_nonfinite_elements_no_finite_extremes():
    found = stats("float64", [math.inf, -math.inf])
    assert (found.max, found.min, found.norm) == (math.inf, -math.inf, math.inf)
    assert math.isnan(found.mean)
    assert found.nonfinite == NonFinite(0, 1, 1, None, None)
    found = stats("float64", [-math.inf])
    assert (found.max, found.min, found.mean) == (-math.inf, -math.inf, -math.inf)


def test_zeros_are_positive_whatever_their_order():
    for values in ([0.0, -0.0], [-0.0, 0.0], [-0.0]):
        found = stats("float32", values)
        assert [math.copysign(1, x) for x in (found.max, found.min)] == [1.0, 1.0]


@pytest.mark.parametrize("name", sorted(CODES))
def test_all_instruction_sets_give_the_same_bits(name):
    values = [(i * 7919) % 127 for i in range(10_007)]
    if name.startswith("float"):
        values = [math.sin(v) * 10.0 ** (v % 9) for v in range(10_007)]
    names = native.use_isa(None)
    assert names[0] == "generic"
    seen = set()
    try:
        for isa in names:
            native.use_isa(isa)
            found = stats(name, values)
            seen.add((found.max, found.min, found.mean, found.norm))
    finally:
        native.use_isa(None)
    assert len(seen) == 1


def test_an_unknown_instruction_set_or_kind_is_refused():
    with pytest.raises(ValueError, match="'mmx' is not one of"):
        native.use_isa("mmx")
    with pytest.raises(ValueError, match="kind 99"):
        native.stats(99, 1, 1)


@pytest.mark.parametrize(
    ("shape", "strides", "offset"),
    [
        ((4, 5), (5, 1), 0),
        ((5, 4), (1, 5), 0),
        ((2, 3), (7, 2), 3),
        ((3, 3), (1, 1), 0),  # overlapping
        ((2, 3), (5, 0), 1),  # repeated
        ((4,), (0,), 2),
        ((), (), 7),
        ((1, 1, 3), (99, 99, 4), 0),
        ((2, 2, 2, 2), (8, 1, 4, 2), 1),
    ],
)
def test_a_view_has_the_statistics_of_its_elements(shape, strides, offset):
    memory = array("f", [math.sin(i) for i in range(20)])
    indexes = [offset]
    for size, stride in zip(shape, strides, strict=True):
        indexes = [i + k * stride for i in indexes for k in range(size)]
    values = [memory[i] for i in indexes]
    found = stats_strided("float32", memory, shape, strides, offset)
    assert (found.max, found.min) == (max(values), min(values))
    assert found.mean == pytest.approx(math.fsum(values) / len(values), abs=1e-15)
    assert found.norm == pytest.approx(math.sqrt(math.fsum(v * v for v in values)), rel=1e-14)


def test_a_view_that_reaches_beyond_its_memory_is_refused():
    memory = array("f", range(20))
    with pytest.raises(ValueError, match="ends before"):
        stats_strided("float32", memory, (2, 3), (17, 1), 1)
    assert stats_strided("float32", memory, (2, 3), (16, 1), 1).max == 19.0


def test_repeated_elements_count_each_time():
    memory = array("f", [1.0, math.nan, -2.0])
    found = stats_strided("float32", memory, (1000, 3), (0, 1))
    assert found.nonfinite == NonFinite(1000, 0, 0, 1.0, -2.0)
    found = stats_strided("float32", memory, (10**6, 2), (0, 2))
    assert (found.mean, found.norm) == (-0.5, pytest.approx(math.sqrt(5e6), rel=1e-15))


def test_empty_memory_has_no_statistics_and_null_is_refused():
    kind = native.KINDS["float32"]
    assert native.stats(kind, 0, 0) == (None,) * 6
    assert native.stats_strided(kind, 0, (3, 0), (1, 1), 0) == (None,) * 6
    with pytest.raises(ValueError, match="null"):
        native.stats(kind, 0, 1)


def test_the_environment_switches_the_extension_off():
    code = (
        "from msprobe.capture import stacks, statistics;"
        "print(statistics.NATIVE, stacks.stack_key is stacks.python_stack_key)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={"MSPROBE_NATIVE": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.split() == ["None", "True"]
    assert NATIVE is not None


@pytest.mark.parametrize("isa", native.use_isa(None) if native else [])
@pytest.mark.parametrize(("kind", "code"), [("float32", "f"), ("float64", "d")])
@pytest.mark.parametrize("count", [0, 1, 31, 32, 33, 5000])
def test_differences_of_two_buffers(isa: str, kind: str, code: str, count: int) -> None:
    """Small integers: every sum is exact, whatever the order of the additions."""
    one = array(code, [(7 * i) % 11 - 5 for i in range(count)])
    other = array(code, [(3 * i) % 8 - 4 for i in range(count)])
    native.use_isa(isa)
    try:
        found = native.difference(
            native.KINDS[kind], one.buffer_info()[0] or 8, other.buffer_info()[0] or 8, count
        )
    finally:
        native.use_isa(None)
    moved = [b - a for a, b in zip(one, other, strict=True)]
    assert found == (
        sum(a * a for a in one),
        sum(d * d for d in moved),
        max(map(abs, moved), default=0),
    )


def test_a_nan_is_in_the_sums_of_differences() -> None:
    one, other = array("f", [1.0] * 40), array("f", [1.0] * 39 + [math.nan])
    places = one.buffer_info()[0], other.buffer_info()[0]
    squares, moved, greatest = native.difference(native.KINDS["float32"], *places, 40)
    assert (squares, greatest) == (40.0, 0.0)
    assert math.isnan(moved)


def test_differences_are_of_floats() -> None:
    with pytest.raises(ValueError, match="float32 or float64"):
        native.difference(native.KINDS["int32"], 8, 8, 1)


@pytest.mark.parametrize(("kind", "code"), [("float32", "f"), ("float64", "d")])
@pytest.mark.parametrize("count", [0, 1, 5, 6, 13])
def test_products_of_a_buffer_with_factors_in_turn(kind: str, code: str, count: int) -> None:
    values, factors = array(code, range(count)), array(code, [1.0, 0.5, -2.0, math.inf, 3.0])
    found = array(code, [0.0] * count)
    places = [one.buffer_info()[0] or 8 for one in (values, factors, found)]
    native.products(native.KINDS[kind], places[0], count, places[1], 5, places[2])
    assert found == array(code, [values[i] * factors[i % 5] for i in range(count)])


@pytest.mark.parametrize("given", [("int32", 1, 1), ("float32", -1, 1), ("float32", 1, 0)])
def test_products_refuse_other_types_and_sizes(given: tuple[str, int, int]) -> None:
    kind, count, period = given
    with pytest.raises(ValueError, match="float32 or float64"):
        native.products(native.KINDS[kind], 8, count, 8, period, 8)


# -- values that a compiled graph hands over -----------------------------------------------------


@pytest.fixture
def hand_over():
    """Return a function that does as a graph: it calls C with a number, kinds and arrays."""
    take = ctypes.CDLL(native.__file__).msprobe_take

    def hand_over(number, *values):
        key = array("q", [number, *(native.KINDS[name] for name, _ in values)])
        memories = [array(CODES[name], numbers) for name, numbers in values]
        out = array("f", [7.0])
        addresses = [memory.buffer_info()[0] for memory in (key, *memories, out)]
        counts = [len(memory) for memory in (key, *memories, out)]
        sizes = [ctypes.c_int64(count) for count in counts]
        total = len(addresses)
        shapes = (ctypes.POINTER(ctypes.c_int64) * total)(*map(ctypes.pointer, sizes))
        places = (ctypes.c_void_p * total)(*addresses)
        ndims = (ctypes.c_int * total)(*[1] * total)
        assert take(total, places, ndims, shapes, None, None, None) == 0
        assert out[0] == 0.0

    yield hand_over
    native.deliver_to(None)


def test_statistics_of_values_that_are_handed_over_are_kept_in_order(hand_over):
    native.deliver_to(True)
    hand_over(4, ("float32", [1, -2, 4.5]), ("int64", [3, 2**62]))
    hand_over(9)
    (first, spent_s, found), (second, _, nothing) = native.take_delivered()
    assert (first, second, nothing) == (4, 9, [])
    assert 0 < spent_s < 10
    expected = [stats("float32", [1, -2, 4.5]), stats("int64", [3, 2**62])]
    assert [repr(from_raw(raw)) for raw in found] == [repr(one) for one in expected]
    assert native.take_delivered() == []


def test_nothing_is_kept_unless_it_is_wanted(hand_over):
    hand_over(1, ("float32", [1.0]))
    native.deliver_to(True)
    assert native.take_delivered() == []
    hand_over(1, ("float32", [1.0]))
    native.deliver_to(True)  # a new step
    assert native.take_delivered() == []


def test_values_are_kept_from_many_threads(hand_over):
    native.deliver_to(True)

    def run(thread):
        for number in range(200):
            hand_over(1000 * thread + number, ("float64", [thread, number]))

    threads = [threading.Thread(target=run, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    delivered = native.take_delivered()
    for thread in range(4):
        mine = [number % 1000 for number, *_ in delivered if number // 1000 == thread]
        assert mine == list(range(200))
    assert all(raw[0] == max(divmod(number, 1000)) for number, _, (raw,) in delivered)


def test_a_function_is_called_with_the_values(hand_over):
    seen = []

    def receive(number, addresses):
        sizes = zip(addresses, (24, 2), strict=True)
        seen.append((number, [bytes(native.memory(*one)) for one in sizes]))

    native.deliver_to(receive)
    hand_over(5, ("float64", [1, 2, 3]), ("uint8", [8, 9]))
    assert seen == [(5, [array("d", [1, 2, 3]).tobytes(), bytes([8, 9])])]
    assert native.take_delivered() == []
