# SPDX-License-Identifier: Apache-2.0
"""Training by turns: which call of the loop comes elsewhere, or more often, on one side."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from builders.two_runs import recorded_steps, verdict_on  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402

pytestmark = pytest.mark.torch

# What a step does: Z clears, B goes backward, C clips, S steps; large for the judge, small for the
# maker. The first string is that of the reference.
LOOP = "ZBCS zbs"


def by_turns(debugger: PrecisionDebugger, change: str | None) -> None:
    """A maker and its judge learn by turns; what the maker's loss leaves in the judge goes."""
    maker = nn.Linear(3, 8)
    judge = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 1))
    own = torch.optim.Adam(judge.parameters(), 1e-2)
    other = torch.optim.SGD(maker.parameters(), 0.1)
    inputs, seeds = torch.randn(3, 8, 8), torch.randn(3, 8, 3)

    def judged(number: int) -> torch.Tensor:
        made = maker(seeds[number]).detach()
        wrong, right = functional.softplus(judge(made)), functional.softplus(-judge(inputs[number]))
        return (wrong + right).mean()

    def fooled(number: int) -> torch.Tensor:
        return functional.softplus(-judge(maker(seeds[number]))).mean()

    for number in recorded_steps(debugger, [maker, judge]):
        for turn in (change or LOOP).split():
            loss = judged(number) if "B" in turn else fooled(number)
            calls: dict[str, Callable[[], object]] = {
                "Z": own.zero_grad,
                "z": other.zero_grad,
                "B": loss.backward,
                "b": loss.backward,
                "C": lambda: nn.utils.clip_grad_norm_(judge.parameters(), 0.05),
                "S": own.step,
                "s": other.step,
            }
            for call in turn:
                calls[call]()


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize(
    ("change", "expected", "words"),
    [
        (
            "ZCBS zbs",
            "clipping",
            "the target calls clip_grad_norm_ with 0.05 where there is nothing",
        ),
        ("ZBSC zbs", "clipping", "called before optimizer.step() of optimizer 0 in the reference"),
        ("BZCS zbs", "gradient", "zero_grad() of 4 parameters is called before backward() in the"),
        ("ZBCS bzs", "gradient", "zero_grad() of 2 parameters is called before backward() in the"),
        ("ZBCS zsb", "update", "optimizer.step() of optimizer 1 is called before backward() in"),
        ("zBCS zbs", "gradient", "zero_grad() of 2 parameters is called in the target where the"),
        ("ZBCS zbS", "update", "is called twice in the target, once in the reference"),
        ("ZBCSS zbs", "update", "is called twice in the target, once in the reference"),
        ("ZBCS bs", "gradient", "zero_grad() of 2 parameters is called never in the target, once"),
    ],
)
def test_the_call_is_named(
    tmp_path: Path, level: str, change: str, expected: str, words: str
) -> None:
    verdict = verdict_on(tmp_path, by_turns, change, level=level)

    assert verdict["class"] == expected, verdict["sentence"]
    assert words in verdict["sentence"]


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("change", ["ZzBCS bs", "ZBCS bsz"])
def test_where_gradients_are_cleared_to_no_effect_accuses_nobody(
    tmp_path: Path, level: str, change: str
) -> None:
    reference = "ZBCS zbs" if change == "ZzBCS bs" else None
    verdict = verdict_on(tmp_path, by_turns, change, reference, level)

    assert verdict["class"] == "equal", verdict["sentence"]


def early(debugger: PrecisionDebugger, change: str | None) -> None:
    """One optimizer; it steps before the backward pass, with nothing to step by, or behind it."""
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    inputs = torch.randn(3, 5, 4)
    for number in recorded_steps(debugger, model):
        optimizer.zero_grad()
        loss = model(inputs[number]).square().mean()
        if change == "step":
            optimizer.step()
        loss.backward()
        if change == "clear":
            optimizer.zero_grad()
        if change != "step":
            optimizer.step()


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize(
    ("change", "expected", "words"),
    [
        ("step", "update", "optimizer.step() is called before backward() in the target"),
        ("clear", "gradient", "gradients are cleared after backward, before the optimizer's step"),
    ],
)
def test_why_an_optimizer_gets_nothing_is_told(
    tmp_path: Path, level: str, change: str, expected: str, words: str
) -> None:
    verdict = verdict_on(tmp_path, early, change, level=level)

    assert verdict["class"] == expected, verdict["sentence"]
    assert words in verdict["sentence"]
