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
