# SPDX-License-Identifier: Apache-2.0
"""The last steps are kept in memory and written when something happens."""

from __future__ import annotations

import json
import math
import os
import signal
from pathlib import Path

import pytest
import torch
from torch import nn

from builders.recordings import Recording, recording
from builders.warm_python import run_warm
from msprobe import open_dump
from msprobe.errors import UsageError

pytestmark = pytest.mark.torch


def train(run: Recording, model: nn.Module, steps: int, factor: float = 1.0) -> None:
    for _ in range(steps):
        model.zero_grad()
        with run.step_of(model):
            (model(torch.ones(2, 4)).square().sum() * factor).backward()


def test_nothing_is_written_while_nothing_happens(tmp_path: Path) -> None:
    with recording(tmp_path, section={"keep_last": 3}) as run:
        train(run, nn.Linear(4, 4), 5)
        assert run.steps() == []
    assert run.steps() == []
    assert run.folder.is_dir()


def test_written_steps_are_those_of_an_ordinary_dump(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    for name, size in (("all", 0), ("last", 2)):
        with recording(tmp_path / name, section={"keep_last": size}) as run:
            train(run, model, 5)
            if not size:
                continue
            run.debugger.flush("the user asks")
            assert run.steps() == ["step3", "step4"]
            assert run.account(4)["written_because"] == "the user asks"
            assert run.account(4)["complete"]
            train(run, model, 1)
            assert run.steps() == ["step3", "step4"]
    for name in ("dump.json", "stack.json", "construct.json", "facts.json"):
        ordinary, written = (
            json.loads((tmp_path / one / "step4" / "rank" / name).read_text())
            for one in ("all", "last")
        )
        if name == "dump.json":
            ordinary, written = ordinary["data"], written["data"]
        if name == "facts.json":  # the settings know the configuration
            ordinary, written = ordinary["loss"], written["loss"]
        assert written == ordinary
    last, ordinary = (tmp_path / one / "step4" / "rank" for one in ("last", "all"))
    assert {path.name for path in last.iterdir()} == {path.name for path in ordinary.iterdir()}


def test_a_nan_writes_the_steps_before_it_once(tmp_path: Path) -> None:
    model = nn.Linear(4, 4)
    with recording(tmp_path, "L1", section={"keep_last": 3}) as run:
        train(run, model, 4)
        train(run, model, 3, factor=float("nan"))
        assert run.steps() == ["step2", "step3", "step4"]
        assert run.account(2)["written_because"] == "NaN or Inf"


def test_masks_of_minus_infinity_are_no_event(tmp_path: Path) -> None:
    with recording(tmp_path, "L1", section={"keep_last": 3}) as run:
        with run.step_of():
            scores = torch.zeros(3, 3).masked_fill(torch.ones(3, 3).triu(1).bool(), -torch.inf)
            torch.softmax(scores, -1)
        assert run.steps() == []


def test_a_spike_of_the_loss_is_an_event(tmp_path: Path) -> None:
    model = nn.Linear(4, 4)
    with recording(tmp_path, "L1", section={"keep_last": 2}) as run:
        train(run, model, 25)
        assert run.steps() == []
        train(run, model, 2, factor=50.0)
        assert run.steps() == ["step24", "step25"]
        assert run.account(25)["written_because"].startswith("loss ")


def test_a_loss_that_falls_does_not_hide_a_spike(tmp_path: Path) -> None:
    model = nn.Linear(4, 4)
    falling = [0.6 + 1.8 * math.exp(-step / 12) + 0.1 * (step % 3) for step in range(33)]
    with recording(tmp_path, "L1", section={"keep_last": 2}) as run:
        for value in (*falling, 7.2, 0.7):
            with run.step_of(model):
                (model(torch.ones(1, 4)).sum() * 0 + value).backward()
        assert run.steps() == ["step32", "step33"]
        assert run.account(33)["written_because"].startswith("loss 7.2")


def test_a_signal_and_a_call_within_a_step_write_that_step_too(tmp_path: Path) -> None:
    model = nn.Linear(4, 4)
    with recording(tmp_path, "L1", section={"keep_last": 2}) as run:
        train(run, model, 1)
        with run.step_of(model):
            model(torch.ones(2, 4))
            os.kill(os.getpid(), signal.SIGUSR1)
        assert run.steps() == ["step0", "step1"]
        assert run.account(1)["written_because"] == "SIGUSR1"
        with run.step_of(model):
            model(torch.ones(2, 4))
            run.debugger.flush("odd")
        assert run.account(2)["written_because"] == "odd"
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


def test_the_switch_in_the_file_asks_for_the_last_steps(tmp_path: Path) -> None:
    model = nn.Linear(4, 4)
    section = {"keep_last": 2}
    with recording(tmp_path, "L1", section=section, dump_enable=False) as run:
        train(run, model, 3)
        assert run.steps() == []
        source = tmp_path / "config.json"
        content = json.loads(source.read_text())
        source.write_text(json.dumps(content | {"dump_enable": True}))
        train(run, model, 1)
        assert run.steps() == ["step2", "step3"]


def test_flush_needs_kept_steps(tmp_path: Path) -> None:
    with recording(tmp_path, "L1") as run, pytest.raises(UsageError, match="keep_last"):
        run.debugger.flush()


SCRIPT = """
import json, sys, torch
from pathlib import Path
from msprobe.pytorch import PrecisionDebugger

config = Path(sys.argv[1]) / "config.json"
section = {"task": "statistics", "level": "L1", "statistics": {"keep_last": 2}}
config.write_text(json.dumps(section | {"dump_path": sys.argv[1] + "/dump"}))
debugger = PrecisionDebugger(config)
for step in range(4):
    debugger.start()
    torch.relu(torch.ones(3))
    if sys.argv[2] == "inside" and step == 3:
        raise ValueError("a bad batch")
    debugger.stop()
    debugger.step()
if sys.argv[2] == "after":
    raise ValueError("a bad batch")
"""


@pytest.mark.parametrize(
    ("where", "steps"), [("inside", [2, 3]), ("after", [2, 3]), ("nowhere", [])]
)
def test_an_exception_that_ends_the_training_writes_the_last_steps(
    where: str, steps: list[int], tmp_path: Path
) -> None:
    run_warm("-c", SCRIPT, tmp_path, where)
    if not steps:
        assert not list((tmp_path / "dump").glob("step*"))
        return
    dump = open_dump(tmp_path / "dump")
    assert list(dump.steps) == steps
    account = json.loads((tmp_path / "dump" / "step2" / "rank" / "account.json").read_text())
    assert account["written_because"] == "exception: ValueError: a bad batch"


def scaled_steps(run: Recording, scaler: torch.amp.GradScaler, count: int, bad: int = -1) -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for step in range(count):
        with run.step_of(model):
            with torch.autocast("cpu", torch.float16):
                loss = model(torch.randn(4, 8)).float().square().mean()
            if step == bad:
                loss = loss * float("nan")
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()


def test_a_gradient_scaler_that_looks_for_its_scale_is_no_trouble(tmp_path: Path) -> None:
    with recording(tmp_path, "L1", "statistics", section={"keep_last": 3}) as run:
        scaled_steps(run, torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=24), 60)
    assert run.steps() == []


def test_nan_below_a_gradient_scaler_is_written(tmp_path: Path) -> None:
    with recording(tmp_path, "L1", "statistics", section={"keep_last": 3}) as run:
        scaled_steps(run, torch.amp.GradScaler("cpu", init_scale=2.0**8), 6, bad=4)
    assert run.account(4)["written_because"] == "NaN or Inf"


def test_the_step_that_went_wrong_is_written_first(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with recording(tmp_path, "L1", section={"keep_last": 3}) as run, caplog.at_level("INFO"):
        train(run, nn.Linear(4, 4), 4)
        train(run, nn.Linear(4, 4), 1, factor=float("nan"))
    written = [one.getMessage() for one in caplog.records if "written because" in one.getMessage()]
    assert [one.partition(":")[0] for one in written] == ["step 4", "step 3", "step 2"]
