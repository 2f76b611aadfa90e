# SPDX-License-Identifier: Apache-2.0
"""Pairs written after all others, scored once before anything was changed for them.

That score is in docs/performance.md. The changes here know modules by their type alone, so each
holds for any model.
"""

from __future__ import annotations

from typing import Any

import torch
from fault_corpus.clean_pairs import without_draws
from fault_corpus.faults import replace
from fault_corpus.models import Task
from torch import Tensor, nn

from .pairs import BFLOAT16, LegalPair, both

# --- modules of one type, computed in another way -------------------------------------------------


def each_module(kind: type[nn.Module], forward: Any) -> Any:
    """Return a change that gives all modules of a type another forward."""

    def change(task: Task) -> None:
        for module in task.model.modules():
            if type(module) is kind:
                replace(module, "forward", forward)

    return change


def einsum_linear(self: Any, x: Tensor) -> Tensor:
    y = torch.einsum("...i,oi->...o", x, self.weight)
    return y if self.bias is None else y + self.bias


def transposed_linear(self: Any, x: Tensor) -> Tensor:
    y = (self.weight @ x.unsqueeze(-1)).squeeze(-1)
    return y if self.bias is None else self.bias + y


def norm_by_variance(self: Any, x: Tensor) -> Tensor:
    variance, mean = torch.var_mean(x, dim=-1, correction=0, keepdim=True)
    return torch.addcmul(self.bias, (x - mean) / torch.sqrt(variance + self.eps), self.weight)


def indexed_embedding(self: Any, ids: Tensor) -> Tensor:
    return self.weight[ids]


def selected_embedding(self: Any, ids: Tensor) -> Tensor:
    return torch.index_select(self.weight, 0, ids.flatten()).view(*ids.shape, -1)


def clamped_relu(self: Any, x: Tensor) -> Tensor:
    return x.clamp_min(0)


def loss_by_logsumexp(task: Task) -> None:
    def loss(self: Any, logits: Tensor, labels: Tensor) -> Tensor:
        chosen = logits.gather(-1, labels[:, None]).squeeze(-1)
        return (torch.logsumexp(logits, dim=-1) - chosen).mean()

    replace(task.model, "loss", loss)


# --- the model and its parameters -------------------------------------------------------------


class Wrapped(nn.Module):
    """A model inside of another, as data-parallel wrappers keep it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.options = getattr(module, "options", None)

    def forward(self, *values: Any, **options: Any) -> Any:
        return self.module(*values, **options)


def wrapped(task: Task) -> None:
    task.model = Wrapped(task.model)


def transposed_storage(task: Task) -> None:
    for p in task.model.parameters():
        if p.dim() == 2:
            p.data = p.data.t().contiguous().t()


def identity_hooks(task: Task) -> None:
    for p in task.model.parameters():
        p.register_hook(lambda grad: grad)
    for module in task.model.modules():
        module.register_forward_hook(lambda module, values, output: output)


# --- the loop ---------------------------------------------------------------------------------


def gradients_by_call(task: Task) -> None:
    def backward(loss: Tensor) -> None:
        trained = [p for p in task.model.parameters() if p.requires_grad]
        for p, grad in zip(trained, torch.autograd.grad(loss, trained), strict=True):
            p.grad = grad

    task.backward = backward


def scaled_and_unscaled(task: Task) -> None:
    def backward(loss: Tensor) -> None:
        (loss * 1024).backward()
        for p in task.model.parameters():
            if p.grad is not None:
                p.grad.div_(1024)

    task.backward = backward


def with_scaler(task: Task) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    task.backward = lambda loss: scaler.scale(loss).backward()

    def unscale(model: nn.Module) -> None:
        assert task.optimizer is not None
        scaler.unscale_(task.optimizer)
        scaler.update()

    task.before_step = unscale


def watched(task: Task) -> None:
    """Look at the loss and at the gradients, as a log does."""
    loss = task.loss

    def looked_at(model: nn.Module, data: dict[str, Tensor]) -> Tensor:
        value = loss(model, data)
        assert bool(torch.isfinite(value))
        return value

    def norms(model: nn.Module) -> None:
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        float(torch.stack([grad.norm() for grad in grads]).norm())

    task.loss, task.before_step = looked_at, norms


def harmless_clipping(task: Task) -> None:
    task.before_step = lambda model: nn.utils.clip_grad_norm_(model.parameters(), 1e6)


def other_seed(task: Task) -> None:
    """Seed another state of the generator, of which nothing is drawn."""
    without_draws(task)
    loss = task.loss

    def seeded(model: nn.Module, data: dict[str, Tensor]) -> Tensor:
        torch.manual_seed(99)
        return loss(model, data)

    task.loss = seeded


def int32_ids(task: Task) -> None:
    task.data = {k: v.int() if k == "ids" else v for k, v in task.data.items()}


# --- the optimizer ----------------------------------------------------------------------------


def adam_without_decay(kind: type[torch.optim.Optimizer]) -> Any:
    def change(task: Task) -> None:
        task.optimizer = kind(task.model.parameters(), lr=1e-3, weight_decay=0.0, foreach=False)  # type: ignore[call-arg]

    return change


def other_order(task: Task) -> None:
    parameters = list(task.model.parameters())[::-1]
    task.optimizer = torch.optim.AdamW(parameters, lr=1e-3, foreach=False)


def two_groups(task: Task) -> None:
    parameters = list(task.model.parameters())
    groups = [{"params": parameters[::2]}, {"params": parameters[1::2]}]
    task.optimizer = torch.optim.AdamW(groups, lr=1e-3, foreach=False)


def rate_as_tensor(task: Task) -> None:
    task.optimizer = torch.optim.AdamW(
        task.model.parameters(), lr=torch.tensor(1e-3), foreach=False
    )


def adamw(task: Task) -> None:
    task.optimizer = torch.optim.AdamW(task.model.parameters(), lr=1e-3, foreach=False)


EINSUM = each_module(nn.Linear, einsum_linear)
PRODUCTS = each_module(nn.Linear, transposed_linear)
BY_VARIANCE = each_module(nn.LayerNorm, norm_by_variance)

UNSEEN_PAIRS: tuple[LegalPair, ...] = (
    LegalPair(name="einsum for linear layers", family="llama", target=EINSUM, steps=2),
    LegalPair(name="einsum for linear layers", family="bert", target=EINSUM, level="L1"),
    LegalPair(name="weight on the left", family="gpt", target=PRODUCTS),
    LegalPair(name="weight on the left", family="mlp", target=PRODUCTS, level="L0", steps=2),
    LegalPair(name="norm by variance", family="bert", target=BY_VARIANCE, steps=2),
    LegalPair(name="norm by variance", family="gpt", target=BY_VARIANCE, level="L1", steps=2),
    LegalPair(
        name="indexed words", family="llama", target=each_module(nn.Embedding, indexed_embedding)
    ),
    LegalPair(
        name="selected words",
        family="gru",
        target=each_module(nn.Embedding, selected_embedding),
        level="L1",
        steps=2,
    ),
    LegalPair(name="clamped ReLU", family="transformer", target=each_module(nn.ReLU, clamped_relu)),
    LegalPair(name="loss by logsumexp", family="bert", target=loss_by_logsumexp, steps=2),
    LegalPair(name="wrapped", family="llama", target=wrapped, steps=2),
    LegalPair(name="wrapped", family="gpt", target=wrapped, level="L0"),
    LegalPair(name="transposed storage", family="gpt", target=transposed_storage, steps=2),
    LegalPair(name="identity hooks", family="bert", target=identity_hooks, level="L1"),
    LegalPair(name="gradients by a call", family="gpt", target=gradients_by_call, steps=2),
    LegalPair(name="scaled and unscaled", family="llama", target=scaled_and_unscaled, steps=2),
    LegalPair(name="with a scaler", family="gpt", target=with_scaler, level="L1", steps=2),
    LegalPair(name="watched", family="llama", target=watched, steps=2),
    LegalPair(name="clipping without effect", family="gpt", target=harmless_clipping, steps=2),
    LegalPair(
        name="other seed without draws",
        family="bert",
        target=other_seed,
        reference=without_draws,
        steps=2,
    ),
    LegalPair(name="int32 words", family="llama", target=int32_ids),
    LegalPair(
        name="Adam against AdamW without decay",
        family="gpt",
        target=adam_without_decay(torch.optim.Adam),
        reference=adam_without_decay(torch.optim.AdamW),
        steps=3,
    ),
    LegalPair(
        name="parameters in another order",
        family="gpt",
        target=other_order,
        reference=adamw,
        steps=2,
    ),
    LegalPair(name="two equal groups", family="llama", target=two_groups, reference=adamw, steps=2),
    LegalPair(
        name="rate as a tensor", family="gpt", target=rate_as_tensor, reference=adamw, steps=2
    ),
    LegalPair(name="bfloat16 by einsum", family="llama", target=both(BFLOAT16, EINSUM), level="L1"),
)
