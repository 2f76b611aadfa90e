# SPDX-License-Identifier: Apache-2.0
"""Checks beside several models, accumulation, threads, children and ranks: nothing is disturbed."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from families import differences
from families.process_group import run_ranks
from torch import Tensor, nn

from builders.csv_files import csv_rows
from builders.recordings import Recording, recording
from msprobe.pytorch import live_compare

pytestmark = pytest.mark.torch

Around = Callable[[list[nn.Module]], AbstractContextManager[Any]]


def trained(around: Around) -> list[Tensor]:
    """Train two models, each with two micro-batches; a thread and a child run them meanwhile."""
    torch.manual_seed(4)
    models: list[nn.Module] = [
        nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Dropout(0.2)),
        nn.Sequential(nn.Linear(8, 8), nn.Softmax(-1)),
    ]
    parameters = [one for model in models for one in model.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)
    asides: list[Tensor] = []
    for _ in range(2):
        with around(models):
            for _ in range(2):
                hidden = models[0](torch.randn(3, 4))
                thread = threading.Thread(target=lambda: asides.append(models[1](torch.ones(1, 8))))
                thread.start()
                thread.join()
                if hasattr(os, "fork") and (child := os.fork()) == 0:
                    os._exit(0 if models[1](torch.ones(1, 8)).isfinite().all() else 1)
                assert os.waitpid(child, 0)[1] == 0
                models[1](hidden).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [*parameters, *asides, torch.get_rng_state()]


def findings(task: str, run: Recording) -> list[object]:
    """Return what a check found, but for notes."""
    if task == "nan_check":
        counts = (run.account(step)[task] for step in range(2))
        return [one for one in counts if one["source"] or one["came in"]]
    if task == "overflow_check":
        return [name for step in range(2) for name in run.records(step)]
    if task == "diff_check":
        (path,) = run.folder.glob("diff_check_*.json")
        found: list[object] = json.loads(path.read_text())["findings"]
        return found
    return [
        row
        for row in csv_rows(next(run.folder.rglob("free_benchmark.csv")))
        if row["severity"] != "note"
    ]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("task", ["nan_check", "overflow_check", "diff_check", "free_benchmark"])
def test_a_task_disturbs_nothing_and_finds_nothing(task: str, tmp_path: Path) -> None:
    expected = trained(lambda _: nullcontext())
    section = {"mode": "ulp_noise"} if task == "free_benchmark" else {}
    if task == "diff_check":
        with recording(tmp_path / "a", "mix", section={"summary_mode": "md5"}) as run:
            trained(run.step_of)
        section = {"reference": str(tmp_path / "a")}
    with recording(tmp_path / "b", "mix", task, section=section) as run:
        found = trained(run.step_of)
    assert all(map(torch.equal, expected, found))
    assert findings(task, run) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_live_compare_disturbs_nothing_and_finds_nothing(tmp_path: Path) -> None:
    expected = trained(lambda _: nullcontext())
    check = live_compare(dump_path=tmp_path)
    found = trained(lambda _: check)
    assert all(map(torch.equal, expected, found))
    assert check.results.judged > 40
    assert check.results.left_out["an error of msprobe"] == 0
    assert check.results.ranked == []


PLAIN = "report(train(DISTRIBUTED_FAMILIES['data_parallel'](7), 2))"
CHECKED = """
from msprobe.pytorch import PrecisionDebugger, live_compare
case = DISTRIBUTED_FAMILIES["data_parallel"](7)
debugger = PrecisionDebugger(task="nan_check", level="mix", dump_path=str(folder / "out"))
check = live_compare(dump_path=folder / "live")
for step in range(2):
    debugger.start(case.model)
    with check:
        loss = case.run_step(step)
    debugger.stop()
    debugger.step()
    case.snapshot(loss)
report(case.state())
"""


@pytest.mark.slow
def test_checks_of_data_parallel_replicas_disturb_nothing_and_find_nothing(tmp_path: Path) -> None:
    expected = run_ranks(PLAIN, tmp_path)
    found = run_ranks(CHECKED, tmp_path)
    for rank, pair in enumerate(zip(expected, found, strict=True)):
        assert differences(*pair) == []
        result = json.loads((tmp_path / "live" / f"live_compare_rank{rank}.json").read_text())
        assert result["judged"] > 0
        assert result["findings"] == []
        for step in range(2):
            path = tmp_path / "out" / f"step{step}" / f"rank{rank}" / "account.json"
            counts = json.loads(path.read_text())["nan_check"]
            assert (counts["source"], counts["came in"]) == (0, 0)
