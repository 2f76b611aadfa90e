# SPDX-License-Identifier: Apache-2.0
"""Paths that hold something else than the command compares: the answer says what to type."""

from __future__ import annotations

import shlex
import shutil

import numpy as np
import pytest

from builders.networks import write_dump
from msprobe.cli import main

pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")


def refused(capsys, *arguments) -> str:
    assert main([str(each) for each in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


def typed(capsys, error: str) -> str:
    """Type what an error advises; return what it prints."""
    words = shlex.split(error[error.index("msprobe compare") :].strip())
    assert main(words[1:]) == 0
    return capsys.readouterr().out


def test_run_folders_with_several_dumps(capsys, tmp_path):
    for side, scale in (("new", 1.5), ("old", 1.0)):
        for name in ("b", "c d"):
            write_dump(tmp_path / side / name / "dump", scale=scale)
    write_dump(tmp_path / "new" / "a")
    error = refused(capsys, "compare", "new", "old")
    assert "new is no dump but has 3 dumps below it: new/a, new/b/dump, new/c d/dump" in error
    assert "old is no dump but has 2 dumps" in error
    assert "msprobe compare new/b/dump old/b/dump" in error
    assert typed(capsys, error).startswith("DIFFERENT")


def test_one_run_folder_and_one_dump(capsys, tmp_path):
    write_dump(tmp_path / "runs" / "a b")
    write_dump(tmp_path / "old")
    error = refused(capsys, "compare", "runs", "old")
    assert "runs is no dump but has a dump below it: runs/a b" in error
    assert typed(capsys, error).startswith("EQUAL")


def test_two_dumps_of_one_run_folder(capsys, tmp_path):
    for name in ("one", "two"):
        write_dump(tmp_path / "runs" / name)
    error = refused(capsys, "compare", "runs", "runs")
    assert "msprobe compare runs/one runs/two" in error


def test_many_dumps_are_counted(capsys, tmp_path):
    for number in range(12):
        write_dump(tmp_path / "runs" / f"{number:02}", layers=1)
    error = refused(capsys, "compare", "runs", "runs")
    assert "runs/07 and 4 more" in error


def write_checkpoint(path, suffix: str) -> None:
    if suffix == ".npz":
        np.savez(path, weight=np.ones(3))
        return
    torch = pytest.importorskip("torch")
    torch.save({"weight": torch.ones(3)}, path)


@pytest.mark.parametrize("suffix", [".npz", ".pt"])
@pytest.mark.parametrize("in_folders", [False, True])
def test_checkpoints_are_for_another_command(capsys, tmp_path, suffix, in_folders):
    paths = []
    for side in ("new", "old"):
        folder = tmp_path / side
        folder.mkdir()
        write_checkpoint(folder / f"model{suffix}", suffix)
        paths.append(folder if in_folders else folder / f"model{suffix}")
    error = refused(capsys, "compare", *paths)
    assert "are checkpoints, not dumps; type: msprobe compare-ckpt" in error
    assert "weight" in typed(capsys, error) or "equal" in typed(capsys, error).lower()


def test_dumps_are_no_checkpoints(capsys, tmp_path):
    for side in ("new", "old"):
        write_dump(tmp_path / side, "tensor")
    error = refused(capsys, "compare-ckpt", "new", "old")
    assert "are dumps, not checkpoints" in error
    assert typed(capsys, error).startswith("EQUAL")
    file = "step0/rank0/dump.json"
    assert "are dumps" in refused(capsys, "compare-ckpt", f"new/{file}", f"old/{file}")


def test_a_dump_and_a_checkpoint(capsys, tmp_path):
    write_dump(tmp_path / "new", "tensor")
    np.savez(tmp_path / "old.npz", weight=np.ones(3))
    assert "new is a dump and not a checkpoint" in refused(capsys, "compare-ckpt", "new", "old.npz")
    assert "old.npz" in refused(capsys, "compare", "new", "old.npz")


def test_what_is_neither_keeps_its_own_error(capsys, tmp_path):
    (tmp_path / "empty").mkdir()
    write_dump(tmp_path / "old")
    assert "empty: holds no dump" in refused(capsys, "compare", "empty", "old")
    assert "nothing: does not exist" in refused(capsys, "compare", "nothing", "old")
    shutil.rmtree(tmp_path / "empty")
    (tmp_path / "loop").mkdir()
    (tmp_path / "loop" / "again").symlink_to(tmp_path / "loop")
    assert "loop: holds no dump" in refused(capsys, "compare", "loop", "old")
