# SPDX-License-Identifier: Apache-2.0
"""The task `free_benchmark` of MindSpore, in the dynamic graph."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nets import random

import mindspore as ms
from builders.csv_files import csv_rows
from mindspore import Tensor, nn, ops
from msprobe.errors import ConfigError
from msprobe.mindspore import PrecisionDebugger

INPUT = random(3, 4)


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Dense(4, 4), nn.Dense(4, 2)
        self.dropout = nn.Dropout(p=0.3)

    def construct(self, x: Tensor) -> Tensor:
        return ops.tanh(self.second(self.dropout(ops.exp(self.first(x)))))


def debugger_of(folder: Path, **keys: Any) -> PrecisionDebugger:
    file = folder / "config.json"
    settings = {"task": "free_benchmark", "dump_path": str(folder / "out"), "level": "L1"}
    file.write_text(json.dumps({**settings, "free_benchmark": keys}))
    return PrecisionDebugger(config_path=file)


def perturbed(folder: Path, run: Callable[[], Any], **keys: Any) -> list[dict[str, str]]:
    """Perturb one step; return the findings."""
    debugger = debugger_of(folder, **keys)
    debugger.start()
    run()
    debugger.stop()
    debugger.step()
    return csv_rows(folder / "out" / "rank" / "free_benchmark.csv")


def calls(folder: Path) -> list[dict[str, Any]]:
    path = folder / "out" / "rank" / "free_benchmark.json"
    found: list[dict[str, Any]] = json.loads(path.read_text())["calls"]
    return found


def trained(debugger: PrecisionDebugger | None) -> list[Any]:
    """Train two steps; return losses, gradients and random state."""
    ms.set_seed(5)
    net = Net()
    net.set_train()
    step = ms.value_and_grad(lambda x: net(x).sum(), None, net.trainable_params())
    found: list[Any] = []
    for _ in range(2):
        if debugger is not None:
            debugger.start(net)
        loss, gradients = step(Tensor(INPUT))
        if debugger is not None:
            debugger.stop()
            debugger.step()
        found += [loss.asnumpy(), *(one.asnumpy() for one in gradients)]
    return [*found, ms.get_rng_state().asnumpy()]


@pytest.mark.parametrize("mode", ["ulp_noise", "rerun", "add_noise", "improve_precision"])
def test_a_checked_training_is_bit_identical(mode: str, tmp_path: Path) -> None:
    expected = trained(None)
    found = trained(debugger_of(tmp_path, pert_mode=mode))
    assert all(map(np.array_equal, expected, found))
    assert not (tmp_path / "out" / "step0").exists()
    result = json.loads((tmp_path / "out" / "rank" / "free_benchmark.json").read_text())
    assert result["steps"] == 2
    if mode != "improve_precision":
        assert any("exp" in call["api_name"] for call in result["calls"])
    assert result["findings"] == {"error": 0, "warning": 0, "note": 0}


@pytest.mark.parametrize("mode", ["ulp_noise", "relative_noise"])
def test_the_call_that_loses_most_digits_is_ranked_first(mode: str, tmp_path: Path) -> None:
    x = Tensor((1 + 1e-6 * np.arange(1, 30)).astype(np.float32))
    (row,) = perturbed(tmp_path, lambda: (ops.exp(x), ops.log(x)), mode=mode)
    assert (row["api_name"], row["severity"]) == ("Functional.log.0.forward", "warning")
    assert calls(tmp_path)[0]["api_name"] == "Functional.log.0.forward"


def test_half_types_run_in_float32(tmp_path: Path) -> None:
    x = Tensor(INPUT).astype(ms.float16)
    found = perturbed(tmp_path, lambda: ops.exp(x), pert_mode="improve_precision")
    assert found == []
    (call,) = calls(tmp_path)
    assert call["api_name"] == "Functional.exp.0.forward"
    assert 0 < call["amplification"] < 4


def test_full_names_in_the_list_choose_calls(tmp_path: Path) -> None:
    x = Tensor(INPUT)
    perturbed(tmp_path, lambda: (ops.exp(x), ops.tanh(x)), mode="rerun", list=["Functional.tanh"])
    assert [call["api_name"] for call in calls(tmp_path)] == ["Functional.tanh.0.forward"]


def test_names_of_mindspore_in_the_list_are_whole_names(tmp_path: Path) -> None:
    x = Tensor(INPUT)
    names = ["mindspore.ops.exp", "mindspore.Tensor.abs"]
    perturbed(tmp_path, lambda: (ops.exp(x), ops.expm1(x), x.abs()), mode="rerun", list=names)
    found = {call["api_name"] for call in calls(tmp_path)}
    assert found == {"Functional.exp.0.forward", "Tensor.abs.0.forward"}


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"pert_mode": "to_cpu"}, "free_benchmark.mode"),
        ({"fuzz_stage": "backward"}, "free_benchmark.fuzz_stage"),
        ({"mode": "high_precision", "handler_type": "fix"}, "free_benchmark.handler_type"),
    ],
)
def test_settings_of_pytorch_are_refused(keys: dict[str, str], text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=text):
        debugger_of(tmp_path, **keys)


def test_a_call_that_is_told_to_write_by_a_flag_in_its_position_runs_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No kernel of MindSpore for the CPU writes in place.
    def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
        values = input.asnumpy()
        found = np.where(values > 0, values, alpha * np.expm1(values)).astype(np.float32)
        if not inplace:
            return Tensor(found)
        values[...] = found
        return input

    monkeypatch.setattr(ms.mint.nn.functional, "elu", elu)
    x, flagged = Tensor(INPUT), Tensor(INPUT)

    def run() -> None:
        ms.mint.nn.functional.elu(x, 1.0, True)
        ms.mint.nn.functional.elu(flagged, 1.0, False)

    assert perturbed(tmp_path, run, pert_mode="rerun") == []
    assert np.array_equal(x.asnumpy(), elu(Tensor(INPUT)).asnumpy())
    assert np.array_equal(flagged.asnumpy(), INPUT)
    (only,) = calls(tmp_path)
    assert only["api_name"].startswith("MintFunctional.elu")
