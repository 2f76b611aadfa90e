# SPDX-License-Identifier: Apache-2.0
"""Small models of several families, each with its data and loss: the correct programs.

A *task* is a model, an optimizer and a function that makes the loss of one training step. Parts
that faults replace are methods of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


@dataclass
class Task:
    """One training run.

    Attributes:
        model: the model.
        loss: makes the loss of a step from the model and the data.
        data: the batch.
        optimizer: None where the run has none.
        before_step: called between backward and the optimizer.
        zero_grad: whether gradients are cleared after each step.
        backward: starts the backward pass.
    """

    model: nn.Module
    loss: Callable[[nn.Module, dict[str, Tensor]], Tensor]
    data: dict[str, Tensor]
    optimizer: torch.optim.Optimizer | None = None
    before_step: Callable[[nn.Module], object] | None = None
    zero_grad: bool = True
    backward: Callable[[Tensor], object] = field(default=lambda loss: loss.backward())


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(12, 24)
        self.norm = nn.LayerNorm(24)
        self.drop = nn.Dropout(0.2)
        self.fc2 = nn.Linear(24, 24)
        self.fc3 = nn.Linear(24, 5)

    def first(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.fc1(x)))

    def second(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.fc2(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc3(self.second(self.drop(self.first(x))))


def mlp_loss(model: nn.Module, data: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(model(data["x"]), data["y"], label_smoothing=0.1)


def mlp() -> Task:
    model = Mlp()
    data = {"x": torch.randn(16, 12), "y": torch.randint(0, 5, (16,))}
    return Task(model, mlp_loss, data, torch.optim.SGD(model.parameters(), lr=0.1))


class ConvBlock(nn.Module):
    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inner, outer, 3, padding=1)
        self.bn = nn.BatchNorm2d(outer)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(x)))


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.b1 = ConvBlock(3, 8)
        self.b2 = ConvBlock(8, 8)
        self.pool = nn.MaxPool2d(2)
        self.b3 = ConvBlock(8, 12)
        self.head = nn.Linear(12, 4)

    def squeeze(self, x: Tensor) -> Tensor:
        return x.mean(dim=(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.b1(x)
        x = x + self.b2(x)
        x = self.b3(self.pool(x))
        return self.head(self.squeeze(x))


def cnn_loss(model: nn.Module, data: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(model(data["x"]), data["y"])


def cnn() -> Task:
    model = Cnn()
    data = {"x": torch.randn(4, 3, 10, 10), "y": torch.randint(0, 4, (4,))}
    return Task(model, cnn_loss, data, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(width, width)
        self.k = nn.Linear(width, width)
        self.v = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def split(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        return x.view(b, t, self.heads, d // self.heads).transpose(1, 2)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return torch.matmul(q, k.transpose(-1, -2)) * q.shape[-1] ** -0.5

    def mask(self, scores: Tensor) -> Tensor:
        t = scores.shape[-1]
        above = torch.triu(torch.ones(t, t, dtype=torch.bool), diagonal=1)
        return scores.masked_fill(above, float("-inf"))

    def weights(self, scores: Tensor) -> Tensor:
        return F.softmax(scores, dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x)
        y = torch.matmul(self.weights(self.mask(self.scores(q, k))), v)
        b, h, t, d = y.shape
        return self.out(y.transpose(1, 2).reshape(b, t, h * d))


class FeedForward(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def act(self, x: Tensor) -> Tensor:
        return F.gelu(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.up(x)))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.ln2 = nn.LayerNorm(width)
        self.mlp = FeedForward(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class Transformer(nn.Module):
    def __init__(self, width: int = 16, heads: int = 2, words: int = 23, length: int = 8) -> None:
        super().__init__()
        self.tok = nn.Embedding(words, width)
        self.pos = nn.Embedding(length, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(3)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)

    def positions(self, ids: Tensor) -> Tensor:
        return torch.arange(ids.shape[1])

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tok(ids) + self.pos(self.positions(ids))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def language_loss(model: nn.Module, data: dict[str, Tensor]) -> Tensor:
    logits = model(data["ids"])
    return F.cross_entropy(logits.flatten(0, 1), data["next"].flatten())


def transformer() -> Task:
    model = Transformer()
    ids = torch.randint(0, 23, (3, 9))
    data = {"ids": ids[:, :-1].clone(), "next": ids[:, 1:].clone()}

    def clip(model: nn.Module) -> object:
        return torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)

    return Task(model, language_loss, data, before_step=clip)


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(19, 10)
        self.lstm = nn.LSTM(10, 12, batch_first=True)
        self.drop = nn.Dropout(0.1)
        self.cell = nn.GRUCell(12, 12)
        self.out = nn.Linear(12, 6)

    def run_cell(self, x: Tensor) -> Tensor:
        state = x.new_zeros(x.shape[0], 12)
        states = []
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
            states.append(state)
        return torch.stack(states, dim=1)

    def forward(self, ids: Tensor) -> Tensor:
        x, _ = self.lstm(self.emb(ids))
        return self.out(self.run_cell(self.drop(x)))


def tagger_loss(model: nn.Module, data: dict[str, Tensor]) -> Tensor:
    return F.nll_loss(F.log_softmax(model(data["ids"]).flatten(0, 1), dim=-1), data["tags"])


def tagger() -> Task:
    model = Tagger()
    data = {"ids": torch.randint(0, 19, (3, 5)), "tags": torch.randint(0, 6, (15,))}
    return Task(
        model, tagger_loss, data, torch.optim.Adam(model.parameters(), lr=1e-2, foreach=True)
    )


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(20, 16), nn.SiLU(), nn.Linear(16, 16), nn.SiLU())
        self.mu = nn.Linear(16, 4)
        self.logvar = nn.Linear(16, 4)
        self.dec = nn.Sequential(nn.Linear(4, 16), nn.SiLU(), nn.Linear(16, 20))

    def sample(self, mu: Tensor, logvar: Tensor) -> Tensor:
        return mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.enc(x)
        mu, logvar = self.mu(h), self.logvar(h)
        return self.dec(self.sample(mu, logvar)), mu, logvar


def elbo(model: nn.Module, data: dict[str, Tensor]) -> Tensor:
    y, mu, logvar = model(data["x"])
    kl = -0.5 * torch.mean(1 + logvar - mu**2 - logvar.exp())
    return F.mse_loss(y, data["x"]) + 0.1 * kl


def autoencoder() -> Task:
    model = Autoencoder()
    return Task(model, elbo, {"x": torch.randn(8, 20)}, torch.optim.SGD(model.parameters(), lr=0.1))


class GraphLayer(nn.Module):
    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.lin = nn.Linear(inner, outer, bias=False)
        self.att = nn.Parameter(torch.randn(2, outer) * 0.3)

    def score(self, h: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        return F.leaky_relu((h * self.att[0]).sum(-1)[src] + (h * self.att[1]).sum(-1)[dst], 0.2)

    def normalise(self, score: Tensor, dst: Tensor, nodes: int) -> Tensor:
        score = torch.exp(score - score.max())
        total = score.new_zeros(nodes).index_add(0, dst, score)
        return score / (total[dst] + 1e-9)

    def forward(self, x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        h = self.lin(x)
        alpha = self.normalise(self.score(h, src, dst), dst, x.shape[0])
        return torch.zeros_like(h).index_add(0, dst, alpha.unsqueeze(-1) * h[src])


class Graph(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.g1 = GraphLayer(6, 10)
        self.g2 = GraphLayer(10, 3)

    def forward(self, x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        return self.g2(F.elu(self.g1(x, src, dst)), src, dst)


def node_loss(model: nn.Module, data: dict[str, Tensor]) -> Tensor:
    logits = model(data["x"], data["src"], data["dst"])
    return F.cross_entropy(logits, data["y"], reduction="mean")


def graph() -> Task:
    model = Graph()
    data = {
        "x": torch.randn(9, 6),
        "src": torch.randint(0, 9, (30,)),
        "dst": torch.arange(30) % 9,
        "y": torch.randint(0, 3, (9,)),
    }
    return Task(model, node_loss, data, torch.optim.SGD(model.parameters(), lr=0.1))


class Doubling(torch.autograd.Function):
    """A function with a backward pass of its own: y = 2 x."""

    factor = 2.0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2.0

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2.0


class Ranker(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(11, 8)
        self.items = nn.EmbeddingBag(13, 8, mode="mean")
        self.norm = nn.GroupNorm(2, 8)
        self.dense = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
        self.double = Doubling

    def interact(self, u: Tensor, i: Tensor, d: Tensor) -> Tensor:
        z = torch.stack([u, i, d], dim=1)
        return torch.bmm(z, z.transpose(1, 2)).flatten(1)

    def forward(self, user: Tensor, bag: Tensor, dense: Tensor) -> Tensor:
        u = self.norm(self.users(user))
        i = self.items(bag)
        d = self.dense(dense)
        return self.double.apply(self.interact(u, i, d)).sum(-1)


def click_loss(model: nn.Module, data: dict[str, Tensor]) -> Tensor:
    score = model(data["user"], data["bag"], data["dense"])
    return F.binary_cross_entropy_with_logits(score, data["click"])


def ranker() -> Task:
    model = Ranker()
    data = {
        "user": torch.randint(0, 11, (6,)),
        "bag": torch.randint(0, 13, (6, 4)),
        "dense": torch.randn(6, 8),
        "click": torch.randint(0, 2, (6,)).float(),
    }
    return Task(model, click_loss, data, torch.optim.SGD(model.parameters(), lr=0.05))


class Patches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(3 * 16, 16)

    def cut(self, x: Tensor) -> Tensor:
        b = x.shape[0]
        x = x.reshape(b, 3, 3, 4, 3, 4).permute(0, 2, 4, 1, 3, 5)
        return x.reshape(b, 9, 48)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(self.cut(x))


class Vit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = Patches()
        self.token = nn.Parameter(torch.randn(1, 1, 16) * 0.02)
        self.places = nn.Parameter(torch.randn(1, 10, 16) * 0.02)
        self.blocks = nn.ModuleList(
            [
                nn.TransformerEncoderLayer(
                    16, 2, 32, dropout=0.0, batch_first=True, norm_first=True
                )
                for _ in range(2)
            ]
        )
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


def vit() -> Task:
    model = Vit()
    data = {"x": torch.randn(3, 3, 12, 12), "y": torch.randint(0, 4, (3,))}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    return Task(model, cnn_loss, data, optimizer)


FAMILIES: dict[str, Callable[[], Task]] = {
    "mlp": mlp,
    "cnn": cnn,
    "transformer": transformer,
    "tagger": tagger,
    "autoencoder": autoencoder,
    "graph": graph,
    "ranker": ranker,
    "vit": vit,
}
