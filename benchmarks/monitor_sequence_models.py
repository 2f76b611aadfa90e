# SPDX-License-Identifier: Apache-2.0
"""Small models of sequences and of decisions, each with data of its own; see `monitor_models`."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

Pair = tuple[Tensor, Tensor]


class Experts(nn.Module):
    """A mixture of experts with top-1 routing."""

    def __init__(self, width: int, count: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(width, count)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(count))
        self.dead: int | None = None

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        scores = self.router(flat)
        if self.dead is not None:
            mask = torch.zeros(scores.shape[-1])
            mask[self.dead] = -1e9
            scores = scores + mask
        chance = scores.softmax(-1)
        best, index = chance.max(-1)
        result = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            rows = (index == number).nonzero()[:, 0]
            if len(rows):
                result = result.index_add(0, rows, expert(flat[rows]) * best[rows, None])
        return x + result.reshape(x.shape)


class Block(nn.Module):
    """A transformer layer, pre-norm."""

    def __init__(self, width: int, *, moe: bool) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 2 * width)
        self.fc2 = nn.Linear(2 * width, width)
        self.moe = Experts(width) if moe else None

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        x = x + self.proj(functional.scaled_dot_product_attention(q, k, v, is_causal=True))
        x = x + self.fc2(functional.gelu(self.fc1(self.norm2(x))))
        return x if self.moe is None else self.moe(x)


class Stack(nn.Module):
    """The forward pass of models that are an embedding, layers, a norm and a head."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)).transpose(1, 2)


class Language(Stack):
    """A small language model of a random Markov chain."""

    def __init__(self, *, layers: int = 2, width: int = 24, moe: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(24, width)
        self.layers = nn.ModuleList(Block(width, moe=moe) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 24)
        chain = torch.Generator().manual_seed(3)
        self.chain = torch.rand(24, 24, generator=chain).pow(6)

    def batch(self, size: int, generator: torch.Generator) -> Pair:
        tokens = [torch.randint(24, (size,), generator=generator)]
        for _ in range(12):
            tokens.append(torch.multinomial(self.chain[tokens[-1]], 1, generator=generator)[:, 0])
        text = torch.stack(tokens, 1)
        return text[:, :-1], text[:, 1:]


class Tied(nn.Module):
    """Post-norm transformer with tied embeddings on copied texts whose length grows."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 32)
        self.place = nn.Parameter(torch.zeros(24, 32))
        layer = {"batch_first": True, "dropout": 0.0, "norm_first": False}
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(32, 4, 48, **layer) for _ in range(3)
        )
        self.seen = 0

    def batch(self, size: int, generator: torch.Generator) -> Pair:
        self.seen += 1
        half = 4 + min(self.seen // 60, 8)  # a curriculum
        first = torch.randint(20, (size, half), generator=generator)
        text = torch.cat([first, first], 1)
        return text[:, :-1], text[:, 1:]

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        x = self.embed(x) + self.place[: x.shape[1]]
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        return (x @ self.embed.weight.T).transpose(1, 2)


class Memory(nn.Module):
    """An LSTM on sums of sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTM(3, 24, num_layers=2, batch_first=True)
        self.head = nn.Linear(24, 5)

    def batch(self, size: int, generator: torch.Generator) -> Pair:
        x = torch.randn(size, 9, 3, generator=generator)
        return x, ((x.sum((1, 2)) / 4).clamp(-2, 2).round() + 2).long()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0][:, -1])


class Gated(nn.Module):
    """A layer with root mean square normalisation, one head of attention and a gated MLP."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.o = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        x = x + self.o(
            functional.scaled_dot_product_attention(self.q(h), self.k(h), self.v(h), is_causal=True)
        )
        h = self.norm2(x)
        return x + self.down(functional.silu(self.gate(h)) * self.up(h))


class Counting(Stack):
    """A gated decoder that continues sequences modulo 17."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(17, 20)
        self.layers = nn.ModuleList(Gated(20) for _ in range(2))
        self.norm = nn.RMSNorm(20)
        self.head = nn.Linear(20, 17, bias=False)

    def batch(self, size: int, generator: torch.Generator) -> Pair:
        start = torch.randint(17, (size, 1), generator=generator)
        stride = torch.randint(1, 4, (size, 1), generator=generator)
        text = (start + stride * torch.arange(9)) % 17
        return text[:, :-1], text[:, 1:]


class StateSpace(nn.Module):
    """Diagonal linear recurrences with gates."""

    def __init__(self) -> None:
        super().__init__()
        self.inlet = nn.Linear(4, 20)
        self.decay = nn.ParameterList(nn.Parameter(torch.linspace(-2, 3, 20)) for _ in range(2))
        self.gates = nn.ModuleList(nn.Linear(20, 20) for _ in range(2))
        self.mixes = nn.ModuleList(nn.Linear(20, 20) for _ in range(2))
        self.norms = nn.ModuleList(nn.RMSNorm(20) for _ in range(2))
        self.head = nn.Linear(20, 2)

    def batch(self, size: int, generator: torch.Generator) -> Pair:
        x = torch.randn(size, 10, 4, generator=generator)
        return x, (x[..., 0].cumsum(1)[:, -1] > x[:, 0, 1]).long()

    def forward(self, x: Tensor) -> Tensor:
        x = self.inlet(x)
        for decay, gate, mix, norm in zip(
            self.decay, self.gates, self.mixes, self.norms, strict=True
        ):
            keep, state, states = decay.sigmoid(), torch.zeros_like(x[:, 0]), []
            for column in norm(x).unbind(1):
                state = keep * state + (1 - keep) * column
                states.append(state)
            x = x + mix(torch.stack(states, 1)) * functional.silu(gate(x))
        return self.head(x[:, -1])


class Values(nn.Module):
    """Learns the values of states from its own slowly following copy."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.head = nn.Linear(32, 3)
        self.slow = [one.detach().clone() for one in self.parameters()]

    def batch(self, size: int, generator: torch.Generator) -> Pair:
        x = torch.randn(size, 2, 6, generator=generator)
        return x, torch.randint(3, (size,), generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        now, following = x.unbind(1)
        values = self.head(self.body(now))
        with torch.no_grad():
            for slow, one in zip(self.slow, self.parameters(), strict=True):
                slow.lerp_(one, 0.02)
            first, first_bias, second, second_bias, last, last_bias = self.slow
            hidden = functional.linear(following, first, first_bias).relu()
            hidden = functional.linear(hidden, second, second_bias).relu()
            later = functional.linear(hidden, last, last_bias).amax(1)
            target = now[:, :3] * now[:, 3:].cos() + 0.9 * later[:, None]
        return torch.stack([values, target], 1)

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        values, target = output.unbind(1)
        index = y[:, None]
        return functional.smooth_l1_loss(values.gather(1, index), target.gather(1, index))
