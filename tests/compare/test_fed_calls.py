# SPDX-License-Identifier: Apache-2.0
"""At level L0 the verdict says which call is fed with another tensor, and accuses no rewriting."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from builders.two_runs import compared, recorded_steps, verdict_on  # noqa: E402
from msprobe.compare.options import CompareOptions  # noqa: E402
from msprobe.compare.run import run_comparison  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402

pytestmark = pytest.mark.torch

HIDDEN = "hidden "  # in front of a rewriting: something else differs that no outline tells


def unseen(x: Tensor, factor: float) -> Tensor:
    with torch._C.DisableTorchFunction():
        return x * factor


chosen: set[str] = set()  # not an attribute of a module: comparisons would name it


def is_(change: str) -> bool:
    return change in chosen


class Mixer(nn.Module):
    """Attention by hand; `chosen` is what a person may have written otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(8, 8) for _ in range(4))
        self.one, self.two = (nn.Parameter(torch.randn(8, 8) / 3) for _ in range(2))

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        if is_("reordered"):
            v, k, q = self.v(x), self.k(x), self.q(x)
        else:
            q, k, v = self.q(x), self.k(x), self.v(x)
        if is_("exchanged"):
            q, k = k, q
        y = (q @ k.mT).softmax(-1) @ (k if is_("value") else v)  # <qk>
        z = self.out(y)
        if is_("commuted weights"):
            right = z @ self.two
            left = z @ self.one
        else:
            left = z @ self.one
            right = z @ (self.one if is_("weight") else self.two)  # <right>
        apart = right - left if is_("reversed") else left - right  # <sub>
        shut = (y if is_("gate") else gate).sigmoid()  # <shut>
        if is_("twice"):
            shut = gate.sigmoid()
        shut = unseen(shut, 1.1 if is_(HIDDEN) else 1.0)
        if is_("commuted"):
            return z + shut * apart
        if is_("in place"):
            apart = apart.mul_(shut)
            apart += z
            return apart
        if is_("reshaped"):
            apart = apart.view(-1).view(apart.shape).float()
        if is_("summed"):
            return sum([z, apart * shut])
        return apart * shut + (y if is_("residual") else z)  # <mixed>


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.mixer = nn.Linear(6, 8), Mixer()
        self.norm, self.other = nn.LayerNorm(8), nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(8, 8)
        self.heads = nn.ModuleList([nn.Linear(8, 3), nn.Linear(8, 3)])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.enter(x)
        n = self.norm(h)
        m = self.mixer(n, self.down(n))
        h = (n if is_("skipped") else h) + m  # <residual>
        first, second = self.up(self.other(n if is_("part") else h)).chunk(2, -1)  # <chunk>
        if is_("halves"):
            first, second = second, first
        h = h + functional.gelu(first) * second  # <gelu>
        own, other = self.heads[0](h), self.heads[1](h)
        return (other, own) if is_("returned") else (own, other)


def program(debugger: PrecisionDebugger, change: str) -> None:
    chosen.clear()
    chosen.update((change.removeprefix(HIDDEN), HIDDEN * change.startswith(HIDDEN)))
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x, wanted = torch.randn(4, 5, 6), torch.randn(4, 5, 3)

    def step(_: int) -> None:
        optimizer.zero_grad()
        own, other = model(x)
        near = (wanted - own if change == "distance" else own - wanted).square().mean()  # <near>
        high = (other if change == "term" else own).exp().mean()  # <exp>
        low = other.sigmoid().mean()
        turned = low - high if change == "loss" else high - low  # <turned>
        if change == "regrouped":
            loss = 0.1 * turned + (0.5 * low + near)
        else:
            loss = near + 0.5 * low + 0.1 * turned
        loss.backward()
        optimizer.step()

    for number in recorded_steps(debugger, model):
        step(number)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("exchanged", "Tensor.__matmul__ (<qk>) takes its operands the other way round"),
        (
            "value",
            "argument 1 of Tensor.__matmul__ (<qk>) is fed with the result of "
            "Module.mixer.k.Linear.forward.0 instead of the result of "
            "Module.mixer.v.Linear.forward.0",
        ),
        ("reversed", "Tensor.__sub__ (<sub>) takes its operands the other way round"),
        ("weight", "argument 1 of Tensor.__matmul__ (<right>) is fed with mixer.one instead"),
        (
            "gate",
            "argument 0 of Tensor.sigmoid (<shut>) is fed with the result of "
            "Tensor.__matmul__ (<qk>) instead of the result of Module.down.Linear.forward.0",
        ),
        ("residual", "Tensor.__add__ (<mixed>) is fed with the result of Tensor.__m"),
        (
            "skipped",
            "Tensor.__add__ (<residual>) is fed with the result of Module.norm.LayerNorm.forward.0 "
            "instead of the result of Module.enter.Linear.forward.0",
        ),
        (
            "part",
            "Module.other.LayerNorm.forward.0 is fed with the result of "
            "Module.norm.LayerNorm.forward.0 instead of the result of Tensor.__add__ (<residual>)",
        ),
        (
            "halves",
            "input of Functional.gelu (<gelu>) is fed with result 1 of Tensor.chunk "
            "(<chunk>) instead of result 0 of Tensor.chunk (<chunk>)",
        ),
        (
            "term",
            "argument 0 of Tensor.exp (<exp>) is fed with the result of "
            "Module.heads.1.Linear.forward.0 instead of the result of "
            "Module.heads.0.Linear.forward.0",
        ),
        (
            "returned",
            "it is the result of Module.heads.1.Linear.forward.0 instead of the result of "
            "Module.heads.0.Linear.forward.0",
        ),
        ("loss", "Tensor.__sub__ (<turned>) takes its operands the other way round"),
    ],
)
def test_what_a_call_is_fed_with_is_named(change: str, words: str, tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, program, change, "", level="L0")
    is_turned = change in ("exchanged", "reversed", "halves", "returned", "loss")
    assert verdict["class"] == ("order" if is_turned else "argument"), verdict["sentence"]
    assert with_lines(words) in verdict["sentence"]


REWRITTEN = ["reordered", "commuted weights", "commuted", "in place", "summed", "twice"]


@pytest.mark.parametrize("change", [*REWRITTEN, "reshaped", "distance", "regrouped"])
def test_another_way_to_the_same_results_is_equal(change: str, tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, program, change, "", level="L0")
    assert verdict["class"] in ("equal", "rounding"), verdict["sentence"]
    assert verdict["confidence"] == "proved"


@pytest.mark.parametrize("change", REWRITTEN)
def test_it_is_not_blamed_for_what_no_call_tells(change: str, tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, program, HIDDEN + change, "", level="L0")
    assert verdict["class"] == "unexplained", verdict["sentence"]


def test_recordings_that_do_not_tell_it_are_compared_as_before(tmp_path: Path) -> None:
    compared(tmp_path, program, "reversed", "", level="L0")
    for path in tmp_path.rglob("facts.json"):
        facts = json.loads(path.read_text("utf-8"))
        del facts["outline"]["fed"], facts["outline"]["given"]
        path.write_text(json.dumps(facts), "utf-8")
    summary = run_comparison(tmp_path / "target", tmp_path / "reference", CompareOptions()).summary
    assert summary["verdict"]["class"] == "unexplained", summary["verdict"]["sentence"]


def chained(debugger: PrecisionDebugger, change: str) -> None:
    """A sum of many terms."""
    model = nn.Linear(4, 4)
    x = torch.randn(3, 4)

    def step(_: int) -> None:
        y = model(x)
        terms = [y * number for number in range(1, 1500)]
        if change:
            terms.reverse()
        total = unseen(y, 200.0 if change else 1.0)
        for each in terms:
            total = total + each
        total.square().mean().backward()

    for number in recorded_steps(debugger, model):
        step(number)


def test_long_sums_are_followed(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, chained, "backwards", "", level="L0")
    assert verdict["class"] in ("unexplained", "gradient"), verdict["sentence"]


def smoothed(debugger: PrecisionDebugger, share: float) -> None:
    """Train by two terms, with two numbers, one of which is 1 without smoothing."""
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    inputs = torch.randn(3, 8, 6)
    for number in recorded_steps(debugger, model):
        logits = model(inputs[number])
        right, wrong = functional.logsigmoid(logits), functional.logsigmoid(-logits)
        loss = -right * (1 - share) - wrong * share  # <smoothed>
        optimizer.zero_grad()
        loss.mean().backward()
        optimizer.step()


@pytest.mark.parametrize("swapped", [False, True])
def test_a_number_that_is_one_on_one_side_is_an_argument(tmp_path: Path, swapped: bool) -> None:
    sides = (0.0, 0.1) if swapped else (0.1, 0.0)
    verdict = verdict_on(tmp_path, smoothed, *sides, "L0")
    assert verdict["class"] == "argument", verdict["sentence"]
    values = "1.0 in the target, 0.9" if swapped else "0.9 in the target, 1.0"
    words = with_lines("argument 1 of Tensor.__mul__ (<smoothed>) is ")
    assert f"{words}{values} in the reference" in verdict["sentence"]


def with_lines(words: str) -> str:
    """Words in which ``<name>`` is the line of this file that ends with ``# <name>``."""
    lines = Path(__file__).read_text("utf-8").splitlines()
    marks = {line.rpartition("# ")[2]: number for number, line in enumerate(lines, 1)}
    return re.sub("<.*?>", lambda mark: f"{Path(__file__).name}:{marks[mark[0]]}", words)
