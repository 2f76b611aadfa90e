# SPDX-License-Identifier: Apache-2.0
"""Small training programs as text, to be changed and recorded.

Each names the `models` to watch, and a function `step` that trains one step by its number.
"""

from __future__ import annotations

import ast
import copy
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import msprobe
from builders.two_runs import recorded_steps
from msprobe.capture.session import reset_session
from msprobe.pytorch import PrecisionDebugger

NEAR = 1e-4

QUEUE = """
import torch
from torch import nn
from torch.nn import functional as F

query, key = nn.Linear(8, 6), nn.Linear(8, 6)
optimizer = torch.optim.SGD(query.parameters(), 0.1, momentum=0.9)
inputs, queue = torch.randn(4, 8, 8), F.normalize(torch.randn(6, 16), dim=0)

def step(number):
    x = inputs[number]
    found = F.normalize(query(x), dim=-1)
    with torch.no_grad():
        wanted = F.normalize(key(x + 0.1), dim=-1)
    near = (found * wanted).sum(-1, keepdim=True)
    scores = torch.cat([near, found @ queue.clone()], 1) / 0.2
    loss = F.cross_entropy(scores, torch.zeros(8, dtype=torch.long))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    queue[:, 8 * (number % 2) : 8 * (number % 2) + 8] = wanted.T
    with torch.no_grad():
        for leading, parameter in zip(query.parameters(), key.parameters()):
            parameter.mul_(0.9).add_(leading, alpha=0.1)

models = [query, key]
"""

PLAYERS = """
import torch
from torch import nn
from torch.nn import functional as F

made, judge = nn.Linear(3, 8), nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 1))
optimizers = [torch.optim.Adam(m.parameters(), 1e-2, betas=(0.5, 0.99)) for m in (judge, made)]
inputs = torch.randn(4, 8, 8)

def step(number):
    drawn = made(torch.randn(8, 3))
    optimizers[0].zero_grad()
    wrong = F.softplus(judge(drawn.detach())).mean()
    right = F.softplus(-judge(inputs[number])).mean()
    (wrong + 0.9 * right).backward()
    nn.utils.clip_grad_norm_(judge.parameters(), 0.1)
    optimizers[0].step()
    optimizers[1].zero_grad()
    F.softplus(-judge(drawn)).mean().backward()
    optimizers[1].step()

models = [made, judge]
"""

AHEAD = """
import torch
from torch import nn
from torch.nn import functional as F

model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), 1e-2, weight_decay=0.05)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / 3))
inputs, labels = torch.randn(40, 8), torch.arange(40) % 4
labels[17] = 0
ahead, base = [(inputs[:8], labels[:8])], [0.5]

def step(number):
    first = 8 * number + 8
    rows = range(first, first + 8)
    ahead.append((inputs[first : first + 8], torch.tensor([int(labels[i]) for i in rows])))
    x, y = ahead.pop(0)
    scores = model(x + 0.05 * torch.randn(8, 8))
    loss = F.cross_entropy(scores, y, label_smoothing=0.1) + 1e-2 * scores.square().mean() - base[0]
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(model.parameters(), 0.2)
    optimizer.step()
    schedule.step()
    base[0] = 0.9 * base[0] + 0.1 * loss.item()

models = [model]
"""

DECODER = """
import math
import torch
from torch import nn
from torch.nn import functional as F

class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight

def turned(x):
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)

class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.first, self.second = Norm(width), Norm(width)
        self.up, self.gate, self.down = (nn.Linear(width, width) for _ in range(3))

    def attended(self, x, cos, sin):
        n, length, width = x.shape
        made = (f(x).view(n, length, self.heads, -1) for f in (self.q, self.k, self.v))
        q, k, v = (each.transpose(1, 2) for each in made)
        q = q * cos + turned(q) * sin
        k = k * cos + turned(k) * sin
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), float("-inf"))
        weights = F.dropout(scores.softmax(-1), 0.1, self.training)
        return self.o((weights @ v).transpose(1, 2).reshape(n, length, width))

    def forward(self, x, cos, sin):
        x = x + self.attended(self.first(x), cos, sin)
        y = self.second(x)
        return x + 0.5 * self.down(F.silu(self.gate(y)) * self.up(y))

class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm = nn.Embedding(32, 16), Norm(16)
        self.blocks = nn.ModuleList([Block(16, 4) for _ in range(2)])

    def forward(self, tokens):
        x = self.embed(tokens) * 4.0
        turns = torch.arange(tokens.shape[1])[:, None] / 100.0 ** (torch.arange(2) / 2.0)
        cos, sin = torch.cat([turns, turns], -1).cos(), torch.cat([turns, turns], -1).sin()
        for block in self.blocks:
            x = block(x, cos, sin)
        return F.linear(self.norm(x), self.embed.weight) / 2.0

model = Decoder()
optimizer = torch.optim.AdamW(model.parameters(), 1e-2, betas=(0.9, 0.95), weight_decay=0.1)
tokens = torch.randint(0, 32, (12, 9))

def step(number):
    optimizer.zero_grad()
    for part in range(2):
        batch = tokens[4 * number + 2 * part : 4 * number + 2 * part + 2]
        scores = model(batch[:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten(), label_smoothing=0.1)
        loss = loss + 1e-3 * scores.logsumexp(-1).square().mean()
        (loss / 2.0).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()

models = [model]
"""

ACTOR = """
import torch
from torch import nn
from torch.nn import functional as F

actor = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3))
critic = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1))
chooser = torch.optim.Adam(actor.parameters(), lr=3e-3, eps=1e-5)
valuer = torch.optim.RMSprop(critic.parameters(), lr=1e-3, alpha=0.95)
states, rewards = torch.randn(3, 9, 5), torch.randn(3, 8)
kinds = torch.randint(0, 3, (3, 8))

def step(number):
    seen, reward, action = states[number], rewards[number] * 0.1, kinds[number]
    with torch.no_grad():
        values = critic(seen).squeeze(-1)
        old = F.log_softmax(actor(seen[:-1]), -1).gather(1, action[:, None]).squeeze(1)
        gains, running = torch.zeros(8), torch.zeros(())
        for t in reversed(range(8)):
            delta = reward[t] + 0.99 * values[t + 1] - values[t]
            running = delta + 0.9 * running
            gains[t] = running
        returns = gains + values[:-1]
        gains = (gains - gains.mean()) / (gains.std() + 1e-6)
    for _ in range(2):
        logs = F.log_softmax(actor(seen[:-1]), -1)
        ratio = (logs.gather(1, action[:, None]).squeeze(1) - old).exp()
        policy = -torch.min(ratio * gains, ratio.clamp(0.8, 1.2) * gains).mean()
        entropy = -(logs.exp() * logs).sum(-1).mean()
        chooser.zero_grad()
        (policy - 0.01 * entropy).backward()
        nn.utils.clip_grad_norm_(actor.parameters(), 0.5)
        chooser.step()
        valuer.zero_grad()
        F.smooth_l1_loss(critic(seen[:-1]).squeeze(-1), returns, beta=0.5).backward()
        valuer.step()

models = [actor, critic]
"""

PROGRAMS = {"queue": QUEUE, "players": PLAYERS, "ahead": AHEAD, "decoder": DECODER, "actor": ACTOR}


class OneChange:
    """Changes one place of a program, by its number; a transformer says what may be changed.

    Attributes:
        what: the change in words; empty if the program has no such place.
    """

    def __init__(self, place: int) -> None:
        self._left = place
        self.what = ""

    def is_here(self) -> bool:
        """Return whether this is the place; asked once for each."""
        self._left -= 1
        return self._left == -1


def changed(source: str, change: Callable[[int], Any]) -> Iterator[tuple[str, ast.Module]]:
    """Yield each change of a kind to a program in words, and the program."""
    for place in range(200):
        one = change(place)
        tree = one.visit(ast.parse(source))
        if not one.what:
            return
        yield one.what, ast.fix_missing_locations(tree)


def record(folder: Path, tree: ast.Module, level: str) -> bool:
    """Record three steps of a program; return whether it ran."""
    reset_session()
    torch.manual_seed(0)
    names: dict[str, Any] = {}
    try:
        exec(compile(copy.deepcopy(tree), "program.py", "exec"), names)
        debugger = PrecisionDebugger(dump_path=str(folder), task="statistics", level=level)
        for number in recorded_steps(debugger, names["models"]):
            names["step"](number)
    except (ArithmeticError, AttributeError, IndexError, RuntimeError, TypeError, ValueError):
        return False
    finally:
        reset_session()
    return True


def numbers(folder: Path) -> list[float]:
    """Return the losses and the norms of updated parameters, by their steps."""
    found: list[float] = []
    for number in range(3):
        facts = msprobe.open_dump(folder).step(number).rank().facts
        assert facts is not None
        found += [math.nan if loss.value is None else loss.value for loss in facts.loss]
        for step in facts.optimizer_steps():
            found += [norm or 0.0 for norm in step.parameters.after.norm]
    return found


def part(target: Sequence[float], reference: Sequence[float]) -> bool:
    """Return whether two runs part by more than rounding."""
    if len(target) != len(reference):
        return True
    return not all(
        math.isclose(own, other, rel_tol=NEAR, abs_tol=1e-9)
        for own, other in zip(target, reference, strict=True)
    )
