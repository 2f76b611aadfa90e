# SPDX-License-Identifier: Apache-2.0
"""Tasks and selecting keys of config.json, in the dynamic graph."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nets import random

import mindspore as ms
from mindspore import Tensor, nn, ops
from msprobe import open_dump
from msprobe.mindspore import PrecisionDebugger

INPUT = random(3, 4)


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Dense(4, 4), nn.Dense(4, 2)

    def construct(self, x: Tensor) -> Tensor:
        return ops.tanh(self.second(ops.exp(self.first(x))))


class Burst(nn.Cell):
    """Divides by zero."""

    def construct(self, x: Tensor) -> Tensor:
        return ops.div(x, ops.zeros_like(x))


def capture(
    folder: Path, settings: dict[str, Any], run: Callable[[nn.Cell], Any], net: nn.Cell
) -> Any:
    """Record two steps; return the first."""
    file = folder / "config.json"
    file.write_text(json.dumps({"dump_path": str(folder / "dump"), **settings}))
    debugger = PrecisionDebugger(config_path=file)
    for _ in range(2):
        debugger.start(net)
        run(net)
        debugger.stop()
        debugger.step()
    assert not list(folder.rglob("dump_error_info.log"))
    return open_dump(folder / "dump").step(0).rank()


def train(net: nn.Cell) -> None:
    ms.value_and_grad(lambda x: net(x).sum(), None, net.trainable_params())(Tensor(INPUT))


def statistics(view: Any) -> dict[str, list[Any]]:
    return {
        name: [(path, v.max, v.min, v.mean, v.norm, v.shape) for path, v in record.tensors()]
        for name, record in view.records.items()
    }


def test_structure_has_the_calls_and_no_values(tmp_path: Path) -> None:
    view = capture(tmp_path, {"task": "structure", "level": "mix"}, train, Net())
    assert not view.records
    parents = {name: view.parents[name] for name in view.parents}
    assert parents["Functional.exp.0.forward"] == "Cell.Net.forward.0"
    assert parents["Primitive.matmul.MatMul.0.forward"] == "Cell.first.Dense.forward.0"
    assert view.frames("Functional.exp.0.forward")
    assert not list(tmp_path.rglob("*.npy"))


@pytest.mark.parametrize(("number", "kept"), [(-1, 3), (1, 1), (2, 2)])
def test_overflow_check_keeps_the_calls_until_there_are_enough(
    number: int, kept: int, tmp_path: Path
) -> None:
    settings = {
        "task": "overflow_check",
        "level": "L1",
        "step": [0],
        "overflow_check": {"overflow_nums": number},
    }

    def run(net: nn.Cell) -> None:
        ops.tanh(Tensor(INPUT))
        x = net(Tensor(np.abs(INPUT)))
        ops.relu(ops.sqrt(x))

    view = capture(tmp_path, settings, run, Burst())
    names = ["Functional.div.0.forward", "Functional.sqrt.0.forward", "Functional.relu.0.forward"]
    assert list(view.records) == names[:kept]
    said = [view.records[name].notes["overflow"] for name in names[:kept]]
    assert said == ["source", "inherited", "inherited"][:kept]
    divided = [v for _, v in view.records[names[0]].tensors("output")]
    assert divided[0].max == np.inf
    assert list(tmp_path.rglob("Functional.div.0.forward.output.0.npy"))


def test_nan_check_names_the_source(tmp_path: Path) -> None:
    settings = {"task": "nan_check", "level": "L1", "step": [0]}

    def run(net: nn.Cell) -> None:
        ops.tanh(Tensor(INPUT))
        ops.relu(ops.sqrt(net(Tensor(np.abs(INPUT)))))

    view = capture(tmp_path, settings, run, Burst())
    names = ["Functional.div.0.forward", "Functional.sqrt.0.forward", "Functional.relu.0.forward"]
    assert list(view.records) == names
    said = [view.records[name].notes["finding"] for name in names]
    assert said == ["source", "inherited", "inherited"]
    (table,) = tmp_path.rglob("nan_check_rank*.csv")
    assert ",Functional.div.0.forward,source,output.0," in table.read_text()


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_async_dump_gives_the_same_records(task: str, tmp_path: Path) -> None:
    from msprobe.capture.session import reset_session

    views = []
    for value in (False, True):
        folder = tmp_path / str(value)
        folder.mkdir()
        ms.set_seed(5)
        settings = {"task": task, "level": "mix", "async_dump": value}
        views.append(capture(folder, settings, train, Net()))
        reset_session()
    assert statistics(views[0]) == statistics(views[1])
    assert len(views[0].records) > 10
    files = [
        {p.name: p.read_bytes() for p in (tmp_path / d).rglob("*.npy")} for d in ("False", "True")
    ]
    assert files[0] == files[1]
    assert bool(files[0]) == (task == "tensor")


def test_a_slice_crops_what_is_summarised_and_saved(tmp_path: Path) -> None:
    settings = {
        "task": "tensor",
        "level": "L1",
        "tensor": {"slice": [{"dim": 1, "size": 4, "begin": 1, "end": 3}]},
    }
    view = capture(tmp_path, settings, lambda _: ops.tanh(Tensor(INPUT)), Net())
    value = next(v for _, v in view.records["Functional.tanh.0.forward"].tensors("input_args"))
    wanted = INPUT[:, 1:3]
    assert value.shape == (3, 2)
    assert value.norm == pytest.approx(np.linalg.norm(wanted.astype(np.float64)), rel=1e-12)
    (saved,) = tmp_path.rglob("step0/**/Functional.tanh.0.forward.input.0.npy")
    np.testing.assert_array_equal(np.load(saved), wanted)


def test_md5_is_the_checksum_of_the_bytes(tmp_path: Path) -> None:
    settings = {"level": "L1", "statistics": {"summary_mode": "md5"}}
    view = capture(tmp_path, settings, lambda _: ops.tanh(Tensor(INPUT)), Net())
    value = next(v for _, v in view.records["Functional.tanh.0.forward"].tensors("input_args"))
    assert value.md5 == f"{zlib.crc32(INPUT.tobytes()):08x}"


BACKWARD = ".backward"


@pytest.mark.parametrize(
    ("section", "holds"),
    [
        ({"list": ["tanh"]}, lambda name: "tanh" in name),
        (
            {"scope": ["Functional.exp.0.forward", "Functional.tanh.0.forward"]},
            lambda name: name.endswith(".forward"),
        ),
        ({"data_mode": ["forward"]}, lambda name: BACKWARD not in name),
        ({"data_mode": ["backward"]}, lambda name: BACKWARD in name),
        ({"black_list": ["exp"]}, lambda name: "exp" not in name),
        ({"list": ["Primitive.bias_add"], "data_mode": ["forward"]}, lambda n: "bias_add" in n),
    ],
)
def test_selections_at_l1(
    section: dict[str, Any], holds: Callable[[str], bool], tmp_path: Path
) -> None:
    view = capture(tmp_path, {"level": "L1", "statistics": section}, train, Net())
    assert view.records
    assert all(holds(name) for name in view.records)
    if "scope" in section:
        assert list(view.records) == [
            "Functional.exp.0.forward",
            "Primitive.matmul.MatMul.1.forward",
            "Primitive.bias_add.BiasAdd.1.forward",
            "Functional.tanh.0.forward",
        ]


def test_input_alone_and_output_alone(tmp_path: Path) -> None:
    settings = {"level": "L1", "statistics": {"data_mode": ["input"]}}
    view = capture(tmp_path, settings, train, Net())
    for name, record in view.records.items():
        kept = {"input"} if BACKWARD in name else {"input_args", "input_kwargs", "attributes"}
        assert set(record.parts) <= kept


def test_a_cell_in_the_list_is_expanded_at_mix(tmp_path: Path) -> None:
    settings = {"level": "mix", "statistics": {"list": ["Cell.first."]}}
    view = capture(tmp_path, settings, train, Net())
    names = set(view.records)
    assert {"Cell.first.Dense.forward.0", "Primitive.matmul.MatMul.0.forward"} <= names
    assert not any("second" in name or "exp" in name or "tanh" in name for name in names)


def test_tensor_list_saves_some_tensors(tmp_path: Path) -> None:
    settings = {"level": "L1", "statistics": {"tensor_list": ["exp"]}}
    view = capture(tmp_path, settings, train, Net())
    assert len(view.records) > 6
    files = {path.name for path in tmp_path.rglob("*.npy")}
    assert files
    assert all(name.startswith("Functional.exp.") for name in files)


def test_dump_enable_switches_recording_while_it_runs(tmp_path: Path) -> None:
    file = tmp_path / "config.json"

    def write(*, enabled: bool) -> None:
        tree = {"dump_path": str(tmp_path / "dump"), "level": "L1", "dump_enable": enabled}
        file.write_text(json.dumps(tree))

    write(enabled=False)
    debugger = PrecisionDebugger(config_path=file)
    for enabled in (False, True, False):
        write(enabled=enabled)
        debugger.start()
        ops.tanh(Tensor(INPUT))
        debugger.stop()
        debugger.step()
    recorded = [step for step, view in steps_of(tmp_path / "dump") if view.records]
    assert recorded == [1]


def steps_of(folder: Path) -> list[tuple[int, Any]]:
    dump = open_dump(folder)
    return [(number, dump.step(number).rank()) for number in dump.steps]
