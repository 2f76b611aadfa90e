# SPDX-License-Identifier: Apache-2.0
"""`msprobe config_check` as it is called."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from msprobe.cli import main
from msprobe.run_config.pack import read_pack


@pytest.fixture
def packs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Two packs of one machine that differ in a learning rate and a variable."""
    script = tmp_path / "run.sh"
    found = []
    for name, lr, algorithm in (("bench", "1e-4", "Ring"), ("cmp", "2e-4", "Tree")):
        script.write_text(f"torchrun train.py --lr {lr} --bf16")
        monkeypatch.setenv("NCCL_ALGO", algorithm)
        path = tmp_path / f"{name}.zip"
        assert main(["config_check", "-d", str(script), "-o", str(path)]) == 0
        found.append(str(path))
    return found[0], found[1]


def test_collect_without_files(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MY_API_TOKEN", "very-secret")
    assert main(["config_check", "-d"]) == 0
    text = capsys.readouterr().out
    assert "config_check_pack.zip" in text
    assert "MY_API_TOKEN" in text.partition("hidden:")[2]
    assert "very-secret" not in text
    pack = read_pack(tmp_path / "config_check_pack.zip")
    assert pack.env["MY_API_TOKEN"].startswith("<hidden")
    assert pack.packages
    assert pack.arguments == {}
    assert pack.system["python"]


def test_compare(packs: tuple[str, str], tmp_path: Path, capsys) -> None:
    out = tmp_path / "out"
    capsys.readouterr()
    assert main(["config_check", "-c", *packs, "-o", str(out), "--exit-code"]) == 1
    text = capsys.readouterr().out
    assert "NCCL_ALGO  Ring → Tree  (communication)" in text
    assert "lr  1e-4 → 2e-4" in text
    assert (out / "result.xlsx").is_file()
    assert json.loads((out / "result.json").read_text())["level"] == "error"
    assert main(["config_check", "-c", packs[0], packs[0], "-o", str(out), "--exit-code"]) == 0


def test_json(packs: tuple[str, str], tmp_path: Path, capsys) -> None:
    capsys.readouterr()
    assert main(["config_check", "-c", *packs, "-o", str(tmp_path / "out"), "--json"]) == 0
    tree = json.loads(capsys.readouterr().out)
    assert tree["schema_version"] == 1
    assert {each["name"] for each in tree["differences"]} == {"NCCL_ALGO", "lr"}


def test_two_checkpoints_are_compared_as_such(tmp_path: Path, capsys) -> None:
    for name, value in (("bench", 1.0), ("cmp", 2.0)):
        (tmp_path / name).mkdir()
        np.savez(tmp_path / name / "model.npz", w=np.full(3, value))
    out = tmp_path / "similarity.json"
    arguments = ["-c", str(tmp_path / "bench"), str(tmp_path / "cmp"), "-o", str(out)]
    assert main(["config_check", *arguments]) == 0
    assert "1 changed" in capsys.readouterr().out
    entry = json.loads(out.read_text())["w"]
    assert entry["l2"] == pytest.approx(3**0.5)
    # The trusted checkpoint is named first.
    assert (entry["max_abs_target"], entry["max_abs_reference"]) == (2.0, 1.0)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["-d", "-c", "a", "b"],
        ["-c", "a.zip"],
        ["-c", "gone_a.zip", "gone_b.zip"],
        ["-d", "gone.sh"],
        ["-vc", "a.log", "b.log"],
        ["-sc", "a.log", "b.log"],
    ],
)
def test_refusals(arguments: list[str], tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        code = main(["config_check", *arguments])
    except SystemExit as end:
        code = end.code
    assert code == 2
    assert capsys.readouterr().err.count("\n") == 1
