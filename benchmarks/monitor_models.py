# SPDX-License-Identifier: Apache-2.0
"""The small models that the alert rules are scored with, each with data of its own.

A model makes its batches; one without a `loss` is judged by cross entropy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import torch
from monitor_sequence_models import Counting, Language, Memory, StateSpace, Tied, Values
from torch import Tensor, nn
from torch.nn import functional

Pair = tuple[Tensor, Tensor]


def _fixed(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def labelled(centres: Tensor, spread: float, size: int, generator: torch.Generator) -> Pair:
    kind = torch.randint(len(centres), (size,), generator=generator)
    return centres[kind] + spread * torch.randn(size, *centres.shape[1:], generator=generator), kind


class Classifier(nn.Module):
    """Classifies points or small pictures of four kinds."""

    def __init__(self, body: nn.Module, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.layers = body
        self.centres = _fixed(5, 4, *shape)

    def batch(self, size: int, generator: torch.Generator) -> Pair:
        return labelled(self.centres, 1.5, size, generator)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Last(nn.Module):
    def forward(self, x: Pair) -> Tensor:
        return x[0][:, -1]


def mlp(activation: type[nn.Module] = nn.ReLU) -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Linear(16, 16), activation()]
    return Classifier(nn.Sequential(*layers, nn.Linear(16, 4)), (16,))


def conv() -> nn.Module:
    layers = [nn.Conv2d(2, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()]
    layers += [nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()]
    return Classifier(nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 36, 4)), (2, 6, 6))


def recurrent() -> nn.Module:
    return Classifier(
        nn.Sequential(nn.GRU(8, 16, batch_first=True), Last(), nn.Linear(16, 4)), (6, 8)
    )


class Autoencoder(nn.Module):
    """Reconstructs points near a curved surface through a narrow layer, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(20, 24), nn.SiLU(), nn.Dropout(0.1), nn.Linear(24, 4)
        )
        self.decoder = nn.Sequential(nn.Linear(4, 24), nn.SiLU(), nn.Linear(24, 20))
        self.mix = _fixed(8, 3, 20)

    def batch(self, size: int, generator: torch.Generator) -> Pair:
        hidden = torch.randn(size, 3, generator=generator)
        x = torch.tanh(hidden @ self.mix) + 0.05 * torch.randn(size, 20, generator=generator)
        return x, x

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x))

    loss = staticmethod(functional.mse_loss)


class Regression(nn.Module):
    """Residual blocks with batch normalisation; targets with heavy tails, Huber loss."""

    def __init__(self) -> None:
        super().__init__()
        self.inlet = nn.Linear(12, 20)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 20)) for _ in range(5)
        )
        self.outlet = nn.Linear(20, 1)

    def batch(self, size: int, generator: torch.Generator) -> Pair:
        x = torch.randn(size, 12, generator=generator)
        noise = torch.randn(size, 1, generator=generator) / (
            torch.rand(size, 1, generator=generator) + 0.05
        )
        return x, (x[:, :1] * x[:, 1:2]).sin() + x[:, 2:3] + 0.2 * noise

    def forward(self, x: Tensor) -> Tensor:
        x = self.inlet(x)
        for block in self.blocks:
            x = x + block(x)
        return self.outlet(x)

    loss = staticmethod(functional.huber_loss)


class Groups(nn.Module):
    """Depth-wise convolutions with group normalisation, imbalanced classes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(3, 12, 3, padding=1), nn.GroupNorm(3, 12), nn.GELU()),
            *(nn.Conv2d(12, 12, 3, padding=1, groups=12), nn.Conv2d(12, 12, 1), nn.GELU()),
            *(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(48, 6)),
        )
        self.centres = _fixed(9, 6, 3, 8, 8)

    def batch(self, size: int, generator: torch.Generator) -> Pair:
        shares = torch.tensor([16.0, 8, 4, 2, 1, 1])
        kind = torch.multinomial(shares, size, replacement=True, generator=generator)
        return self.centres[kind] + torch.randn(size, 3, 8, 8, generator=generator), kind

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Mixer(nn.Module):
    """An MLP mixer over patches, with dropout and label smoothing."""

    def __init__(self) -> None:
        super().__init__()
        self.inlet = nn.Linear(6, 16)
        self.tokens = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.channels = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(4))
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(16, 5)
        self.centres = _fixed(21, 5, 8, 6)

    def batch(self, size: int, generator: torch.Generator) -> Pair:
        return labelled(self.centres, 2.0, size, generator)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inlet(x)
        for place, (token, channel) in enumerate(zip(self.tokens, self.channels, strict=True)):
            x = x + functional.gelu(token(self.norms[2 * place](x).transpose(1, 2))).transpose(1, 2)
            x = x + self.drop(functional.gelu(channel(self.norms[2 * place + 1](x))))
        return self.head(x.mean(1))

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(output, y, label_smoothing=0.1)


class Variational(nn.Module):
    """A variational autoencoder, whose forward pass draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(14, 20), nn.Tanh(), nn.Linear(20, 8))
        self.decoder = nn.Sequential(nn.Linear(4, 20), nn.Tanh(), nn.Linear(20, 14))
        self.mix = _fixed(22, 3, 14)
        self.divergence = torch.zeros(())

    def batch(self, size: int, generator: torch.Generator) -> Pair:
        x = torch.sin(torch.randn(size, 3, generator=generator) @ self.mix)
        return x, x

    def forward(self, x: Tensor) -> Tensor:
        mean, size = self.encoder(x).chunk(2, -1)
        self.divergence = -0.5 * (1 + size - mean.square() - size.exp()).mean()
        return self.decoder(mean + (size / 2).exp() * torch.randn_like(mean))

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        return functional.mse_loss(output, y) + 0.05 * self.divergence


class Towers(nn.Module):
    """Two towers whose outputs are matched in each batch, with a learned temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(10, 24), nn.LeakyReLU(), nn.Linear(24, 12))
        self.right = nn.Sequential(nn.Linear(7, 24), nn.LeakyReLU(), nn.Linear(24, 12))
        self.heat = nn.Parameter(torch.tensor([1.0]))
        drawn = torch.Generator().manual_seed(23)
        self.a, self.b = (torch.randn(4, size, generator=drawn) for size in (10, 7))

    def batch(self, size: int, generator: torch.Generator) -> Pair:
        hidden = torch.randn(size, 4, generator=generator)
        noise = 0.3 * torch.randn(size, 17, generator=generator)
        x = torch.cat([hidden @ self.a, hidden @ self.b], 1) + noise
        return x, torch.arange(size)

    def forward(self, x: Tensor) -> Tensor:
        left = functional.normalize(self.left(x[:, :10]), dim=-1)
        right = functional.normalize(self.right(x[:, 10:]), dim=-1)
        return left @ right.T * self.heat.exp()


class Residual(nn.Module):
    """A small residual network with strides and batch normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 6, 3, padding=1)
        self.convs = nn.ModuleList(nn.Conv2d(6, 6, 3, padding=1, bias=False) for _ in range(4))
        self.norms = nn.ModuleList(nn.BatchNorm2d(6) for _ in range(4))
        self.head = nn.Linear(6, 4)
        self.centres = _fixed(24, 4, 1, 8, 8)

    def batch(self, size: int, generator: torch.Generator) -> Pair:
        kind = torch.randint(4, (size,), generator=generator)
        flip = torch.rand(size, 1, 1, 1, generator=generator) < 0.5
        x = self.centres[kind]
        x = torch.where(flip, x.flip(-1), x)
        return x + torch.randn(x.shape, generator=generator), kind

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for place in (0, 2):
            h = functional.relu(self.norms[place](self.convs[place](x)))
            x = functional.relu(x + self.norms[place + 1](self.convs[place + 1](h)))
        return self.head(x.mean((2, 3)))


class Denoiser(nn.Module):
    """Predicts the noise of signals at a random level of noise, as diffusion models do."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv1d(2, 12, 3, padding=1)
        self.middle = nn.Conv1d(12, 12, 3, padding=1)
        self.norm = nn.GroupNorm(3, 12)
        self.up = nn.Conv1d(24, 1, 3, padding=1)

    def batch(self, size: int, generator: torch.Generator) -> Pair:
        phase = 6.3 * torch.rand(size, 1, 1, generator=generator)
        level = torch.rand(size, 1, 1, generator=generator)
        noise = torch.randn(size, 1, 16, generator=generator)
        clean = torch.sin(phase + torch.arange(16) / 2)
        noisy = (1 - level).sqrt() * clean + level.sqrt() * noise
        return torch.cat([noisy, level.expand(-1, -1, 16)], 1), noise

    def forward(self, x: Tensor) -> Tensor:
        first = functional.silu(self.down(x))
        return self.up(torch.cat([first, functional.silu(self.norm(self.middle(first)))], 1))

    loss = staticmethod(functional.mse_loss)


class Graph(nn.Module):
    """Passes messages over random graphs and adds up their nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.inlet = nn.Linear(4, 16)
        self.messages = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.head = nn.Linear(16, 1)

    def batch(self, size: int, generator: torch.Generator) -> Pair:
        edges = (torch.rand(size, 7, 7, generator=generator) < 0.4).float()
        nodes = torch.randn(size, 7, 4, generator=generator)
        return torch.cat([nodes, edges], 2), (edges @ nodes[..., :1].abs()).sum((1, 2)) / 7

    def forward(self, x: Tensor) -> Tensor:
        edges, h = x[..., 4:], functional.elu(self.inlet(x[..., :4]))
        for layer in self.messages:
            h = h + functional.elu(layer(edges @ h / 3))
        return self.head(h).sum((1, 2))

    loss = staticmethod(functional.smooth_l1_loss)


class Uncertain(nn.Module):
    """Predicts mean and variance; the loss, a likelihood, becomes negative."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 24), nn.Softplus(), nn.Linear(24, 24), nn.Mish())
        self.mean, self.size = nn.Linear(24, 1), nn.Linear(24, 1)

    def batch(self, size: int, generator: torch.Generator) -> Pair:
        x = torch.randn(size, 6, generator=generator)
        noise = torch.randn(size, 1, generator=generator)
        return x, 0.3 * x[:, :1] * x[:, 1:2] + (0.02 + 0.1 * torch.sigmoid(x[:, 2:3])) * noise

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        return torch.cat([self.mean(h), self.size(h)], 1)

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        return functional.gaussian_nll_loss(output[:, :1], y, functional.softplus(output[:, 1:]))


class Triplets(nn.Module):
    """Learns distances with a margin: of more and more triplets the loss is zero."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 8))
        self.centres = _fixed(31, 6, 12)

    def batch(self, size: int, generator: torch.Generator) -> Pair:
        kind = torch.randint(6, (size,), generator=generator)
        other = (kind + torch.randint(1, 6, (size,), generator=generator)) % 6
        chosen = self.centres[torch.stack([kind, kind, other], 1)]
        return chosen + 1.2 * torch.randn(chosen.shape, generator=generator), kind

    def forward(self, x: Tensor) -> Tensor:
        return self.embed(x)

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        return functional.triplet_margin_loss(*output.unbind(1), margin=0.5)


class Recommender(nn.Module):
    """Two tables of embeddings of which a batch touches few rows, some of them hardly ever."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(60, 8), nn.Embedding(90, 8)
        self.bias = nn.Embedding(90, 1)
        self.top = nn.Sequential(nn.Linear(16, 12), nn.Hardswish(), nn.Linear(12, 1))
        self.taste = _fixed(32, 60, 90)

    def batch(self, size: int, generator: torch.Generator) -> Pair:
        user = torch.randint(60, (size,), generator=generator)
        item = (90 * torch.rand(size, generator=generator) ** 3).long()
        return torch.stack([user, item], 1), (self.taste[user, item] > 0.5).float()

    def forward(self, x: Tensor) -> Tensor:
        user, item = x[:, 0] % 60, x[:, 1] % 90
        pair = torch.cat([self.users(user), self.items(item)], 1)
        return (self.top(pair) + self.bias(item))[:, 0]

    loss = staticmethod(functional.binary_cross_entropy_with_logits)


class Patches(nn.Module):
    """Transformer over patches with a class token; blocks are left out by chance."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 24, 2, stride=2)
        self.token = nn.Parameter(torch.zeros(1, 1, 24))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(24, 3, 48, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(3)
        )
        self.head = nn.Linear(24, 5)
        self.centres = _fixed(41, 5, 3, 8, 8)

    def batch(self, size: int, generator: torch.Generator) -> Pair:
        return labelled(self.centres, 2.0, size, generator)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        for number, block in enumerate(self.blocks):
            kept = (torch.rand(len(x), 1, 1) > 0.1 * number).float()
            x = x + kept * (block(x) - x)
        return self.head(x[:, 0])


class Waves(nn.Module):
    """A network of sines from coordinates to a picture (Sitzmann et al., 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(size, 24) for size in (2, 24, 24))
        self.out = nn.Linear(24, 3)
        for number, layer in enumerate(self.layers):
            bound = 0.5 if number == 0 else math.sqrt(6 / 24) / 10
            nn.init.uniform_(layer.weight, -bound, bound)

    def batch(self, size: int, generator: torch.Generator) -> Pair:
        x = 2 * torch.rand(size, 2, generator=generator) - 1
        u, v = x.T
        return x, torch.stack([(3 * u).sin(), (4 * u * v).cos(), (u - v).abs()], 1)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.sin(10 * layer(x))
        return self.out(x)

    loss = staticmethod(functional.mse_loss)


class Flow(nn.Module):
    """Coupling layers that learn the density of two arcs."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList(
            nn.Sequential(nn.Linear(2, 24), nn.ReLU(), nn.Linear(24, 4)) for _ in range(4)
        )

    def batch(self, size: int, generator: torch.Generator) -> Pair:
        angle = math.pi * torch.rand(size, generator=generator)
        side = (torch.rand(size, generator=generator) < 0.5).float()
        arcs = torch.stack([angle.cos() + side, angle.sin() * (1 - 2 * side)], 1)
        noise = 0.1 * torch.randn(size, 4, generator=generator)
        return torch.cat([arcs, arcs.flip(1)], 1) + noise, side

    def forward(self, x: Tensor) -> Tensor:
        size = torch.zeros(len(x))
        for net in self.nets:
            left, right = x.chunk(2, 1)
            scale, shift = net(left).chunk(2, 1)
            scale = torch.tanh(scale)
            x = torch.cat([right * scale.exp() + shift, left], 1)
            size = size + scale.sum(1)
        return torch.cat([x, size[:, None]], 1)

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        del y
        return (0.5 * output[:, :4].square().sum(1) - output[:, 4]).mean()


MODELS: Final[dict[str, Callable[[], nn.Module]]] = {
    "transformer": Language,
    "deep transformer": lambda: Language(layers=4, width=16),
    "moe": lambda: Language(layers=1, moe=True),
    "mlp": mlp,
    "tanh mlp": lambda: mlp(nn.Tanh),
    "conv": conv,
    "gru": recurrent,
    "autoencoder": Autoencoder,
    "regression": Regression,
    "tied transformer": Tied,
    "lstm": Memory,
    "groups": Groups,
    "counting": Counting,
    "mixer": Mixer,
    "variational": Variational,
    "towers": Towers,
    "residual": Residual,
    "denoiser": Denoiser,
    "graph": Graph,
    "uncertain": Uncertain,
    "triplets": Triplets,
    "recommender": Recommender,
    "patches": Patches,
    "waves": Waves,
    "state space": StateSpace,
    "flow": Flow,
    "values": Values,
}
