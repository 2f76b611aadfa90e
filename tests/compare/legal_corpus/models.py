# SPDX-License-Identifier: Apache-2.0
"""Small models in the shape of well-known ones, whose parts the pairs replace.

They follow the code that libraries publish: masks as additive tensors with the type's least number,
rotary embeddings from a module of their own, options handed from the model down to each layer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from fault_corpus.held_out import HELD_OUT_FAMILIES
from fault_corpus.models import FAMILIES, Task
from torch import Tensor, nn

WIDTH, HEADS, WORDS = 16, 2, 29


class RmsNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = 1e-6

    def forward(self, x: Tensor) -> Tensor:
        before = x.dtype
        x = x.to(torch.float32) if before != torch.float64 else x
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * x.to(before)


class Rotary(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("speed", 10000.0 ** (-torch.arange(0, size, 2).float() / size))

    def forward(self, x: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        angle = places[:, :, None].float() * self.speed.float()
        angle = torch.cat([angle, angle], dim=-1)
        return angle.cos().to(x.dtype), angle.sin().to(x.dtype)


def turn(x: Tensor) -> Tensor:
    first, second = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-second, first), dim=-1)


class LlamaAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.size = width // heads
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, width, bias=False)
        self.v_proj = nn.Linear(width, width, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)

    def split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], -1, self.size).transpose(1, 2)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.split(self.q_proj(x)), self.split(self.k_proj(x)), self.split(self.v_proj(x))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        scores = torch.matmul(q, k.transpose(2, 3)) * self.size**-0.5
        scores = scores + mask
        weights = F.softmax(scores, dim=-1, dtype=scores.dtype)
        return torch.matmul(weights, v)

    def forward(
        self, x: Tensor, mask: Tensor, turns: tuple[Tensor, Tensor], **options: Any
    ) -> Tensor:
        q, k, v = self.project(x)
        cos, sin = (each.unsqueeze(1) for each in turns)
        q, k = q * cos + turn(q) * sin, k * cos + turn(k) * sin
        y = self.attend(q, k, v, mask)
        return self.o_proj(y.transpose(1, 2).contiguous().reshape(x.shape))


class LlamaMlp(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, 2 * width, bias=False)
        self.up_proj = nn.Linear(width, 2 * width, bias=False)
        self.down_proj = nn.Linear(2 * width, width, bias=False)

    def act(self, x: Tensor) -> Tensor:
        return F.silu(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act(self.gate_proj(x)) * self.up_proj(x))


class LlamaLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(width)
        self.self_attn = LlamaAttention(width, heads)
        self.post_attention_layernorm = RmsNorm(width)
        self.mlp = LlamaMlp(width)

    def forward(
        self, x: Tensor, mask: Tensor, turns: tuple[Tensor, Tensor], **options: Any
    ) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), mask, turns, **options)
        return x + self.mlp(self.post_attention_layernorm(x))


class LlamaModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(WORDS, WIDTH)
        self.rotary_emb = Rotary(WIDTH // HEADS)
        self.layers = nn.ModuleList([LlamaLayer(WIDTH, HEADS) for _ in range(2)])
        self.norm = RmsNorm(WIDTH)

    def least(self, dtype: torch.dtype) -> float:
        return torch.finfo(dtype).min

    def mask(self, x: Tensor) -> Tensor:
        t = x.shape[1]
        mask = torch.full((t, t), self.least(x.dtype), dtype=x.dtype)
        return torch.triu(mask, diagonal=1)[None, None]

    def forward(self, ids: Tensor, **options: Any) -> Tensor:
        x = self.embed_tokens(ids)
        places = torch.arange(ids.shape[1]).unsqueeze(0)
        turns, mask = self.rotary_emb(x, places), self.mask(x)
        for layer in self.layers:
            x = layer(x, mask, turns, **options)
        return self.norm(x)


class Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = LlamaModel()
        self.lm_head = nn.Linear(WIDTH, WORDS, bias=False)
        self.options: dict[str, Any] = {}

    def loss(self, logits: Tensor, labels: Tensor, **options: Any) -> Tensor:
        wanted = options.get("ignore_index", -100)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=wanted)

    def forward(self, ids: Tensor, labels: Tensor, **options: Any) -> Tensor:
        logits = self.lm_head(self.model(ids, **options))
        return self.loss(logits, labels, **options)


def own_loss(model: nn.Module, data: dict[str, Tensor]) -> Tensor:
    return model(data["ids"], data["labels"], **model.options)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)


def llama() -> Task:
    model = Llama()
    ids = torch.randint(0, WORDS, (2, 8))
    return Task(model, own_loss, {"ids": ids, "labels": ids.roll(-1, 1)}, adamw(model))


class GptAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.qkv(x).chunk(3, dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = (each.view(b, t, self.heads, -1).transpose(1, 2) for each in self.project(x))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, d))


class GptBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln1, self.attn = nn.LayerNorm(width), GptAttention(width, heads)
        self.ln2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.options: dict[str, Any] = {}
        self.wte, self.wpe = nn.Embedding(WORDS, WIDTH), nn.Embedding(12, WIDTH)
        self.blocks = nn.ModuleList([GptBlock(WIDTH, HEADS) for _ in range(2)])
        self.ln = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def run_block(self, block: nn.Module, x: Tensor) -> Tensor:
        return block(x)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = self.run_block(block, x)
        return F.cross_entropy(self.head(self.ln(x)).flatten(0, 1), labels.flatten())


def gpt() -> Task:
    model = Gpt()
    ids = torch.randint(0, WORDS, (4, 8))
    return Task(model, own_loss, {"ids": ids, "labels": ids.roll(-1, 1)}, adamw(model))


class BertLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.dense = nn.Linear(width, width), nn.Linear(width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-12), nn.LayerNorm(width, eps=1e-12)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.drop = nn.Dropout(0.1)

    def act(self, x: Tensor) -> Tensor:
        return F.gelu(x)

    def weights(self, scores: Tensor) -> Tensor:
        return torch.softmax(scores, dim=-1)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = (
            each(x).view(b, t, self.heads, -1).permute(0, 2, 1, 3)
            for each in (self.query, self.key, self.value)
        )
        weights = self.weights(q @ k.transpose(-1, -2) / (d // self.heads) ** 0.5 + mask)
        y = (self.drop(weights) @ v).permute(0, 2, 1, 3).reshape(b, t, d)
        x = self.norm1(x + self.drop(self.dense(y)))
        return self.norm2(x + self.drop(self.down(self.act(self.up(x)))))


class Bert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.options: dict[str, Any] = {}
        self.words, self.places = nn.Embedding(WORDS, WIDTH, padding_idx=0), nn.Embedding(12, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.layers = nn.ModuleList([BertLayer(WIDTH, HEADS) for _ in range(2)])
        self.head = nn.Linear(WIDTH, 3)

    def mask(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        return (1.0 - (ids != 0)[:, None, None].to(dtype)) * torch.finfo(dtype).min

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.norm(self.words(ids) + self.places(torch.arange(ids.shape[1])))
        mask = self.mask(ids, x.dtype)
        for layer in self.layers:
            x = layer(x, mask)
        return self.loss(self.head(torch.tanh(x[:, 0])), labels)


def bert() -> Task:
    model = Bert()
    ids = torch.randint(1, WORDS, (3, 8))
    ids[1, 5:] = 0
    data = {"ids": ids, "labels": torch.randint(0, 3, (3,))}
    return Task(model, own_loss, data, adamw(model))


class Gru(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb, self.gru = nn.Embedding(19, 10), nn.GRU(10, 12, batch_first=True)
        self.out = nn.Linear(12, 6)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.gru(self.emb(ids))[0])


def tag_loss(model: nn.Module, data: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(model(data["ids"]).flatten(0, 1), data["tags"])


def gru() -> Task:
    model = Gru()
    data = {"ids": torch.randint(0, 19, (3, 6)), "tags": torch.randint(0, 6, (18,))}
    return Task(model, tag_loss, data, torch.optim.RMSprop(model.parameters(), lr=1e-3))


class Ranker(nn.Module):
    """Ranks the entries of lists: a shift of all scores, and so some biases, have no gradient."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.enter = nn.Linear(10, WIDTH)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.score = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        return self.score(self.layers(self.enter(x), src_key_padding_mask=padding)).squeeze(-1)


def ranker() -> Task:
    model = Ranker()
    padding = torch.arange(12)[None] >= torch.randint(4, 12, (6, 1))

    def loss(model: nn.Module, data: dict[str, Tensor]) -> Tensor:
        scores = model(data["x"], data["padding"]).masked_fill(data["padding"], -1e9)
        wanted = data["wanted"].masked_fill(data["padding"], -1e9).softmax(-1)
        return -(wanted * scores.log_softmax(-1)).sum(-1).mean()

    return Task(
        model=model,
        loss=loss,
        data={"x": torch.randn(6, 12, 10), "padding": padding, "wanted": torch.rand(6, 12)},
        optimizer=torch.optim.NAdam(model.parameters(), lr=2e-3),
    )


LEGAL_FAMILIES: dict[str, Callable[[], Task]] = {
    **FAMILIES,
    **HELD_OUT_FAMILIES,
    "llama": llama,
    "gpt": gpt,
    "bert": bert,
    "gru": gru,
    "ranker": ranker,
}
