# SPDX-License-Identifier: Apache-2.0
"""Pairs that were written after the analysis had been finished on `pairs`, and scored once.

When the analysis is changed because of one of them, it belongs to the others, and a new one here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from fault_corpus.clean_pairs import (
    autocast,
    channels_last,
    compiled,
    two_threads,
    without_draws,
    without_onednn,
)
from fault_corpus.faults import replace
from fault_corpus.models import Task
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from .pairs import (
    BFLOAT16,
    FLOAT16,
    FLOAT64,
    LegalPair,
    both,
    evaluated,
    fused_attention,
    optimized,
    resumed,
    trained_before,
    with_options,
)

# --- another way to compute -------------------------------------------------------------------


def fused_projections(task: Task) -> None:
    """Project queries, keys and values in one product."""

    def project(self: Any, x: Tensor) -> tuple[Tensor, ...]:
        weight = torch.cat([self.q.weight, self.k.weight, self.v.weight])
        bias = torch.cat([self.q.bias, self.k.bias, self.v.bias])
        return tuple(self.split(each) for each in F.linear(x, weight, bias).chunk(3, dim=-1))

    for block in task.model.blocks:
        replace(block.attn, "project", project)


def einsum_attention(task: Task) -> None:
    def scores(self: Any, q: Tensor, k: Tensor) -> Tensor:
        return torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.shape[-1])

    for block in task.model.blocks:
        replace(block.attn, "scores", scores)


def where_mask(least: float) -> Any:
    """Return a change that masks scores by another call, with another number."""

    def mask(self: Any, scores: Tensor) -> Tensor:
        t = scores.shape[-1]
        lower = torch.ones(t, t, dtype=torch.bool).tril()
        return torch.where(lower, scores, torch.tensor(least, dtype=scores.dtype))

    def change(task: Task) -> None:
        for block in task.model.blocks:
            replace(block.attn, "mask", mask)

    return change


def batch_norm_formula(task: Task) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        mean = x.mean(dim=(0, 2, 3), keepdim=True)
        var = (x - mean).pow(2).mean(dim=(0, 2, 3), keepdim=True)
        y = (x - mean) / torch.sqrt(var + self.eps)
        with torch.no_grad():
            count = x.numel() / x.shape[1]
            self.running_mean.lerp_(mean.flatten(), self.momentum)
            self.running_var.lerp_(var.flatten() * count / (count - 1), self.momentum)
            self.num_batches_tracked.add_(1)
        return y * self.weight[:, None, None] + self.bias[:, None, None]

    for block in (task.model.b1, task.model.b2, task.model.b3):
        replace(block.bn, "forward", forward)


def pooled_by_call(task: Task) -> None:
    replace(task.model, "squeeze", lambda self, x: F.adaptive_avg_pool2d(x, 1).flatten(1))


def unfolded_convolution(task: Task) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        columns = F.unfold(x, 3, padding=1)
        y = self.weight.flatten(1) @ columns + self.bias[:, None]
        return y.view(x.shape[0], -1, *x.shape[2:])

    replace(task.model.b2.conv, "forward", forward)


def repeated_by_expand(task: Task) -> None:
    def widen(self: Any, x: Tensor) -> Tensor:
        b, h, t, d = x.shape
        return x[:, :, None].expand(b, h, 2, t, d).reshape(b, 2 * h, t, d)

    for layer in task.model.layers:
        replace(layer.attn, "widen", widen)


def joined_gate(task: Task) -> None:
    def mix(self: Any, x: Tensor) -> Tensor:
        gate, up = F.linear(x, torch.cat([self.gate.weight, self.up.weight])).chunk(2, dim=-1)
        return F.silu(gate) * up

    for layer in task.model.layers:
        replace(layer.mlp, "mix", mix)


def power_in_float64(task: Task) -> None:
    def power(self: Any, x: Tensor) -> Tensor:
        return x.double().square().mean(-1, keepdim=True).to(x.dtype)

    for layer in task.model.layers:
        replace(layer.norm1, "power", power)
        replace(layer.norm2, "power", power)


def repeated_pixels(task: Task) -> None:
    replace(
        task.model,
        "enlarge",
        lambda self, x: x.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3),
    )


def added_by_bias(task: Task) -> None:
    def add_time(self: Any, y: Tensor, t: Tensor) -> Tensor:
        return y + self.time(t).view(y.shape[0], -1, 1, 1).expand_as(y)

    for block in (task.model.enter, task.model.down, task.model.mid, task.model.up):
        replace(block, "add_time", add_time)


def cosine_similarity(task: Task) -> None:
    def compare(self: Any, a: Tensor, b: Tensor) -> Tensor:
        return F.cosine_similarity(a[:, None], b[None], dim=-1) / self.temperature

    replace(task.model, "compare", compare)


def loss_by_gather(task: Task) -> None:
    def loss(model: Any, data: dict[str, Tensor]) -> Tensor:
        logits = model(data["ids"]).flatten(0, 1)
        picked = logits.gather(1, data["next"].flatten()[:, None])[:, 0]
        return (torch.logsumexp(logits, dim=-1) - picked).mean()

    task.loss = loss


def noop_casts(task: Task) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = x.to(torch.float32).to(x.device)
        x = x + self.attn(self.ln1(x).float().contiguous())
        return (x + self.mlp(self.ln2(x.view_as(x)))).type(torch.float32)

    for block in task.model.blocks:
        replace(block, "forward", forward)


def reentrant_checkpoint(task: Task) -> None:
    def run_block(self: Any, block: torch.nn.Module, x: Tensor) -> Tensor:
        return checkpoint(block, x, use_reentrant=True)

    replace(task.model, "run_block", run_block)


def explicit_defaults(task: Task) -> None:
    def loss(self: Any, logits: Tensor, labels: Tensor, **options: Any) -> Tensor:
        return F.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), reduction="mean", label_smoothing=0.0
        )

    replace(task.model, "loss", loss)


def in_four_batches(task: Task) -> None:
    loss = task.loss

    def parts(model: torch.nn.Module, data: dict[str, Tensor]) -> Tensor:
        for number in range(4):
            part = loss(model, {key: value.chunk(4)[number] for key, value in data.items()})
            (part * 0.25).backward()
        return part

    task.loss = parts
    task.backward = lambda loss: None


def cleared_to_none(task: Task) -> None:
    """Clear gradients by zeros before the backward pass, in place of afterwards."""
    task.zero_grad = False
    for parameter in task.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    inner = task.before_step

    def start(loss: Tensor) -> None:
        for parameter in task.model.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()
        loss.backward()

    task.backward = start
    task.before_step = inner


@contextmanager
def math_attention() -> Iterator[None]:
    with sdpa_kernel(SDPBackend.MATH):
        yield


@contextmanager
def anomalies() -> Iterator[None]:
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        yield


LATER_PAIRS: tuple[LegalPair, ...] = (
    LegalPair(name="one projection", family="transformer", target=fused_projections),
    LegalPair(name="einsum", family="transformer", target=einsum_attention, level="L1"),
    LegalPair(
        name="einsum in bfloat16", family="transformer", target=both(BFLOAT16, einsum_attention)
    ),
    LegalPair(name="where with -3.4e38", family="transformer", target=where_mask(-3.4e38)),
    LegalPair(
        name="where with -inf", family="transformer", target=where_mask(-math.inf), level="L1"
    ),
    LegalPair(name="no-op casts", family="transformer", target=noop_casts, level="L1"),
    LegalPair(name="float16", family="transformer", target=FLOAT16, level="L0"),
    LegalPair(name="loss by gather", family="transformer", target=loss_by_gather),
    LegalPair(name="formula of batch norm", family="cnn", target=batch_norm_formula),
    LegalPair(name="formula of batch norm", family="cnn", target=batch_norm_formula, level="L0"),
    LegalPair(name="pooled by a call", family="cnn", target=pooled_by_call, steps=2),
    LegalPair(name="unfolded convolution", family="cnn", target=unfolded_convolution),
    LegalPair(name="autocast", family="cnn", around=autocast, level="L1", steps=2),
    LegalPair(name="float64", family="cnn", target=FLOAT64, steps=3),
    LegalPair(name="expanded heads", family="decoder", target=repeated_by_expand),
    LegalPair(name="joined gate", family="decoder", target=joined_gate),
    LegalPair(name="joined gate", family="decoder", target=joined_gate, level="L1"),
    LegalPair(name="power in float64", family="decoder", target=power_in_float64),
    LegalPair(name="attention by products", family="decoder", around=math_attention),
    LegalPair(name="bfloat16", family="decoder", target=BFLOAT16, level="L1"),
    LegalPair(name="repeated pixels", family="unet", target=repeated_pixels, steps=2),
    LegalPair(name="expanded time", family="unet", target=added_by_bias),
    LegalPair(name="channels last", family="unet", target=channels_last, level="L1"),
    LegalPair(name="fused optimizer", family="unet", target=optimized(fused=True), steps=3),
    LegalPair(name="float16", family="unet", target=FLOAT16, level="L0"),
    LegalPair(name="cosine similarity", family="twins", target=cosine_similarity),
    LegalPair(name="bfloat16", family="twins", target=BFLOAT16, level="L0"),
    LegalPair(
        name="two threads",
        family="bert",
        target=without_draws,
        reference=without_draws,
        around=two_threads,
        steps=3,
        level="L1",
    ),
    LegalPair(
        name="autocast",
        family="bert",
        target=without_draws,
        reference=without_draws,
        around=autocast,
        level="L0",
    ),
    LegalPair(
        name="other dropout in evaluation",
        family="bert",
        target=both(evaluated(0.3), BFLOAT16),
        reference=evaluated(0.1),
        level="L1",
    ),
    LegalPair(name="reentrant checkpoint", family="gpt", target=reentrant_checkpoint),
    LegalPair(name="four batches", family="gpt", target=in_four_batches, level="L0"),
    LegalPair(
        name="compiled", family="gpt", target=compiled("blocks.0.mlp", "blocks.1.attn"), steps=2
    ),
    LegalPair(name="anomaly detection", family="gpt", around=anomalies),
    LegalPair(name="cleared in place", family="gpt", target=cleared_to_none, steps=2),
    LegalPair(name="without oneDNN", family="vit", around=without_onednn, steps=2),
    LegalPair(name="autocast", family="vit", around=autocast, level="L1"),
    LegalPair(name="explicit defaults", family="llama", target=explicit_defaults),
    LegalPair(
        name="output_attentions",
        family="llama",
        target=both(with_options(output_attentions=True, return_dict=False), FLOAT64),
        reference=with_options(output_attentions=False),
        level="L0",
    ),
    LegalPair(
        name="fused attention in bfloat16", family="llama", target=both(BFLOAT16, fused_attention)
    ),
    LegalPair(name="resumed", family="llama", target=resumed, reference=trained_before, steps=2),
    LegalPair(name="bfloat16", family="gru", target=BFLOAT16),
    LegalPair(name="two threads", family="gru", around=two_threads, steps=2),
    LegalPair(name="float64", family="mixture", target=FLOAT64, steps=2),
    LegalPair(
        name="statistics against tensor", family="llama", tasks=("statistics", "tensor"), steps=2
    ),
    LegalPair(name="md5 against statistics", family="unet", tasks=("md5", "statistics"), steps=2),
)
