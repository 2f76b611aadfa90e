# SPDX-License-Identifier: Apache-2.0
"""`msprobe op_generate` reads the config_op.json of mindstudio-probe."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")

import msprobe.checks.op_config as op_config  # noqa: E402
from builders.recordings import recording  # noqa: E402
from builders.warm_python import run_warm  # noqa: E402
from msprobe.checks.op_config import read_op_config  # noqa: E402
from msprobe.cli import main  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture
def config(tmp_path):
    """Write a config_op.json for a recorded call; returns a function that changes keys."""
    torch.manual_seed(25)
    x = torch.randn(8, 16, requires_grad=True)
    with recording(tmp_path / "dump", "L1", "tensor") as run, run.step_of():
        torch.nn.functional.softmax(x, dim=-1).square().sum().backward()

    def write(**keys):
        path = tmp_path / "config_op.json"
        given = {
            "dump_json_path": str(tmp_path / "dump" / "step0" / "rank" / "dump.json"),
            "api_name": "Functional.softmax.0",
            "extract_api_path": str(tmp_path / "extract.json"),
        }
        path.write_text(json.dumps(given | keys))
        return path

    return write


def test_a_script_of_recorded_data(config, tmp_path, capsys):
    path = config(propagation="backward", data_mode="real_data")
    out = tmp_path / "scripts"
    arguments = ["--config_input", str(path), "--api_output_path", str(out)]
    assert main(["-f", "pytorch", "op_generate", *arguments]) == 0
    script = out / "Functional.softmax.0.backward.py"
    assert capsys.readouterr().out.strip() == str(script)
    done = run_warm(script)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[1:]]
    assert [row[-1] for row in rows] == ["pass"] * 5
    assert [row[0] for row in rows] == ["cosine", "max", "share", "share", "share"]
    extract = json.loads((tmp_path / "extract.json").read_text())
    assert sorted(extract) == ["Functional.softmax.0.backward", "Functional.softmax.0.forward"]


def test_random_data_of_a_seed_several_times(config, tmp_path):
    path = config(random_seed=7, iter_times=3)
    assert main(["op_generate", "-i", str(path), "-o", str(tmp_path / "scripts")]) == 0
    scripts = sorted((tmp_path / "scripts").glob("*.py"))
    assert [one.name for one in scripts] == [
        "Functional.softmax.0.forward.1.py",
        "Functional.softmax.0.forward.2.py",
        "Functional.softmax.0.forward.py",
    ]
    lines = [one.read_text().splitlines() for one in scripts]
    assert len({line for one in lines for line in one if "randn(" in line}) == 3
    assert max(map(len, lines)) < 60


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"propagation": "both"}, "propagation"),
        ({"iter_times": 0}, "a number from 1 to 1000"),
        ({"extract_api_path": ""}, "extract_api_path"),
        ({"api": "x"}, "only dump_json_path"),
        ({"api_name": "Functional.softmin.0"}, "no call Functional.softmin.0"),
    ],
)
def test_faulty_configs(config, keys, message, capsys):
    assert main(["op_generate", "-i", str(config(**keys))]) == 2
    assert message in capsys.readouterr().err


def test_the_file_to_begin_with_is_valid():
    from pathlib import Path

    shipped = Path(op_config.__file__).with_name("config_op.json")
    assert read_op_config(shipped).call == "Functional.softmax.0"
