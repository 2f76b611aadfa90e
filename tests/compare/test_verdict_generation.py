# SPDX-License-Identifier: Apache-2.0
"""What a model generates, word by word: with a cache it is given the last word, else the text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from builders.two_runs import recorded_steps, verdict_on
from msprobe.pytorch import PrecisionDebugger

pytestmark = [pytest.mark.torch]

WIDTH, WORDS = 16, 32


class Decoder(nn.Module):
    def __init__(self, *, is_cached: bool, scale: float) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(WORDS, WIDTH)
        self.mixed, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WORDS)
        self.is_cached, self.scale = is_cached, scale
        self.past: tuple[Tensor, Tensor] | None = None

    def forward(self, words: Tensor) -> Tensor:
        start = 0 if self.past is None else self.past[0].shape[1]
        places = torch.arange(words.shape[1]) + start
        q, k, v = self.mixed(self.words(words) + self.places(places)).chunk(3, -1)
        if self.past is not None:
            k, v = torch.cat([self.past[0], k], 1), torch.cat([self.past[1], v], 1)
        if self.is_cached:
            self.past = k, v
        seen = places[:, None] >= torch.arange(k.shape[1])
        scores = (q @ k.transpose(1, 2) * self.scale).masked_fill(~seen, -1e9)
        found: Tensor = self.out((scores.softmax(-1) @ v)[:, -1])
        return found


def generate(debugger: PrecisionDebugger, option: dict[str, Any]) -> None:
    model = Decoder(**{"is_cached": True, "scale": WIDTH**-0.5} | option)
    words = torch.randint(0, WORDS, (2, 6))
    for _ in recorded_steps(debugger, model, 1):
        with torch.no_grad():
            for _ in range(3):
                given = words if model.past is None else words[:, -1:]
                words = torch.cat([words, model(given).argmax(-1, keepdim=True)], 1)


@pytest.mark.parametrize("is_cached", [True, False])
def test_a_cache_changes_nothing(tmp_path: Path, *, is_cached: bool) -> None:
    options = {"is_cached": is_cached}, {"is_cached": not is_cached}
    verdict = verdict_on(tmp_path, generate, *options)

    assert verdict["class"] in {"equal", "rounding"}, verdict["sentence"]


def test_a_fault_beside_a_cache_is_found(tmp_path: Path) -> None:
    options: tuple[dict[str, Any], ...] = ({"scale": 0.275}, {"is_cached": False})
    verdict = verdict_on(tmp_path, generate, *options)

    assert verdict["class"] == "argument", verdict["sentence"]
    assert "0.275 instead of 0.25" in verdict["sentence"]


class Attention(nn.Module):
    def __init__(self, scale: float, least: float) -> None:
        super().__init__()
        self.words, self.mixed = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.scale, self.least = scale, least

    def forward(self, words: Tensor) -> Tensor:
        q, k, v = self.mixed(self.words(words)).chunk(3, -1)
        later = torch.ones(words.shape[1], words.shape[1]).triu(1)
        scores = q @ k.transpose(1, 2) * self.scale + later * self.least
        found: Tensor = scores.softmax(-1) @ v
        return found


def infer(debugger: PrecisionDebugger, option: tuple[float, float]) -> None:
    model = Attention(*option)
    for _ in recorded_steps(debugger, model, 1):
        with torch.no_grad():
            model(torch.randint(0, WORDS, (2, 6)))


@pytest.mark.parametrize("least", [-1e4, -1e9, torch.finfo(torch.float32).min])
def test_a_mask_does_not_hide_another_scale(tmp_path: Path, least: float) -> None:
    verdict = verdict_on(tmp_path, infer, (0.275, least), (0.25, least))

    assert verdict["class"] == "argument", verdict["sentence"]
    assert "0.275 instead of 0.25" in verdict["sentence"]


class Result(nn.Module):
    """Returns what it computes, and on one side what it keeps for later, in another order."""

    def __init__(self, *, keeps: bool) -> None:
        super().__init__()
        self.inner, self.out, self.keeps = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4), keeps

    def forward(self, x: Tensor) -> dict[str, Any]:
        hidden = self.inner(x if self.keeps else x[:, -1:])
        found = {"found": self.out(hidden[:, -1])}
        return found | {"kept": object()} if self.keeps else found


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_what_is_kept_beside_equal_results_is_no_difference(tmp_path: Path, level: str) -> None:
    def run(debugger: PrecisionDebugger, option: bool) -> None:
        model = Result(keeps=option)
        x = torch.randn(2, 5, WIDTH)
        for _ in recorded_steps(debugger, model, 1):
            with torch.no_grad():
                model(x)["found"].argmax(-1)

    verdict = verdict_on(tmp_path, run, change=True, base=False, level=level)

    assert verdict["class"] == "equal", verdict["sentence"]
