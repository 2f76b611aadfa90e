# SPDX-License-Identifier: Apache-2.0
"""Small programs with one line changed, which mutation of larger ones found to be misnamed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from builders.two_runs import fit, recorded_steps, verdict_on  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step"),
]

LEVELS = pytest.mark.parametrize("level", ["L0", "L1", "mix"])


@pytest.fixture(autouse=True)
def python_generator() -> Iterator[None]:
    state = random.getstate()
    yield
    random.setstate(state)


class Part(nn.Module):
    """Multiplies by a parameter of its own that is 1 when training begins."""

    def __init__(self, change: str | None) -> None:
        super().__init__()
        self.inner, self.skip = nn.Linear(6, 6), nn.Parameter(torch.ones(6))
        self.kept, self.change = torch.zeros(()), change

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(x)
        self.kept = h.square().sum() if self.change == "kept term" else h.square().mean()
        return h.tanh() + (x + (self.skip - 1) if self.change == "by its skip" else x * self.skip)


class Model(nn.Module):
    """Runs two parts, of which one may be run again."""

    def __init__(self, change: str | None) -> None:
        super().__init__()
        self.parts = nn.ModuleList([Part(change), Part(change)])
        self.out, self.change = nn.Linear(6, 3), change

    def forward(self, x: Tensor) -> Tensor:
        for number, part in enumerate(self.parts):
            x = part(x)
            if number and self.change == "part again":
                x = part(x)
        return self.out(x)


def picture(x: Tensor, change: str | None) -> Tensor:
    """Return a sample with a gain that the program draws."""
    if change == "drawn again":
        random.random()
    gain = 1.0 + 0.2 * random.random()
    return x * gain + 0.01 * torch.randn_like(x)


def training(debugger: PrecisionDebugger, change: str | None) -> None:
    """Train with two optimizers, a schedule, and a limit for each of them."""
    random.seed(3)
    model = Model(change)
    weights = torch.tensor([0.2, 1.0, 1.6 if change == "class weights" else 1.5])
    skips = [part.skip for part in model.parts]
    others = [each for each in model.parameters() if all(each is not skip for skip in skips)]
    first, second = torch.optim.SGD(skips, 0.05), torch.optim.NAdam(others, 4e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(second, 0.25, total_iters=3)
    inputs, labels = torch.randn(3, 8, 6), torch.randint(0, 3, (3, 8))
    for number in recorded_steps(debugger, model):
        x = torch.stack([picture(each, change) for each in inputs[number]])
        target = functional.one_hot(labels[number], 3).float()
        largest = x.abs().amax()
        made = {"x": x, "target": target}

        def scale(made: dict[str, Tensor] = made, largest: Tensor = largest) -> None:
            made["x"] = made["x"] / largest

        def aim(made: dict[str, Tensor] = made) -> None:
            made["target"] = made["target"] + 0.1 * made["x"][:, :3].cos()

        for line in (aim, scale) if change == "lines moved" else (scale, aim):
            line()
        x, target = made["x"], made["target"]
        scores = model(x)
        loss = functional.cross_entropy(scores, labels[number], weight=weights)
        loss = loss + 0.1 * sum(part.kept for part in model.parts)
        loss = loss + (scores - target).square().mean()
        first.zero_grad()
        second.zero_grad()
        if change == "limited early":
            nn.utils.clip_grad_norm_(others, 0.3)
        loss.backward()
        if change != "limited early":
            nn.utils.clip_grad_norm_(others, 0.3)
        nn.utils.clip_grad_value_(skips, 0.01)
        calls: list[Callable[[], object]] = [first.step, second.step, schedule.step]
        for call in calls if change != "schedule early" else (calls[0], calls[2], calls[1]):
            call()


NAMED = [
    ("kept term", "call", ["L0", "L1", "mix"], "Tensor.sum"),
    ("by its skip", "call", ["L0", "L1", "mix"], "target calls Tensor.__"),
    ("part again", "call", ["L0", "mix"], "only the target calls Module.parts.1.Part.forward.1"),
    ("drawn again", "random", ["L0", "L1", "mix"], "python differs when step 1 starts, though not"),
    ("class weights", "argument", ["L0", "L1", "mix"], "weight of Functional.cross_entropy"),
    ("lines moved", "order", ["L0", "L1", "mix"], "fed with"),
    ("limited early", "clipping", ["L0", "L1", "mix"], "with 0.3 where there is nothing to limit"),
    ("schedule early", "schedule", ["L0", "mix"], "scheduler.step() before the step of optimizer"),
]


@pytest.mark.parametrize(
    ("change", "expected", "level", "words"),
    [(change, cause, level, words) for change, cause, levels, words in NAMED for level in levels],
)
def test_the_line_is_named(
    tmp_path: Path, change: str, expected: str, level: str, words: str
) -> None:
    verdict = verdict_on(tmp_path, training, change, level=level)
    assert verdict["class"] == expected, verdict["sentence"]
    assert words in verdict["sentence"]


def test_a_result_that_is_returned_too_early_is_named(tmp_path: Path) -> None:
    class Steps(nn.Module):
        def __init__(self, is_early: bool) -> None:
            super().__init__()
            self.inner, self.is_early = nn.Linear(6, 6), is_early

        def forward(self, x: Tensor) -> list[Tensor]:
            found = []
            for _ in range(2):
                if self.is_early:
                    found.append(x)
                x = self.inner(x).tanh()
                if not self.is_early:
                    found.append(x)
            return found

    def run(debugger: PrecisionDebugger, is_early: bool) -> None:
        model = Steps(is_early)
        inputs = torch.randn(3, 8, 6)

        def loss(number: int) -> Tensor:
            return sum(each.square().mean() for each in model(inputs[number].sin()))

        fit(debugger, model, torch.optim.SGD(model.parameters(), 0.1), loss)

    verdict = verdict_on(tmp_path, run, True, False, "mix")
    assert verdict["class"] == "order", verdict["sentence"]
    assert "it is the result of Tensor." in verdict["sentence"]


@LEVELS
@pytest.mark.parametrize("is_taken", [True, False])
def test_results_that_are_returned_the_other_way_round(
    tmp_path: Path, level: str, is_taken: bool
) -> None:
    """They differ only if the program does not take them the other way round, too."""

    class Pair(nn.Module):
        def __init__(self, is_turned: bool) -> None:
            super().__init__()
            self.base, self.one, self.other = nn.Linear(6, 6), nn.Linear(6, 3), nn.Linear(6, 3)
            self.turned = {"": is_turned}

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            h = self.base(x).tanh()
            own, other = self.one(h), self.other(h)
            return (other, own) if self.turned[""] else (own, other)

    def run(debugger: PrecisionDebugger, is_turned: bool) -> None:
        model = Pair(is_turned)
        inputs = torch.randn(3, 8, 6)

        def loss(number: int) -> Tensor:
            own, other = model(inputs[number])
            if is_turned and is_taken:
                own, other = other, own
            return (own.tanh() - other).square().mean()

        fit(debugger, model, torch.optim.SGD(model.parameters(), 0.1), loss)

    verdict = verdict_on(tmp_path, run, True, False, level)
    if is_taken:
        assert verdict["class"] in ("equal", "rounding"), verdict["sentence"]
    else:
        assert verdict["class"] == "order", verdict["sentence"]


@LEVELS
def test_the_same_draws_are_no_evidence(tmp_path: Path, level: str) -> None:
    def run(debugger: PrecisionDebugger, change: float) -> None:
        model = nn.Linear(6, 3)
        inputs = torch.randn(3, 8, 6)
        inputs[:, 2] *= change

        def loss(number: int) -> Tensor:
            return model(inputs[number] + 0.1 * torch.randn(8, 6)).square().mean()

        fit(debugger, model, torch.optim.SGD(model.parameters(), 0.1), loss)

    verdict = verdict_on(tmp_path, run, 2.0, 1.0, level)
    assert verdict["class"] == "data", verdict["sentence"]
    assert "random" not in verdict["sentence"]


def noisy(debugger: PrecisionDebugger, change: str | None) -> None:
    """Collate a batch of as many calls as its samples are long; add noise from an own generator."""
    own = torch.Generator().manual_seed(5)
    samples = [torch.randn(1 + (3 * i) % 5, 6) for i in range(24)]
    random.seed(7)

    class Fed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) + (x if random.random() < 0.5 else x.tanh())

    fed = Fed()

    def loss(number: int) -> Tensor:
        if change == "one more from its own" and number == 1:
            torch.randn(2, generator=own)
        few = samples[8 * number : 8 * number + 8]
        rows = [torch.stack([row * 0.5 for row in each]).sum(0) for each in few]
        x = torch.stack(rows)
        keep = (x.abs() < 2.0).float()
        noise = 0.1 * torch.randn(8, 6, generator=own)
        if change == "noise behind its mask":
            x = x * keep
            x = x + noise
        else:
            x = x + noise
            x = x * keep
        shares = fed(x).softmax(-1)
        if change == "one more behind" and number == 0:
            torch.randn(2, generator=own)
        if change == "one more from python's" and number == 0:
            random.random()
        if change != "no mask":
            shares = shares.masked_fill(~keep.bool(), 0.0)
        return shares.square().mean()

    fit(debugger, fed, torch.optim.SGD(fed.parameters(), 0.1), loss)


@pytest.mark.parametrize(
    ("change", "expected", "level", "words"),
    [
        ("noise behind its mask", "order", "L0", "is called where the reference calls"),
        ("one more behind", "random", "L0", "from a generator of its own"),
        ("one more from its own", "random", "L0", "only the target calls Torch.randn"),
        ("one more from its own", "random", "mix", "Torch.randn"),
        ("one more from python's", "random", "L0", "the generator python differs when step 1"),
        ("no mask", "call", "L0", "only the reference calls Tensor.masked_fill"),
        ("no mask", "call", "mix", "only the reference calls Tensor.masked_fill"),
    ],
)
def test_what_comes_before_and_behind_a_model_is_named(
    tmp_path: Path, change: str, expected: str, level: str, words: str
) -> None:
    verdict = verdict_on(tmp_path, noisy, change, level=level)
    assert verdict["class"] == expected, verdict["sentence"]
    assert words in verdict["sentence"]


def two_calls(debugger: PrecisionDebugger, option: tuple[bool, float]) -> None:
    """A model draws in two calls; adapters that begin with zeros hide it from the first loss."""
    is_turned, chance = option
    base, drop = nn.Linear(6, 6), nn.Dropout(chance)
    down, up = nn.Linear(6, 2, bias=False), nn.Linear(2, 6, bias=False)
    nn.init.zeros_(up.weight)

    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base, self.drop, self.down, self.up = base, drop, down, up

        def forward(self, x: Tensor) -> Tensor:
            return self.base(x) + self.up(self.down(self.drop(x)))

    model = Adapted()
    good, bad = torch.randn(2, 3, 8, 6)

    def loss(number: int) -> Tensor:
        if is_turned:
            lost = model(bad[number]).square().mean(1)
            won = model(good[number]).square().mean(1)
        else:
            won = model(good[number]).square().mean(1)
            lost = model(bad[number]).square().mean(1)
        return -functional.logsigmoid(won - lost - 0.5).mean()

    fit(debugger, model, torch.optim.RMSprop(model.parameters(), 1e-2), loss)


@LEVELS
def test_calls_in_another_order_that_draw_are_no_rounding(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, two_calls, (True, 0.3), (False, 0.3), level)
    assert verdict["class"] == "order", verdict["sentence"]
    assert "get the same inputs in another order" in verdict["sentence"]


@LEVELS
def test_calls_in_another_order_that_draw_nothing_are_the_same(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, two_calls, (True, 0.0), (False, 0.0), level)
    assert verdict["class"] in ("equal", "rounding"), verdict["sentence"]


@pytest.mark.parametrize("level", ["L1", "mix"])
@pytest.mark.parametrize("kind", ["cast", "finer"])
def test_a_cast_of_one_side_alone(tmp_path: Path, level: str, kind: str) -> None:
    """To the type of autocast it rounds; from a finer type than any other it does not."""

    def run(debugger: PrecisionDebugger, change: str | None) -> None:
        model = nn.Linear(6, 3)
        inputs = torch.randn(3, 8, 6)

        def loss(number: int) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                scores = model(inputs[number])
            shares = scores.float().softmax(-1)
            if change == "cast":
                shares = shares.bfloat16().float()
            if change == "finer":
                return (shares.double() ** 2).sum(-1).float().mean()
            return (shares**2).sum(-1).mean()

        fit(debugger, model, torch.optim.SGD(model.parameters(), 0.1), loss)

    verdict = verdict_on(tmp_path, run, kind, None, level)
    assert verdict["class"] == "precision", verdict["sentence"]
    assert ("a cast to bfloat16" in verdict["sentence"]) is (kind == "cast")


@LEVELS
def test_batches_that_are_divided_otherwise_and_differ_later(tmp_path: Path, level: str) -> None:
    def run(debugger: PrecisionDebugger, change: str | None) -> None:
        model = nn.Linear(6, 3)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        inputs = torch.randn(3, 8, 6)
        if change:
            inputs[1] *= 2
        for number in recorded_steps(debugger, model):
            optimizer.zero_grad()
            parts = inputs[number].chunk(2 if change else 1)
            for part in parts:
                (model(part).square().mean() / len(parts)).backward()
            optimizer.step()

    verdict = verdict_on(tmp_path, run, "halves", None, level)
    assert verdict["class"] in ("data", "unexplained"), verdict["sentence"]
