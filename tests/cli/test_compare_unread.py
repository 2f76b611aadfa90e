# SPDX-License-Identifier: Apache-2.0
"""Tensor files that cannot be read are never taken for equal: status, headline and exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builders.csv_files import csv_rows
from builders.networks import write_dump
from msprobe.cli import main

pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")


@pytest.fixture
def dumps(tmp_path):
    """Return two equal dumps of tensors, and a value's file in the first."""
    new, old = (write_dump(tmp_path / name, task="tensor") for name in ("new", "old"))
    (path,) = new.rglob("Functional.linear.1.forward.output.0.*")
    return new, old, path


def compare(capsys, *arguments):
    code = main(["compare", *map(str, arguments), "--format", "csv"])
    return code, capsys.readouterr().out


def renamed(new: Path, data_name: str) -> None:
    """Give the output of one call another `data_name`."""
    (path,) = new.rglob("dump.json")
    dump = json.loads(path.read_text())
    dump["data"]["Functional.linear.1.forward"]["output"][0]["data_name"] = data_name
    path.write_text(json.dumps(dump))


def cut(path: Path) -> None:
    content = path.read_bytes()
    path.unlink()  # its other names keep the content
    path.write_bytes(content[: len(content) // 2])


DAMAGES = {
    "deleted": lambda new, path: path.unlink(),
    "cut short": lambda new, path: cut(path),
    "a folder": lambda new, path: (path.unlink(), path.mkdir()),
    "outside of the dump": lambda new, path: renamed(new, f"../../../../old/{path.name}"),
    "no name": lambda new, path: renamed(new, ""),
    "too long a name": lambda new, path: renamed(new, "x" * 5000 + ".npy"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_cannot_be_read_is_not_equal(capsys, dumps, damage):
    new, old, path = dumps
    DAMAGES[damage](new, path)
    code, out = compare(capsys, new, old, "--exit-code")
    assert code == 2  # not known to be equal, not known to differ
    headline, *_ = out.splitlines()
    assert headline.startswith("UNREAD")
    assert "1 of " in headline
    assert "could not be read" in headline
    assert "Functional.linear.1.forward.output.0" in out
    summary = json.loads(Path("output/summary.json").read_text())
    assert (summary["equal"], summary["counts"]["unread"]) == (False, 1)
    assert summary["first_difference"] is None


@pytest.mark.parametrize("differs", [False, True])
def test_without_exit_code_it_never_ends_with_0_either(capsys, tmp_path, dumps, differs):
    new, old, path = dumps
    if differs:
        old = write_dump(tmp_path / "other", task="tensor", scale=1.5)
        (path,) = new.rglob("Functional.linear.0.forward.output.0.*")
    path.unlink()
    code, out = compare(capsys, new, old, "--quiet")
    assert (code, out.partition(":")[0]) == (2, "different" if differs else "unread")


def test_a_dump_without_its_tensor_files(capsys, dumps):
    new, old, path = dumps
    for file in path.parent.iterdir():
        file.unlink()
    path.parent.rmdir()
    code, out = compare(capsys, new, old, "--exit-code", "--quiet")
    assert code == 2
    assert out.startswith("unread: ")


def test_the_documented_table_warns(capsys, dumps):
    new, old, path = dumps
    path.unlink()
    compare(capsys, new, old, "--columns", "documented")
    (table,) = Path("output").glob("compare_result_*.csv")
    rows = {row["NPU Name"]: row for row in csv_rows(table)}
    row = rows["Functional.linear.1.forward.output.0"]
    assert (row["Cosine"], row["Result"]) == ("unsupported", "warning")
    assert path.name in row["Err_message"]


def test_a_difference_is_found_beside_what_cannot_be_read(capsys, tmp_path, dumps):
    new, _, path = dumps
    other = write_dump(tmp_path / "other", task="tensor", scale=1.5)
    (file,) = new.rglob("Functional.linear.0.forward.output.0.*")
    file.unlink()
    code, out = compare(capsys, new, other, "--exit-code")
    assert code == 1
    headline, *_ = out.splitlines()
    assert headline.startswith("DIFFERENT")
    assert "1 could not be read" in out
    # The statistics in the record prove this one different, whether or not its file is there.
    path.unlink()
    _, out = compare(capsys, new, other)
    assert out.startswith("DIFFERENT")
    assert json.loads(Path("output/summary.json").read_text())["counts"]["unread"] == 1
