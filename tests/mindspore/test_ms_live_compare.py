# SPDX-License-Identifier: Apache-2.0
"""`live_compare` in MindSpore: planted faults are named, a healthy net is not, nothing changes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nets import random

import mindspore as ms
from builders.csv_files import csv_rows
from mindspore import Tensor, mint, nn, ops
from msprobe.errors import UnsupportedError, UsageError
from msprobe.mindspore import live_compare


@pytest.fixture(autouse=True)
def mode() -> Iterator[None]:
    yield
    ms.set_context(mode=ms.PYNATIVE_MODE)


class Mul(ops.Mul):
    """Right for all types but float32."""

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        found = super().__call__(a, b)
        return super().__call__(found, 1.001) if found.dtype == ms.float32 else found


class Net(nn.Cell):
    def __init__(self, mul: Callable[..., Tensor]) -> None:
        super().__init__()
        self.fc, self.norm, self.mul = nn.Dense(8, 8), nn.LayerNorm((8,)), mul

    def construct(self, x: Tensor) -> Tensor:
        h = mint.sigmoid(self.fc(x))
        h = self.mul(h, h)  # the line of the fault
        h = self.norm(h)
        h[0] = h[1]
        return ops.softmax(mint.matmul(h, ops.gelu(h).T))


def train(steps: int = 1, mul: Callable[..., Tensor] | None = None, **arguments: Any) -> Any:
    """Train a net; return the context, losses and parameters."""
    ms.set_seed(1)
    net, x = Net(ops.Mul() if mul is None else mul), Tensor(random(4, 8))
    for index, parameter in enumerate(net.trainable_params()):
        parameter.set_data(Tensor(random(*parameter.shape) + 0.1 * index))
    optimizer = nn.SGD(net.trainable_params())
    gradients = ms.value_and_grad(lambda x: (net(x) ** 2).sum(), None, net.trainable_params())
    check = live_compare(model=net, **arguments) if arguments else None
    losses = []
    for _ in range(steps):
        if check is None:
            loss, found = gradients(x)
        else:
            with check:
                loss, found = gradients(x)
        losses.append(loss.asnumpy().copy())
        optimizer(found)
    return check, [*losses, *(one.asnumpy().copy() for one in net.trainable_params())]


def faults(check: Any) -> list[dict[str, str]]:
    return [row for row in csv_rows(check.table_path) if row["faults"] != "0"]


def test_a_healthy_net_has_no_finding_and_trains_to_the_same_bits(tmp_path: Path) -> None:
    _, plain = train(2)
    sigmoid = mint.sigmoid
    check, watched = train(2, dump_path=tmp_path)
    assert mint.sigmoid is sigmoid
    assert all(map(np.array_equal, plain, watched))
    assert faults(check) == []
    results = check.results
    assert results.steps == 2
    assert results.left_out["an error of msprobe"] == 0
    rows = csv_rows(check.table_path)
    judged = {(row["operator"], row["direction"], row["module"]) for row in rows if row["verdict"]}
    for direction in ("forward", "backward"):
        assert ("Mint.sigmoid", direction, "Net") in judged
        assert ("Primitive.mul.Mul", direction, "Net") in judged
        assert ("Primitive.matmul.MatMul", direction, "fc") in judged
        assert ("Functional.softmax", direction, "Net") in judged
    files = (path.name for path in tmp_path.iterdir() if path.is_file())
    assert {name for name in files if not name.startswith(".")} == {
        "live_compare_rank0.csv",
        "live_compare_rank0.json",
    }


def test_a_wrong_kernel_is_named_with_module_and_line(tmp_path: Path) -> None:
    check, _ = train(dump_path=tmp_path, mul=Mul())
    found = next(row for row in faults(check) if row["direction"] == "forward")
    line = Net.construct.__code__.co_firstlineno + 2
    assert (found["operator"], found["module"], found["verdict"]) == (
        "Primitive.mul.Mul",
        "Net",
        "wrong",
    )
    assert found["source"] == f"test_ms_live_compare.py:{line}"
    assert "1.001" in found["remark"] or float(found["ratio"]) > 100
    assert "first: Primitive.mul.Mul (forward of Net" in check.summary()
    summary = json.loads(check.table_path.with_suffix(".json").read_text())
    assert {one["operator"] for one in summary["findings"]} == {"Primitive.mul.Mul"}
    names = {path.name for path in (tmp_path / found["saved"]).iterdir()}
    assert {
        f"Primitive.mul.Mul.0.forward.output.{side}.0.pt" for side in ("device", "bench")
    } <= names


def test_a_function_that_is_wrong_for_one_shape_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def planted(right: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def wrong(a: Tensor, b: Tensor) -> Tensor:
            found = right(a, b)
            return found + 1e-3 if found.shape == (3, 5) and found.dtype == ms.float32 else found

        return wrong

    monkeypatch.setattr(mint, "matmul", planted(mint.matmul))
    check = live_compare(dump_path=tmp_path, save=False)
    with check:
        for width in (4, 5, 6):
            mint.matmul(Tensor(random(3, 8)), Tensor(random(8, width)))
    (found,) = faults(check)
    assert (found["operator"], found["shape"], found["call"]) == (
        "Mint.matmul",
        "[3, 5]",
        "Mint.matmul.1.forward",
    )
    assert check.results.judged == 3


def test_a_wrong_gradient_is_named_by_the_place_of_the_forward_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Square(nn.Cell):
        def construct(self, x: Tensor) -> Tensor:
            return x * x

        def bprop(self, x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
            return (2 * x * dout * (1.5 if x.dtype == ms.float32 else 1),)

    square = Square()
    monkeypatch.setattr(mint, "square", square)
    check = live_compare(dump_path=tmp_path)
    x = Tensor(random(4, 8))
    with check:
        ms.grad(lambda x: mint.square(x).sum())(x)
    (found,) = faults(check)
    assert (found["operator"], found["direction"], found["verdict"]) == (
        "Mint.square",
        "backward",
        "wrong",
    )
    assert found["source"].startswith("test_ms_live_compare.py:")
    assert "1.5" in found["remark"]


def test_calls_are_chosen_by_name_module_and_number(tmp_path: Path) -> None:
    check, _ = train(dump_path=tmp_path / "a", operators=["Mint.*"], modules=["Net"])
    assert {row["operator"] for row in csv_rows(check.table_path)} == {
        "Mint.sigmoid",
        "Mint.matmul",
    }
    assert check.results.left_out["not asked for"] > 0
    check, _ = train(3, dump_path=tmp_path / "b", operators=["sigmoid"], max_calls=1)
    assert check.results.left_out["not in the sample"] == 2
    check, _ = train(dump_path=tmp_path / "c", max_bytes=0)
    assert check.results.left_out["above the memory cap"] > 0


def test_what_cannot_be_judged_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cpu-float64"):
        live_compare("npu-float16")
    with pytest.raises(UsageError, match="every_n"):
        live_compare(every_n=0)
    check = live_compare(dump_path=tmp_path)
    with check, pytest.raises(UsageError, match="entered already"), check:
        pass
    ms.set_context(mode=ms.GRAPH_MODE)
    with pytest.raises(UnsupportedError, match="dynamic graph"), check:
        pass
