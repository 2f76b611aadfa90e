# SPDX-License-Identifier: Apache-2.0
"""The debugger's methods, callbacks, the user's table of APIs, refusals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mindspore.dataset import NumpySlicesDataset
from mindspore.train import Model
from nets import CASES, random, train

import mindspore as ms
from mindspore import Tensor, mint, nn, ops
from msprobe import open_dump
from msprobe.errors import ConfigError, UsageError
from msprobe.mindspore import MsprobeInitStep, MsprobeStep, PrecisionDebugger, seed_all


def small_net() -> nn.Cell:
    return nn.SequentialCell(nn.Dense(3, 4), nn.ReLU(), nn.Dense(4, 2))


def trainer(debugger: Any, net: nn.Cell, *callbacks: Any) -> None:
    data = NumpySlicesDataset((random(6, 3), random(6, 2, seed=1)), shuffle=False).batch(2)
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    model = Model(net, nn.MSELoss(), optimizer)
    model.train(1, data, callbacks=[MsprobeStep(debugger), *callbacks], dataset_sink_mode=False)


def test_model_train_with_the_callback(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0", step=[0, 2])
    net = small_net()
    debugger.start(net)
    trainer(debugger, net)
    dump = open_dump(tmp_path)
    assert list(dump.steps) == [0, 2]
    names = list(dump.step(2).rank().records)
    assert names[:2] == ["Cell.0.Dense.forward.0", "Cell.1.ReLU.forward.0"]
    assert "Cell.2.Dense.parameters_grad" in names


def test_init_step_counts_the_epochs_before_the_first_one(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0", step=[5, 6])
    net = small_net()
    debugger.start(net)
    data = NumpySlicesDataset((random(6, 3), random(6, 2, seed=1)), shuffle=False).batch(2)
    model = Model(net, nn.MSELoss(), nn.SGD(net.trainable_params(), 0.1))
    callbacks = [MsprobeInitStep(), MsprobeStep(debugger)]
    model.train(3, data, callbacks=callbacks, dataset_sink_mode=False, initial_epoch=1)
    dump = open_dump(tmp_path)  # of three steps an epoch, the last of the second and the next
    assert list(dump.steps) == [5, 6]
    assert "Cell.0.Dense.forward.0" in dump.step(5).rank().records


def test_init_step_takes_over_the_number_that_mindspore_goes_on_from(tmp_path: Path) -> None:
    class Resumed:
        cur_step_num = 5

        def original_args(self) -> Resumed:
            return self

    debugger = PrecisionDebugger(dump_path=tmp_path, level="L1")
    MsprobeInitStep().on_train_begin(Resumed())
    debugger.start()
    ops.tanh(Tensor([1.0]))
    debugger.stop()
    debugger.step()
    assert list(open_dump(tmp_path).steps) == [5]


def test_a_first_step_set_late_leaves_no_empty_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L1")
    debugger.start()
    debugger.set_init_step(4)
    assert "recording had begun as step 0, and ends" in caplog.text
    debugger.start()
    ops.tanh(Tensor([1.0]))
    debugger.stop()
    debugger.step()
    assert list(open_dump(tmp_path).steps) == [4]


def test_calls_of_compiled_code_outlive_the_end_of_forward_and_backward(tmp_path: Path) -> None:
    @ms.jit
    def doubled(x: Tensor) -> Tensor:
        return x * 2.0

    debugger = PrecisionDebugger(dump_path=tmp_path, level="L1")
    for _ in range(2):
        debugger.start()
        y = ops.tanh(Tensor([1.0]))
        debugger.forward_backward_dump_end()
        doubled(ops.exp(y))
        debugger.stop()
        doubled(y)
        debugger.step()
    for step in range(2):
        names = list(open_dump(tmp_path).step(step).rank().records)
        assert names == ["Functional.tanh.0.forward", "Jit.doubled.0.forward"]


def test_the_log_says_that_step_was_never_called_and_nothing_of_settings(tmp_path: Path) -> None:
    script = f"""
from mindspore import Tensor, ops
from msprobe.mindspore import PrecisionDebugger
debugger = PrecisionDebugger(dump_path={str(tmp_path)!r}, level="L1")
for _ in range(2):
    debugger.start()
    ops.tanh(Tensor([1.0]))
    debugger.stop()
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"GLOG_v": "2"},
    )
    assert done.stderr.count("step() was never called") == 1
    assert "start() was never called" not in done.stderr
    # MindSpore warns of settings that are deprecated, each time that they are set.
    assert "deprecated" not in done.stdout + done.stderr


def test_import_path_of_existing_scripts() -> None:
    from msprobe.mindspore.common.utils import MsprobeStep as Same

    assert Same is MsprobeStep


def test_a_list_of_models_has_indices(tmp_path: Path) -> None:
    first, second = small_net(), small_net()
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0")
    debugger.start([first, second])
    second(first(Tensor(random(2, 3)))[:, :1].broadcast_to((2, 3)))
    debugger.stop()
    debugger.step()
    names = list(open_dump(tmp_path).step(0).rank().records)
    assert names[0] == "Cell.0.0.Dense.forward.0"
    assert names[-1] == "Cell.1.SequentialCell.forward.0"


def test_token_range_limits_to_some_calls(tmp_path: Path) -> None:
    net = small_net()
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0")
    debugger.start(net, token_range=[1, 2])
    for _ in range(5):
        net(Tensor(random(2, 3)))
    debugger.stop()
    debugger.step()
    names = list(open_dump(tmp_path).step(0).rank().records)
    assert [name for name in names if "Cell.0." in name] == [
        "Cell.0.Dense.forward.0",
        "Cell.0.Dense.forward.1",
    ]


def test_saved_values_and_their_gradients(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path, level="debug", task="tensor")

    def loss(x: Tensor) -> Tensor:
        y = x * 3.0
        debugger.save({"y": [y, 2]}, "pair")
        return (y * y).sum()

    x = Tensor(random(4))
    ms.grad(loss)(x)
    debugger.step()
    view = open_dump(tmp_path).step(0).rank()
    ((_, value),) = view.records["pair.0.debug"].tensors()
    np.testing.assert_array_equal(view.tensor(value).array, (x * 3.0).asnumpy())
    ((_, gradient),) = view.records["pair_grad.0.debug"].tensors()
    np.testing.assert_allclose(view.tensor(gradient).array, (x * 6.0).asnumpy(), rtol=1e-6)


def test_custom_api_is_recorded_and_restored(tmp_path: Path) -> None:
    import types

    module = types.ModuleType("my_module")
    module.twice = lambda x: ops.tanh(x) * 2.0  # type: ignore[attr-defined]
    original = module.twice
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L1")
    debugger.register_custom_api(module, "twice")
    debugger.start()
    module.twice(Tensor([1.0]))
    debugger.stop()
    debugger.step()
    debugger.restore_custom_api(module, "twice")
    assert module.twice is original
    assert list(open_dump(tmp_path).step(0).rank().records) == ["my_module.twice.0.forward"]


def test_custom_api_makes_no_record_at_l0(tmp_path: Path) -> None:
    import types

    module = types.ModuleType("my_module")
    module.twice = lambda x: x * 2.0  # type: ignore[attr-defined]
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0")
    debugger.register_custom_api(module, "twice")
    net = small_net()
    debugger.start(net)
    module.twice(net(Tensor(random(2, 3))))
    debugger.stop()
    debugger.step()
    assert all(name.startswith("Cell.") for name in open_dump(tmp_path).step(0).rank().records)


def write_config(tmp_path: Path, **common: Any) -> Path:
    path = tmp_path / "config.json"
    settings = {"task": "statistics", "dump_path": str(tmp_path / "dump"), "level": "L1"}
    path.write_text(json.dumps(settings | common))
    return path


def test_a_table_of_the_user_is_complete_for_its_groups(tmp_path: Path) -> None:
    table = tmp_path / "apis.yaml"
    table.write_text("ops: [relu]\ntensor: [__add__]\n")
    debugger = PrecisionDebugger(write_config(tmp_path, api_list=str(table)))
    debugger.start()
    x = ops.relu(Tensor([1.0, -1.0]))
    ops.tanh(x)
    mint.mul(x * x + x, 2.0)
    debugger.stop()
    debugger.step()
    assert list(open_dump(tmp_path / "dump").step(0).rank().records) == [
        "Functional.relu.0.forward",
        "Tensor.__add__.0.forward",
        "Mint.mul.0.forward",
    ]


def test_refusals(tmp_path: Path) -> None:
    table = tmp_path / "apis.yaml"
    table.write_text("opps: [relu]\n")
    with pytest.raises(ConfigError, match=r"opps.*functional, mint"):
        PrecisionDebugger(write_config(tmp_path, api_list=str(table)))
    with pytest.raises(UsageError, match="no PrecisionDebugger"):
        PrecisionDebugger.start()
    debugger = PrecisionDebugger(dump_path=tmp_path / "d", level="L0")
    with pytest.raises(ConfigError, match="level L0 records cells"):
        debugger.start()
    with pytest.raises(ConfigError, match=r"mindspore\.nn\.Cell"):
        debugger.start(7)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="at least one model"):
        debugger.start([])
    debugger.start(small_net())
    with pytest.raises(ConfigError, match="at least one model"):
        debugger.start([])


def test_another_model_while_recording_waits_for_the_next_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = small_net(), nn.SequentialCell(nn.Tanh())
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0")
    debugger.start(first)
    debugger.start(first)
    assert "a recording has begun" not in caplog.text
    debugger.start(second)
    assert "a recording has begun already" in caplog.text
    second(first(Tensor(random(2, 3))))
    debugger.step()
    debugger.start()
    second(first(Tensor(random(2, 3))))
    debugger.stop()
    debugger.step()
    names = [list(open_dump(tmp_path).step(step).rank().records) for step in range(2)]
    assert "Cell.0.Dense.forward.0" in names[0]
    assert names[1] == ["Cell.0.Tanh.forward.0", "Cell.SequentialCell.forward.0"]


def test_graph_mode_is_refused_in_plain_words(tmp_path: Path) -> None:
    script = f"""
import mindspore as ms
from mindspore import nn
from msprobe.mindspore import PrecisionDebugger
from msprobe.errors import UnsupportedError
ms.set_context(mode=ms.GRAPH_MODE)
debugger = PrecisionDebugger(dump_path={str(tmp_path)!r}, level="L1")
try:
    debugger.start(nn.ReLU())
except UnsupportedError as error:
    print("refused:", error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "refused: start(): MindSpore runs in graph mode, which level L1" in done.stdout


def test_a_step_that_raises_leaves_a_record(tmp_path: Path) -> None:
    class Failing(nn.Cell):
        def construct(self, x: Tensor) -> Tensor:
            raise KeyError("mine")

    net = nn.SequentialCell(nn.ReLU(), Failing())
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0")
    debugger.start(net)
    with pytest.raises(KeyError, match="mine"):
        net(Tensor([1.0]))
    debugger.stop()
    debugger.step()
    view = open_dump(tmp_path).step(0).rank()
    assert view.records["Cell.1.Failing.forward.0"].notes["raised"] == "KeyError"


def test_the_same_seed_gives_the_same_numbers() -> None:
    found = []
    for _ in range(2):
        seed_all(11, rm_dropout=False)
        found.append(ops.randn(5).asnumpy().tobytes() + np.random.rand(3).tobytes())  # noqa: NPY002 - what is seeded
    assert found[0] == found[1]
    with pytest.raises(ConfigError, match="seed"):
        seed_all(-1)


def test_dropout_is_removed_and_brought_back() -> None:
    x = Tensor(np.ones((50, 50), np.float32))
    layer = nn.Dropout(p=0.5).set_train()
    assert seed_all(1, rm_dropout=False) is None
    bring_back = seed_all(1)
    assert bring_back is not None
    try:
        assert (layer(x).asnumpy() == 1).all()
        assert (ops.dropout(x, p=0.5).asnumpy() == 1).all()
    finally:
        bring_back()
    assert not (layer(x).asnumpy() == 1).all()
    assert not (ops.dropout(x, p=0.5).asnumpy() == 1).all()


def test_records_are_read_by_other_tools_too(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path, level="mix")
    train(CASES["transformer"], steps=1, debugger=debugger)
    tree = json.loads((tmp_path / "step0" / "rank" / "dump.json").read_text())
    assert (tree["framework"], tree["level"]) == ("mindspore", "mix")
    value = tree["data"]["Cell.norm1.LayerNorm.forward.0"]["input_args"][0]
    assert list(value)[:7] == ["type", "dtype", "shape", "Max", "Min", "Mean", "Norm"]
    assert (value["type"], value["dtype"]) == ("mindspore.Tensor", "Float32")
    stack = json.loads((tmp_path / "step0" / "rank" / "stack.json").read_text())
    frames = next(
        frames for names, frames in stack.values() if "Functional.softmax.0.forward" in names
    )
    assert "nets.py" in frames[0]


def test_stacks_begin_with_the_code_that_calls(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path, level="mix")
    train(CASES["transformer"], steps=1, debugger=debugger)
    view = open_dump(tmp_path).step(0).rank()
    assert "nets.py" in view.frames("Cell.attention.Attention.forward.0")[0]
    assert "nn/layer/container.py" in view.frames("Cell.mlp.0.Dense.forward.0")[0]
    assert "nn/layer/basic.py" in view.frames("Primitive.matmul.MatMul.0.forward")[0]
    machinery = [
        frame
        for name in view.records
        if name.endswith((".forward", ".forward.0"))
        for frame in view.frames(name)
        if "/mindspore/" in frame and "/nn/layer/" not in frame and "/tests/" not in frame
    ]
    assert not machinery
