# SPDX-License-Identifier: Apache-2.0
"""Two networks against each other: the first is updated before or after the second one's pass."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from builders.two_runs import recorded_steps, verdict_on  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402

pytestmark = pytest.mark.torch


def run(debugger: PrecisionDebugger, is_late: bool, is_asked: bool = False) -> None:
    """Train a critic and a maker, which share their steps; the critic may be asked once more."""
    nets = nn.ModuleDict({"maker": nn.Linear(8, 16), "critic": nn.Linear(16, 1)})
    maker, critic = nets["maker"], nets["critic"]
    of_maker, of_critic = (torch.optim.Adam(net.parameters(), 4e-2) for net in (maker, critic))
    data, noise = torch.rand(3, 8, 16), torch.randn(3, 8, 8)
    for number in recorded_steps(debugger, nets):
        made = maker(noise[number])
        loss = F.softplus(-critic(data[number])).mean() + F.softplus(critic(made.detach())).mean()
        loss.backward()
        if is_asked:
            with torch.no_grad():
                critic(made)
        if not is_late:
            of_critic.step()
            of_critic.zero_grad()
        F.softplus(-critic(made)).mean().backward()
        if is_late:
            of_critic.step()
            of_critic.zero_grad()
        of_maker.step()
        of_maker.zero_grad()


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("is_late", [True, False])
def test_an_update_at_another_place_is_named(tmp_path: Path, is_late: bool, level: str) -> None:
    verdict = verdict_on(tmp_path, run, is_late, not is_late, level)

    late, early = ("target", "reference") if is_late else ("reference", "target")
    assert verdict["class"] == "update", verdict["sentence"]
    assert "Adam updates critic.weight after " in verdict["sentence"]
    assert f" in the {late}, before it in the {early} (step 0)" in verdict["sentence"]


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_further_call_before_the_update_moves_none(tmp_path: Path, level: str) -> None:
    def asked(debugger: PrecisionDebugger, is_asked: bool) -> None:
        run(debugger, is_late=False, is_asked=is_asked)

    verdict = verdict_on(tmp_path, asked, True, False, level)

    assert verdict["class"] == "equal", verdict["sentence"]
