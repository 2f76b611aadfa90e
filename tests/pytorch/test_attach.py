# SPDX-License-Identifier: Apache-2.0
"""`msprobe attach`: a running program records the steps that it is asked for, and no others."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest
import torch

from msprobe import open_dump
from msprobe.capture.attaching import Request
from msprobe.capture.session import reset_session
from msprobe.cli import main
from msprobe.pytorch import PrecisionDebugger

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
    # A killed process leaves its announcement.
    assert main(["attach", str(started.pid)]) == 2
    assert "there is no such process" in capsys.readouterr().err


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


EARLY = """
    import os, signal

    os.kill(os.getpid(), signal.SIGUSR1)
    import torch

    net = torch.nn.Linear(3, 3)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for step in range(4):
        net(torch.ones(2, 3)).sum().backward()
        optimizer.step()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGUSR1")
@pytest.mark.parametrize("keep", [False, True])
def test_a_signal_before_torch_is_imported_counts(tmp_path: Path, keep: bool) -> None:
    (tmp_path / "train.py").write_text(dedent(EARLY))
    (tmp_path / "config.json").write_text('{"dump_path": "dump", "statistics": {"keep_last": 2}}')
    how = ["--config", "config.json"] if keep else ["--on-request", "-o", "dump"]
    command = [sys.executable, "-m", "msprobe", "run", *how, "train.py"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert list(open_dump(tmp_path / "dump").steps) == [0]


def test_a_signal_that_nothing_waits_for_ends_the_script_as_without_msprobe(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(dedent(EARLY))
    command = [sys.executable, "-m", "msprobe", "run", "-o", "dump", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=120, check=False)
    assert done.returncode == -signal.SIGUSR1


@pytest.fixture
def announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Path, Callable[[int], list[int]]]]:
    """Yield the announcement of a debugger in this process, and what trains and tells the steps."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"dump_path": str(tmp_path / "dump"), "dump_enable": False}))
    debugger = PrecisionDebugger(str(config))
    net = torch.nn.Linear(3, 3)
    (path,) = tmp_path.glob(f"msprobe-*/{os.getpid()}.json")

    def train(steps: int) -> list[int]:
        for _ in range(steps):
            with debugger(net):
                net(torch.ones(2, 3))
        return [int(each.name[4:]) for each in sorted(tmp_path.glob("dump/step*"))]

    yield path, train
    reset_session()


def test_a_request_is_taken_once_and_with_the_right_token_only(announced, caplog) -> None:
    path, train = announced
    if sys.platform != "win32":
        assert (path.parent.stat().st_mode & 0o077) == 0
    content = json.loads(path.read_bytes())
    path.write_text(json.dumps({**content, "token": content["token"][::-1]}))
    wrong = Request(os.getpid(), 2)
    wrong.send()
    assert train(1) == []
    assert wrong.answer(time.monotonic() + 0.01) is None
    assert "its token is not that of this process" in caplog.text

    path.write_text(json.dumps(content))
    right = Request(os.getpid(), 2)
    right.send()
    right.send()
    assert train(4) == [1, 2]
    answer = right.answer(time.monotonic() + 10)
    assert answer is not None
    assert answer.step == 1


@pytest.mark.skipif(sys.platform == "win32", reason="needs permissions")
def test_a_folder_that_others_may_write_to_is_not_used(announced, capsys) -> None:
    path, _ = announced
    path.parent.chmod(0o777)
    assert main(["attach", str(os.getpid())]) == 2
    assert "is not a folder of this user alone; remove it" in capsys.readouterr().err


def test_a_process_without_a_debugger_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["attach", str(os.getpid())]) == 2
    assert "it has not imported its framework yet, " in capsys.readouterr().err
    assert main(["attach", str(2**31 - 1)]) == 2
    assert "there is no such process" in capsys.readouterr().err
