# SPDX-License-Identifier: Apache-2.0
"""Masks and positions that another program makes by other calls, beside a fault and without one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from builders.two_runs import recorded_steps, verdict_on  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402

pytestmark = [pytest.mark.torch]

WIDTH, LENGTH = 8, 6


class Block(nn.Module):
    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH, eps=options.get("eps", 1e-5))
        self.mixed = nn.Linear(WIDTH, 3 * WIDTH)
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.options = options

    def forward(self, x: Tensor, mask: Tensor, places: Tensor | None = None) -> Tensor:
        q, k, v = self.mixed(self.norm(x)).chunk(3, -1)
        scores = q @ k.transpose(-1, -2)
        # Of one program a mask to add, of the other one to choose by.
        scores = scores.masked_fill(mask, -1e9) if mask.dtype == torch.bool else scores + mask
        x = x + scores.softmax(-1) @ v
        activation = functional.relu if self.options.get("relu") else functional.gelu
        y: Tensor = x + self.down(activation(self.up(x)))
        return y


class Model(nn.Module):
    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(11, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.first, self.second = Block(options), Block({"eps": options.get("eps", 1e-5)})
        self.head = nn.Linear(WIDTH, 1)
        self.options = options

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        # What may be seen: everything up to oneself, or one place less.
        seen = self.options.get("seen", 0)
        if self.options.get("is_other"):
            first = x[:, :, 0]  # for its shape alone
            places = torch.arange(first.shape[1]).unsqueeze(0)
            length = places.max() + 1
            mask = torch.ones(LENGTH, LENGTH).triu(1 - seen).bool()
            rows: tuple[Tensor, ...] = (mask, places * length)
        else:
            places = torch.arange(LENGTH)
            mask = torch.where(places[None] > places[:, None] - seen, -1e9, 0.0)
            rows = (mask,)
        x = x + self.places(places)
        y: Tensor = self.head(self.second(self.first(x, *rows), *rows))
        return y.squeeze(-1)


def program(debugger: PrecisionDebugger, options: Mapping[str, Any]) -> None:
    model = Model(options)
    if options.get("frozen"):
        model.first.mixed.weight.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    tokens = torch.arange(4 * LENGTH).view(4, LENGTH).mul(7) % 11
    for _ in recorded_steps(debugger, model, 2):
        optimizer.zero_grad()
        loss = model(tokens).square().mean()
        (loss * 2 if options.get("twice") else loss).backward()
        optimizer.step()


@pytest.mark.parametrize("level", ["L1", "mix"])
@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({}, "equal", ""),
        ({"relu": True}, "call", "Functional.relu.0.forward"),
        ({"eps": 1e-2}, "argument", "input.eps of Functional.layer_norm.0.forward"),
        ({"frozen": True}, "mode", "first.mixed.weight is frozen"),
        ({"twice": True}, "gradient", "Tensor.__mul__."),
    ],
    ids=lambda value: "_".join(value) if isinstance(value, dict) else "",
)
def test_a_mask_made_by_other_calls_hides_no_fault(
    tmp_path: Path, options: dict[str, Any], kind: str, words: str, level: str
) -> None:
    verdict = verdict_on(tmp_path, program, {"is_other": True, **options}, {}, level)

    assert verdict["class"] == kind, verdict["sentence"]
    assert words in verdict["sentence"]


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_a_mask_that_hides_other_places_is_named(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, program, {"is_other": True, "seen": 1}, {}, level)

    assert verdict["class"] in {"call", "argument"}, verdict["sentence"]
    assert any(word in verdict["sentence"] for word in ("triu", "where", "__sub__", "masked_fill"))


@pytest.mark.parametrize(("least", "expected"), [(0.0, "call"), (0.2, "data")])
def test_an_index_that_takes_everything_in_order_is_no_call_too_many(
    tmp_path: Path, least: float, expected: str
) -> None:
    """What is drawn for it shifts the numbers that the model draws."""

    def run(debugger: PrecisionDebugger, drops: bool) -> None:
        model = nn.Sequential(nn.Embedding(11, WIDTH), nn.Dropout(0.3), nn.Linear(WIDTH, 1))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        words = torch.randint(0, 11, (3, 40)).unbind()
        for number in recorded_steps(debugger, model):
            given = words[number]
            if drops:
                keep = torch.rand(40) >= least
                given = given[keep]
            model(given).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    verdict = verdict_on(tmp_path, run, True, False)

    assert verdict["class"] == expected, verdict["sentence"]
    draws = "only the target calls Torch.rand.0.forward"
    assert (draws in verdict["sentence"]) is not bool(least), verdict["sentence"]
    assert ("only the target calls Tensor." in verdict["sentence"]) is bool(least)
