# SPDX-License-Identifier: Apache-2.0
"""`msprobe determinism`: scripts are run twice, and the first call that differs is named."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent

import pytest

from builders.warm_python import run_warm
from msprobe.cli import main
from msprobe.dump.layout import RANDOM_LOGS
from msprobe.launch.twice import FOLDERS
from msprobe.triage.determinism import judge_determinism
from msprobe.triage.determinism_lines import as_json

pytest.importorskip("torch")

SCRIPT = """
    import sys
    import torch
    from torch import nn

    if "seeded" in sys.argv:
        torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(0.1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    names = {"red", "green", "blue", "black", "white"} if "sets" in sys.argv else "red"
    scale = 1 + sum(place * ord(name[0]) * len(name) for place, name in enumerate(names))
    for step in range(2000):
        net(torch.ones(64, 4) * scale).square().mean().backward()
        optimizer.step()
    raise SystemExit("it was not stopped")
"""


@pytest.fixture(autouse=True)
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text(dedent(SCRIPT))
    (tmp_path / "empty.py").write_text("print('nothing to train')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)


def test_unseeded_dropout_is_named_and_the_recordings_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["determinism", "--json", "-o", "kept", "train.py"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["deterministic"]
    assert found["first"]["source"] == "seed"
    assert found["first"]["record"] == "Functional.dropout.0.forward"
    assert found["first"]["line"] == "train.py:16"
    assert found["first"]["module"] == "1"
    # The weights, filled afterwards, were drawn first.
    assert found["first"]["draw"].startswith("nn.init.kaiming_uniform_ at train.py:8 draws from")
    assert main(["compare", "kept/first", "kept/second", "--exit-code", "-q"]) == 1


CAUSES = """
    import os
    import sys
    import time

    import numpy as np
    import torch
    from torch import nn

    HOW = sys.argv[1]
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    @torch.library.custom_op("planted::op", mutates_args=())
    def op(x: torch.Tensor) -> torch.Tensor:
        return x + int.from_bytes(os.urandom(4)) / 2**32 if HOW == "kernel" else x.clone()

    op.register_autograd(lambda ctx, grad: grad)
    batch = torch.ones(8, 4)
    if HOW == "data":  # a draw that does not matter comes later
        batch = batch + time.time() % 7
    if HOW == "seed":
        batch = batch + np.random.rand()
    own = torch.Generator()
    if HOW == "own generator":
        batch = batch + torch.rand((), generator=own.manual_seed(int.from_bytes(os.urandom(4))))
    if HOW == "order":  # the samples are always the same ones
        order = sorted(range(8), key=lambda number: os.urandom(4))
        batch = torch.stack([torch.rand(4, generator=own.manual_seed(i)) for i in order])
    for step in range(2):
        op(net(batch)).square().mean().backward()
        optimizer.step()
        np.random.rand()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cause", "source", "draw"),
    [
        ("data", "data", ""),
        ("seed", "seed", "numpy.random.rand at causes.py:24 draws"),
        ("own generator", "seed", "rand at causes.py:27 draws from a generator that the program"),
        ("order", "data", "rand at causes.py:30 draws from a generator that the program"),
        ("kernel", "kernel", ""),
    ],
)
def test_a_planted_cause_is_named(cause: str, source: str, draw: str, tmp_path: Path) -> None:
    """The command's judgement of what it records; its own processes are started in other tests."""
    (tmp_path / "causes.py").write_text(dedent(CAUSES))
    (tmp_path / "config.json").write_text('{"statistics": {"summary_mode": "md5"}}')
    for folder in FOLDERS:
        words = ["--config", "config.json", "--step", "0", "--output", folder]
        words += ["--random-log", f"{folder}/{RANDOM_LOGS}", "causes.py", cause]
        assert run_warm("-m", "msprobe", "run", *words, cwd=tmp_path).returncode == 0
    judged = judge_determinism(*(tmp_path / folder for folder in FOLDERS))
    found = as_json(judged)["first"]
    assert found["source"] == source
    assert (found["draw"] or "").startswith(draw)
    assert bool(found["draw"]) == bool(draw)
    if cause == "kernel":
        assert found["record"] == "planted.op.0.forward"


@pytest.mark.slow
def test_a_seeded_script_is_deterministic(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["determinism", "train.py", "seeded"]) == 0
    assert "deterministic" in capsys.readouterr().out


@pytest.mark.slow
def test_seeds_are_confirmed_by_an_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["determinism", "--confirm", "--json", "train.py"]) == 1
    found = json.loads(capsys.readouterr().out)["first"]
    assert (found["source"], found["confirmed_by"]) == ("seed", "seed")


@pytest.mark.slow
def test_the_order_of_sets_is_confirmed_as_the_environment(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["determinism", "--confirm", "--json", "train.py", "seeded", "sets"]) == 1
    found = json.loads(capsys.readouterr().out)["first"]
    assert (found["source"], found["confirmed_by"]) == ("environment", "hash_seed")


def test_a_script_without_steps_is_an_error_with_its_last_words(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main(["determinism", "empty.py"]) == 2
    assert "nothing to train" in capfd.readouterr().err


def test_a_script_that_is_missing_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["determinism", "train.yp"]) == 2
    assert "train.yp" in capfd.readouterr().err
