# SPDX-License-Identifier: Apache-2.0
"""Recurrent families: fused RNNs, cells in a loop, and a scan written with in-place operations."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from .training import TrainCase, seed_everything, simple_case

WIDTH = 8


class Recurrent(nn.Module):
    """A bidirectional LSTM on packed sequences, a GRU, and an LSTM cell step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(5, WIDTH, 2, batch_first=True, dropout=0.2, bidirectional=True)
        self.gru = nn.GRU(2 * WIDTH, WIDTH, batch_first=True)
        self.cell = nn.LSTMCell(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths, batch_first=True)
        y, _ = self.lstm(packed)
        y, _ = pad_packed_sequence(y, batch_first=True)
        y, last = self.gru(y)
        h, c = last[0], torch.zeros_like(last[0])
        for t in range(y.shape[1]):
            h, c = self.cell(y[:, t], (h, c))
        return self.head(h)


def recurrent(seed: int) -> TrainCase:
    """LSTM, GRU and LSTMCell; NAdam."""
    seed_everything(seed)
    model = Recurrent()
    x, lengths, labels = torch.randn(3, 5, 5), torch.tensor([5, 4, 2]), torch.tensor([0, 2, 1])
    optimizer = torch.optim.NAdam(model.parameters(), lr=1e-2)
    return simple_case(model, lambda _: F.cross_entropy(model(x, lengths), labels), optimizer)


class StateSpaceScan(nn.Module):
    """A selective scan: views by chunk, a Python loop over time, chains of in-place operations."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(WIDTH, 3 * WIDTH)
        self.decay = nn.Parameter(torch.rand(WIDTH))
        self.leave = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        value, gate, step = self.enter(x).chunk(3, dim=-1)
        step = F.softplus(step).clamp_(max=4.0)
        keep = torch.exp(-self.decay.abs() * step)
        state = torch.zeros_like(value[:, 0])
        out = torch.zeros_like(value)
        for t in range(x.shape[1]):
            state = state * keep[:, t]
            state.add_(value[:, t]).mul_(0.9).neg_().neg_()
            out[:, t] = state
        out[:, :1].add_(1.0)
        out = out * torch.sigmoid(gate)
        out.select(-1, 0).zero_()
        out.masked_fill_(out > 3.0, 3.0)
        return self.leave(out).add_(x)


def state_space_scan(seed: int) -> TrainCase:
    """Loops, views and in-place chains over one buffer; SGD with Nesterov momentum."""
    seed_everything(seed)
    model = nn.Sequential(StateSpaceScan(), StateSpaceScan())
    x = torch.randn(2, 6, WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    return simple_case(model, lambda _: F.smooth_l1_loss(model(x), x.roll(1, 1)), optimizer)
