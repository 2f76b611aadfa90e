# SPDX-License-Identifier: Apache-2.0
"""`msprobe compare-ckpt` as it is called."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from msprobe.cli import main


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    base = {"a": np.arange(6.0).reshape(2, 3), "b": np.ones(4), "old": np.full(3, 7.0)}
    np.savez(tmp_path / "reference.npz", **base)
    base["a"] = base["a"] + np.array([[0, 0, 0], [0, 0.25, 0]])
    base["new"] = base.pop("old")
    base["extra"] = np.zeros(2)
    np.savez(tmp_path / "target.npz", **base)
    return str(tmp_path / "target.npz"), str(tmp_path / "reference.npz")


def test_the_answer_on_the_terminal(files: tuple[str, str], capsys) -> None:
    assert main(["compare-ckpt", *files]) == 0
    text = capsys.readouterr().out
    assert "different: 1 equal, 1 changed, 1 added, 1 renamed" in text
    assert "[1, 1] a  float64[2,3]" in text
    assert "old → new" in text
    assert "extra" in text


def test_exit_codes(files: tuple[str, str], capsys) -> None:
    target, reference = files
    assert main(["compare-ckpt", target, reference, "--exit-code", "-q"]) == 1
    assert main(["compare-ckpt", target, target, "--exit-code"]) == 0
    assert capsys.readouterr().out.count("equal: 4 equal") == 1
    assert main(["compare-ckpt", target, "nowhere.npz", "--exit-code"]) == 2
    assert "nowhere.npz" in capsys.readouterr().err


def test_a_tolerance_makes_small_changes_close(files: tuple[str, str], capsys) -> None:
    options = ["--only", "a", "--atol", "0.3", "--exit-code"]
    assert main(["compare-ckpt", *files, *options]) == 0
    assert "1 close" in capsys.readouterr().out


def test_json_and_the_documented_file(files: tuple[str, str], tmp_path: Path, capsys) -> None:
    out = tmp_path / "out" / "similarity.json"
    assert main(["compare-ckpt", *files, "--json", "-o", str(out)]) == 0
    tree = json.loads(capsys.readouterr().out)
    assert tree["schema_version"] == 1
    assert tree["equal"] is False
    assert tree["counts"]["changed"] == 1
    written = json.loads(out.read_text())
    assert written == tree["parameters"]
    assert list(written["a"])[:4] == ["l2", "cos", "numel", "shape"]
    assert written["a"]["l2"] == 0.25
    assert written["a"]["max_abs_index"] == [1, 1]
    assert written["new"]["reference_name"] == "old"


def test_an_existing_file_is_not_written_over(files: tuple[str, str], tmp_path: Path, capsys):
    out = tmp_path / "precious.json"
    out.write_text("mine")
    assert main(["compare-ckpt", *files, "-o", str(out)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert out.read_text() == "mine"
