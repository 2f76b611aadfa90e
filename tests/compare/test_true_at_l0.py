# SPDX-License-Identifier: Apache-2.0
"""At level L0 the first line is true: it names what differs, or says that it does not know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from builders.two_runs import fit, recorded_steps, verdict_on  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402

pytestmark = pytest.mark.torch

PROVED = ("equal", "rounding", "precision")
WIDTH = 32


class Change:
    """Chooses values by the change of a program, out of sight of what is recorded of modules."""

    name: str | None = None

    @classmethod
    def choose(cls, name: str, value: Any, default: Any) -> Any:
        """Return the first of two values where the program has the named change."""
        return value if cls.name == name else default


choose = Change.choose


class Block(nn.Module):
    """Attention with rotated queries and keys, its scale a number in the program."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH, eps=choose("eps", 1e-2, 1e-5))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.gelu = nn.GELU(choose("tanh", "tanh", "none"))

    def turned(self, x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        base = choose("base", 500000.0, 10000.0)
        angles = torch.arange(x.shape[-2])[:, None] * base ** (-torch.arange(half) / half)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        first, second = x.chunk(2, -1)
        if choose("reversed", True, False):
            first, second = second, first
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    def forward(self, x: Tensor) -> Tensor:
        count, length, _ = x.shape
        given = self.qkv(self.norm(x)).view(count, length, 3, 4, -1).permute(2, 0, 3, 1, 4)
        q, k, v = given[[1, 0, 2]] if choose("swapped", True, False) else given[[0, 1, 2]]
        q, k = self.turned(q), self.turned(k).transpose(-1, -2)
        scale = choose("scale", 0.36, 0.35355339)
        scale = choose("reversed", 0.1, scale)
        score = (q * scale) @ k if choose("scaled first", True, False) else q @ k * scale
        made = (score.softmax(-1) @ v).transpose(1, 2).reshape(count, length, WIDTH)
        made = self.gelu(self.out(made))
        return x + (1.02 * made if choose("gain", True, False) else made)


class Words(nn.Module):
    """Two blocks between an embedding and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(40, WIDTH), nn.Linear(WIDTH, 40, bias=False)
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.head(x)
        return 1.03 * scores if choose("scores", True, False) else scores


def in_bfloat16(debugger: PrecisionDebugger, change: str | None) -> None:
    Change.name = change
    model = Words().bfloat16()
    fused = choose("fused", True, None)
    ids = torch.randint(0, 40, (3, 16, 11))

    def loss(number: int) -> Tensor:
        scores = model(ids[number, :, :-1])
        scores = scores if change == "coarse loss" else scores.float()
        return F.cross_entropy(scores.flatten(0, 1), ids[number, :, 1:].flatten())

    fit(debugger, model, torch.optim.AdamW(model.parameters(), 2e-3, fused=fused), loss)


@pytest.mark.parametrize(
    ("change", "expected", "words"),
    [
        ("scale", "argument", "argument 1 of Tensor.__mul__"),
        ("base", "argument", "is 500000.0 in the target, 10000.0 in the reference"),
        ("eps", "argument", "eps is 0.01 in the target, 1e-05 in the reference"),
        ("tanh", "argument", "approximate is 'tanh' in the target, 'none' in the reference"),
        ("gain", "call", "only the target calls Tensor.__mul__"),
        ("scores", "call", "Module.Words.forward.0.output.0"),
        ("coarse loss", "precision", "only the reference calls Tensor.float"),
    ],
)
def test_what_is_as_small_as_rounding_is_named(
    tmp_path: Path, change: str, expected: str, words: str
) -> None:
    verdict = verdict_on(tmp_path, in_bfloat16, change, level="L0")

    assert verdict["class"] == expected, verdict["sentence"]
    assert words in verdict["sentence"]
    assert expected == "precision" or verdict["confidence"] == "possible"


@pytest.mark.parametrize("change", ["reversed", "swapped"])
def test_what_no_call_shows_is_no_rounding(tmp_path: Path, change: str) -> None:
    verdict = verdict_on(tmp_path, in_bfloat16, change, level="L0")

    assert verdict["class"] not in PROVED, verdict["sentence"]


@pytest.mark.parametrize("change", ["scaled first", "fused"])
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_another_way_to_the_same_is_rounding(tmp_path: Path, change: str, level: str) -> None:
    verdict = verdict_on(tmp_path, in_bfloat16, change, level=level)

    assert verdict["class"] in PROVED, verdict["sentence"]
    assert verdict["confidence"] == "proved"


@pytest.mark.parametrize("change", ["scale", "eps", "tanh"])
@pytest.mark.parametrize("level", ["L1", "mix"])
def test_a_recorded_argument_before_any_difference_is_the_cause(
    tmp_path: Path, change: str, level: str
) -> None:
    verdict = verdict_on(tmp_path, in_bfloat16, change, level=level)

    assert verdict["class"] == "argument", verdict["sentence"]


def test_the_recorded_call_that_moves_values_is_the_cause(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, in_bfloat16, "scores", level="L1")

    assert verdict["class"] == "call", verdict["sentence"]
    assert "only the target calls Tensor.__mul__" in verdict["sentence"]


def rewarded(debugger: PrecisionDebugger, change: str | None) -> None:
    """Train on rewards, relative to their group; the terms of the loss cancel to zero."""
    Change.name = change
    model = nn.Sequential(nn.Embedding(25, 24), nn.GELU(), nn.Linear(24, 25))
    ids, rewards = torch.randint(0, 25, (3, 8, 10)), torch.randn(3, 8)

    def loss(number: int) -> Tensor:
        reward = rewards[number].view(choose("groups", 4, 2), -1)
        middle = reward.median(1, keepdim=True).values if change == "median" else None
        middle = reward.mean(1, keepdim=True) if middle is None else middle
        gains = reward - middle
        if change == "biased":
            gains = gains / (reward.std(1, correction=0, keepdim=True) + 1e-4)
        elif change != "spread":
            gains = gains / (reward.std(1, keepdim=True) + 1e-4)
        gains = gains.flatten()[:, None]
        logs = model(ids[number, :, :-1]).log_softmax(-1)
        new = logs.gather(-1, ids[number, :, 1:, None]).squeeze(-1)
        ratio = choose("more", 1.01, 1.0) * (new - new.detach()).exp()
        by_rows = change == "by rows"
        loss = -(ratio.mean(1) * gains[:, 0] if by_rows else ratio * gains).mean()
        if change in ("penalised", "penalty"):  # the rest is nearly nothing beside it
            loss = (0.6 if change == "penalty" else 0.5) * new.square().mean() + 1e-4 * logs.mean()
        return loss

    fit(debugger, model, torch.optim.AdamW(model.parameters(), 1e-3), loss)


def test_a_loss_of_terms_that_cancel_is_as_exact_as_they_are(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, rewarded, "by rows", level="L0")

    assert (verdict["class"], verdict["confidence"]) == ("equal", "proved"), verdict["sentence"]


@pytest.mark.parametrize(
    ("change", "expected", "words"),
    [
        ("penalty", "argument", "argument 1 of Tensor.__mul__"),
        ("spread", "call", "only the reference calls Tensor.std"),
        ("biased", "argument", "correction of Tensor.std"),
        ("median", "call", "Tensor.median"),
        ("groups", "unexplained", "argument 1 of Tensor.view"),
        ("more", "argument", "the gradients are 1.01 times the reference's"),
    ],
)
def test_the_call_that_makes_a_target_of_the_loss_is_named_and_no_data(
    tmp_path: Path, change: str, expected: str, words: str
) -> None:
    base = "penalised" if change == "penalty" else None
    verdict = verdict_on(tmp_path, rewarded, change, base, level="L0")

    assert verdict["class"] == expected, verdict["sentence"]
    assert words in verdict["sentence"]


class Graph(nn.Module):
    """Messages along edges, of what both ends hold."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(8, 2), nn.Linear(8, 4)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        sent, got = self.enter(x).unbind(-1)
        ends = choose("ends", (1, 0), (0, 1))
        weight = (sent[edges[ends[0]]] + got[edges[ends[1]]]).tanh()
        limit = choose("limit", 8, 7)
        weight = (weight * limit).round().clamp(-limit, limit) / limit
        return self.leave(torch.zeros_like(x).index_add(0, edges[1], x[edges[0]] * weight[:, None]))


def on_graphs(debugger: PrecisionDebugger, change: str | None) -> None:
    Change.name = change
    model = Graph()
    nodes, edges = torch.randn(20, 8), torch.randint(0, 20, (2, 60))

    def loss(_: int) -> Tensor:
        return F.cross_entropy(model(nodes, edges), torch.arange(20) % 4)

    fit(debugger, model, torch.optim.SGD(model.parameters(), 0.1), loss)


@pytest.mark.parametrize(("change", "name"), [("ends", "__getitem__"), ("limit", "__mul__")])
def test_what_a_call_takes_of_another_is_no_order_and_no_factor(
    tmp_path: Path, change: str, name: str
) -> None:
    verdict = verdict_on(tmp_path, on_graphs, change, level="L0")

    assert verdict["class"] == "argument", verdict["sentence"]
    assert f"argument 1 of Tensor.{name}" in verdict["sentence"]


class Weighing(nn.Module):
    """Takes the weights of attention as well, which nothing uses, or does not ask for them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(48), nn.MultiheadAttention(48, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        made: Tensor = self.attention(h, h, h, need_weights=choose("weights", True, False))[0]
        return x + made


def weighing(debugger: PrecisionDebugger, change: str | None) -> None:
    Change.name = change
    model = nn.Sequential(Weighing(), Weighing())
    x = 7 * torch.randn(3, 16, 9, 48)

    def loss(number: int) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            made = model(x[number])
        return made.float().square().mean()

    fit(debugger, model, torch.optim.Adam(model.parameters(), 1e-3), loss)


def test_a_tensor_that_nothing_takes_shows_no_argument(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, weighing, "weights", level="L0")

    assert verdict["class"] in PROVED, verdict["sentence"]


class Padded(nn.Module):
    """Attention of a framework's module, which its own code gives what it takes."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x: Tensor, pad: Tensor) -> Tensor:
        h = self.norm(x)
        value, mask = choose("value", x, h), choose("no mask", None, pad)
        made: Tensor = x + self.attention(h, h, value, key_padding_mask=mask)[0]
        return made


def padded(debugger: PrecisionDebugger, change: str | None) -> None:
    Change.name = change
    model = Padded()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x, pad = torch.randn(3, 4, 6, 16), torch.arange(6).expand(4, 6) > 3

    fit(debugger, model, optimizer, lambda number: model(x[number], pad).square().mean())


@pytest.mark.parametrize(
    ("change", "expected", "words"),
    [
        ("no mask", "argument", "key_padding_mask of Module.attention.MultiheadAttention"),
        ("value", "unexplained", "Module.attention.MultiheadAttention.forward.0.input.2"),
    ],
)
def test_what_a_part_is_given_blames_no_call_inside_of_it(
    tmp_path: Path, change: str, expected: str, words: str
) -> None:
    verdict = verdict_on(tmp_path, padded, change, level="L0")

    assert verdict["class"] == expected, verdict["sentence"]
    assert words in verdict["sentence"]


class Drawing(nn.Module):
    """Adds noise of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.leave(self.enter(x) + torch.randn_like(x))
        return made


def around(debugger: PrecisionDebugger, change: str | None) -> None:
    """Train a model beside an average of it, which the loss may use."""
    torch.manual_seed(2)
    model, average = (nn.Sequential(nn.BatchNorm1d(6), Drawing()) for _ in range(2))
    kept = [p.detach().clone() for p in model.parameters()]
    held = [*average.parameters()] if change == "held" else []
    optimizer = torch.optim.Adam([*model.parameters(), *held], 1e-2)
    inputs = torch.randn(3, 8, 6)
    for number in recorded_steps(debugger, [model, average]):
        if change == "seed":
            torch.manual_seed(number)
        if change == "again":
            state = torch.get_rng_state()
            model(inputs[number])
            torch.set_rng_state(state)
        loss = model(inputs[number]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for own, leading in zip(average.parameters(), model.parameters(), strict=True):
                own.lerp_(leading, 0.1)
            for own, leading in zip(kept, model.parameters(), strict=True):
                own.mul_(0.9 if change == "decay" else 0.8).add_(leading)


def test_another_seed_within_a_step_is_told_of_the_draws(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, around, "seed", level="L0")

    assert verdict["class"] == "random", verdict["sentence"]
    assert "Torch.randn_like" in verdict["sentence"]
    assert "though both sides draw alike in the step before" in verdict["sentence"]


def test_a_model_that_is_called_once_more_explains_its_buffers(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, around, "again", level="L0")

    assert verdict["class"] == "call", verdict["sentence"]
    assert "calls the model twice in the target, once in the reference" in verdict["sentence"]


def test_a_parameter_that_gets_no_gradient_is_not_updated(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, around, "held", level="L0")

    assert (verdict["class"], verdict["confidence"]) == ("equal", "proved"), verdict["sentence"]


def test_a_number_that_no_recorded_value_shows_is_told(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, around, "decay", level="L0")

    assert (verdict["class"], verdict["confidence"]) == ("argument", "possible"), verdict[
        "sentence"
    ]
    assert "is 0.9 in the target, 0.8 in the reference" in verdict["sentence"]


def averaged(debugger: PrecisionDebugger, by_hand: bool) -> None:
    """Train in autocast, where rounding turns the signs of tiny gradients, and average it."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(48), nn.Linear(48, 96), nn.Linear(96, 48)

        def forward(self, x: Tensor) -> Tensor:
            h = self.norm(x)
            if by_hand:
                h = h.bfloat16() @ self.up.weight.bfloat16().T + self.up.bias.bfloat16()
            else:
                h = self.up(h)
            made: Tensor = x + self.down(F.silu(h))
            return made

    model, average = (nn.Sequential(*(Layer() for _ in range(3))) for _ in range(2))
    average.load_state_dict(model.state_dict())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    x, y = torch.randn(3, 32, 48), torch.randn(3, 32, 48)
    for number in recorded_steps(debugger, [model, average]):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            made = model(x[number])
        F.mse_loss(made.float(), y[number]).backward()
        optimizer.step()
        with torch.no_grad():
            for own, leading in zip(average.parameters(), model.parameters(), strict=True):
                own.lerp_(leading, 0.1)


def test_an_average_is_as_far_apart_as_what_it_is_of(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, averaged, True, False, level="L0")

    assert verdict["class"] in PROVED, verdict["sentence"]
    assert verdict["confidence"] == "proved"


def taught(debugger: PrecisionDebugger, change: str | None) -> None:
    """Follow a teacher, which one side asks in another mode."""

    def layer() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 8))

    model, teacher = (nn.Sequential(layer(), layer()) for _ in range(2))
    teacher.requires_grad_(False)
    inputs = torch.randn(3, 10, 8)

    def loss(number: int) -> Tensor:
        if change == "eval":
            teacher.eval()
        with torch.no_grad():
            wanted = teacher(inputs[number])
        return F.mse_loss(F.normalize(model(inputs[number])), F.normalize(wanted))

    fit(debugger, [model, teacher], torch.optim.SGD(model.parameters(), 0.1), loss)


def test_a_teacher_in_another_mode_is_told_of_its_mode(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, taught, "eval", level="L0")

    assert verdict["class"] == "mode", verdict["sentence"]


class _Jitter(nn.Module):
    """Its own code draws what its part is given."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(x * (1 + 0.1 * torch.rand(x.shape)))


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_what_a_module_draws_for_its_part_by_another_seed_is_random(
    tmp_path: Path, level: str
) -> None:
    def run(debugger: PrecisionDebugger, change: str | None) -> None:
        model, x = nn.Sequential(nn.Linear(6, 6), _Jitter(), nn.Linear(6, 1)), torch.randn(4, 6)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        torch.manual_seed(9 if change else 8)
        fit(debugger, model, optimizer, lambda _: model(x).square().mean())

    verdict = verdict_on(tmp_path, run, "seed", level=level)
    assert verdict["class"] == "random", verdict["sentence"]


class Gated(nn.Module):
    """Two projections without a bias, one of which opens a gate for the other."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(6, 8, bias=False), nn.Linear(6, 8, bias=False)
        self.down = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        if choose("joined", True, False):
            made = F.linear(x, torch.cat([self.up.weight, self.gate.weight]))
            gate, up = made.chunk(2, -1)
        else:
            gate, up = F.linear(x, self.gate.weight, None), F.linear(x, self.up.weight, None)
        return self.down(F.silu(gate) * up)


def gated(debugger: PrecisionDebugger, change: str | None) -> None:
    Change.name = change
    model, batches = Gated(), torch.randn(3, 5, 6)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    fit(debugger, model, optimizer, lambda number: model(batches[number]).square().mean())


def test_an_argument_that_is_left_out_is_none_that_differs(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, gated, "joined", level="L0")

    assert verdict["class"] == "call", verdict["sentence"]
    assert "bias" not in verdict["sentence"]


class Spectral(nn.Module):
    """Multiplies the frequencies of its input; both transforms may be scaled alike."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.weight = nn.Linear(6, 16), nn.Parameter(torch.rand(9))

    def forward(self, x: Tensor) -> Tensor:
        norm = choose("ortho", "ortho", None)
        found = torch.fft.rfft(self.lift(x), norm=norm) * self.weight
        return torch.fft.irfft(found, n=16, norm=choose("half", "ortho", norm))


def transformed(debugger: PrecisionDebugger, change: str | None) -> None:
    Change.name = change
    model, batches = Spectral(), torch.randn(3, 5, 6)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    fit(debugger, model, optimizer, lambda number: model(batches[number]).square().mean())


@pytest.mark.parametrize(("change", "kind"), [("ortho", "equal"), ("half", "argument")])
def test_a_word_that_another_call_takes_back_is_no_argument(
    tmp_path: Path, change: str, kind: str
) -> None:
    verdict = verdict_on(tmp_path, transformed, change, level="L0")

    assert verdict["class"] == kind, verdict["sentence"]
