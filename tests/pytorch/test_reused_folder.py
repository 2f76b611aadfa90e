# SPDX-License-Identifier: Apache-2.0
"""A folder that holds a recording: replaced with one warning, or refused before the training."""

from __future__ import annotations

import subprocess
from pathlib import Path
from textwrap import dedent

import pytest

from builders.warm_python import run_warm
from msprobe import open_dump
from msprobe.cli import main

SCRIPT = """
    import sys
    import torch
    from msprobe.pytorch import PrecisionDebugger

    debugger = PrecisionDebugger(sys.argv[1] if sys.argv[1:] else None, dump_path="dump")
    print("training")
    net = torch.nn.Linear(3, 3)
    for step in range(2):
        with debugger(net):
            net(torch.ones(2, 3)).sum().backward()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(dedent(SCRIPT))
    (tmp_path / "strict.json").write_text('{"overwrite": false}')
    return tmp_path


def start(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run_warm("train.py", *words, cwd=folder)


def test_a_recording_is_replaced_with_one_warning(folder: Path) -> None:
    first = start(folder, "strict.json")
    assert (first.returncode, first.stdout) == (0, "training\n")
    assert "holds" not in first.stderr
    second = start(folder)
    lines = [line for line in second.stderr.splitlines() if "holds" in line]
    assert len(lines) == 1
    assert "dump holds a recording made 20" in lines[0]
    assert "(2 steps from 0 on, " in lines[0]
    assert "the new recording replaces it" in lines[0]


def test_a_recording_is_refused_where_overwriting_is_not_wanted(folder: Path) -> None:
    start(folder)
    refused = start(folder, "strict.json")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert '"overwrite" is false' in refused.stderr
    assert list(open_dump(folder / "dump").steps) == [0, 1]


def test_a_kept_recording_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start(folder)
    dump = str(folder / "dump")
    assert main(["keep", dump]) == 0
    refused = start(folder)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "msprobe keep --release" in refused.stderr
    assert main(["run", "-o", dump, str(folder / "train.py")]) == 2
    assert "holds a recording that is kept" in capsys.readouterr().err
    assert main(["keep", "--release", dump]) == 0
    assert start(folder).returncode == 0


def test_only_recordings_can_be_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keep", str(tmp_path)]) == 2
    assert "holds no recording" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
