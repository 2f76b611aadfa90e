# SPDX-License-Identifier: Apache-2.0
"""The command line from outside: output, exit codes, one line on stderr for every error."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import msprobe
from msprobe.cli import main

DATA = Path(__file__).parents[1] / "dump" / "data"
PEER = str(DATA / "peer_mix_tensor")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("msprobe: error: ")
    assert err.count("\n") == 1
    return err


def shell(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "msprobe", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


def test_show_prints_overview_and_tree(capsys):
    code, out, err = run(capsys, "show", PEER)
    assert (code, err) == (0, "")
    assert "pytorch, task tensor, level mix" in out
    assert "first: Tensor.log.0.forward" in out
    assert out.count("Functional.linear.0") == 2
    assert "\x1b" not in out


def test_show_one_record(capsys):
    code, out, _ = run(capsys, "show", PEER, "Functional.linear.0.forward")
    assert code == 0
    assert "inside      Module.backward_0.0.Linear.forward.0" in out
    assert "train.py:11 in forward" in out
    assert "Functional.linear.0.forward.input.0.pt" in out


@pytest.mark.parametrize("options", [["--json"], ["--step", "0"], ["--limit", "3", "--json"]])
def test_options_may_stand_before_between_and_after(capsys, options):
    name = "Functional.linear.0.forward"
    after = run(capsys, "show", PEER, name, *options)
    assert after[0] == 0
    assert run(capsys, "show", *options, PEER, name) == after
    assert run(capsys, "show", PEER, *options, name) == after
    assert "'more' is too much" in refused_by_parser(capsys, "show", PEER, name, "more")


def refused_by_parser(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_show_a_module_shows_all_its_records_in_detail(capsys):
    _, out, _ = run(capsys, "show", PEER, "backward_0.0")
    for record in ("forward.0", "backward.0", "parameters_grad.0"):
        assert f"\nModule.backward_0.0.Linear.{record}\n" in "\n" + out


def test_show_part_of_a_name_narrows_the_tree(capsys):
    _, out, _ = run(capsys, "show", PEER, "functional")
    assert "Functional.relu.0" in out
    assert "Tensor.sum.0 " not in out


def test_show_filter_limit_and_depth(capsys):
    _, out, _ = run(capsys, "show", PEER, "--filter", "*relu*", "--limit", "1")
    assert "act ReLU" in out
    assert "3 more calls" in out
    _, out, _ = run(capsys, "show", PEER, "--depth", "1")
    assert "inside" in out
    assert "Functional.linear" not in out


def test_show_only_what_is_not_finite(capsys):
    _, out, _ = run(capsys, "show", PEER, "--nonfinite")
    tree = out.partition("\n\n")[2]
    assert "!!  Tensor.log.0 " in tree
    assert "Functional.relu.0" in tree
    assert "Functional.linear.0" not in tree
    _, out, _ = run(capsys, "show", PEER, "linear", "--nonfinite")
    assert "NaN/Inf   ! in 5 records" in out
    assert "Functional" not in out
    _, out, _ = run(capsys, "show", PEER, "--nonfinite", "--json")
    assert len(json.loads(out)["values"]) == 5


def test_show_as_json(capsys):
    code, out, _ = run(capsys, "show", PEER, "--json", "--limit", "2")
    assert code == 0
    found = json.loads(out, parse_constant=lambda word: pytest.fail(f"bare {word}"))
    assert found["records"] == 15
    assert found["first_nonfinite"] == "Tensor.log.0.forward"
    assert len(found["values"]) == 2
    _, out, _ = run(capsys, "show", PEER, "Tensor.log.0.forward", "--json")
    assert json.loads(out)["values"][1]["norm"] == "Infinity"


def test_show_chooses_step_and_rank(capsys, tmp_path):
    for step, rank in ((0, 0), (3, 0), (3, 1)):
        shutil.copytree(DATA / "peer_l1_md5/step0/proc4711", tmp_path / f"step{step}/rank{rank}")
    _, out, _ = run(capsys, "show", str(tmp_path))
    assert "steps     0, 3; shown: 0" in out
    _, out, _ = run(capsys, "show", str(tmp_path), "--step", "3", "--rank", "1")
    assert str(tmp_path / "step3" / "rank1") in out
    assert "there are: 0, 3" in refused(capsys, "show", str(tmp_path), "--step", "9")
    assert "there are: 0" in refused(capsys, "show", str(tmp_path), "--rank", "9")
    refused(capsys, "show", str(tmp_path), "--rank", "²")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("/nowhere",), "does not exist"),
        (("/dev/null",), "neither a folder nor a plain file"),
        ((PEER, "Functional.linaer.0.forward"), "did you mean Functional.linear.0.forward"),
        ((PEER, "--filter", "nothing*"), "no record fits"),
        (("a\nb\x1b[2J",), "does not exist"),
        (("nul\0",), "does not exist"),
    ],
)
def test_errors_are_one_line(capsys, arguments, said):
    err = refused(capsys, "show", *arguments)
    assert said in err
    assert "\x1b" not in err


def test_damaged_files_are_one_line_and_damaged_records_one_mark(capsys, tmp_path):
    directory = tmp_path / "rank"
    directory.mkdir()
    (directory / "dump.json").write_text('{"data":{')
    assert "truncated JSON" in refused(capsys, "show", str(tmp_path))
    bad = {"type": "torch.Tensor", "dtype": "torch.int8", "shape": "?"}
    good = {**bad, "shape": [7]}
    tree = {"data": {"a.b.0.forward": {"output": [bad]}, "a.c.0.forward": {"output": [good]}}}
    (directory / "dump.json").write_text(json.dumps(tree))
    code, out, _ = run(capsys, "show", str(tmp_path))
    assert code == 0
    assert "damaged record" in out
    assert "int8[7]" in out
    assert '"shape" is ' in refused(capsys, "show", str(tmp_path), "a.b.0.forward")


def test_a_structure_without_records_is_shown_as_a_tree(capsys, tmp_path):
    (tmp_path / "rank").mkdir()
    (tmp_path / "rank" / "dump.json").write_text('{"task":"structure","level":"mix","data":{}}')
    construct = {"Module.a.A.forward.0": None, "Tensor.add.0.forward": "Module.a.A.forward.0"}
    (tmp_path / "rank" / "construct.json").write_text(json.dumps(construct))
    for arguments in ((), ("add",), ("--json",)):
        code, out, _ = run(capsys, "show", str(tmp_path), *arguments)
        assert code == 0
        assert "--json" in arguments or "└─ Tensor.add.0" in out


@pytest.mark.timeout(60)
def test_calls_nested_as_no_program_does_are_shown_quickly(capsys, tmp_path):
    (tmp_path / "rank").mkdir()
    nan = {"type": "torch.Tensor", "dtype": "torch.int8", "shape": [], "Max": "NaN"}
    names = [f"a.b.{number}.forward" for number in range(20_000)]
    data = {name: {"output": [nan]} for name in names}
    circle = dict(zip(names, [*names[1:], names[0]], strict=True))
    (tmp_path / "rank" / "dump.json").write_text(json.dumps({"data": data}))
    (tmp_path / "rank" / "construct.json").write_text(json.dumps(circle))
    code, out, _ = run(capsys, "show", str(tmp_path), "--limit", "300")
    assert code == 0
    assert "19,700 more calls" in out


def test_hostile_names_cannot_drive_the_terminal(capsys, tmp_path):
    (tmp_path / "rank").mkdir()
    name = "\x1b]0;owned\x07\n\u202e\ud800.a.0.forward"
    tree = {"data": {name: {"output": [], "\x1b[31m": "\x1b[2J"}}}
    (tmp_path / "rank" / "dump.json").write_text(json.dumps(tree))
    for arguments in ((), ("owned",)):
        code, out, err = run(capsys, "show", str(tmp_path), *arguments)
        assert (code, err) == (0, "")
        assert "owned" in out
        assert not set(out) & set("\x1b\x07\u202e")


def test_a_journal_is_shown_and_repaired(capsys, tmp_path):
    directory = tmp_path / "step0" / "rank"
    directory.mkdir(parents=True)
    head = {"version": 1, "task": "statistics", "level": "L1", "framework": "pytorch"}
    lines = [["head", head], ["r", 0, "Functional.relu.0.forward", {"output": [None]}]]
    (directory / "journal.jsonl").write_text(
        "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    )
    _, out, _ = run(capsys, "show", str(tmp_path))
    assert "NO: the process ended while capturing" in out
    code, out, _ = run(capsys, "repair", "--dry-run", str(tmp_path))
    assert (code, out.count("would make")) == (0, 1)
    code, out, _ = run(capsys, "repair", str(tmp_path))
    assert code == 0
    assert "made the JSON files of 1 record" in out
    assert json.loads((directory / "dump.json").read_text())["data"]
    _, out, _ = run(capsys, "repair", str(tmp_path))
    assert out == "nothing to repair\n"
    (directory / "journal.jsonl").write_text("x\n")
    code, out, err = run(capsys, "repair", str(tmp_path))
    assert (code, out) == (2, "")
    assert "not repaired" in err


def test_missing_tensor_files_are_counted(capsys, tmp_path):
    directory = tmp_path / "step0" / "rank"
    (directory / "dump_tensor_data").mkdir(parents=True)
    (directory / "dump_tensor_data" / "a.0.pt").touch()
    head = {"version": 1, "task": "tensor", "level": "L1", "framework": "pytorch"}
    tensor = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [1]}
    output = [tensor | {"data_name": name} for name in ("a.0.pt", "a.1.pt", "a.1.pt")]
    lines = [["head", head], ["r", 0, "Functional.relu.0.forward", {"output": output}]]
    (directory / "journal.jsonl").write_text(
        "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    )
    _, before, _ = run(capsys, "show", str(tmp_path))
    _, planned, _ = run(capsys, "repair", str(tmp_path), "--dry-run")
    _, done, _ = run(capsys, "repair", str(tmp_path))
    _, after, _ = run(capsys, "show", str(tmp_path))
    for out in (before, after):
        assert "missing   1 tensor file that records name\n" in out
    for out in (planned, done):
        assert "1 tensor file that records name had not been written" in " ".join(out.split())
    _, text, _ = run(capsys, "show", str(tmp_path), "--json")
    assert json.loads(text)["missing_tensors"] == ["a.1.pt"]


def test_tensors_of_calls_that_had_not_ended_are_told(capsys, tmp_path):
    directory = tmp_path / "step0" / "rank"
    (directory / "dump_tensor_data").mkdir(parents=True)
    file = "Module.b.B.forward.0.input.0.npy"
    np.save(directory / "dump_tensor_data" / file, np.zeros(3))
    head = {"version": 1, "task": "tensor", "level": "L0", "framework": "mindspore"}
    (directory / "journal.jsonl").write_text(json.dumps(["head", head]) + "\n")
    _, before, _ = run(capsys, "show", str(tmp_path))
    assert "no record 1 tensor file that no record names" in before
    assert file in before
    _, text, _ = run(capsys, "show", str(tmp_path), "--json")
    assert json.loads(text)["unrecorded_tensors"] == [file]
    _, out, _ = run(capsys, "repair", str(tmp_path))
    assert "1 record of calls that had not ended, from their tensor files" in " ".join(out.split())
    _, after, _ = run(capsys, "show", str(tmp_path), "Module.b.B.forward.0")
    assert "unfinished" in after


@pytest.mark.parametrize("indent", [None, 1])
def test_a_dump_that_was_cut_short_keeps_its_whole_records(capsys, tmp_path, indent):
    directory = tmp_path / "step0" / "rank"
    directory.mkdir(parents=True)
    head = {"task": "statistics", "level": "L1", "framework": "pytorch", "dump_data_dir": None}
    records = {
        f"Functional.relu.{number}.forward": {"input_args": [None], "output": [{"a": [number]}]}
        for number in range(5)
    }
    if indent:
        text = json.dumps({**head, "data": records}, indent=1)
    else:
        lines = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in records.items())
        text = f'{json.dumps(head)[:-1]}, "data": {{\n{lines}\n}}}}'
    path = directory / "dump.json"
    for end in (text.index('"Functional.relu.3') + 40, text.index('"Functional.relu.3') + 4):
        path.write_text(text[:end])
        code, out, err = run(capsys, "show", str(tmp_path))
        assert (code, out) == (2, "")
        assert "truncated JSON" in err
        assert "msprobe repair" in err
        code, out, _ = run(capsys, "repair", str(tmp_path))
        assert code == 0
        assert "3 whole records" in out
        assert (directory / "dump.json.cut").read_text() == text[:end]
        assert list(json.loads(path.read_text())["data"]) == list(records)[:3]
        code, out, _ = run(capsys, "show", str(tmp_path))
        assert code == 0
        assert "NO: " in out
        (directory / "account.json").unlink()


def test_config_schema_is_printed(capsys):
    code, out, _ = run(capsys, "config-schema")
    assert code == 0
    assert json.loads(out)["$schema"].startswith("https://json-schema.org/")


def test_version_and_help():
    assert shell("--version").stdout == f"msprobe {msprobe.__version__}\n"
    assert "show" in shell("--help").stdout
    assert "--filter" in shell("show", "--help").stdout
    assert "\n  msprobe show dump --nonfinite " in shell("show", "--help").stdout


@pytest.mark.parametrize(
    "arguments", [(), ("frobnicate",), ("show",), ("show", "d", "--step", "x")]
)
def test_wrong_arguments_are_one_line(arguments):
    done = shell(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "--help" in done.stderr


def test_a_pipe_gets_whole_names_and_no_colour():
    done = shell("show", PEER, COLUMNS="")
    assert done.returncode == 0
    assert "…" not in done.stdout
    assert "\x1b" not in done.stdout


def test_a_terminal_without_unicode_gets_no_traceback():
    done = shell("show", PEER, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 0
    assert "|- " in done.stdout or "`- " in done.stdout


def test_a_reader_that_stops_early_is_no_error():
    command = f"{sys.executable} -m msprobe show {PEER} --json | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout == "{\n"
