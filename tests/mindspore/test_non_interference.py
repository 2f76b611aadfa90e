# SPDX-License-Identifier: Apache-2.0
"""A training that is recorded does, bit for bit, what it does alone; and nothing stays behind."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from nets import CASES, Trained, train

import mindspore as ms
from mindspore import Tensor, mint, ops
from msprobe.mindspore import PrecisionDebugger

LEVELS = [("L0", "statistics"), ("L1", "statistics"), ("mix", "statistics"), ("mix", "tensor")]


@cache
def alone(family: str) -> Trained:
    return train(CASES[family], steps=3)


@pytest.mark.parametrize("family", CASES)
@pytest.mark.parametrize(("level", "task"), LEVELS)
def test_losses_and_parameters_are_the_same(
    family: str, level: str, task: str, tmp_path: Path
) -> None:
    expected = alone(family)
    debugger = PrecisionDebugger(dump_path=tmp_path, level=level, task=task)
    assert train(CASES[family], steps=3, debugger=debugger) == expected
    assert not list(tmp_path.rglob("dump_error_info.log"))


def names_of(owner: Any) -> dict[str, Any]:
    return dict(vars(owner))


def test_everything_is_as_before_after_stop(tmp_path: Path) -> None:
    owners = [ops, mint, mint.nn.functional, Tensor]
    before = [names_of(owner) for owner in owners]
    mode = ms.get_context("pynative_synchronize")
    debugger = PrecisionDebugger(dump_path=tmp_path, level="mix")
    train(CASES["transformer"], steps=2, debugger=debugger)
    for owner, old in zip(owners, before, strict=True):
        new = names_of(owner)
        assert new.keys() == old.keys()
        assert all(new[name] is old[name] for name in old)
    assert ms.get_context("pynative_synchronize") == mode


def test_an_exception_of_the_user_passes_and_nothing_stays(tmp_path: Path) -> None:
    original = ops.matmul
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L1")
    debugger.start()
    assert ops.matmul is not original
    with pytest.raises((ValueError, RuntimeError, TypeError)):
        ops.matmul(Tensor([[1.0, 2.0]]), Tensor([[1.0, 2.0]])).asnumpy()
    debugger.stop()
    assert ops.matmul is original
