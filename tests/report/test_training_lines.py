# SPDX-License-Identifier: Apache-2.0
"""What `show` says of the training around the calls."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builders.recordings import recording
from msprobe.cli import main

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.torch


@pytest.fixture
def facts(tmp_path: Path) -> Path:
    """The facts of a recorded step."""
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
    with recording(tmp_path, "L0") as run, run.step_of(model):
        model(torch.ones(1, 2)).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    [path] = tmp_path.rglob("facts.json")
    return path


def shown(facts: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """The lines of the overview, by label."""
    assert main(["show", str(facts.parent)]) == 0
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()[1:]]
    return {line[0]: line[1] for line in lines if len(line) == 2}


def test_the_training_of_a_step_is_told(facts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = shown(facts, capsys)
    assert float(found["loss"])
    assert found["clipping"] == "clip_grad_norm_: norm 2.449, limit 0.5"
    assert found["optimizer"] == "SGD: lr 0.125, 2 parameters, gradient norm 0.5"


def test_every_kind_has_its_numbers(facts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = json.loads(facts.read_text())
    [optimizer] = [one for one in content["events"] if one["kind"] == "optimizer"]
    group = optimizer["groups"][0]
    optimizer["groups"] = [
        {**group, "options": {**group["options"], "lr": lr}} for lr in (0.5, 0.25, 0.5)
    ]
    optimizer["parameters"]["gradient"]["norm"] = [3.0, None]
    content["loss"] = [{**content["loss"][0], "value": 2.5}] * 6
    content["events"] = [
        {"kind": "clip", "function": "clip_grad_value_", "max": 0.1},
        {"kind": "scaler", "scale": 65536.0, "skipped": True, "new_scale": 32768.0},
        {"kind": "schedule", "class": "StepLR", "last_epoch": 3, "lr": [0.5, 0.25]},
        optimizer,
    ]
    facts.write_text(json.dumps(content))
    found = shown(facts, capsys)
    assert found["loss"] == "2.5, 2.5, 2.5, 2.5 … (2 more)"
    assert found["clipping"] == "clip_grad_value_: elements up to 0.1"
    assert found["scaler"] == "scale 65536, then 32768, the update was skipped"
    assert found["schedule"] == "StepLR: lr 0.5, 0.25 from now on"
    assert found["optimizer"] == "SGD: lr 0.5, 0.25, 2 parameters, gradient norm 3"


def test_damaged_facts_do_not_hide_the_rest(
    facts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    facts.write_text("{")
    found = shown(facts, capsys)
    # A long folder follows on the next line.
    assert found["training"].split()[0] == "unknown:"
    assert found["complete"] == "yes"
