# SPDX-License-Identifier: Apache-2.0
"""Further pairs, written after the analysis had been changed for `later_pairs`, and scored once.

That score is in docs/performance.md. The analysis was changed because of some of them afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable
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
from fault_corpus.faults import replace, with_no_grad
from fault_corpus.models import Task
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .later_pairs import math_attention
from .pairs import FLOAT64, LegalPair, both, in_two_batches, optimized, resumed, trained_before

# --- another way to compute -------------------------------------------------------------------


def softmax_attention(task: Task) -> None:
    """Compute attention by products and a softmax in place of one call."""

    def forward(self: Any, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = (each.view(b, t, self.heads, -1).transpose(1, 2) for each in self.project(x))
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        above = torch.ones(t, t, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(above, float("-inf")).softmax(dim=-1)
        return self.out((weights @ v).transpose(1, 2).reshape(b, t, d))

    for block in task.model.blocks:
        replace(block.attn, "forward", forward)


class ThreeLinears(nn.Module):
    """A joined projection cut into three modules."""

    def __init__(self, joined: nn.Linear) -> None:
        super().__init__()
        self.parts = nn.ModuleList()
        for weight, bias in zip(joined.weight.chunk(3), joined.bias.chunk(3), strict=True):
            part = nn.Linear(joined.in_features, weight.shape[0])
            with_no_grad(part.weight, lambda w, new=weight: w.copy_(new))
            with_no_grad(part.bias, lambda b, new=bias: b.copy_(new))
            self.parts.append(part)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([part(x) for part in self.parts], dim=-1)


def three_linears(task: Task) -> None:
    for block in task.model.blocks:
        block.attn.qkv = ThreeLinears(block.attn.qkv)
    task.optimizer = torch.optim.AdamW(task.model.parameters(), lr=1e-3, foreach=False)


def added_products(task: Task) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x, self.weight.t())

    replace(task.model.fc1, "forward", forward)
    replace(task.model.fc2, "forward", forward)


def other_views(task: Task) -> None:
    def forward(self: Any, x: Tensor, mask: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = (
            each(x).reshape(b, t, self.heads, -1).transpose(1, 2)
            for each in (self.query, self.key, self.value)
        )
        weights = self.weights(torch.matmul(q, k.mT) / (d // self.heads) ** 0.5 + mask)
        y = torch.matmul(self.drop(weights), v).transpose(1, 2).contiguous().view(b, t, d)
        x = self.norm1(x + self.drop(self.dense(y)))
        return self.norm2(x + self.drop(self.down(self.act(self.up(x)))))

    for layer in task.model.layers:
        replace(layer, "forward", forward)


class PlainMlp(nn.Sequential):
    """The same layers, with the activation called as a function."""

    def forward(self, x: Tensor) -> Tensor:
        return self[2](F.gelu(self[0](x)))


def gelu_function(task: Task) -> None:
    for block in task.model.blocks:
        block.mlp = PlainMlp(*block.mlp)


def norms_by_hand(task: Task) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        var, mean = torch.var_mean(x, dim=-1, correction=0, keepdim=True)
        return (x - mean) / (var + self.eps).sqrt() * self.weight + self.bias

    for module in task.model.modules():
        if isinstance(module, nn.LayerNorm):
            replace(module, "forward", forward)


def with_pointwise(task: Task) -> None:
    """Put a convolution of single pixels behind the pooling."""
    torch.manual_seed(3)
    task.model.pool = nn.Sequential(task.model.pool, nn.Conv2d(8, 8, 1))
    task.optimizer = torch.optim.SGD(task.model.parameters(), lr=0.05, momentum=0.9)


def pointwise_product(task: Task) -> None:
    with_pointwise(task)

    def forward(self: Any, x: Tensor) -> Tensor:
        y = torch.matmul(self.weight[:, :, 0, 0], x.flatten(2)) + self.bias[:, None]
        return y.view_as(x)

    replace(task.model.pool[1], "forward", forward)


def mixed_by_fft(norm: str | None) -> Callable[[Task], None]:
    """Filter what the first layer makes in the space of frequencies."""

    def apply(task: Task) -> None:
        def second(self: Any, x: Tensor) -> Tensor:
            waves = torch.fft.rfft(x, norm=norm) * torch.linspace(1, 0.1, 13)
            return x + torch.tanh(self.fc2(torch.fft.irfft(waves, n=24, norm=norm)))

        replace(task.model, "second", second)

    return apply


def sharpness_aware(task: Task) -> None:
    """Compute the gradients where the loss is worse nearby, and go back before the step."""

    def go_there(model: nn.Module) -> None:
        moved = [(p, 0.05 * p.grad) for p in model.parameters() if p.grad is not None]
        with torch.no_grad():
            for parameter, by in moved:
                parameter.add_(by)
        task.loss(model, task.data).backward()
        with torch.no_grad():
            for parameter, by in moved:
                parameter.sub_(by)

    task.before_step = go_there


def mask_in_each_layer(task: Task) -> None:
    def attend(self: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        t = q.shape[2]
        above = torch.arange(t)[None, :] > torch.arange(t)[:, None]
        scores = torch.matmul(q, k.transpose(2, 3)) * self.size**-0.5
        scores = torch.where(above, torch.finfo(scores.dtype).min, scores)
        return torch.matmul(F.softmax(scores, dim=-1), v)

    for layer in task.model.model.layers:
        replace(layer.self_attn, "attend", attend)


def permuted_heads(task: Task) -> None:
    """Change the places of two heads, in all weights."""
    for block in task.model.blocks:
        attn = block.attn
        order = torch.arange(16).view(2, 8).flip(0).flatten()
        rows = torch.cat([order, 16 + order, 32 + order])
        with_no_grad(attn.qkv.weight, lambda w, rows=rows: w.copy_(w[rows].clone()))
        with_no_grad(attn.qkv.bias, lambda b, rows=rows: b.copy_(b[rows].clone()))
        with_no_grad(attn.out.weight, lambda w, order=order: w.copy_(w[:, order].clone()))


def relu_in_place(task: Task) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(x)), inplace=True)

    for block in (task.model.b1, task.model.b2, task.model.b3):
        replace(block, "forward", forward)


def without_dropout(task: Task) -> None:
    task.model.drop = nn.Identity()


def one_hot_words(task: Task) -> None:
    def forward(self: Any, ids: Tensor) -> Tensor:
        return F.one_hot(ids, self.num_embeddings).to(self.weight.dtype) @ self.weight

    replace(task.model.wte, "forward", forward)


def summed_loss(task: Task) -> None:
    task.loss = lambda model, data: (
        F.cross_entropy(model(data["x"]), data["y"], label_smoothing=0.1, reduction="sum")
        / data["y"].numel()
    )


def contrastive(*, by_hand: bool) -> Callable[[Task], None]:
    """Find each sample's neighbour; by hand, the loss of one call is only there to be shown."""

    def loss(model: nn.Module, data: dict[str, Tensor]) -> Tensor:
        found = F.normalize(model(data["x"]), dim=-1)
        itself = torch.eye(len(found), dtype=torch.bool)
        near = (found @ found.T / 0.2).masked_fill(itself, float("-inf"))
        wanted = torch.arange(len(found)).roll(1)
        shown = F.cross_entropy(near, wanted)
        chosen = near.gather(1, wanted[:, None])[:, 0]
        return (near.logsumexp(-1) - chosen).mean() if by_hand else shown

    def apply(task: Task) -> None:
        task.loss = loss

    return apply


def reciprocal_root(task: Task) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.weight * (x / torch.sqrt((x * x).mean(-1, keepdim=True) + self.eps))

    for module in task.model.modules():
        if type(module).__name__ == "RmsNorm":
            replace(module, "forward", forward)


# --- the loop around the model ----------------------------------------------------------------


def checkpointed_layers(task: Task) -> None:
    for layer in task.model.model.layers:
        inner = layer.forward

        def forward(self: Any, *args: Any, inner: Any = inner, **options: Any) -> Tensor:
            return checkpoint(inner, *args, use_reentrant=False, **options)

        replace(layer, "forward", forward)


def resumed_sgd(task: Task) -> None:
    """Train one step, save everything, and go on from what was saved."""
    trained_before(task)
    assert task.optimizer is not None
    weights = {name: value.clone() for name, value in task.model.state_dict().items()}
    state = {
        key: value.clone() if isinstance(value, Tensor) else value
        for key, value in _flat_state(task.optimizer).items()
    }
    trained_before(task)
    task.model.load_state_dict(weights)
    for number, group in enumerate(task.optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            buffer = state[f"{number}.{place}"]
            task.optimizer.state[parameter]["momentum_buffer"] = buffer


def _flat_state(optimizer: torch.optim.Optimizer) -> dict[str, Tensor | None]:
    return {
        f"{number}.{place}": optimizer.state[parameter].get("momentum_buffer")
        for number, group in enumerate(optimizer.param_groups)
        for place, parameter in enumerate(group["params"])
    }


def looped_clipping(task: Task) -> None:
    task.before_step = lambda model: torch.nn.utils.clip_grad_norm_(
        model.parameters(), 0.5, foreach=False
    )


def mixed_inside(task: Task) -> None:
    """Run in mixed precision and return the logits in float32, as Accelerate's models do."""
    forward = task.model.forward

    def run(self: Any, *args: Any) -> Tensor:
        with autocast():
            return forward(*args).float()

    replace(task.model, "forward", run)


# The results are the same, but parameters that differ are always named.
PERMUTED_HEADS = LegalPair(name="permuted heads", family="gpt", target=permuted_heads)

LATEST_PAIRS: tuple[LegalPair, ...] = (
    LegalPair(name="softmax attention", family="gpt", target=softmax_attention, steps=2),
    LegalPair(name="softmax attention", family="gpt", target=softmax_attention, level="L1"),
    LegalPair(name="attention by products", family="gpt", around=math_attention, level="L0"),
    LegalPair(name="three linears", family="gpt", target=three_linears),
    LegalPair(name="GELU as a function", family="gpt", target=gelu_function, level="L0", steps=2),
    LegalPair(name="one-hot words", family="gpt", target=one_hot_words, steps=2),
    LegalPair(name="autocast", family="gpt", around=autocast, level="L1", steps=2),
    LegalPair(name="mixed inside", family="gpt", target=mixed_inside, steps=2),
    LegalPair(name="whole model compiled", family="llama", target=compiled(), steps=2),
    LegalPair(name="two threads", family="llama", around=two_threads, level="L0", steps=3),
    LegalPair(name="checkpointed layers", family="llama", target=checkpointed_layers, level="L1"),
    LegalPair(name="mask in each layer", family="llama", target=mask_in_each_layer),
    LegalPair(
        name="reciprocal root in float64",
        family="llama",
        target=both(FLOAT64, reciprocal_root),
        level="L1",
    ),
    LegalPair(
        name="other views",
        family="bert",
        target=both(without_draws, other_views),
        reference=without_draws,
        steps=2,
    ),
    LegalPair(
        name="norms by hand",
        family="bert",
        target=both(without_draws, norms_by_hand),
        reference=without_draws,
        level="L1",
        steps=2,
    ),
    LegalPair(
        name="products and sums",
        family="mlp",
        target=both(without_draws, added_products),
        reference=without_draws,
        steps=2,
    ),
    LegalPair(
        name="no dropout", family="mlp", target=without_dropout, reference=without_draws, level="L0"
    ),
    LegalPair(
        name="sum over count",
        family="mlp",
        target=both(without_draws, summed_loss),
        reference=without_draws,
        level="L1",
    ),
    LegalPair(
        name="loss by hand",
        family="cnn",
        target=both(without_draws, contrastive(by_hand=True)),
        reference=both(without_draws, contrastive(by_hand=False)),
        steps=2,
    ),
    LegalPair(
        name="two batches",
        family="mlp",
        target=both(without_draws, in_two_batches),
        reference=without_draws,
        level="L1",
        steps=2,
    ),
    LegalPair(
        name="pointwise product", family="cnn", target=pointwise_product, reference=with_pointwise
    ),
    LegalPair(name="ReLU in place", family="cnn", target=relu_in_place, level="L1", steps=2),
    LegalPair(name="foreach optimizer", family="cnn", target=optimized(foreach=True), steps=3),
    LegalPair(
        name="fused optimizer", family="cnn", target=optimized(fused=True), level="L0", steps=3
    ),
    LegalPair(
        name="channels last without oneDNN",
        family="cnn",
        target=channels_last,
        around=without_onednn,
        level="L0",
        steps=2,
    ),
    LegalPair(name="resumed", family="cnn", target=resumed_sgd, reference=trained_before, steps=2),
    LegalPair(
        name="resumed",
        family="vit",
        target=resumed,
        reference=trained_before,
        level="L1",
        steps=2,
    ),
    LegalPair(name="looped clipping", family="transformer", target=looped_clipping, steps=2),
    LegalPair(name="float64", family="unet", target=FLOAT64, level="L1", steps=2),
    LegalPair(
        name="norm of the FFT",
        family="mlp",
        target=mixed_by_fft("ortho"),
        reference=mixed_by_fft(None),
        level="L1",
        steps=2,
    ),
    LegalPair(
        name="channels last, sharpness-aware",
        family="cnn",
        target=both(channels_last, sharpness_aware),
        reference=sharpness_aware,
        level="L1",
        steps=2,
    ),
)
