# SPDX-License-Identifier: Apache-2.0
"""`msprobe attach`: a running program records the steps that it is asked for, and no others."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from msprobe import open_dump
from msprobe.cli import main

SCRIPT = """
    import time
    import torch
    from msprobe.pytorch import PrecisionDebugger

    debugger = PrecisionDebugger("config.json")
    net = torch.nn.Linear(3, 3)
    for step in range(1000):
        with debugger(net):
            net(torch.ones(2, 3)).sum().backward()
        print(step, flush=True)
        time.sleep(0.02)
"""


def test_a_running_program_records_what_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"dump_path": "dump", "level": "mix", "dump_enable": False}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    (tmp_path / "train.py").write_text(dedent(SCRIPT))
    command = [sys.executable, "train.py"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        started.stdout.readline()
        try:
            assert main(["attach", str(started.pid), "--steps", "2"]) == 0
            said = re.search(r"records steps (\d+) to (\d+) into ", capsys.readouterr().out)
            assert said is not None
            while int(started.stdout.readline()) < int(said[2]) + 2:
                pass
        finally:
            started.kill()
    assert list(open_dump(tmp_path / "dump").steps) == [int(said[1]), int(said[2])]


PLAIN = """
    import time
    import torch

    net = torch.nn.Linear(3, 3)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for step in range(1000):
        net(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        print(step, flush=True)
        time.sleep(0.02)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGUSR1")
def test_a_signal_asks_an_unedited_script_for_one_step(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(dedent(PLAIN))
    command = [sys.executable, "-m", "msprobe", "run", "--on-request", "-o", "dump", "train.py"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        started.stdout.readline()
        try:
            started.send_signal(signal.SIGUSR1)
            while not any(tmp_path.glob("dump/*/*/account.json")):
                started.stdout.readline()
            first = int(started.stdout.readline())
            while int(started.stdout.readline()) < first + 3:
                pass
        finally:
            started.kill()
    assert len(open_dump(tmp_path / "dump").steps) == 1


def test_a_process_without_a_debugger_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["attach", str(os.getpid())]) == 2
    assert "cannot be asked to record" in capsys.readouterr().err
