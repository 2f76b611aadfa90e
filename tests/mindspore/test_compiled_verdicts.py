# SPDX-License-Identifier: Apache-2.0
"""Comparisons of training steps that MindSpore compiles as a whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

mindspore = pytest.importorskip("mindspore")

from mindspore import Tensor, nn  # noqa: E402
from msprobe.capture.session import reset_session  # noqa: E402
from msprobe.compare.options import CompareOptions  # noqa: E402
from msprobe.compare.run import run_comparison  # noqa: E402
from msprobe.mindspore import PrecisionDebugger  # noqa: E402

pytestmark = pytest.mark.mindspore


def test_another_activation_inside_of_compiled_code_is_not_equal(tmp_path: Path) -> None:
    target, reference = (_record(tmp_path / str(is_tanh), is_tanh) for is_tanh in (True, False))
    verdict = _verdict(target, reference)
    assert verdict["class"] == "unexplained"
    assert "though all it is given is equal" in verdict["sentence"]
    assert verdict["confidence"] == "possible"


def test_compiled_code_of_the_user_is_no_kernel(tmp_path: Path) -> None:
    target, reference = (_record(tmp_path / str(tanh), tanh, shift=0.0) for tanh in (True, False))
    verdict = _verdict(target, reference)
    assert verdict["class"] != "kernel", verdict["sentence"]
    assert verdict["class"] not in {"equal", "rounding"}


def test_the_same_compiled_code_is_equal(tmp_path: Path) -> None:
    verdict = _verdict(*(_record(tmp_path / name, False) for name in "ab"))
    assert (verdict["class"], verdict["confidence"]) == ("equal", "proved")


def _record(folder: Path, is_tanh: bool, shift: float = 20.0) -> Path:
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    generator = np.random.default_rng(0)
    net = nn.SequentialCell(nn.Dense(8, 8), nn.GELU(approximate=is_tanh), nn.Dense(8, 1))
    for each in net.get_parameters():
        each.set_data(Tensor(0.3 * generator.standard_normal(each.shape).astype(np.float32)))
    net.set_train()

    def loss_of(x: Tensor) -> Tensor:
        return (net(x) + shift).mean()

    step = mindspore.value_and_grad(mindspore.jit(loss_of), None, net.trainable_params())
    optimizer = nn.SGD(net.trainable_params(), 0.01)
    folder.mkdir()
    config = folder / "config.json"
    wanted = {"task": "statistics", "level": "L1", "dump_path": str(folder / "dump")}
    config.write_text(json.dumps({**wanted, "rank": [], "step": []}))
    reset_session()
    debugger = PrecisionDebugger(str(config))
    debugger.start(net)
    _, gradients = step(Tensor(generator.standard_normal((8, 8)).astype(np.float32)))
    optimizer(gradients)
    debugger.stop()
    debugger.step()
    return folder / "dump"


def _verdict(target: Path, reference: Path) -> dict[str, Any]:
    return run_comparison(target, reference, CompareOptions(workers=1)).summary["verdict"]
