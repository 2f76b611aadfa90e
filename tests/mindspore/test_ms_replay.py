# SPDX-License-Identifier: Apache-2.0
"""Recorded calls of MindSpore, judged, checked and shown by scripts, with and without PyTorch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import mindspore as ms
from builders.csv_files import csv_rows
from mindspore import Tensor, mint, ops
from msprobe import open_dump
from msprobe.checks.verify_dump import VerifiedDump, verify_dump
from msprobe.cli import main
from msprobe.mindspore import PrecisionDebugger


def program(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    results = (
        mint.nn.functional.linear(x, weight),
        mint.matmul(x, weight.T),
        mint.nn.functional.softmax(x, -1),
        mint.nn.functional.relu(x),
        mint.exp(x),
        mint.sum(x, dim=-1),
        x.mean(-1),
        x * x,
        ops.gelu(x),
        ops.concat((x, x), axis=0),
        x[1:3, 2],
        ops.MatMul(transpose_b=True)(x, weight),
        ops.LayerNorm(epsilon=1e-5)(x, scale, scale)[0],
        ops.ReduceSum(keep_dims=True)(x, 1),
    )
    return sum((one**2).sum() for one in results)


def record(folder: Path, task: str) -> Path:
    config = {"task": task, "level": "L1", "dump_path": str(folder / "dump"), task: {}}
    path = folder / "config.json"
    path.write_text(json.dumps({**config, "step": [], "rank": []}))
    random = np.random.default_rng(0)
    arguments = [Tensor(random.normal(size=s).astype(np.float32)) for s in ((4, 8), (6, 8), (8,))]
    debugger = PrecisionDebugger(config_path=str(path))
    debugger.start()
    ms.value_and_grad(program, (0, 1, 2))(*arguments)
    debugger.stop()
    debugger.step()
    return folder / "dump"


def faults(found: VerifiedDump) -> list[str]:
    return [call.report.name for call in found.calls if call.is_fault]


def test_results_of_an_accelerator_are_not_judged_by_what_the_cpu_kernels_can(tmp_path) -> None:
    dump = record(tmp_path, "tensor")
    path = dump / "step0" / "rank" / "facts.json"
    facts = json.loads(path.read_text())
    assert facts["settings"]["mindspore.device_target"] == "CPU"
    assert faults(verify_dump(open_dump(dump), workers=0)) == []

    facts["settings"]["mindspore.device_target"] = "Ascend"
    path.write_text(json.dumps(facts))
    assert "Mint.exp.0.forward" in faults(verify_dump(open_dump(dump), workers=0))


def damage(dump: Path, name: str) -> None:
    path = dump / "step0" / "rank" / "dump_tensor_data" / f"{name}.npy"
    values = np.load(path)
    values.reshape(-1)[3] *= 1.01
    np.save(path, values)


def run_script(dump: Path, call: str, path: Path, *options: str) -> tuple[int, str]:
    assert main(["op_script", str(dump), call, "-o", str(path), *options]) == 0
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout


def test_a_recording_is_judged_checked_and_shown(tmp_path: Path, capsys) -> None:
    dump = record(tmp_path, "tensor")

    found = verify_dump(open_dump(dump), workers=0)
    assert found.judged == len(found.calls) > 20, found.not_judged
    assert faults(found) == []

    for name in (
        *("Mint.matmul.0.forward.output.0", "Primitive.MatMul.0.forward.output.0"),
        *("Tensor.__mul__.0.forward.output.0", "Tensor.mean.0.backward.output.0"),
        *("MintFunctional.linear.0.backward.output.1", "Primitive.LayerNorm.0.backward.output.1"),
    ):
        damage(dump, name)
    damaged = {
        *("Mint.matmul.0.forward", "Primitive.MatMul.0.forward", "Tensor.__mul__.0.forward"),
        *("Tensor.mean.0.forward", "MintFunctional.linear.0.forward"),
        "Primitive.LayerNorm.0.forward",
    }
    assert set(faults(verify_dump(open_dump(dump), workers=0))) == damaged

    words = ["-api_info", str(dump / "step0" / "rank" / "dump.json"), "-n", "0"]
    assert main(["-f", "mindspore", "run_ut", *words, "-o", str(tmp_path)]) == 1
    (details,) = tmp_path.glob("accuracy_checking_details_*.csv")
    status = {row["API Name"]: row["Status"] for row in csv_rows(details, "utf-8-sig")}
    assert status["Mint.matmul.0.forward.output.0"] == "error"
    assert status["Primitive.ReduceSum.0.forward.output.0"] == "pass"

    code, text = run_script(dump, "Primitive.MatMul.0", tmp_path / "wrong.py")
    assert code == 1
    assert "output: wrong, element 3 is" in text
    lines = (tmp_path / "wrong.py").read_text().splitlines()
    assert len(lines) < 60
    assert not any("msprobe" in line or "torch" in line for line in lines if "import" in line)
    code, text = run_script(dump, "MintFunctional.linear.0", tmp_path / "b.py", "--backward")
    assert code == 1
    assert "input0: right" in text
    assert "input1: wrong" in text
    code, text = run_script(dump, "Mint.sum.0", tmp_path / "right.py")
    assert (code, text.startswith("output: right")) == (0, True)


def test_a_recording_of_another_machine_shrinks_to_the_rows_that_show_the_fault(tmp_path) -> None:
    dump = record(tmp_path, "tensor")
    damage(dump, "Mint.matmul.0.forward.output.0")
    path = tmp_path / "small.py"

    code, text = run_script(dump, "Mint.matmul.0", path, "--shrink", "20")

    assert code == 1
    assert "output: wrong, element 0 is" in text
    assert path.read_text().count(".reshape((1, 1))") == 2  # recorded and expected
    assert not path.with_suffix(".npz").exists()  # of 4 x 8 and 8 x 6 elements, 8 and 8 are left


def test_statistics_are_checked_by_a_new_run(tmp_path: Path) -> None:
    dump = record(tmp_path, "statistics")

    found = verify_dump(open_dump(dump), workers=0)

    assert faults(found) == []
    assert found.judged == len(found.calls), found.not_judged
    assert all(call.report.generated for call in found.calls)
    code, text = run_script(dump, "Tensor.mean.0", tmp_path / "mean.py")
    assert (code, text.startswith("output: right")) == (0, True)


def test_the_namesake_in_pytorch_is_the_reference(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    found = verify_dump(open_dump(record(tmp_path, "tensor")), workers=0)

    by = {call.report.name: call.report.by for call in found.calls}
    assert by["Mint.matmul.0.forward"] == "float64"
    assert by["Functional.gelu.0.forward"] == "MindSpore's float64"
    assert faults(found) == []
