# SPDX-License-Identifier: Apache-2.0
"""Pairs of programs that compute the same: in another type, by other calls, with other options.

Where a pair differs by more than the way to compute (another type, other threads), its differences
are rounding.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F  # noqa: N812
from fault_corpus.clean_pairs import (
    Change,
    autocast,
    channels_last,
    compiled,
    in_type,
    two_threads,
    without_draws,
)
from fault_corpus.faults import replace
from fault_corpus.models import Task
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Level = Literal["L0", "L1", "mix"]


def as_it_is(task: Task) -> None:
    """Change nothing."""


@dataclass(frozen=True, kw_only=True)
class LegalPair:
    """Two programs that compute the same.

    Attributes:
        name: how they differ.
        family: the model.
        target: changes the task for the target.
        reference: changes the task for the reference.
        around: context of the target's steps.
        level: level of both recordings.
        steps: how many steps are run.
        tasks: tasks of the two recordings, where they are not the same.
        is_provable: what is recorded proves that they do.
    """

    name: str
    family: str
    target: Change = as_it_is
    reference: Change = as_it_is
    around: Callable[[], Any] = nullcontext
    level: Level = "mix"
    steps: int = 1
    tasks: tuple[str, str] | None = None
    is_provable: bool = True

    @property
    def title(self) -> str:
        """Name, model and level."""
        return f"{self.family} at {self.level}: {self.name}"


def both(*changes: Change) -> Change:
    """Return several changes as one."""

    def change(task: Task) -> None:
        for each in changes:
            each(task)

    return change


# --- another way to compute -------------------------------------------------------------------


def fused_attention(task: Task) -> None:
    def attend(self: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    for layer in task.model.model.layers:
        replace(layer.self_attn, "attend", attend)


def causal_attention(task: Task) -> None:
    def attend(self: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    for layer in task.model.model.layers:
        replace(layer.self_attn, "attend", attend)


def masked_with(number: float) -> Change:
    def change(task: Task) -> None:
        replace(task.model.model, "least", lambda self, dtype: number)

    return change


def one_rms_call(task: Task) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)

    for layer in task.model.model.layers:
        replace(layer.input_layernorm, "forward", forward)
        replace(layer.post_attention_layernorm, "forward", forward)


def casts_and_copies(task: Task) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = x.contiguous().float()
        y = self.act(self.gate_proj(x)).to(x.dtype) * self.up_proj(x).view(*x.shape[:-1], -1)
        return self.down_proj(y.clone()).type_as(x)

    for layer in task.model.model.layers:
        replace(layer.mlp, "forward", forward)


def silu_formula(task: Task) -> None:
    for layer in task.model.model.layers:
        replace(layer.mlp, "act", lambda self, x: x * torch.sigmoid(x))


def log_softmax_loss(task: Task) -> None:
    def loss(self: Any, logits: Tensor, labels: Tensor) -> Tensor:
        return F.nll_loss(F.log_softmax(logits, dim=-1), labels)

    replace(task.model, "loss", loss)


def three_projections(task: Task) -> None:
    def project(self: Any, x: Tensor) -> tuple[Tensor, ...]:
        parts = zip(self.qkv.weight.chunk(3), self.qkv.bias.chunk(3), strict=True)
        return tuple(F.linear(x, weight, bias) for weight, bias in parts)

    for block in task.model.blocks:
        replace(block.attn, "project", project)


def gelu_formula(task: Task) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        return 0.5 * x * (1.0 + torch.erf(x / math.sqrt(2.0)))

    for block in task.model.blocks:
        replace(block.mlp[1], "forward", forward)


def norm_formula(task: Task) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scale = torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + self.eps)
        return centred * scale * self.weight + self.bias

    for block in task.model.blocks:
        replace(block.ln1, "forward", forward)
        replace(block.ln2, "forward", forward)


def matmul_and_add(task: Task) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        return x @ self.weight.t() + self.bias

    for block in task.model.blocks:
        replace(block.attn.out, "forward", forward)


def softmax_formula(task: Task) -> None:
    def weights(self: Any, scores: Tensor) -> Tensor:
        power = torch.exp(scores - scores.amax(-1, keepdim=True))
        return power / power.sum(-1, keepdim=True)

    for layer in task.model.layers:
        replace(layer, "weights", weights)


def infinite_padding(task: Task) -> None:
    def mask(self: Any, ids: Tensor, dtype: torch.dtype) -> Tensor:
        empty = torch.zeros(ids.shape, dtype=dtype)
        return empty.masked_fill(ids == 0, float("-inf"))[:, None, None]

    replace(task.model, "mask", mask)


def convolved_patches(task: Task) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        weight = self.proj.weight.view(-1, 3, 4, 4)
        return F.conv2d(x, weight, self.proj.bias, stride=4).flatten(2).transpose(1, 2)

    replace(task.model.patches, "forward", forward)


# --- options without consequence --------------------------------------------------------------


def with_options(**options: Any) -> Change:
    def change(task: Task) -> None:
        task.model.options.update(options)

    return change


def evaluated(p: float) -> Change:
    def change(task: Task) -> None:
        for module in task.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = p
        task.model.eval()

    return change


# --- the loop around the model ----------------------------------------------------------------


def optimized(**options: bool) -> Change:
    def change(task: Task) -> None:
        assert task.optimizer is not None
        for group in task.optimizer.param_groups:
            group.update({"foreach": False, "fused": False} | options)

    return change


def checkpointed(task: Task) -> None:
    def run_block(self: Any, block: torch.nn.Module, x: Tensor) -> Tensor:
        return checkpoint(block, x, use_reentrant=False)

    replace(task.model, "run_block", run_block)


def in_two_batches(task: Task) -> None:
    loss = task.loss

    def halves(model: torch.nn.Module, data: dict[str, Tensor]) -> Tensor:
        for number in range(2):
            half = {key: value.chunk(2)[number] for key, value in data.items()}
            part = loss(model, half) / 2
            part.backward()
        return part

    task.loss = halves
    task.backward = lambda loss: None


def trained_before(task: Task) -> None:
    """Train one step that is not recorded."""
    assert task.optimizer is not None
    task.backward(task.loss(task.model, task.data))
    task.optimizer.step()
    task.optimizer.zero_grad()


def resumed(task: Task) -> None:
    """Train one step, save everything, and go on from what was saved."""
    trained_before(task)
    assert task.optimizer is not None
    weights = {name: value.clone() for name, value in task.model.state_dict().items()}
    state = copy.deepcopy(task.optimizer.state_dict())
    trained_before(task)
    task.model.load_state_dict(weights)
    task.optimizer = torch.optim.AdamW(task.model.parameters(), lr=1.0)
    task.optimizer.load_state_dict(state)


@contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


BFLOAT16, FLOAT16, FLOAT64 = map(in_type, (torch.bfloat16, torch.float16, torch.float64))

LEGAL_PAIRS: tuple[LegalPair, ...] = (
    LegalPair(name="bfloat16", family="llama", target=BFLOAT16),
    LegalPair(name="bfloat16", family="llama", target=BFLOAT16, level="L0"),
    LegalPair(name="bfloat16", family="llama", target=BFLOAT16, level="L1", steps=2),
    LegalPair(name="float16", family="llama", target=FLOAT16),
    LegalPair(name="float64", family="llama", target=FLOAT64, steps=2),
    LegalPair(name="autocast", family="llama", around=autocast),
    LegalPair(name="fused attention", family="llama", target=fused_attention),
    LegalPair(name="fused attention", family="llama", target=fused_attention, level="L0", steps=2),
    LegalPair(name="causal attention", family="llama", target=causal_attention, level="L1"),
    LegalPair(name="masked with -inf", family="llama", target=masked_with(-math.inf)),
    LegalPair(name="masked with -3.4e38", family="llama", target=masked_with(-3.4e38), steps=2),
    LegalPair(name="use_cache", family="llama", target=with_options(use_cache=True)),
    LegalPair(
        name="use_cache, other attention",
        family="llama",
        target=both(with_options(use_cache=True), fused_attention),
        reference=with_options(use_cache=False),
    ),
    LegalPair(
        name="unused ignore_index",
        family="llama",
        target=with_options(ignore_index=-1),
        reference=with_options(ignore_index=-100),
    ),
    LegalPair(
        name="unused ignore_index in bfloat16",
        family="llama",
        target=both(BFLOAT16, with_options(ignore_index=-1)),
        reference=with_options(ignore_index=-100),
        level="L0",
        is_provable=False,  # another option with an effect would look like this beside bfloat16
    ),
    LegalPair(
        name="foreach optimizer",
        family="llama",
        target=optimized(foreach=True),
        reference=optimized(),
        steps=2,
    ),
    LegalPair(
        name="fused optimizer",
        family="llama",
        target=optimized(fused=True),
        reference=optimized(),
        steps=3,
    ),
    LegalPair(
        name="fused against foreach optimizer",
        family="gpt",
        target=optimized(fused=True),
        reference=optimized(foreach=True),
        level="L1",
        steps=2,
    ),
    LegalPair(name="casts and copies", family="llama", target=casts_and_copies),
    LegalPair(name="RMS norm in one call", family="llama", target=one_rms_call, steps=2),
    LegalPair(name="formula of SiLU", family="llama", target=silu_formula, steps=2),
    LegalPair(name="three projections", family="gpt", target=three_projections),
    LegalPair(name="formula of GELU", family="gpt", target=gelu_formula, steps=2),
    LegalPair(name="formula of layer norm", family="gpt", target=norm_formula, steps=2),
    LegalPair(name="formula of layer norm", family="gpt", target=norm_formula, level="L1"),
    LegalPair(name="product and sum", family="gpt", target=matmul_and_add, level="L1"),
    LegalPair(name="checkpointed", family="gpt", target=checkpointed),
    LegalPair(name="compiled block", family="gpt", target=compiled("blocks.0")),
    LegalPair(name="deterministic", family="gpt", around=deterministic),
    LegalPair(name="two batches", family="gpt", target=in_two_batches),
    LegalPair(name="resumed", family="gpt", target=resumed, reference=trained_before),
    LegalPair(name="two threads", family="gpt", around=two_threads, steps=3),
    LegalPair(
        name="formula of softmax",
        family="bert",
        target=both(without_draws, softmax_formula),
        reference=without_draws,
        steps=3,
    ),
    LegalPair(
        name="padding of -inf",
        family="bert",
        target=both(without_draws, infinite_padding),
        reference=without_draws,
    ),
    LegalPair(
        name="other dropout in evaluation",
        family="bert",
        target=evaluated(0.5),
        reference=evaluated(0.1),
    ),
    LegalPair(name="loss in two calls", family="bert", target=log_softmax_loss),
    LegalPair(name="float64", family="bert", target=FLOAT64, reference=without_draws, steps=3),
    LegalPair(name="bfloat16", family="bert", target=BFLOAT16, reference=without_draws, level="L0"),
    LegalPair(name="convolved patches", family="vit", target=convolved_patches),
    LegalPair(name="bfloat16", family="vit", target=BFLOAT16),
    LegalPair(name="float64", family="vit", target=FLOAT64, level="L0", steps=2),
    LegalPair(name="channels last", family="cnn", target=channels_last, steps=2),
    LegalPair(name="bfloat16", family="cnn", target=BFLOAT16, level="L0"),
    LegalPair(name="autocast", family="unet", around=autocast),
    LegalPair(name="float64", family="gru", target=FLOAT64, steps=2),
    LegalPair(name="run twice", family="gru", steps=2, level="L1"),
    LegalPair(name="statistics against tensor", family="gpt", tasks=("statistics", "tensor")),
    LegalPair(
        name="tensor against statistics", family="vit", tasks=("tensor", "statistics"), level="L0"
    ),
    LegalPair(name="md5 against statistics", family="gru", tasks=("md5", "statistics")),
    LegalPair(name="float64", family="ranker", target=FLOAT64, level="L1", steps=3),
    LegalPair(
        name="bfloat16",
        family="ranker",
        target=BFLOAT16,
        level="L1",
        steps=3,
        # Processors that sum up in bfloat16 round by more than calls of the type explain.
        is_provable=torch.backends.cpu.get_cpu_capability() != "AVX2",
    ),
    LegalPair(name="two batches", family="ranker", target=in_two_batches, level="L1", steps=2),
)
