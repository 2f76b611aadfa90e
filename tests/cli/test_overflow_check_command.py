# SPDX-License-Identifier: Apache-2.0
"""`msprobe overflow_check` as it is called, and the file it leaves."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from builders.dumps import write_rank
from builders.records import forward, tensor
from msprobe.cli import main


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """Two steps: the first is finite, in the second ``log`` makes a NaN inside a module."""
    frames = [
        "File site-packages/torch/_tensor.py, line 1, in log, \n return f(x)",
        "File train.py, line 7, in forward, \n y = x.log()",
    ]
    parents = {"Tensor.log.0.forward": "Module.Model.forward.0", "Module.Model.forward.0": None}
    for step, made in ((0, 1.0), (1, math.nan)):
        x, y = (tensor((2,), Max=n, Min=n, Mean=n, Norm=n) for n in (1.0, made))
        write_rank(
            tmp_path / "dump" / f"step{step}" / "rank",
            dict.fromkeys(parents, forward([x], [y])),
            parents=parents,
            stacks=dict.fromkeys(parents, frames),
        )
    return tmp_path / "dump"


def test_the_answer_and_the_file(dump: Path, tmp_path: Path, capsys) -> None:
    assert main(["overflow_check", "-i", str(dump), "-o", str(tmp_path / "out")]) == 0
    text = capsys.readouterr().out
    assert "step 0: no NaN or Inf seen in 2 records" in text
    assert "step 1: NaN or Inf in 2 of 2 records" in text
    assert "Tensor.log.0.forward" in text
    assert "train.py:7 in forward   y = x.log()" in text
    (path,) = (tmp_path / "out").iterdir()
    assert path.name.startswith("anomaly_analyze_")
    assert path.stem.rpartition("_")[2].isdigit()
    written = json.loads(path.read_text())
    assert list(written) == ["rank_0"]
    (entry,) = written["rank_0"]
    assert entry["op_name"] == "Tensor.log.0.forward"
    assert list(entry["data_info"]) == ["input_args", "input_kwargs", "output"]
    assert entry["data_info"]["output"][0]["Max"] == "NaN"
    assert entry["construct_info"] == ["Module.Model.forward.0", "Tensor.log.0.forward"]
    assert entry["stack_info"][1].startswith("File train.py")
    assert (entry["step"], entry["source"], entry["severity"]) == (1, "operation", "critical")


def test_a_step_folder_and_the_older_name(dump: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "out"
    assert main(["nan_analyze", "-i", str(dump / "step1"), "-o", str(out)]) == 0
    assert "step 1" in capsys.readouterr().out
    assert len(list(out.iterdir())) == 1


def test_a_finite_dump_leaves_no_file(dump: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "out"
    args = ["overflow_check", str(dump), "--step", "0", "-o", str(out), "--exit-code"]
    assert main(args) == 0
    assert "no NaN or Inf seen" in capsys.readouterr().out
    assert not out.exists()


def test_exit_code_and_json(dump: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["overflow_check", str(dump), "--json", "--exit-code"]) == 1
    tree = json.loads(capsys.readouterr().out)
    assert tree["schema_version"] == 1
    assert tree["finite"] is False
    assert [step["step"] for step in tree["steps"]] == [0, 1]
    assert tree["steps"][1]["first"][0]["name"] == "Tensor.log.0.forward"
    assert not (tmp_path / "output").exists()


def test_a_mask_is_no_reason_for_an_exit_code(tmp_path: Path, capsys) -> None:
    low = tensor((2,), Max=1.0, Min=-math.inf, Mean=-math.inf, Norm=math.inf)
    write_rank(tmp_path / "step0" / "rank", {"Torch.add.0.forward": forward([low, low], [low])})
    out = str(tmp_path / "out")
    assert main(["overflow_check", str(tmp_path), "-o", out, "--exit-code"]) == 0
    assert "on purpose it seems" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["{", '{"data": {"Torch.log.0.forward": {}}', '{"data": []}', ""])
def test_a_rank_that_cannot_be_looked_at_is_no_success(dump, tmp_path, capsys, text) -> None:
    folder = tmp_path / "dump" / "step0" / "rank3"
    folder.mkdir()
    (folder / "dump.json").write_text(text)
    args = ["overflow_check", str(dump), "--step", "0"]
    assert main([*args, "-o", str(tmp_path / "out"), "--exit-code"]) == 2
    assert main([*args, "--json", "--exit-code"]) == 2
    out = capsys.readouterr().out
    assert "rank 3 is left out" in out
    tree = json.loads(out[out.index("{\n") :])
    assert (tree["finite"], tree["steps"][0]["unseen"]) == (False, ["3"])


def test_a_dump_without_statistics_is_no_success(tmp_path: Path, capsys) -> None:
    leaf = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], "md5": "00000000"}
    write_rank(tmp_path / "step0" / "rank", {"Torch.log.0.forward": forward([leaf], [leaf])})
    assert main(["overflow_check", str(tmp_path), "-o", str(tmp_path), "--exit-code"]) == 2
    assert "holds no statistics" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [[], ["a", "-i", "b"], ["-i", "nothing/here"], ["{dump}", "--step", "9"]]
)
def test_refusals_are_one_line_and_exit_code_2(dump: Path, capsys, arguments) -> None:
    arguments = [word.replace("{dump}", str(dump)) for word in arguments]
    assert main(["overflow_check", *arguments]) == 2
    assert capsys.readouterr().err.count("\n") == 1
