# SPDX-License-Identifier: Apache-2.0
"""The pytest plugin: golden recordings of tests, made, held, learned from."""

from __future__ import annotations

import re
from importlib.metadata import entry_points

import pytest
import torch._dynamo  # noqa: F401  # a run inside of this one forgets the modules that it imports

from msprobe.compare.run import compare_dumps  # noqa: F401
from msprobe.integrations import record_training  # noqa: F401

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.torch

# Named here where the installed package does not name it.
_IS_INSTALLED = "msprobe" in entry_points(group="pytest11").names
_PLUGIN = () if _IS_INSTALLED else ("-p", "msprobe.integrations.pytest_plugin")
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


def run(
    pytester: pytest.Pytester, *flags: str, eps: float = 1e-5, noise: float = 0.0
) -> pytest.RunResult:
    source = PROGRAM.replace("EPS", str(eps)).replace("NOISE", str(noise))
    pytester.makepyfile(test_net=source)
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", *_PLUGIN, *flags)


def test_golden_recordings_are_made_held_and_updated(pytester: pytest.Pytester) -> None:
    run(pytester).assert_outcomes(passed=2)
    assert not (pytester.path / "golden").exists()

    missing = run(pytester, "--msprobe-golden")
    missing.assert_outcomes(passed=1, failed=1)
    missing.stdout.fnmatch_lines(["*make it with --msprobe-golden-update*"])

    run(pytester, "--msprobe-golden-update").assert_outcomes(passed=2)
    run(pytester, "--msprobe-golden").assert_outcomes(passed=2)

    junit = pytester.path / "junit.xml"
    changed = run(pytester, "--msprobe-golden", f"--junit-xml={junit}", eps=0.5)
    changed.assert_outcomes(passed=1, failed=1)
    changed.stdout.fnmatch_lines(["*argument*0.5 instead of 1e-05*"])
    verdict = re.search('name="msprobe_verdict" value="([^"]*)"', junit.read_text())
    assert verdict is not None
    assert "0.5 instead of 1e-05" in verdict[1]

    run(pytester, "--msprobe-golden-update", eps=0.5).assert_outcomes(passed=2)
    run(pytester, "--msprobe-golden", eps=0.5).assert_outcomes(passed=2)


def test_tolerances_are_learned_from_noise_and_from_nothing_else(pytester: pytest.Pytester) -> None:
    run(pytester, "--msprobe-golden-update").assert_outcomes(passed=2)
    run(pytester, "--msprobe-golden", noise=2e-2).assert_outcomes(passed=1, failed=1)

    run(pytester, "--msprobe-golden-learn", noise=2e-2).assert_outcomes(passed=2)

    run(pytester, "--msprobe-golden", noise=1e-2).assert_outcomes(passed=2)
    run(pytester, "--msprobe-golden", noise=0.5).assert_outcomes(passed=1, failed=1)
    run(pytester, "--msprobe-golden-learn", eps=0.5).assert_outcomes(passed=1, failed=1)
    golden = pytester.path / "golden" / "test_net" / "test_training"
    assert (golden / "tolerances.yaml").is_file()
