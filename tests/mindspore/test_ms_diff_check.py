# SPDX-License-Identifier: Apache-2.0
"""The task `diff_check` of MindSpore, in the dynamic graph."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nets import random

import mindspore as ms
from mindspore import Tensor, nn, ops
from msprobe.capture.session import reset_session
from msprobe.errors import ConfigError, UnsupportedError
from msprobe.mindspore import PrecisionDebugger

CHECKSUMS = {"statistics": {"summary_mode": "md5"}}


class Net(nn.Cell):
    """Two layers with dropout between them."""

    def __init__(self, factor: float = 1.5) -> None:
        super().__init__()
        self.first, self.second = nn.Dense(4, 5), nn.Dense(5, 2)
        self.factor = factor

    def construct(self, x: Tensor) -> Tensor:
        hidden = ops.dropout(ops.tanh(self.first(x)), p=0.4)
        return self.second(ops.exp(ops.mul(hidden, self.factor)))


def debugger_of(folder: Path, task: str, level: str = "mix", **content: Any) -> PrecisionDebugger:
    file = folder / f"{task}.json"
    settings = {"task": task, "dump_path": str(folder / task), "level": level}
    file.write_text(json.dumps({**settings, **content}))
    return PrecisionDebugger(config_path=file)


def trained(
    debugger: PrecisionDebugger | None,
    *,
    shift: float = 0.0,
    seed: int = 5,
    factors: tuple[float, ...] = (1.5, 1.5, 1.5),
) -> list[Any]:
    """Train three steps; return losses, gradients and random state.

    Args:
        debugger: is started and stopped around each step.
        shift: moves the data from the second step on.
        seed: of the second step's dropout.
        factors: of the net, in each step.
    """
    ms.set_seed(5)
    net = Net()
    net.set_train()
    optimizer = nn.SGD(net.trainable_params(), learning_rate=0.1)
    step = ms.value_and_grad(lambda x: net(x).sum(), None, net.trainable_params())
    found: list[Any] = []
    for number, net.factor in enumerate(factors):
        if number == 1:
            ms.set_seed(seed)
        if debugger is not None:
            debugger.start(net)
        loss, gradients = step(Tensor(random(3, 4) + np.float32(shift * number)))
        if debugger is not None:
            debugger.stop()
        optimizer(gradients)
        if debugger is not None:
            debugger.step()
        found += [loss.asnumpy(), *(one.asnumpy() for one in gradients)]
    reset_session()
    return [*found, ms.get_rng_state().asnumpy()]


def checked(folder: Path, level: str = "mix", **changes: Any) -> dict[str, Any]:
    """Check a training against a recorded one without faults; return the report."""
    trained(debugger_of(folder, "statistics", level, **CHECKSUMS))
    keys = {"reference": str(folder / "statistics")}
    trained(debugger_of(folder, "diff_check", level, diff_check=keys), **changes)
    (path,) = (folder / "diff_check").glob("diff_check_*.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_healthy_run_is_silent_and_bit_identical(level: str, tmp_path: Path) -> None:
    expected = trained(None)
    trained(debugger_of(tmp_path, "statistics", level, **CHECKSUMS))
    keys = {"reference": str(tmp_path / "statistics")}
    found = trained(debugger_of(tmp_path, "diff_check", level, diff_check=keys))
    assert all(map(np.array_equal, expected, found))
    (path,) = (tmp_path / "diff_check").glob("diff_check_*.json")
    said = json.loads(path.read_text())
    assert said["equal"]
    assert said["without_checksum"] == 0
    assert said["compared"] >= 3 * 6


def test_a_call_that_differs_is_named_with_its_tensors(tmp_path: Path) -> None:
    (finding,) = checked(tmp_path, level="L1", seed=6)["findings"]
    assert (finding["kind"], finding["step"]) == ("call", 1)
    assert finding["record"] == "Functional.dropout.0.forward"
    assert finding["line"].startswith("test_ms_diff_check.py:")
    assert finding["draws_random"]
    folder = next((tmp_path / "diff_check" / "step1").iterdir())
    (kept,) = (folder / "dump_tensor_data").glob("*output*")
    assert np.load(kept).shape == (3, 5)
    assert not (tmp_path / "diff_check" / "step2").exists()


def test_an_argument_of_the_script_is_said_with_both_values(tmp_path: Path) -> None:
    (finding,) = checked(tmp_path, factors=(1.5, 2.0, 2.0))["findings"]
    assert (finding["kind"], finding["step"]) == ("argument", 1)
    assert finding["record"].endswith("mul.0.forward")
    assert finding["values"] == [{"value": "input.1", "difference": "2.0 instead of 1.5"}]


def test_data_that_differs_is_no_call(tmp_path: Path) -> None:
    (finding,) = checked(tmp_path, shift=1e-3)["findings"]
    assert (finding["kind"], finding["step"]) == ("input", 1)


def test_replicas_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"diff_check\.reference.*replicas"):
        debugger_of(tmp_path, "diff_check", diff_check={"reference": "replicas"})


def test_graph_mode_is_refused(tmp_path: Path) -> None:
    trained(debugger_of(tmp_path, "statistics", "L0"))
    keys = {"reference": str(tmp_path / "statistics")}
    debugger = debugger_of(tmp_path, "diff_check", "L0", diff_check=keys)
    ms.set_context(mode=ms.GRAPH_MODE)
    with pytest.raises(UnsupportedError, match="graph mode"):
        debugger.start(Net())
