# SPDX-License-Identifier: Apache-2.0
"""Transformer families: residuals with shared inputs, cross attention, tied weights, fast paths."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from .training import TrainCase, seed_everything, simple_case

WIDTH, HEADS, VOCABULARY, LENGTH = 16, 2, 13, 6


class PreNormBlock(nn.Module):
    """Attention and MLP behind LayerNorm, with residuals; query, key and value share an input."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, dropout=0.1, batch_first=True)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * WIDTH, WIDTH)
        )
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        h = self.norm1(x) + position
        x = x + self.drop(self.attention(h, h, h, need_weights=False)[0])
        q, k, v = self.qkv(h).view(*h.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1, is_causal=True)
        x = x + mixed.transpose(1, 2).flatten(2)
        return x + self.drop(self.mlp(self.norm2(x)))


class PreNormTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.02)
        self.blocks = nn.ModuleList(PreNormBlock() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.token(ids)
        for block in self.blocks:
            x = block(x, self.position)
        return self.head(self.norm(x))


def prenorm_transformer(seed: int) -> TrainCase:
    """Pre-norm transformer with residuals, dropout and inputs shared between calls; AdamW."""
    seed_everything(seed)
    model = PreNormTransformer()
    ids = torch.randint(0, VOCABULARY, (3, LENGTH))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def loss_of(step: int) -> Tensor:
        logits = model(ids.roll(step, 1))
        return F.cross_entropy(logits.flatten(0, 1), ids.flatten(), ignore_index=0)

    return simple_case(model, loss_of, optimizer)


class EncoderDecoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.source = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
        self.target = nn.Embedding(VOCABULARY, WIDTH)
        options = {"dim_feedforward": 2 * WIDTH, "dropout": 0.1, "batch_first": True}
        self.encoder = nn.TransformerEncoderLayer(WIDTH, HEADS, norm_first=True, **options)
        self.decoder = nn.TransformerDecoderLayer(WIDTH, HEADS, **options)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        padding = source == 0
        memory = self.encoder(self.source(source), src_key_padding_mask=padding)
        causal = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        decoded = self.decoder(
            self.target(target), memory, tgt_mask=causal, memory_key_padding_mask=padding
        )
        return self.head(decoded)


def encoder_decoder(seed: int) -> TrainCase:
    """Cross attention with padding and causal masks; Adam with amsgrad."""
    seed_everything(seed)
    model = EncoderDecoder()
    source = torch.randint(1, VOCABULARY, (3, LENGTH))
    source[0, 4:] = 0
    target = torch.randint(0, VOCABULARY, (3, LENGTH))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, amsgrad=True)

    def loss_of(_step: int) -> Tensor:
        logits = model(source, target=target)
        return F.cross_entropy(logits.transpose(1, 2), target, label_smoothing=0.1)

    return simple_case(model, loss_of, optimizer)


class TiedLanguageModel(nn.Module):
    """The embedding is the output layer, and one block is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.shared = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Tanh())
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.token.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.token(ids)
        x = x + self.shared(x)
        x = x + self.shared(x)
        return self.head(x)


def weight_tying(seed: int) -> TrainCase:
    """One parameter in two modules, one module called twice; RMSprop."""
    seed_everything(seed)
    model = TiedLanguageModel()
    ids = torch.randint(0, VOCABULARY, (3, LENGTH))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)

    def loss_of(_step: int) -> Tensor:
        return F.nll_loss(F.log_softmax(model(ids), -1).flatten(0, 1), ids.roll(1, 1).flatten())

    return simple_case(model, loss_of, optimizer)


def evaluation_in_the_loop(seed: int) -> TrainCase:
    """Training with an evaluation each step, where the encoder takes torch's fused inference path.

    The path is left when a function mode is active, and the fused kernel has other bits.
    """
    seed_everything(seed)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, dropout=0.1, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    model = nn.ModuleDict({"encoder": encoder, "attention": attention})
    x = torch.randn(3, LENGTH, WIDTH)
    padding = torch.zeros(3, LENGTH, dtype=torch.bool)
    padding[1, 3:] = True
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def run_step(_step: int) -> Tensor:
        optimizer.zero_grad()
        hidden = model["encoder"](x, src_key_padding_mask=padding)
        loss = model["attention"](hidden, hidden, hidden)[0].square().mean()
        loss.backward()
        optimizer.step()
        model.eval()
        with torch.inference_mode():
            case.extra["inference_mode"] = model["encoder"](x)
        with torch.no_grad():
            case.extra["no_grad_padded"] = model["encoder"](x, src_key_padding_mask=padding)
            case.extra["attention"] = model["attention"](x, x, x)
        model.train()
        return loss

    case = TrainCase(model, run_step, [optimizer])
    return case
