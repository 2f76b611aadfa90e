# SPDX-License-Identifier: Apache-2.0
"""Ways to start that need less code: a with statement, a decorator, the environment."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from msprobe import open_dump
from msprobe.capture.session import reset_session
from msprobe.dump.facts import Ending
from msprobe.pytorch import PrecisionDebugger


@pytest.fixture(autouse=True)
def _a_session_of_its_own() -> Iterator[None]:
    reset_session()
    yield
    reset_session()


def train(net: nn.Module) -> None:
    net(torch.ones(2, 3)).sum().backward()


def steps_of(folder: Path) -> list[int]:
    return list(open_dump(folder).steps)


def test_a_with_statement_is_a_step(tmp_path: Path) -> None:
    net = nn.Linear(3, 2)
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0")
    for _ in range(2):
        with debugger(net):
            train(net)
    assert steps_of(tmp_path) == [0, 1]
    assert "Module.Linear.backward.0" in open_dump(tmp_path).step(1).rank().records


def test_a_step_inside_of_the_statement_counts_once(tmp_path: Path) -> None:
    net = nn.Linear(3, 2)
    for _ in range(2):
        with PrecisionDebugger(dump_path=tmp_path, level="L0")(net) as debugger:
            train(net)
            debugger.stop()
            debugger.step()
    assert steps_of(tmp_path) == [0, 1]


def test_an_exception_leaves_the_statement_and_is_noted(tmp_path: Path) -> None:
    net = nn.Linear(3, 2)
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0")

    @debugger(net)
    def failing() -> None:
        train(net)
        raise ValueError("odd batch")

    with pytest.raises(ValueError, match="odd batch"):
        failing()
    facts = open_dump(tmp_path).step(0).rank().facts
    assert facts is not None
    assert facts.ended is not None
    assert (facts.ended.how, facts.ended.exception) == (
        Ending.INTERRUPTED,
        "ValueError: odd batch",
    )


def test_a_decorated_function_is_a_step_each_time(tmp_path: Path) -> None:
    net = nn.Linear(3, 2)
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0")

    @debugger(net)
    def train_step() -> str:
        train(net)
        return "done"

    assert [train_step(), train_step()] == ["done", "done"]
    assert steps_of(tmp_path) == [0, 1]


def test_one_step_is_a_number(tmp_path: Path) -> None:
    net = nn.Linear(3, 2)
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0", step=1)
    for _ in range(3):
        with debugger(net):
            train(net)
    assert steps_of(tmp_path) == [1]


def test_a_file_in_the_environment_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"dump_path": str(tmp_path / "outside"), "step": [1]}
    (tmp_path / "outside.json").write_text(json.dumps(config))
    monkeypatch.setenv("MSPROBE_CONFIG", str(tmp_path / "outside.json"))
    net = nn.Linear(3, 2)
    debugger = PrecisionDebugger(dump_path=tmp_path / "inside", level="L0", step=[0])
    for _ in range(2):
        with debugger(net):
            train(net)
    assert not (tmp_path / "inside").exists()
    dump = open_dump(tmp_path / "outside")
    assert list(dump.steps) == [1]
    assert dump.step(1).rank().head.level == "L0"  # which the file does not name


@pytest.mark.parametrize("word", ["off", "0", "OFF"])
def test_the_environment_switches_msprobe_off(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MSPROBE", word)
    net = nn.Linear(3, 2)
    debugger = PrecisionDebugger(dump_path=tmp_path / "dump", level="L0")
    with debugger(net):
        train(net)
    debugger.start(net)
    train(net)
    debugger.stop()
    debugger.step()
    assert not (tmp_path / "dump").exists()
