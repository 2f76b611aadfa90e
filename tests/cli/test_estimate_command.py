# SPDX-License-Identifier: Apache-2.0
"""`msprobe estimate`: what it says is what a recording then costs."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent

import pytest

from builders.warm_python import run_warm
from msprobe.cli import main

pytest.importorskip("torch")

SCRIPT = """
    import time
    import torch

    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(200):
        net(torch.randn(8, 64)).sum().backward()
        optimizer.step()
        if step > 1:
            time.sleep(0.2)
"""


@pytest.fixture(autouse=True)
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text(dedent(SCRIPT))
    (tmp_path / "short.py").write_text("import torch\nraise SystemExit('nothing to train')\n")
    monkeypatch.chdir(tmp_path)


def size(folder: Path) -> int:
    files = [path.stat() for path in folder.rglob("*") if path.is_file()]
    return sum({each.st_ino: each.st_size for each in files}.values())


@pytest.mark.slow
@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_records_and_disk_are_those_of_a_recording(
    task: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["estimate", "--level", "mix", "--task", task, "--json", "train.py"]
    assert main(words) == 0
    (found,) = json.loads(capfd.readouterr().out)
    assert not (tmp_path / "msprobe_dump").exists()
    short = (tmp_path / "train.py").read_text().replace("range(200)", "range(2)")
    (tmp_path / "train.py").write_text(short)
    ran = run_warm("-m", "msprobe", "run", "--task", task, "-o", "dump", "train.py")
    assert ran.returncode == 0, ran.stderr
    account = json.loads((tmp_path / "dump/step1/rank/account.json").read_text())
    assert found["records"] == account["records"]
    assert found["size_bytes"] == pytest.approx(size(tmp_path / "dump/step1"), rel=0.2)
    assert 0 < found["capture_s"] < 10


@pytest.mark.slow
def test_a_disk_that_does_not_suffice_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    words = ["--level", "L0", "--task", "tensor", "--step", "0-999999"]
    code = main(["estimate", *words, "train.py"])
    out, err = capfd.readouterr()
    assert "L0" in out
    # 1,000,000 steps of about 200 kB: more than most disks have left
    assert (code, "need up to" in err) in ((2, True), (0, False))


def test_a_script_without_steps_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["estimate", "--level", "L0", "--task", "statistics", "short.py"]
    assert main(words) == 2
    assert "no step was recorded; its last words were" in capsys.readouterr().err
