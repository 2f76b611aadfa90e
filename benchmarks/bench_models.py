# SPDX-License-Identifier: Apache-2.0
"""The models that the benchmarks time. Imports torch only, so that any tool's python can use it."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


def keep_freed_memory() -> None:
    """Have glibc give no freed memory back to the system; elsewhere, do nothing.

    Where variants take turns in a process, what one leaves on top of the heap decides whether the
    next must fetch 80 MB page by page, a tenth of its time. None meets that where it runs alone.
    """
    trim_threshold, mmap_threshold = -1, -3  # of malloc.h
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(trim_threshold, 2**30)
        libc.mallopt(mmap_threshold, 2**30)


class Block(nn.Module):
    """Pre-norm transformer block, written with plain modules and functions as users write it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.act, self.down = (
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(self.act(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, length: int, vocabulary: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.token(ids) + self.position(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class ConvNet(nn.Module):
    """Four convolutions with BatchNorm and in-place ReLU."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for into, out in ((3, 16), (16, 16), (16, 32), (32, 32)):
            layers += [
                nn.Conv2d(into, out, 3, padding=1, bias=False),
                nn.BatchNorm2d(out),
                nn.ReLU(inplace=True),
            ]
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).mean(dim=(2, 3)))


@dataclass(frozen=True)
class Workload:
    """A model, its optimiser and one batch; `forward` returns the loss."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    forward: Callable[[], Tensor]


def _language_model(layers: int, width: int, batch: int, length: int, dtype: str) -> Workload:
    vocabulary = 256
    model = GPT(layers, width, max(1, width // 32), length, vocabulary).to(getattr(torch, dtype))
    ids = torch.randint(0, vocabulary, (batch, length))
    targets = ids.roll(-1, 1).flatten()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return Workload(
        model, optimizer, lambda: F.cross_entropy(model(ids).flatten(0, 1).float(), targets)
    )


def _convolutional() -> Workload:
    model = ConvNet()
    images, labels = torch.randn(8, 3, 32, 32), torch.randint(0, 10, (8,))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    return Workload(model, optimizer, lambda: F.cross_entropy(model(images), labels))


def _llama() -> Workload:
    """Llama of transformers, 4 layers of width 128: a model as people take it from a library."""
    from transformers import LlamaConfig, LlamaForCausalLM  # optional: this case alone needs it

    config = LlamaConfig(
        vocab_size=256,
        hidden_size=128,
        intermediate_size=344,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=128,
    )
    model = LlamaForCausalLM(config)
    ids = torch.randint(0, config.vocab_size, (4, 128))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return Workload(model, optimizer, lambda: model(input_ids=ids, labels=ids).loss)


def _gpt2() -> Workload:
    """GPT-2 of transformers as it was published, 124 million parameters."""
    from transformers import GPT2Config, GPT2LMHeadModel  # optional: this case alone needs it

    model = GPT2LMHeadModel(GPT2Config())
    ids = torch.randint(0, model.config.vocab_size, (4, 128))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return Workload(model, optimizer, lambda: model(input_ids=ids, labels=ids).loss)


WORKLOADS: Final[dict[str, Callable[[], Workload]]] = {
    "gpt": lambda: _language_model(8, 256, 4, 128, "float32"),
    "gpt-bf16": lambda: _language_model(8, 256, 4, 128, "bfloat16"),
    "small-ops": lambda: _language_model(12, 64, 1, 16, "float32"),
    "conv": _convolutional,
    "llama": _llama,
    "gpt2": _gpt2,
}
"""Name of a case -> how to build it."""


def build(case: str) -> Workload:
    """Build the workload `case` with a fixed seed."""
    torch.manual_seed(1234)
    return WORKLOADS[case]()
