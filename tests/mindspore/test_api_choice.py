# SPDX-License-Identifier: Apache-2.0
"""Which calls ``black_list`` and ``risk_level`` leave out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from nets import random

import mindspore as ms
from mindspore import Tensor, mint, nn, ops
from msprobe import open_dump
from msprobe.mindspore import PrecisionDebugger
from msprobe.mindspore.api_choice import risk_of


def debugger_with(tmp_path: Path, black_list: list[str] | None = None, **common: Any) -> Any:
    path = tmp_path / "config.json"
    section = {"black_list": black_list or []}
    settings = {"dump_path": str(tmp_path / "dump"), "level": "L1", "statistics": section}
    path.write_text(json.dumps(settings | common))
    return PrecisionDebugger(path)


def recorded(tmp_path: Path) -> list[str]:
    return list(open_dump(tmp_path / "dump").step(0).rank().records)


@pytest.mark.parametrize(
    "name",
    [
        "BiasAdd",
        "bias_add",
        "Primitive.bias_add",
        "Primitive.BiasAdd",
        "bias_add.BiasAdd",
        "Primitive.bias_add.BiasAdd",
    ],
)
def test_a_black_list_names_primitives_by_any_of_their_parts(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    debugger = debugger_with(tmp_path, [name])
    net = nn.Dense(4, 2)
    debugger.start(net)
    net(Tensor(random(3, 4)))
    debugger.stop()
    debugger.step()
    assert recorded(tmp_path) == ["Primitive.matmul.MatMul.0.forward"]
    assert not any(message.startswith("black_list") for message in caplog.messages)


def test_names_that_nothing_has_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    known = ["relu", "Tensor.sum", "my_module.twice", "Primitive.my_product", "MatMul"]
    unknown = ["Functional.reluu", "softmaxx", "Primitive.bias_ad"]
    debugger = debugger_with(tmp_path, known + unknown)

    class Held(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.my_product = ops.Mul()
            self.bias_add = ops.BiasAdd()

    net = Held()
    for _ in range(2):
        debugger.start(net)
        debugger.stop()
        debugger.step()
    found = [message for message in caplog.messages if message.startswith("black_list")]
    assert len(found) == len(unknown)
    for name, message in zip(unknown, found, strict=True):
        assert repr(name) in message
    assert "did you mean Functional.relu?" in found[0]


@pytest.mark.parametrize(
    ("level", "wanted"),
    [
        ("CORE", ["matmul", "MatMul"]),
        ("FOCUS", ["matmul", "sum", "mul", "MatMul", "BiasAdd"]),
        ("ALL", ["reshape", "cat", "zeros", "matmul", "sum", "mul", "MatMul", "BiasAdd"]),
    ],
)
def test_risk_level_leaves_out_what_computes_little(
    level: str, wanted: list[str], tmp_path: Path
) -> None:
    debugger = debugger_with(tmp_path, risk_level=level)
    x, net = Tensor(random(3, 4)), nn.Dense(4, 2)
    debugger.start(net)
    y = ops.cat((ops.reshape(x, (4, 3)), ops.reshape(x, (4, 3))))
    ops.matmul(y, ops.zeros((3, 2), ms.float32)).sum()
    net(mint.mul(x, x))
    debugger.stop()
    debugger.step()
    apis = [name.split(".")[-3] for name in recorded(tmp_path)]
    assert list(dict.fromkeys(apis)) == wanted
    account = json.loads((tmp_path / "dump" / "step0" / "rank" / "account.json").read_text())
    assert (account["skipped"].get(f"risk_level {level}", 0) > 0) == (level != "ALL")


@pytest.mark.parametrize(
    ("name", "level"),
    [
        ("Tensor.__matmul__", "CORE"),
        ("Primitive.dense.MatMulExt", "CORE"),
        ("MintDistributed.all_to_all", "CORE"),
        ("Primitive.AllReduce", "CORE"),
        ("my_module.reshape", "CORE"),
        ("Functional.softmax", "FOCUS"),
        ("Functional.select", "FOCUS"),
        ("Tensor.__getitem__", "ALL"),
        ("Primitive.transpose.TransposeExtView", "ALL"),
        ("Tensor.view", "ALL"),
        ("Tensor.unsqueeze_", "ALL"),
    ],
)
def test_risk_of_an_api(name: str, level: str) -> None:
    assert risk_of(name) == level


def test_checks_of_shapes_are_no_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # MindSpore writes down the net that it rewrites
    net = nn.SequentialCell(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)).set_train(False)
    net = ms.amp.auto_mixed_precision(net, "O1")
    debugger = debugger_with(tmp_path)
    debugger.start(net)
    net(Tensor(random(2, 1, 5, 5)))
    debugger.stop()
    debugger.step()
    names = recorded(tmp_path)
    assert any("BatchNorm" in name for name in names)
    assert not any("_check" in name for name in names)
