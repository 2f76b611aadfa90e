# SPDX-License-Identifier: Apache-2.0
"""`msprobe acc_check` on recordings of MindSpore, whose reference is PyTorch's namesake."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from msprobe.cli import main

pytest.importorskip("torch")
pytestmark = pytest.mark.torch


class Recording:
    """A dump as MindSpore's adapter writes it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "step0" / "rank"
        (self._folder / "dump_tensor_data").mkdir(parents=True)
        self._data: dict[str, object] = {}

    def tensor(self, name: str, values, dtype: str = "Float32") -> dict[str, object]:
        array = np.asarray(values)
        np.save(self._folder / "dump_tensor_data" / f"{name}.npy", array)
        return {
            "type": "mindspore.Tensor",
            "dtype": dtype,
            "shape": list(array.shape),
            "data_name": f"{name}.npy",
        }

    def add(self, name: str, **parts: object) -> None:
        self._data[name] = parts

    def write(self) -> Path:
        head = {
            "task": "tensor",
            "level": "L1",
            "framework": "mindspore",
            "dump_data_dir": str(self._folder / "dump_tensor_data"),
        }
        path = self._folder / "dump.json"
        path.write_text(json.dumps({**head, "data": self._data}))
        return path


def test_recorded_results_of_mindspore_are_judged(tmp_path: Path, capsys) -> None:
    made = Recording(tmp_path / "dump")
    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((3, 2), np.float32)
    made.add(
        "Mint.matmul.0.forward",
        input_args=[made.tensor("a", a), made.tensor("b", b)],
        input_kwargs={},
        output=[made.tensor("c", a @ b)],
    )
    made.add(
        "Mint.matmul.0.backward",
        input=[made.tensor("g", np.ones((2, 2), np.float32))],
        output=[
            made.tensor("ga", np.full((2, 3), 2, np.float32)),
            made.tensor("gb", np.zeros((3, 2), np.float32)),
        ],
    )
    # bfloat16 lies in the file as float32.
    half = np.array([0.5, 1.5], np.float32)
    made.add(
        "Tensor.sum.0.forward",
        input_args=[made.tensor("h", half, "BFloat16")],
        input_kwargs={"axis": {"type": "int", "value": 0}},
        output=[made.tensor("s", np.float32(2.0), "BFloat16")],
    )
    made.add(
        "Functional.assign_add.0.forward",
        input_args=[made.tensor("x", half)],
        input_kwargs={},
        output=[made.tensor("y", half)],
    )
    words = ["-api_info", str(made.write()), "-n", "0", "-o", str(tmp_path)]
    assert main(["-f", "mindspore", "run_ut", *words]) == 1
    said = capsys.readouterr().out
    assert "error   Mint.matmul.0" in said
    assert "not judged: 1 (function not found)" in said
    (path,) = tmp_path.glob("accuracy_checking_details_*.csv")
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == [
        *("API Name", "Bench Dtype", "Tested Dtype", "Shape"),
        *("Cosine", "MaxAbsErr", "MaxRelativeErr", "Status", "Message"),
    ]
    status = {row[0]: row[-2] for row in rows[1:]}
    assert status["Mint.matmul.0.forward.output.0"] == "pass"
    assert status["Mint.matmul.0.backward.output.0"] == "pass"
    assert status["Mint.matmul.0.backward.output.1"] == "error"
    assert status["Tensor.sum.0.forward.output.0"] == "pass"
    assert rows[-1][2] == "mindspore.bfloat16"
    (tmp_path / "checker_support_api.yaml").write_text("tensor: [add]\n")
    words = ["acc_check", *words[:-1], str(tmp_path / "listed"), "--standards", str(tmp_path)]
    assert main(words) == 1
    assert "2 calls: " in capsys.readouterr().out  # without Tensor.sum


CHECKS = ("acc_check", "-f mindspore run_ut", "multi_acc_check", "-f mindspore multi_run_ut")
CALLS = {"Mint.exp.0", "Mint.neg.0"}


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dump.json of two calls, of which the second has a wrong result."""
    made = Recording(tmp_path_factory.mktemp("dump"))
    x = np.array([0.5, 1.5], np.float32)
    for name, result in (("exp", np.exp(x)), ("neg", x)):
        made.add(
            f"Mint.{name}.0.forward",
            input_args=[made.tensor("x", x)],
            input_kwargs={},
            output=[made.tensor(name, result)],
        )
    return made.write()


def statuses(folder: Path) -> dict[str, str]:
    (path,) = folder.glob("accuracy_checking_result_*.csv")
    with path.open(encoding="utf-8-sig", newline="") as file:
        return {row[0]: row[1] for row in list(csv.reader(file))[1:]}


def check(command: str, *words: object) -> int:
    return main([*command.split(), *map(str, words), "-n", "0"])


@pytest.mark.parametrize("command", CHECKS)
@pytest.mark.parametrize(
    ("dump_flag", "out_flag"), [("-api_info", "-o"), ("--api_info_file", "--out_path")]
)
def test_the_recording_and_the_folder(command, dump_flag, out_flag, dump, tmp_path) -> None:
    folder = tmp_path / "made" / "here"
    assert check(command, dump_flag, dump, out_flag, folder) == 1
    assert statuses(folder) == {"Mint.exp.0": "pass", "Mint.neg.0": "error"}


@pytest.mark.parametrize("command", CHECKS)
@pytest.mark.parametrize("flag", ["-csv_path", "--result_csv_path"])
def test_a_result_file_is_continued(command, flag, dump, tmp_path) -> None:
    check(command, "-api_info", dump, "-o", tmp_path)
    (path,) = tmp_path.glob("accuracy_checking_result_*.csv")
    lines = path.read_text(encoding="utf-8-sig").splitlines(keepends=True)
    path.write_text("".join(lines[:-1]), encoding="utf-8-sig")
    assert statuses(tmp_path).keys() < CALLS
    assert check(command, "-api_info", dump, flag, path) == 1
    assert statuses(tmp_path).keys() == CALLS


@pytest.mark.parametrize("command", CHECKS)
@pytest.mark.parametrize("flag", ["-save_error_data", "--save_error_data"])
def test_tensors_of_failing_calls_are_saved(command, flag, dump, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert check(command, "-api_info", dump, "-o", tmp_path / "out", flag) == 1
    saved = {one.name.partition(".forward")[0] for one in tmp_path.rglob("ut_error_data*/*.pt")}
    assert saved == {"Mint.neg.0"}


@pytest.mark.parametrize("command", CHECKS)
@pytest.mark.parametrize("flag", ["-d", "--device"])
def test_devices(command, flag, dump, tmp_path, capsys) -> None:
    assert check(command, "-api_info", dump, "-o", tmp_path / "cpu", flag, "cpu") == 1
    assert statuses(tmp_path / "cpu").keys() == CALLS
    assert check(command, "-api_info", dump, "-o", tmp_path / "twice", flag, 1, 1) == 2
    assert "1" in capsys.readouterr().err
    assert not (tmp_path / "twice").exists()
