# SPDX-License-Identifier: Apache-2.0
"""Functions that a module imported by name, and primitives that no cell holds, are recorded."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from nets import random

import mindspore as ms
from mindspore import Tensor, mint, nn, ops
from msprobe import open_dump
from msprobe.mindspore import PrecisionDebugger

SOURCE = """
from mindspore.ops import matmul as product, tanh
from mindspore.ops import functional as F

def forward(x):
    return F.exp(tanh(product(x, x)))
"""


@pytest.fixture
def imported() -> Iterator[ModuleType]:
    """Make a module that binds functions of MindSpore by name."""
    module = ModuleType("early_bound_script")
    exec(SOURCE, vars(module))
    sys.modules[module.__name__] = module
    yield module
    del sys.modules[module.__name__]


def record(tmp_path: Path, run: Callable[[], Any], model: Any = None) -> Any:
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L1")
    debugger.start(model)
    run()
    debugger.stop()
    debugger.step()
    assert not list(tmp_path.rglob("dump_error_info.log"))
    return open_dump(tmp_path).step(0).rank()


def test_names_bound_by_an_import_are_recorded(imported: ModuleType, tmp_path: Path) -> None:
    before = dict(vars(imported))
    x = Tensor(random(3, 3))
    view = record(tmp_path, lambda: ms.grad(lambda x: imported.forward(x).sum())(x))
    expected = ["Functional.matmul", "Functional.tanh", "Functional.exp"]
    names = [name for name in view.records if name.endswith(".forward")]
    assert [name.rpartition(".0.")[0] for name in names][:3] == expected
    assert "Functional.tanh.0.backward" in view.records
    assert all(vars(imported)[name] is value for name, value in before.items())


def test_a_primitive_made_on_the_way_is_recorded_with_its_gradients(tmp_path: Path) -> None:
    x = Tensor(random(4, 2))

    def forward(x: Tensor) -> Tensor:
        first, second = ops.Split(0, 2)(ops.ReLU()(x))
        return (first * second).sum()

    view = record(tmp_path, lambda: ms.grad(forward)(x))
    forward_names = [name for name in view.records if name.endswith(".forward")]
    assert forward_names[:2] == ["Primitive.ReLU.0.forward", "Primitive.Split.0.forward"]
    made = next(value for _, value in view.records["Primitive.ReLU.0.forward"].tensors("output"))
    assert made.norm == pytest.approx(np.linalg.norm(np.maximum(x.asnumpy(), 0)))
    gradient = next(v for _, v in view.records["Primitive.ReLU.0.backward"].tensors("output"))
    assert gradient.norm == pytest.approx(np.linalg.norm(ms.grad(forward)(x).asnumpy()))


def test_what_mindspore_calls_inside_is_not_recorded(tmp_path: Path) -> None:
    x = Tensor(random(4, 2))

    def run() -> None:
        ops.Shape()(x)
        ops.gelu(x)  # of several primitives
        Tensor(random(2, 2))

    view = record(tmp_path, run)
    assert list(view.records) == ["Functional.gelu.0.forward"]


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: mint.nn.Linear(4, 2), "Primitive.dense.Dense.0.forward"),
        (mint.nn.ReLU, "Primitive.relu.ReLU.0.forward"),
        (nn.ReLU, "Primitive.relu.ReLU.0.forward"),
        (lambda: mint.nn.Softmax(-1), None),
        (mint.nn.Tanh, None),
        (lambda: nn.LayerNorm((4,)), None),
        (nn.Softmax, None),
        (nn.GELU, None),
        (nn.MSELoss, None),
    ],
)
def test_layers_show_what_they_call(
    make: Callable[[], nn.Cell], name: str | None, tmp_path: Path
) -> None:
    layer, x = make(), Tensor(random(3, 4))
    inputs = (x, x) if isinstance(layer, nn.MSELoss) else (x,)
    view = record(tmp_path, lambda: layer(*inputs), layer)
    names = list(view.records)
    assert names
    if name is not None:
        assert names == [name]


def test_classes_of_primitives_get_their_methods_back(tmp_path: Path) -> None:
    kinds = [ops.ReLU, ops.Split, ops.MatMul, ops.Primitive]
    before = [kind.__dict__["__call__"] for kind in kinds]
    debugger = PrecisionDebugger(dump_path=tmp_path, level="mix")
    debugger.start(nn.ReLU())
    assert [kind.__dict__["__call__"] for kind in kinds] != before
    debugger.stop()
    assert [kind.__dict__["__call__"] for kind in kinds] == before
