# SPDX-License-Identifier: Apache-2.0
"""The pytest plugin: golden recordings of tests, made, held, learned from."""

from __future__ import annotations

import re
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from builders.warm_python import run_warm

pytestmark = pytest.mark.torch

# Named here where the installed package does not name it.
_IS_INSTALLED = "msprobe" in entry_points(group="pytest11").names
_PLUGIN = () if _IS_INSTALLED else ("-p", "msprobe.integrations.pytest_plugin")
# The plugins of others have nothing to do here, and take longer to import than the tests to run.
_OTHERS = [f"-pno:{name}" for name in ("xdist", "hypothesispytest", "anyio", "timeout")]
PROGRAM = """
import torch
from torch import nn

def test_training(msprobe_golden):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8, eps=EPS), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with msprobe_golden():
        for _ in range(2):
            model(torch.ones(3, 4) * (1 + NOISE)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

def test_without_it():
    assert True
"""
NO_MODEL = """
import torch

class TestFunction:
    def test_training(self, msprobe_golden):
        with msprobe_golden():
            torch.ones(3).sum()
"""


def run(folder: Path, *flags: str, eps: float = 1e-5, noise: float = 0.0) -> str:
    """Run the tests; return what pytest printed."""
    source = PROGRAM.replace("EPS", str(eps)).replace("NOISE", str(noise))
    (folder / "test_net.py").write_text(source)
    words = ("-p", "no:cacheprovider", *_OTHERS, *_PLUGIN, *flags, "test_net.py")
    return run_warm("-m", "pytest", *words, cwd=folder).stdout


def test_golden_recordings_are_made_held_and_updated(tmp_path: Path) -> None:
    assert "2 passed" in run(tmp_path)
    assert not (tmp_path / "golden").exists()

    missing = run(tmp_path, "--msprobe-golden")
    assert "1 failed, 1 passed" in missing
    assert "make it with --msprobe-golden-update" in missing

    (tmp_path / "test_other.py").write_text(NO_MODEL)
    updated = run(tmp_path, "--msprobe-golden-update", "test_other.py")
    assert "1 failed, 2 passed" in updated
    assert "nothing was recorded: no module with parameters was called" in updated
    assert "2 passed" in run(tmp_path, "--msprobe-golden")

    junit = tmp_path / "junit.xml"
    changed = run(tmp_path, "--msprobe-golden", f"--junit-xml={junit}", eps=0.5)
    assert "1 failed, 1 passed" in changed
    assert re.search(r"argument: .*0\.5 instead of 1e-05", changed)
    assert "junitxml" not in changed.partition("Captured log")[0]
    verdict = re.search('name="msprobe_verdict" value="([^"]*)"', junit.read_text())
    assert verdict is not None
    assert "0.5 instead of 1e-05" in verdict[1]

    assert "2 passed" in run(tmp_path, "--msprobe-golden-update", eps=0.5)
    assert "2 passed" in run(tmp_path, "--msprobe-golden", eps=0.5)


def test_tolerances_are_learned_from_noise_and_from_nothing_else(tmp_path: Path) -> None:
    assert "2 passed" in run(tmp_path, "--msprobe-golden-update")
    assert "1 failed, 1 passed" in run(tmp_path, "--msprobe-golden", noise=2e-2)

    assert "2 passed" in run(tmp_path, "--msprobe-golden-learn", noise=2e-2)

    assert "2 passed" in run(tmp_path, "--msprobe-golden", noise=1e-2)
    assert "1 failed, 1 passed" in run(tmp_path, "--msprobe-golden", noise=0.5)
    assert "1 failed, 1 passed" in run(tmp_path, "--msprobe-golden-learn", eps=0.5)
    assert (tmp_path / "golden" / "test_net" / "test_training" / "tolerances.yaml").is_file()
