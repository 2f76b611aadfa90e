# SPDX-License-Identifier: Apache-2.0
"""A task may run the functions of observed calls itself: again, or with another output."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from families import FAMILIES, differences, train
from torch import Tensor, nn

from builders.recordings import recording
from msprobe.capture.call import Call
from msprobe.pytorch.apis.api_rules import ApiEntry
from msprobe.pytorch.debugger import running
from msprobe.pytorch.interception.function_mode import CallRunner
from msprobe.pytorch.interception.guard import quietly
from msprobe.pytorch.values.random_state import RandomReplay

pytestmark = pytest.mark.torch


def use(runner: CallRunner) -> None:
    apis = running().observer.apis
    assert apis is not None
    apis.runner = runner


class Twice:
    """Runs every function a second time, after the user's."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.repeated = 0

    def leaves_out(self, entry: ApiEntry) -> bool:
        return False

    def __call__(
        self, call: Call, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        self.names.append(call.forward_name)
        random = RandomReplay(args, kwargs)
        result = function(*args, **kwargs)
        quietly(running().session, "rerun", self.again, random, function, args, kwargs, result)
        return result

    def again(
        self, random: RandomReplay, function: Any, args: Any, kwargs: Any, first: Any
    ) -> None:
        with random.again():
            result = function(*args, **kwargs)
        self.repeated += isinstance(result, Tensor) and torch.equal(result, first)


def test_functions_that_run_again_are_recorded_once_and_draw_the_same_numbers(
    tmp_path: Path,
) -> None:
    def step() -> list[Tensor]:
        x = torch.arange(6.0)
        return [nn.functional.dropout(x), torch.relu(x), torch.rand_like(x)]

    with recording(tmp_path / "plain", "L1") as run:
        torch.manual_seed(3)
        with run.step_of():
            expected = step()
        names = run.names()
    with recording(tmp_path / "twice", "L1") as run:
        torch.manual_seed(3)
        twice = Twice()
        use(twice)
        with run.step_of():
            found = step()
        assert run.names() == names
        assert run.account()["errors"] == {}
    assert twice.repeated == len(names)
    assert set(twice.names) <= set(names)
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("family", ["checkpointing", "random_everywhere"])
def test_a_training_whose_functions_run_again_is_bit_identical(family: str, tmp_path: Path) -> None:
    expected = train(FAMILIES[family](7), 3)
    with recording(tmp_path, "mix") as run:
        twice = Watched()
        use(twice)
        found = train(FAMILIES[family](7), 3, run.around)
        assert run.failures(3) == []
    assert differences(expected, found) == []
    assert twice.names


class Watched(Twice):
    """Runs functions again that change none of their arguments."""

    def again(
        self, random: RandomReplay, function: Any, args: Any, kwargs: Any, first: Any
    ) -> None:
        if self.names[-1].split(".")[1] in ("linear", "dropout", "relu", "gelu", "softmax"):
            super().again(random, function, args, kwargs, first)


def test_the_program_goes_on_with_the_output_of_the_runner(tmp_path: Path) -> None:
    class Doubled(Twice):
        def __call__(self, call: Call, function: Any, args: Any, kwargs: Any) -> Any:
            return function(*args, **kwargs) * 2

    with recording(tmp_path, "L1", "tensor") as run:
        use(Doubled())
        x = torch.ones(2)
        with run.step_of():
            result = torch.relu(x)
        records = run.records()
        assert result.tolist() == [2.0, 2.0]
    assert records["Torch.relu.0.forward"]["output"][0]["Max"] == 2.0
    assert list(records) == ["Torch.relu.0.forward"]


def test_calls_that_a_runner_leaves_out_are_not_observed(tmp_path: Path) -> None:
    class NoRelu(Twice):
        def leaves_out(self, entry: ApiEntry) -> bool:
            return entry.api == "relu"

    with recording(tmp_path, "L1") as run:
        runner = NoRelu()
        use(runner)
        with run.step_of():
            assert torch.relu(torch.exp(torch.zeros(2))).tolist() == [1.0, 1.0]
        assert list(run.records()) == ["Torch.zeros.0.forward", "Torch.exp.0.forward"]
    assert runner.names == ["Torch.zeros.0.forward", "Torch.exp.0.forward"]


def test_an_exception_of_the_function_passes_through_the_runner(tmp_path: Path) -> None:
    with recording(tmp_path, "L1") as run:
        use(Twice())
        with run.step_of(), pytest.raises(RuntimeError, match="inconsistent"):
            torch.matmul(torch.ones(2), torch.ones(3))
        assert run.records()["Torch.matmul.0.forward"]["raised"] == "RuntimeError"
        assert run.account()["errors"] == {}
