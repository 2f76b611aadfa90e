# SPDX-License-Identifier: Apache-2.0
"""The prompt of `msprobe parse`, as a user types into it."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from builders.csv_files import csv_rows
from builders.kernel_binaries import Value, write
from msprobe.cli import main

FLOAT32, ND = 1, 2
VALUES = np.float32([[1, 2], [3, 4]])


@pytest.fixture
def typed(tmp_path, monkeypatch, capfd):
    """Type lines into the prompt; return what it printed and its errors."""
    monkeypatch.chdir(tmp_path)

    def type_lines(*lines):
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        assert main(["-f", "pytorch", "parse"]) == 0
        sys.stdout.flush()
        shown = capfd.readouterr()
        assert shown.out.count("Parse >>> ") == len(lines) + (lines[-1] != "exit")
        return shown.out, shown.err

    return type_lines


def kernel(folder, task, when, array, name="MatMul.net_fc1_MatMul-op0"):
    values = [Value("output", FLOAT32, ND, array.shape, array.tobytes())]
    write(Path(folder) / "0" / f"{name}.{task}.1.{when}", values)


def rows_of(folder):
    (path,) = Path(folder).glob("batch_compare_*.csv")
    return csv_rows(path, "utf-8-sig")


def test_cad_sorts_converted_files_by_operation_and_time(typed):
    kernel("dump", 3, 1795182233644492, VALUES)
    kernel("dump", 4, 1795182233644999, VALUES)
    out, err = typed("cad -m dump -out sorted")
    assert err == ""
    found = sorted(Path("sorted").rglob("*.npy"))
    places = [path.relative_to("sorted").parts[1:3] for path in found]
    assert places == [
        ("net_fc1_MatMul-op0", "1795182233644492"),
        ("net_fc1_MatMul-op0", "1795182233644999"),
    ]
    assert all(str(path) in out for path in found)
    assert np.array_equal(np.load(found[0]), VALUES)


def test_without_a_folder_results_go_where_the_documents_say(typed):
    kernel("dump", 3, 1795182233644492, VALUES)
    typed("cad -m dump", "dc -n dump -f NCHW", "vc -m dump -g dump")
    assert list(Path("parse_data/acl_batch_convert").rglob("*.npy"))
    assert list(Path("parse_data/convert_result/0").glob("*.npy"))
    assert list(Path("parse_data/acl_batch_comapre").glob("*.csv"))


def test_vc_pairs_files_whose_numbers_and_times_differ(typed):
    for side, task, factor in (("a", 3, 1), ("b", 7, 2)):
        kernel(side, task, 1795182233644492 + task, VALUES * np.float32(factor))
        kernel(side, task + 1, 1795182233645000 + task, VALUES)
    kernel("b", 9, 1795182233646000, VALUES, name="Add.net_Add-op1")
    typed("cad -m a -out left", "vc -m left -g b -out out")
    first, second, alone = rows_of("out")
    assert (first["Mean"], first["Bench Mean"]) == ("2.5", "5.0")
    assert (first["Md5 Consistency"], first["Max Abs Error"]) == ("False", "4.0")
    assert (second["Md5 Consistency"], second["Max Abs Error"]) == ("True", "0.0")
    assert (alone["NPU File Name"], alone["Bench Mean"]) == ("", "2.5")


def test_pt_tells_the_statistics_and_writes_the_text(typed):
    np.save("x.npy", VALUES)
    out, _ = typed("pt -n x.npy")
    assert "[Shape: (2, 2)] [Dtype: float32] [Max: 4.0] [Min: 1.0] [Mean: 2.5]" in out
    assert "TextFile: x.npy.txt" in out
    assert np.array_equal(np.loadtxt("x.npy.txt"), VALUES)


def test_cn_lists_the_elements_that_are_apart(typed):
    np.save("a.npy", np.float32([1, 2, 3, np.nan]))
    np.save("b.npy", np.float32([1, 2.1, 3.0001, np.nan]))
    out, _ = typed("cn -m a.npy -g b.npy -p 2 -al 0.002 -rl 0.005")
    bad, top = out.split("Top Item Table")
    assert [line.split()[:2] for line in bad.splitlines() if line.strip()[:1].isdigit()] == [
        ["1", "2.0"]
    ]
    assert [line.split()[0] for line in top.splitlines() if line.strip()[:1].isdigit()] == [
        "0",
        "1",
    ]
    assert "NumCnt:   4" in top
    assert "AllClose: False" in top
    assert "ErrorPer: 0.25  (rl= 0.005, al= 0.002)" in top
    assert Path("a.npy.txt").exists()
    assert Path("b.npy.txt").exists()


def test_cn_fills_the_shorter_array_with_zeros(typed):
    np.save("a.npy", np.int64([1, 0]))
    np.save("b.npy", np.array([True]))
    out, _ = typed("cn -m a.npy -g b.npy")
    assert "NumCnt:   2" in out
    assert "AllClose: True" in out


def test_pk_shows_a_record(typed):
    tensor = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], "Max": 1.5}
    record = {"input_args": [tensor], "input_kwargs": {}, "output": []}
    Path("dump.json").write_text(json.dumps({"data": {"Torch.relu.0.forward": record}}))
    out, _ = typed("pk -f dump.json -n Torch.relu.0.forward")
    assert "input.0" in out
    assert "1.5" in out


def test_other_lines_go_to_the_shell(typed):
    out, _ = typed("echo one", "run echo two", "", "exit")
    assert "one\n" in out
    assert "two\n" in out


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("pt", "pt: the following arguments are required: -n"),
        ("pt -n gone.npy", "gone.npy"),
        ("cad -m gone", "gone"),
        ("cn -m 'a", "cn: No closing quotation"),
        ("dc -n x -f NOPE", "dc: argument -f"),
    ],
)
def test_an_error_is_one_line_and_the_prompt_goes_on(typed, line, said):
    out, err = typed(line, "echo still here")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert said in err
    assert "still here" in out


def test_each_command_explains_itself(typed):
    out, err = typed(*(f"{name} -h" for name in ("cad", "vc", "dc", "pt", "pk", "cn")))
    assert err == ""
    assert out.count("usage: ") == 6


@pytest.mark.torch
def test_it_is_a_module_of_its_own_too():
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, "-m", "msprobe.pytorch.parse"],
        input="echo inside\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "inside" in done.stdout
