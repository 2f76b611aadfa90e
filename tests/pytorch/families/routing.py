# SPDX-License-Identifier: Apache-2.0
"""Families that route by index: mixture of experts, and embeddings with sparse gradients."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from .training import TrainCase, seed_everything, simple_case

WIDTH, EXPERTS = 12, 4


class MixtureOfExperts(nn.Module):
    """Top-2 routing: boolean masks, index_add_, advanced indexing on both sides."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
            for _ in range(EXPERTS)
        )

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.router(tokens).softmax(-1)
        weights, chosen = scores.topk(2, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(tokens)
        for index, expert in enumerate(self.experts):
            row, slot = torch.where(chosen == index)
            if row.numel() == 0:
                continue
            share = expert(tokens[row]) * weights[row, slot, None]
            if index % 2:
                out.index_add_(0, row, share)
            else:
                out[row] += share
        load = F.one_hot(chosen, EXPERTS).float().mean(dim=(0, 1))
        return out, EXPERTS * (load * scores.mean(0)).sum()


def mixture_of_experts(seed: int) -> TrainCase:
    """Routing with an auxiliary balance loss; AdamW."""
    seed_everything(seed)
    model = MixtureOfExperts()
    tokens = torch.randn(10, WIDTH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def loss_of(_step: int) -> Tensor:
        out, balance = model(tokens)
        return (out - tokens.flip(0))[tokens[:, 0] > 0].square().mean() + 0.01 * balance

    return simple_case(model, loss_of, optimizer)


class Recommender(nn.Module):
    """`max_norm` makes the lookup write into the weight without moving its version counter."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.EmbeddingBag(20, WIDTH, mode="sum", sparse=True)
        self.limited = nn.Embedding(20, WIDTH, max_norm=0.5)
        self.score = nn.Bilinear(WIDTH, WIDTH, 1)

    def forward(self, ids: Tensor, offsets: Tensor, item: Tensor) -> Tensor:
        return self.score(self.bags(ids, offsets), self.limited(item)).squeeze(-1)


def sparse_embeddings(seed: int) -> TrainCase:
    """Sparse gradients with SparseAdam beside dense ones with Adagrad."""
    seed_everything(seed)
    model = Recommender()
    ids, offsets = torch.randint(0, 20, (9,)), torch.tensor([0, 3, 5, 6])
    item, clicked = torch.randint(0, 20, (4,)), torch.tensor([1.0, 0.0, 1.0, 1.0])
    sparse = torch.optim.SparseAdam(list(model.bags.parameters()), lr=1e-2)
    dense = torch.optim.Adagrad([*model.limited.parameters(), *model.score.parameters()], lr=1e-2)

    def run_step(_step: int) -> Tensor:
        sparse.zero_grad()
        dense.zero_grad(set_to_none=False)
        loss = F.binary_cross_entropy_with_logits(model(ids, offsets, item=item), clicked)
        loss.backward()
        sparse.step()
        dense.step()
        return loss

    return TrainCase(model, run_step, [sparse, dense])
