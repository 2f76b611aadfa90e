# SPDX-License-Identifier: Apache-2.0
"""`msprobe perturb`: the calls of a dump, ranked by how they magnify rounding."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from builders.csv_files import csv_rows
from builders.recordings import Setting, observed
from msprobe import open_dump
from msprobe.checks.perturb_dump import perturb_dump
from msprobe.checks.perturbation import Severity
from msprobe.cli import main
from msprobe.config import Perturbation, Stage

pytestmark = pytest.mark.torch


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    folder = tmp_path / "dump"
    torch.manual_seed(0)
    with observed(folder, Setting("L1", "tensor")) as run, run.step_of():
        x = torch.randn(6, 16, requires_grad=True)
        y = F.relu(F.linear(x, torch.randn(8, 16, requires_grad=True)), inplace=True)
        z = F.dropout(F.layer_norm(y, [8]), 0.2).chunk(2, dim=1)[0]
        (z.sum() + torch.log(1 + 1e-6 * torch.rand(50)).sum()).backward()
    return folder


@pytest.mark.parametrize("mode", list(Perturbation))
@pytest.mark.parametrize("stage", list(Stage))
def test_every_change_works_on_recorded_calls(dump: Path, mode: Perturbation, stage: Stage) -> None:
    results = perturb_dump(open_dump(dump), mode=mode, stage=stage, workers=0)["rank"]
    worst = {name: call.judged.severity for name, call in results.worst.items()}
    reasons = " ".join(results.skipped)
    assert "cannot be run again" not in reasons
    if (mode, stage) == (Perturbation.PERMUTE, Stage.BACKWARD):
        assert results.examined == 0
        return
    assert any("linear" in name for name in worst)
    suspicious = {name for name, one in worst.items() if one is not Severity.NONE}
    is_noise = mode in (Perturbation.ULP_NOISE, Perturbation.RELATIVE_NOISE)
    assert suspicious == ({"Torch.log.0.forward"} if is_noise and stage == "forward" else set())


def test_the_command_ranks_calls_and_writes_the_documented_files(
    dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["perturb", str(dump), "-n", "0", "-o", str(out), "--exit-code"]) == 1
    text = capsys.readouterr().out
    assert "1. Torch.log.0.forward, step 0, amplification" in text
    (row,) = csv_rows(out / "rank" / "free_benchmark.csv")
    assert (row["api_name"], row["severity"]) == ("Torch.log.0.forward", "warning")
    found = json.loads((out / "rank" / "free_benchmark.json").read_text())
    assert found["calls"][0]["api_name"] == "Torch.log.0.forward"
    assert main(["perturb", str(dump), "-n", "0", "--list", "linear", "--exit-code"]) == 0


def test_the_command_prints_json(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["perturb", str(dump), "-n", "0", "--json", "-m", "rerun"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rank"]["mode"] == "rerun"
    assert found["rank"]["findings"] == {"error": 0, "warning": 0, "note": 0}
