# SPDX-License-Identifier: Apache-2.0
"""`PrecisionChecker` of MindSpore: jitted cells against the dynamic graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nets import random

import mindspore as ms
from builders.csv_files import csv_rows
from mindspore import Tensor, nn, ops
from msprobe.mindspore import PrecisionChecker

INPUT = random(3, 4)


class Block(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Dense(4, 8), nn.LayerNorm((8,)), nn.Dense(8, 4)
        self.dropout = nn.Dropout(p=0.5)

    def construct(self, x: Tensor) -> Tensor:
        return self.second(self.dropout(ops.gelu(self.norm(self.first(x)))))


class Net(nn.Cell):
    def __init__(self, *blocks: nn.Cell) -> None:
        super().__init__()
        self.blocks = nn.CellList(list(blocks))

    def construct(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x


def loss_of(net: nn.Cell) -> Tensor:
    return net(Tensor(INPUT)).square().mean()


@pytest.fixture
def net() -> Net:
    ms.set_seed(3)
    net = Net(Block(), Block())
    net.set_train()
    return net


def compared(net: Net, depth: int = 1) -> Any:
    checker = PrecisionChecker()
    checker.wrap_all_children(net, depth=depth)
    return checker.compare(loss_of, net)


def test_jitted_cells_pass_with_all_gradients(net: Net) -> None:
    result = compared(net)
    assert result.passed
    assert result.loss is not None
    first = [row for row in result.rows if row.module_name == "blocks.0"]
    kinds = [row.check_type for row in first]
    assert (kinds.count("forward"), kinds.count("input_grad"), kinds.count("param_grad")) == (
        1,
        1,
        6,
    )
    assert {row.status for row in result.rows} == {"PASS"}


def test_net_and_random_state_stay_as_they_were(net: Net) -> None:
    before = [one.asnumpy().copy() for one in net.get_parameters()]
    state = ms.get_rng_state().asnumpy().copy()
    compared(net)
    assert all(map(np.array_equal, before, (one.asnumpy() for one in net.get_parameters())))
    assert np.array_equal(state, ms.get_rng_state().asnumpy())
    assert net.blocks[0].training


def test_a_cell_that_is_wrong_when_compiled_is_named(
    net: Net, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    jit = ms.jit

    def wrong_jit(function: Any, **options: Any) -> Any:
        def scaled(*args: Any) -> Any:
            return function(*args) * (1 + 1e-3)

        is_second = function.__self__.first.weight.name.startswith("blocks.1")
        return scaled if is_second else jit(function, **options)

    monkeypatch.setattr(ms, "jit", wrong_jit)
    result = compared(net)
    assert not result.passed
    assert {row.module_name for row in result.failures} == {"blocks.1"}
    assert "differ from eager; first: blocks.1" in next(iter(result.lines()))
    path = tmp_path / "check.csv"
    PrecisionChecker().report(result, path)
    rows = csv_rows(path)
    assert [row["status"] for row in rows].count("FAIL") == len(result.failures)
    forward = next(row for row in result.failures if row.check_type == "forward")
    assert forward.ratio is not None
    assert forward.ratio > 4


def test_another_order_of_sums_is_rounding(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    def other_order(function: Any, **_: Any) -> Any:
        cell = function.__self__

        def construct(x: Tensor) -> Tensor:
            wide = cell.norm(ops.matmul(x, cell.first.weight.T) + cell.first.bias)
            halves = [
                ops.matmul(cell.dropout(ops.gelu(wide))[:, part], cell.second.weight.T[part])
                for part in (slice(0, 3), slice(3, 8))
            ]
            return halves[1] + cell.second.bias + halves[0]

        return construct

    monkeypatch.setattr(ms, "jit", other_order)
    result = compared(net)
    assert result.passed
    assert any(row.max_abs_diff for row in result.rows)


class Noisy(nn.Cell):
    def construct(self, x: Tensor) -> Tensor:
        return ops.dropout(x, p=0.5)


class Convolution(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 1, 1)

    def construct(self, x: Tensor) -> Tensor:
        return self.conv(x.expand_dims(1)).reshape(x.shape)


@pytest.mark.parametrize(
    ("cell", "note"), [(Noisy(), "it draws random numbers"), (nn.Identity(), "")]
)
def test_what_cannot_be_judged_is_said(cell: nn.Cell, note: str) -> None:
    result = compared(Net(cell, nn.Dense(4, 4)))
    notes = [row.note for row in result.rows if row.status == "SKIP"]
    assert notes == ([note] if note else [])


def test_a_result_without_a_float64_kernel_passes_only_if_it_is_identical(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = Net(Convolution())
    assert compared(net).passed
    monkeypatch.setattr(ms, "jit", lambda function, **_: lambda x: function(x) * (1 + 1e-6))
    result = compared(net)
    assert not result.passed
    assert any("no float64 kernel" in row.note for row in result.rows)
