# SPDX-License-Identifier: Apache-2.0
"""Pairs of runs that differ by rounding or bookkeeping alone: nothing is to blame in them.

Random draws depend on the type of the tensor that they fill, so runs in other precisions leave
them out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from .dumping import threads
from .faults import replace
from .models import Task

Change = Callable[[Task], object]


@dataclass(frozen=True)
class CleanPair:
    """Two programs that compute the same.

    Attributes:
        name: how they differ.
        family: the model.
        target: changes the task for the target.
        reference: changes the task for the reference.
        around: context of the target's steps.
        steps: how many steps are run.
    """

    name: str
    family: str
    target: Change = lambda task: None
    reference: Change = lambda task: None
    around: Callable[[], Any] = nullcontext
    steps: int = 1


def without_draws(task: Task) -> None:
    """Take random numbers out of a model."""
    for module in task.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    if hasattr(task.model, "sample"):
        replace(task.model, "sample", lambda self, mu, logvar: mu + torch.exp(0.5 * logvar))


def in_type(dtype: torch.dtype) -> Change:
    """Return a change that runs model and data in another type."""

    def change(task: Task) -> None:
        without_draws(task)
        task.model.to(dtype)
        task.data = {
            key: value.to(dtype) if value.is_floating_point() else value
            for key, value in task.data.items()
        }

    return change


@contextmanager
def autocast() -> Iterator[None]:
    """Run in mixed precision."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        yield


@contextmanager
def two_threads() -> Iterator[None]:
    """Run with two threads instead of one."""
    with threads(2):
        yield


@contextmanager
def without_onednn() -> Iterator[None]:
    """Run with PyTorch's own kernels: they sum in another order."""
    before = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.set_flags(_enabled=False)
    try:
        yield
    finally:
        torch.backends.mkldnn.set_flags(_enabled=before)


def compiled(*paths: str) -> Change:
    """Return a change that compiles modules, the whole model without paths."""

    def change(task: Task) -> None:
        for module in [task.model.get_submodule(path) for path in paths] or [task.model]:
            module.compile(backend="aot_eager")

    return change


def channels_last(task: Task) -> None:
    """Store images with their channels last."""
    task.model.to(memory_format=torch.channels_last)
    task.data["x"] = task.data["x"].contiguous(memory_format=torch.channels_last)


def extra_copies(task: Task) -> None:
    """Copy and cast values without changing them."""

    def forward(self: Any, x: Tensor) -> Tensor:
        y = self.ln1(x.clone()).contiguous()
        x = x + self.attn(y.double().float())
        return x.view(x.shape) + self.mlp(self.ln2(x))

    for block in task.model.blocks:
        replace(block, "forward", forward)


def fused_attention(task: Task) -> None:
    """Compute attention in one call."""

    def forward(self: Any, x: Tensor) -> Tensor:
        q, k, v = self.project(x)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        b, h, t, d = y.shape
        return self.out(y.transpose(1, 2).reshape(b, t, h * d))

    for block in task.model.blocks:
        replace(block.attn, "forward", forward)


def one_optimizer_call(task: Task) -> None:
    """Update parameters in one call instead of one by one."""
    assert task.optimizer is not None
    for group in task.optimizer.param_groups:
        group["foreach"] = not group["foreach"]


def chunked_sum(task: Task) -> None:
    """Sum a product in two halves."""

    def forward(self: Any, x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        first = F.linear(x[..., :half], self.weight[:, :half])
        return first + F.linear(x[..., half:], self.weight[:, half:]) + self.bias

    replace(task.model.fc2, "forward", forward)


def softmax_without_shift(task: Task) -> None:
    """Leave out the shift of a softmax."""

    def normalise(self: Any, score: Tensor, dst: Tensor, nodes: int) -> Tensor:
        score = torch.exp(score - 0 * score.max())
        total = score.new_zeros(nodes).index_add(0, dst, score)
        return score / (total[dst] + 1e-9)

    replace(task.model.g1, "normalise", normalise)


_FLOAT64 = in_type(torch.float64)
_BFLOAT16 = in_type(torch.bfloat16)
_FLOAT16 = in_type(torch.float16)

CLEAN_PAIRS: tuple[CleanPair, ...] = (
    *(
        CleanPair(f"{family} in float32 against float64", family, without_draws, _FLOAT64)
        for family in ("mlp", "cnn", "transformer", "tagger", "autoencoder", "ranker")
    ),
    *(
        CleanPair(f"{family} in bfloat16 against float32", family, _BFLOAT16, without_draws)
        for family in ("mlp", "cnn", "transformer", "tagger", "autoencoder")
    ),
    CleanPair("transformer in float16 against float32", "transformer", _FLOAT16),
    *(
        CleanPair(f"{family} under autocast", family, without_draws, without_draws, autocast)
        for family in ("mlp", "cnn", "transformer")
    ),
    *(
        CleanPair(f"{family} with two threads", family, around=two_threads, steps=2)
        for family in ("mlp", "cnn", "transformer")
    ),
    *(
        CleanPair(f"{family} without oneDNN", family, around=without_onednn, steps=2)
        for family in ("cnn", "tagger", "mlp")
    ),
    CleanPair("cnn with channels last", "cnn", channels_last, steps=2),
    CleanPair(
        "mlp compiled", "mlp", lambda task: (without_draws(task), compiled()(task)), without_draws
    ),
    CleanPair("transformer block compiled", "transformer", compiled("blocks.1")),
    CleanPair("transformer with copies and casts", "transformer", extra_copies),
    CleanPair("transformer with fused attention", "transformer", fused_attention),
    CleanPair("mlp updated in one call", "mlp", one_optimizer_call, steps=2),
    CleanPair("mlp with a chunked sum", "mlp", chunked_sum, steps=2),
    CleanPair("tagger run twice", "tagger", steps=2),
    CleanPair("autoencoder run twice", "autoencoder", steps=2),
)
