# SPDX-License-Identifier: Apache-2.0
"""Lists of steps and ranks, and the token range."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msprobe.config import parse_number_list, parse_token_range
from msprobe.errors import ConfigError


@pytest.mark.parametrize(
    ("values", "numbers"),
    [
        (None, ()),
        ([], ()),
        ([3, 1, 3], (1, 3)),
        (["2"], (2,)),
        ([" 3 "], (3,)),
        (["3 - 5"], (3, 4, 5)),
        ([" 3-5\t"], (3, 4, 5)),
        (["5-5"], (5,)),
        ([1, "3-4", "4-6", "0"], (0, 1, 3, 4, 5, 6)),
        ([0, 1_000_000], (0, 1_000_000)),
        (["007"], (7,)),
        ((1, 2), (1, 2)),
        (range(3), (0, 1, 2)),
    ],
)
def test_accepted_lists(values, numbers):
    assert parse_number_list(values, "step") == numbers


@pytest.mark.parametrize("values", [4, "4-6", 1.5, True, {"1": 2}, {1, 2}, b"ab"])
def test_what_is_no_list_is_refused(values):
    with pytest.raises(ConfigError, match=r'"step" is .*; use a list of numbers') as caught:
        parse_number_list(values, "step")
    assert caught.value.key == "step"


@pytest.mark.parametrize(
    "value",
    [
        *(1.0, True, False, None, -1, [1], {}),
        *("a", "", "4-", "-4", "1-2-3", "1,2", "1.0", "+1", "٣", "1_000"),
        *(1_000_001, "1000001", "0-1000001", 10**30, "9" * 5000),
    ],
)
def test_what_is_no_number_or_range_is_refused(value):
    with pytest.raises(ConfigError, match=r'"rank\[1\]" is .*; use a whole number or a') as caught:
        parse_number_list([0, value], "rank")
    assert caught.value.key == "rank[1]"
    assert caught.value.found == value


def test_either_end_of_a_range_may_come_first():
    assert parse_number_list(["6-4", "2 - 1", 0], "step") == (0, 1, 2, 4, 5, 6)


def test_an_integer_too_long_to_print_is_refused_all_the_same():
    with pytest.raises(ConfigError, match=r'"step\[0\]" is a value of type int'):
        parse_number_list([10**5000], "step")


def test_too_many_entries_are_refused():
    with pytest.raises(ConfigError, match="at most 1000000 entries"):
        parse_number_list([0] * 1_000_001, "step")


@pytest.mark.timeout(60)  # one by one it would be minutes
def test_overlapping_ranges_take_no_more_time_than_one():
    numbers = parse_number_list(["0-1000000"] * 2000, "step")
    assert numbers == tuple(range(1_000_001))


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 40), st.booleans())))
def test_result_is_the_sorted_union_of_the_ranges(spans):
    values: list[int | str] = []
    expected: set[int] = set()
    for first, length, is_plain in spans:
        last = first if is_plain else first + length
        values.append(first if is_plain else f"{first}-{last}")
        expected.update(range(first, last + 1))
    assert parse_number_list(values, "step") == tuple(sorted(expected))


def test_config_answers_which_steps_and_ranks_are_wanted(load):
    config = load({"step": [7, "2-4"], "rank": [1]})
    assert [step for step in range(10) if config.wants_step(step)] == [2, 3, 4, 7]
    assert [rank for rank in range(4) if config.wants_rank(rank)] == [1]
    assert config.last_step == 7


def test_empty_lists_mean_every_step_and_rank(load):
    config = load({"step": [], "rank": None})
    assert config.wants_step(123_456)
    assert config.wants_rank(9)
    assert config.last_step is None


@pytest.mark.parametrize(
    ("value", "pair"),
    [(None, None), ([0, 0], (0, 0)), ((1, 5), (1, 5)), ([2, 3], (2, 3))],
)
def test_token_range(value, pair):
    assert parse_token_range(value) == pair


@pytest.mark.parametrize(
    "value",
    [[], [1], [1, 2, 3], [2, 1], [-1, 2], [True, 2], [0.0, 1], ["0", "1"], "01", 3, {0, 1}],
)
def test_token_range_refusals(value):
    with pytest.raises(ConfigError, match=r'start\(\): "token_range" is .*; use two whole') as err:
        parse_token_range(value)
    assert err.value.found == value
