# SPDX-License-Identifier: Apache-2.0
"""Values other than tensors: described as JSON, and made again from it."""

from __future__ import annotations

import enum
import json
import math
from typing import Any

import numpy as np
import pytest

from msprobe.dump.value_types import NotRebuildableError, describe_value, rebuild_value


class Size(enum.IntEnum):
    BIG = 3


def again(value: Any) -> Any:
    """What comes back from the file."""
    return rebuild_value(json.loads(json.dumps(describe_value(value))), {})


NUMBERS = (3, -(10**30), 1.5, math.inf, True)
NUMPY = (np.float32(1.5), np.int8(-3), np.uint64(2**64 - 1), np.float64(0.1), np.float16(2))
OTHERS = ("text", "", slice(1, None, 2), slice(0.5, 2), Ellipsis)


@pytest.mark.parametrize("value", [*NUMBERS, *NUMPY, *OTHERS], ids=repr)
def test_a_value_is_made_again(value: Any) -> None:
    assert again(value) == value
    assert type(again(value)) is type(value)


def test_nan_and_subclasses_are_the_plain_value() -> None:
    assert math.isnan(again(math.nan))
    assert type(again(Size.BIG)) is int
    assert again(np.bool_(True)) is True


def test_lists_and_objects_are_made_with_what_is_in_them() -> None:
    tree = {"a": [describe_value(1), None, {"type": {"type": "str", "value": "x"}}]}
    assert rebuild_value(tree, {}) == {"a": [1, None, {"type": "x"}]}


def test_a_framework_adds_its_own_forms() -> None:
    makers = {"torch.Tensor": lambda form: np.zeros(form["shape"])}
    found = rebuild_value([{"type": "torch.Tensor", "shape": [2, 3]}], makers)
    assert found[0].shape == (2, 3)


@pytest.mark.parametrize(
    "form",
    [
        describe_value("x" * 20_000),
        describe_value(slice(Size, 2)),
        describe_value(np.complex64(1j)),
        {"type": "omitted", "value": "3 int"},
        {"type": "list", "value": "same as input.0"},
        {"type": "set", "value": "{1}"},
    ],
    ids=lambda form: form["type"],
)
def test_what_is_only_said_in_words_is_refused(form: Any) -> None:
    with pytest.raises(NotRebuildableError):
        rebuild_value(form, {})


def test_a_value_of_an_unknown_class_has_no_form() -> None:
    assert describe_value(object()) is NotImplemented
