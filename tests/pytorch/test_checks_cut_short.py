# SPDX-License-Identifier: Apache-2.0
"""Checks of a run that is killed keep what was found; a full disk stops no training."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import torch
from torch import nn

from builders.csv_files import csv_rows
from builders.recordings import recording
from builders.warm_python import run_warm
from msprobe.pytorch import live_compare

pytestmark = pytest.mark.torch

PROGRAM = """
import json, os, pathlib, signal, sys
import torch
from msprobe.capture.session import reset_session
from msprobe.pytorch import PrecisionDebugger, live_compare

folder, task = pathlib.Path(sys.argv[1]), sys.argv[2]
x = 1 + 1e-6 * torch.rand(20, generator=torch.Generator().manual_seed(1))

def train(name, task, steps, shift=0.0, **section):
    config = folder / f"{name}.json"
    config.write_text(json.dumps({task: section}))
    debugger = PrecisionDebugger(
        str(config), task=task, level="L1", dump_path=str(folder / name)
    )
    check = live_compare(dump_path=folder / "live")
    for step in range(steps):
        debugger.start()
        with check:
            torch.log(torch.mul(x, 1 + shift * step))
        debugger.stop()
        debugger.step()
    return debugger

if task == "diff_check":
    train("reference", "statistics", 3, summary_mode="md5")
    reset_session()
    debugger = train("run", task, 2, shift=1e-3, reference=str(folder / "reference"))
else:
    debugger = train("run", task, 2)
debugger.start()
torch.log(x)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("task", ["diff_check", "free_benchmark"])
def test_a_killed_run_keeps_what_was_found(task: str, tmp_path: Path) -> None:
    done = run_warm("-c", PROGRAM, tmp_path, task)
    assert done.returncode == -signal.SIGKILL, done.stderr
    rows = csv_rows(tmp_path / "live" / "live_compare_rank0.csv")
    assert {row["operator"] for row in rows} >= {"aten.log.default", "aten.mul.Tensor"}
    if task == "diff_check":
        (path,) = (tmp_path / "run").glob("diff_check_*.json")
        (finding,) = json.loads(path.read_text())["findings"]
        assert (finding["step"], finding["record"]) == (1, "Torch.mul.0.forward")
    else:
        (path,) = tmp_path.rglob("free_benchmark.csv")
        found = csv_rows(path)
        assert [row["api_name"] for row in found] == ["Torch.log.0.forward"] * 2


def test_files_that_cannot_be_written_stop_no_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("nan_check_rank.csv", "live_compare_rank0.csv"):
        (tmp_path / name / "in_the_way").mkdir(parents=True)
    torch.manual_seed(2)
    model = nn.Linear(3, 2)
    plain = torch.log(model(torch.ones(4, 3)) - 9.0)
    check = live_compare(dump_path=tmp_path)
    with recording(tmp_path, "L1", "nan_check") as run:
        for _ in range(2):
            with run.step_of(), check:
                result = torch.log(model(torch.ones(4, 3)) - 9.0)
            assert torch.equal(result.isnan(), plain.isnan())
    assert "NaN or Inf begins here" in caplog.text
    assert caplog.text.count("nan_check_rank.csv cannot be written") >= 1
    assert caplog.text.count("live_compare: ") == 1
    assert check.results.judged == 6
