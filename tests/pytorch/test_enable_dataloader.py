# SPDX-License-Identifier: Apache-2.0
"""`enable_dataloader`: the steps of a dump are the batches of the training loop."""

import json
import logging
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from builders.recordings import read
from msprobe.capture.session import reset_session
from msprobe.pytorch import PrecisionDebugger

pytestmark = pytest.mark.torch


@pytest.fixture
def construct(tmp_path):
    """Construct a debugger that follows data loaders."""

    def make(level="L1", model=None, **settings):
        common = {"task": "statistics", "level": level, "dump_path": str(tmp_path / "dump")}
        config = tmp_path / "config.json"
        config.write_text(json.dumps(common | {"enable_dataloader": True} | settings))
        return PrecisionDebugger(config_path=str(config), model=model)

    reset_session()
    yield make
    reset_session()


def loader(batches=3, **options):
    return DataLoader(TensorDataset(torch.arange(2.0 * batches)), batch_size=2, **options)


def steps(folder: Path) -> list[str]:
    return sorted(one.name for one in (folder / "dump").glob("step*"))


def test_each_batch_is_a_step_without_a_line_in_the_loop(construct, tmp_path):
    construct()
    model = nn.Linear(2, 1)
    for (batch,) in loader():
        model(batch).sum().backward()
    assert steps(tmp_path) == ["step0", "step1", "step2"]
    for step in range(3):
        found = read(tmp_path / "dump", step, "rank", "dump.json")["data"]
        batch = found["Functional.linear.0.forward"]["input_args"][0]
        assert (batch["Min"], batch["Max"]) == (2.0 * step, 2.0 * step + 1)
        assert "Functional.linear.0.backward" in found
        assert read(tmp_path / "dump", step, "rank", "account.json")["complete"]


def test_steps_go_on_over_epochs_and_after_the_loop_nothing_is_recorded(construct, tmp_path):
    construct()
    for _ in range(2):
        for (batch,) in loader(2):
            torch.relu(batch)
        torch.sin(torch.ones(1))  # an evaluation between epochs belongs to no batch
    assert steps(tmp_path) == ["step0", "step1", "step2", "step3"]
    for step in range(4):
        found = read(tmp_path / "dump", step, "rank", "dump.json")["data"]
        assert "Torch.relu.0.forward" in found
        assert "Torch.sin.0.forward" not in found


def test_the_program_ends_after_the_last_wanted_step(construct, tmp_path, caplog):
    construct(step=[0, 1])
    seen = []

    def train():
        for (batch,) in loader():
            seen.append(torch.relu(batch))

    with caplog.at_level(logging.INFO, logger="msprobe"), pytest.raises(SystemExit) as caught:
        train()
    assert caught.value.code == 0
    assert len(seen) == 2
    assert steps(tmp_path) == ["step0", "step1"]
    assert "step 1 was the last one wanted" in caplog.text


def test_a_loop_that_is_over_anyway_ends_by_itself(construct, tmp_path):
    construct(step=[1])
    for (batch,) in loader(2):
        torch.relu(batch)
    assert steps(tmp_path) == ["step1"]


def test_calls_in_the_loop_are_skipped_with_one_warning(construct, tmp_path, caplog):
    debugger = construct()
    with caplog.at_level(logging.WARNING, logger="msprobe"):
        for (batch,) in loader(2):
            debugger.start()
            torch.relu(batch)
            debugger.stop()
            torch.sin(batch)
            debugger.step()
    assert len(caplog.records) == 1
    assert "enable_dataloader" in caplog.text
    assert steps(tmp_path) == ["step0", "step1"]
    found = read(tmp_path / "dump", 1, "rank", "dump.json")["data"]
    assert {"Torch.relu.0.forward", "Torch.sin.0.forward"} <= set(found)


@pytest.mark.parametrize("where", ["constructor", "start"])
@pytest.mark.parametrize("level", ["L0", "mix"])
def test_the_model_comes_from_the_constructor_or_from_start(level, where, construct, tmp_path):
    model = nn.Sequential(nn.Linear(2, 1))
    debugger = construct(level, model if where == "constructor" else None)
    for (batch,) in loader(2):
        if where == "start":
            debugger.start(model)
        model(batch)
    for step in range(2):
        found = read(tmp_path / "dump", step, "rank", "dump.json")["data"]
        assert "Module.0.Linear.forward.0" in found


def test_without_a_model_the_run_goes_on_and_is_warned_once(construct, tmp_path, caplog):
    construct("L0")
    with caplog.at_level(logging.WARNING, logger="msprobe"):
        assert len(list(loader(3))) == 3
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "model" in caplog.text
    assert not (tmp_path / "dump").exists() or not steps(tmp_path)


def test_worker_processes_neither_count_nor_write(construct, tmp_path):
    construct()
    for (batch,) in loader(3, num_workers=2):
        torch.relu(batch)
    assert steps(tmp_path) == ["step0", "step1", "step2"]
    found = read(tmp_path / "dump", 2, "rank", "dump.json")["data"]
    assert [name for name in found if "relu" in name] == ["Torch.relu.0.forward"]


def test_an_exception_in_the_loop_leaves_a_readable_dump(construct, tmp_path):
    construct()

    def train():
        for (batch,) in loader():
            torch.relu(batch)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train()
    reset_session()
    assert "Torch.relu.0.forward" in read(tmp_path / "dump", 0, "rank", "dump.json")["data"]


def test_the_end_of_the_session_restores_the_loader(construct):
    before = vars(_BaseDataLoaderIter)["__next__"]
    construct()
    assert vars(_BaseDataLoaderIter)["__next__"] is not before
    reset_session()
    assert vars(_BaseDataLoaderIter)["__next__"] is before
