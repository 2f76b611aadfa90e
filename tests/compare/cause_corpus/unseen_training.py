# SPDX-License-Identifier: Apache-2.0
"""Programs for the causes planted last: a recurrent tagger, a variational model, routed experts."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from .training import Batch, Training


class Tagger(nn.Module):
    """Convolutions over a signal, then an LSTM, which tags each frame."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(3, 8, 5, padding=2)
        self.norm = nn.GroupNorm(4, 8)
        self.act = nn.GELU()
        self.lstm = nn.LSTM(8, 10, batch_first=True)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(10, 6)

    def front(self, x: Tensor) -> Tensor:
        return self.act(self.norm(self.conv(x)))

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.lstm(self.front(x).transpose(1, 2))
        return self.head(self.drop(y))


class TaggerTraining(Training):
    """One batch a step, RMSprop with momentum, steps of the learning rate, clipping."""

    def __init__(self, steps: int) -> None:
        super().__init__(steps)
        self.max_norm = 0.2
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.5)

    def make_model(self) -> nn.Module:
        return Tagger()

    def make_batches(self, step: int) -> list[Batch]:
        return [(torch.randn(3, 3, 9), torch.randint(0, 6, (3, 9)))]

    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.RMSprop(self.model.parameters(), lr=2e-3, momentum=0.5)

    def loss(self, output: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(output.flatten(0, -2), labels.flatten(), label_smoothing=0.1)


class Variational(nn.Module):
    """A variational autoencoder of vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(10, 16), nn.SiLU(), nn.Dropout(0.1))
        self.mean, self.spread = nn.Linear(16, 4), nn.Linear(16, 4)
        self.decoder = nn.Sequential(nn.Linear(4, 16), nn.LayerNorm(16), nn.SiLU())
        self.out = nn.Linear(16, 10)

    def sampled(self, mean: Tensor, spread: Tensor) -> Tensor:
        return mean + torch.exp(0.5 * spread) * torch.randn_like(mean)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = self.encoder(x)
        mean, spread = self.mean(y), self.spread(y)
        return self.out(self.decoder(self.sampled(mean, spread))), mean, spread


class VariationalTraining(Training):
    """Two micro batches a step, Adam, a cosine as schedule."""

    def __init__(self, steps: int) -> None:
        super().__init__(steps)
        self.prior_weight = 0.1
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 6)

    def make_model(self) -> nn.Module:
        return Variational()

    def make_batches(self, step: int) -> list[Batch]:
        return [(x, x) for x in torch.randn(2, 4, 10)]

    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.model.parameters(), lr=3e-3)

    def loss(self, output: Any, labels: Tensor) -> Tensor:
        made, mean, spread = output
        prior = -0.5 * (1 + spread - mean.square() - spread.exp()).sum(-1).mean()
        return F.mse_loss(made, labels) + self.prior_weight * prior


class Routed(nn.Module):
    """Tokens go to the two best of four experts."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, 4, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
            for _ in range(4)
        )

    def weights(self, x: Tensor) -> Tensor:
        chances = torch.softmax(self.router(x), dim=-1)
        best, places = chances.topk(2, dim=-1)
        best = best / best.sum(-1, keepdim=True)
        return torch.zeros_like(chances).scatter(-1, places, best)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.weights(x)
        parts = [
            weights[..., number, None] * expert(x) for number, expert in enumerate(self.experts)
        ]
        return torch.stack(parts).sum(0)


class Experts(nn.Module):
    """A language model of routed experts between norms."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(23, 12)
        self.norms = nn.ModuleList(nn.LayerNorm(12) for _ in range(2))
        self.layers = nn.ModuleList(Routed(12) for _ in range(2))
        self.head = nn.Linear(12, 23)

    def mixed(self, x: Tensor) -> Tensor:
        count = torch.arange(1, x.shape[1] + 1)[:, None]
        return x.cumsum(1) / count

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(self.mixed(norm(x)))
        return self.head(x)


class ExpertsTraining(Training):
    """NAdam without schedule; the experts have a group of their own."""

    def make_model(self) -> nn.Module:
        return Experts()

    def make_batches(self, step: int) -> list[Batch]:
        tokens = torch.randint(0, 23, (3, 8))
        return [(tokens[:, :-1], tokens[:, 1:])]

    def make_optimizer(self) -> torch.optim.Optimizer:
        named = list(self.model.named_parameters())
        groups = [
            {"params": [p for name, p in named if ".experts." not in name]},
            {"params": [p for name, p in named if ".experts." in name], "lr": 4e-3},
        ]
        return torch.optim.NAdam(groups, lr=2e-3)


UNSEEN_FAMILIES: dict[str, type[Training]] = {
    "tagger": TaggerTraining,
    "variational": VariationalTraining,
    "experts": ExpertsTraining,
}
