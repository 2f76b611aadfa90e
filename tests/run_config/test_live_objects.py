# SPDX-License-Identifier: Apache-2.0
"""What is told of objects that a module, loader or program holds as an attribute."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from msprobe.run_config.live_objects import NOT_DESCRIBED, described_settings


class Empty:
    pass


class Private:
    def __init__(self, scale: float = 1.0) -> None:
        self._scale = scale
        self._lock = threading.Lock()


class Slots:
    __slots__ = ("_a",)


class Owner:
    def __init__(self, value: Any) -> None:
        self.value = value


def told(value: Any) -> dict[str, str]:
    return dict(described_settings(Owner(value), lambda _: None))


WHOLE = (
    Empty,
    lambda: re.compile("a", re.IGNORECASE),
    lambda: Decimal("1.5"),
    lambda: random.Random(1),
    lambda: np.random.default_rng(1),
)


@pytest.mark.parametrize("make", WHOLE)
def test_an_object_is_told_whole(make: Callable[[], Any]) -> None:
    assert not any(NOT_DESCRIBED in text for text in told(make()).values())
    assert told(make()) == told(make())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Private(1.0), Private(2.0)),
        (random.Random(1), random.Random(2)),
        (np.random.default_rng(1), np.random.default_rng(2)),
        (re.compile("a"), re.compile("a", re.IGNORECASE)),
        (Decimal("1.5"), Decimal("1.50")),
    ],
)
def test_a_changed_object_is_told_otherwise(one: Any, other: Any) -> None:
    assert told(one) != told(other)


@pytest.mark.parametrize("value", [Slots(), iter([1]), threading.Lock()])
def test_what_cannot_be_told_is_said(value: Any) -> None:
    assert NOT_DESCRIBED in told(value)["value.class"]


def test_columns_in_the_order_of_a_set_are_no_setting() -> None:
    owner = Owner(1)
    owner.signature_columns = ["labels", "label"]
    assert "signature_columns" not in dict(described_settings(owner, lambda _: None))
