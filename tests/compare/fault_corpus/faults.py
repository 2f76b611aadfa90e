# SPDX-License-Identifier: Apache-2.0
"""Faults to plant, and for each the records that count as the planted operator.

The records were written down from the fault and the source of the model, before any result was
looked at: the call that was changed, added or dropped, its innermost module, or its parameter. An
entry ``module:p`` stands for every record directly inside module ``p``, ``in:p:pattern`` for those
of a pattern. Numbers of calls are those of the correct program, or of the faulty one for calls that
only this makes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from .models import Task


@dataclass(frozen=True)
class Fault:
    """A fault.

    Attributes:
        name: what it is.
        family: the model that it is planted in.
        plant: changes the task.
        planted: patterns of records that name the planted operator.
        steps: how many steps are run.
        classes: classes of the verdict that name it, where it is in the training around the calls.
    """

    name: str
    family: str
    plant: Callable[[Task], object]
    planted: tuple[str, ...]
    steps: int = 1
    classes: tuple[str, ...] = ()


FAULTS: list[Fault] = []


def fault(family: str, *planted: str) -> Callable[[Callable[[Any], object]], None]:
    """Register a function that changes a task's model as a fault of its name."""

    def register(change: Callable[[Any], object]) -> None:
        FAULTS.append(Fault(change.__name__, family, lambda task: change(task.model), planted))

    return register


def task_fault(
    family: str, *planted: str, steps: int = 1, classes: tuple[str, ...] = ()
) -> Callable[[Callable[[Task], object]], None]:
    """Register a function that changes a whole task as a fault."""

    def register(change: Callable[[Task], object]) -> None:
        FAULTS.append(Fault(change.__name__, family, change, planted, steps, classes))

    return register


def replace(module: nn.Module, name: str, function: Callable[..., Any]) -> None:
    """Give one module another method."""
    object.__setattr__(module, name, MethodType(function, module))


def with_no_grad(parameter: Tensor, change: Callable[[Tensor], object]) -> None:
    """Change a parameter's values."""
    with torch.no_grad():
        change(parameter)


# --- mlp --------------------------------------------------------------------------------------


@fault("mlp", "Module.fc2.Linear.*", "Functional.linear.1.forward")
def scaled_weight(model: Any) -> None:
    with_no_grad(model.fc2.weight, lambda w: w.mul_(1.01))


@fault("mlp", "Module.fc1.Linear.*", "Functional.linear.0.forward")
def one_bias_element(model: Any) -> None:
    with_no_grad(model.fc1.bias, lambda b: b[3].add_(0.1))


@fault("mlp", "Module.norm.*", "Functional.layer_norm.0.*")
def wrong_layer_norm_eps(model: Any) -> None:
    model.norm.eps = 1e-3


@fault("mlp", "Module.drop.*", "Functional.dropout.0.*")
def changed_dropout(model: Any) -> None:
    model.drop.p = 0.5


@fault("mlp", "Functional.relu.0.*", "Functional.gelu.0.*", "Module.Mlp.*")
def wrong_activation(model: Any) -> None:
    replace(model, "first", lambda self, x: F.gelu(self.norm(self.fc1(x))))


@fault("mlp", "Tensor.__add__.0.*", "Module.Mlp.*")
def dropped_residual(model: Any) -> None:
    replace(model, "second", lambda self, x: torch.tanh(self.fc2(x)))


@task_fault("mlp", "Functional.cross_entropy.0.*")
def missing_label_smoothing(task: Task) -> None:
    task.loss = lambda model, data: F.cross_entropy(model(data["x"]), data["y"])


@task_fault("mlp", "Functional.cross_entropy.0.*")
def wrong_reduction(task: Task) -> None:
    task.loss = lambda model, data: F.cross_entropy(
        model(data["x"]), data["y"], label_smoothing=0.1, reduction="sum"
    )


@fault("mlp", "Tensor.detach.0.*", "Tensor.__add__.0.backward")
def detached_residual(model: Any) -> None:
    replace(model, "second", lambda self, x: x.detach() + torch.tanh(self.fc2(x)))


@fault("mlp", "Module.fc2.Linear.parameters_grad*", "Tensor.__mul__.0.forward")
def doubled_weight_gradient(model: Any) -> None:
    model.fc2.weight.register_hook(lambda grad: grad * 2)


@fault("mlp", "Tensor.__setitem__.0.*", "Tensor.clone.0.*", "Module.Mlp.*")
def nan_in_one_element(model: Any) -> None:
    def first(self: Any, x: Tensor) -> Tensor:
        y = F.relu(self.norm(self.fc1(x))).clone()
        y[2, 3] = float("nan")
        return y

    replace(model, "first", first)


@task_fault("mlp", "Tensor.roll.0.*", "Functional.cross_entropy.0.*")
def shifted_labels(task: Task) -> None:
    task.loss = lambda model, data: F.cross_entropy(
        model(data["x"]), data["y"].roll(1), label_smoothing=0.1
    )


@fault("mlp", "Module.fc1.Linear.*", "Functional.linear.0.*")
def frozen_weight(model: Any) -> None:
    model.fc1.weight.requires_grad_(False)


# --- cnn --------------------------------------------------------------------------------------


@fault("cnn", "module:b2.bn")
def batch_norm_in_eval_mode(model: Any) -> None:
    model.b2.bn.eval()


@fault("cnn", "module:b1.bn")
def wrong_momentum(model: Any) -> None:
    model.b1.bn.momentum = 0.5


@fault("cnn", "module:b3.bn")
def wrong_batch_norm_eps(model: Any) -> None:
    model.b3.bn.eps = 1e-2


@fault("cnn", "module:b3.conv")
def wrong_padding(model: Any) -> None:
    model.b3.conv.padding = (0, 0)


@fault("cnn", "module:b3.conv")
def wrong_stride(model: Any) -> None:
    model.b3.conv.stride = (2, 2)


@fault("cnn", "module:b1.conv")
def transposed_kernel(model: Any) -> None:
    with_no_grad(model.b1.conv.weight, lambda w: w.copy_(w.transpose(2, 3).clone()))


@fault("cnn", "module:b2.bn", "Module.b2.ConvBlock.*")
def dropped_batch_norm(model: Any) -> None:
    replace(model.b2, "forward", lambda self, x: F.relu(self.conv(x)))


@fault("cnn", "module:pool", "Module.pool.*")
def average_instead_of_max(model: Any) -> None:
    model.pool = nn.AvgPool2d(2)


@fault("cnn", "Tensor.mean.0.*", "Tensor.amax.0.*", "Module.Cnn.*")
def wrong_pooling_reduction(model: Any) -> None:
    replace(model, "squeeze", lambda self, x: x.amax(dim=(2, 3)))


@fault("cnn", "Tensor.__add__.0.*", "Tensor.__sub__.0.*", "Module.Cnn.*")
def wrong_sign(model: Any) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = self.b1(x)
        x = x - self.b2(x)
        x = self.b3(self.pool(x))
        return self.head(self.squeeze(x))

    replace(model, "forward", forward)


@task_fault("cnn", "module:head", "module:optimizer", steps=2, classes=("update",))
def stale_parameter(task: Task) -> None:
    assert task.optimizer is not None
    group = task.optimizer.param_groups[0]
    group["params"] = [p for p in group["params"] if p is not task.model.head.weight]


@fault("cnn", "module:b2.conv")
def lower_precision_layer(model: Any) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        y = F.conv2d(
            x.bfloat16(), self.weight.bfloat16(), self.bias.bfloat16(), padding=self.padding
        )
        return y.float()

    replace(model.b2.conv, "forward", forward)


@task_fault(
    "cnn",
    "module:b1.conv",
    "module:b1.bn",
    "module:optimizer",
    steps=2,
    classes=("optimizer_setting",),
)
def wrong_learning_rate(task: Task) -> None:
    assert task.optimizer is not None
    task.optimizer.param_groups[0]["lr"] = 0.1


@fault("cnn", "module:b2.bn", "module:b2.conv")
def scaled_by_numpy(model: Any) -> None:
    def hook(module: nn.Module, inputs: Any, output: Tensor) -> None:
        numbers = output.detach().numpy()
        numbers *= 1.5

    model.b2.conv.register_forward_hook(hook)


@fault("cnn", "module:b3.conv", "module:pool")
def shifted_by_numpy(model: Any) -> None:
    def hook(module: nn.Module, inputs: Any, output: Tensor) -> None:
        numbers = output.detach().numpy()
        numbers += 0.01

    model.pool.register_forward_hook(hook)


# --- transformer ------------------------------------------------------------------------------


@fault(
    "transformer",
    "module:blocks.1.attn.q",
    "module:blocks.1.attn.k",
    "Tensor.view.3.*",
    "Tensor.view.4.*",
)
def swapped_projections(model: Any) -> None:
    def project(self: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.split(self.k(x)), self.split(self.q(x)), self.split(self.v(x))

    replace(model.blocks[1].attn, "project", project)


@fault("transformer", "Tensor.__mul__.0.*")
def missing_scale(model: Any) -> None:
    replace(model.blocks[0].attn, "scores", lambda self, q, k: torch.matmul(q, k.transpose(-1, -2)))


@fault("transformer", "Torch.triu.2.*", "Tensor.masked_fill.2.*")
def wrong_mask(model: Any) -> None:
    def mask(self: Any, scores: Tensor) -> Tensor:
        t = scores.shape[-1]
        above = torch.triu(torch.ones(t, t, dtype=torch.bool), diagonal=2)
        return scores.masked_fill(above, float("-inf"))

    replace(model.blocks[2].attn, "mask", mask)


@fault("transformer", "Tensor.masked_fill.1.*", "Torch.triu.1.*", "Torch.ones.1.*")
def missing_mask(model: Any) -> None:
    replace(model.blocks[1].attn, "mask", lambda self, scores: scores)


@fault("transformer", "Functional.softmax.1.*")
def wrong_softmax_dim(model: Any) -> None:
    replace(model.blocks[1].attn, "weights", lambda self, scores: F.softmax(scores, dim=-2))


@fault("transformer", "Tensor.__add__.3.*", "Module.blocks.1.Block.*")
def dropped_attention_residual(model: Any) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))

    replace(model.blocks[1], "forward", forward)


@fault("transformer", "Torch.arange.0.*", "Tensor.roll.0.*", "Functional.embedding.1.*")
def position_off_by_one(model: Any) -> None:
    replace(model, "positions", lambda self, ids: torch.arange(ids.shape[1]).roll(1))


@fault("transformer", "module:blocks.0.attn.v")
def transposed_projection(model: Any) -> None:
    with_no_grad(model.blocks[0].attn.v.weight, lambda w: w.copy_(w.t().clone()))


@fault("transformer", "module:norm", "Module.Transformer.*")
def dropped_final_norm(model: Any) -> None:
    def forward(self: Any, ids: Tensor) -> Tensor:
        x = self.tok(ids) + self.pos(self.positions(ids))
        for block in self.blocks:
            x = block(x)
        return self.head(x)

    replace(model, "forward", forward)


@fault("transformer", "Functional.gelu.1.*", "Module.blocks.1.mlp.FeedForward.*")
def approximate_gelu(model: Any) -> None:
    replace(model.blocks[1].mlp, "act", lambda self, x: F.gelu(x, approximate="tanh"))


@task_fault("transformer", "module:clip_grad", classes=("clipping",))
def wrong_clip_threshold(task: Task) -> None:
    task.before_step = lambda model: torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)


@fault(
    "transformer",
    "Tensor.__mul__.3.forward",
    "Tensor.__add__.4.backward",
    "Module.blocks.1.Block.backward.0",
)
def gradient_hook_scales(model: Any) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln1(x))
        x = x + self.mlp(self.ln2(x))
        x.register_hook(lambda grad: grad * 1.5)
        return x

    replace(model.blocks[1], "forward", forward)


@fault("transformer", "Functional.softmax.0.*", "Tensor.bfloat16.0.*", "Tensor.float.0.*")
def lower_precision_softmax(model: Any) -> None:
    replace(
        model.blocks[0].attn,
        "weights",
        lambda self, scores: F.softmax(scores.bfloat16(), dim=-1).float(),
    )


@fault("transformer", "module:blocks.2.mlp.up")
def noisy_weight(model: Any) -> None:
    weight = model.blocks[2].mlp.up.weight
    noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(3))
    with_no_grad(weight, lambda w: w.add_(1e-3 * noise))


@fault("transformer", "Tensor.view.2.*", "Tensor.transpose.2.*")
def wrong_split_of_heads(model: Any) -> None:
    def project(self: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        b, t, d = x.shape
        q, k = self.split(self.q(x)), self.split(self.k(x))
        return q, k, self.v(x).view(b, self.heads, t, d // self.heads)

    replace(model.blocks[0].attn, "project", project)


@task_fault("transformer", "Tensor.__truediv__.0.forward")
def temperature_in_the_loss(task: Task) -> None:
    task.loss = lambda model, data: F.cross_entropy(
        model(data["ids"]).flatten(0, 1) / 2.0, data["next"].flatten()
    )


@task_fault("transformer", "Functional.cross_entropy.0.backward")
def scaled_backward(task: Task) -> None:
    task.backward = lambda loss: loss.backward(gradient=torch.full((), 3.0))


# --- tagger -----------------------------------------------------------------------------------


@fault("tagger", "Module.cell.*", "VF.gru_cell.0.forward")
def scaled_recurrent_weight(model: Any) -> None:
    with_no_grad(model.cell.weight_hh, lambda w: w.mul_(1.05))


@fault("tagger", "Module.lstm.*", "VF.lstm.0.forward")
def zeroed_forget_gate(model: Any) -> None:
    with_no_grad(model.lstm.bias_ih_l0, lambda b: b[12:24].zero_())


@fault("tagger", "Tensor.flip.0.*", "Module.Tagger.*")
def reversed_time(model: Any) -> None:
    cell_run = type(model).run_cell
    replace(model, "run_cell", lambda self, x: cell_run(self, x.flip(1)))


@fault("tagger", "Tensor.new_zeros.*", "VF.gru_cell.3.*", "Module.cell.GRUCell.forward.3")
def forgotten_state(model: Any) -> None:
    def run_cell(self: Any, x: Tensor) -> Tensor:
        state = x.new_zeros(x.shape[0], 12)
        states = []
        for t in range(x.shape[1]):
            if t == 3:
                state = x.new_zeros(x.shape[0], 12)
            state = self.cell(x[:, t], state)
            states.append(state)
        return torch.stack(states, dim=1)

    replace(model, "run_cell", run_cell)


@fault("tagger", "module:drop")
def dropout_switched_off(model: Any) -> None:
    model.drop.eval()


@task_fault("tagger", "Functional.log_softmax.0.*")
def wrong_log_softmax_dim(task: Task) -> None:
    task.loss = lambda model, data: F.nll_loss(
        F.log_softmax(model(data["ids"]).flatten(0, 1), dim=0), data["tags"]
    )


@fault("tagger", "module:emb")
def wrong_padding_index(model: Any) -> None:
    model.emb.padding_idx = 7


@fault("tagger", "Tensor.__getitem__.2.*", "VF.gru_cell.2.*", "Module.cell.GRUCell.forward.2")
def time_off_by_one(model: Any) -> None:
    def run_cell(self: Any, x: Tensor) -> Tensor:
        state = x.new_zeros(x.shape[0], 12)
        states = []
        for t in range(x.shape[1]):
            state = self.cell(x[:, t - 1 if t == 2 else t], state)
            states.append(state)
        return torch.stack(states, dim=1)

    replace(model, "run_cell", run_cell)


# --- autoencoder ------------------------------------------------------------------------------


@task_fault("autoencoder", "Tensor.__mul__.2.*")
def wrong_sign_of_kl(task: Task) -> None:
    def elbo(model: Any, data: dict[str, Tensor]) -> Tensor:
        y, mu, logvar = model(data["x"])
        kl = 0.5 * torch.mean(1 + logvar - mu**2 - logvar.exp())
        return F.mse_loss(y, data["x"]) + 0.1 * kl

    task.loss = elbo


@task_fault("autoencoder", "Tensor.__mul__.3.*")
def wrong_loss_weight(task: Task) -> None:
    def elbo(model: Any, data: dict[str, Tensor]) -> Tensor:
        y, mu, logvar = model(data["x"])
        kl = -0.5 * torch.mean(1 + logvar - mu**2 - logvar.exp())
        return F.mse_loss(y, data["x"]) + 0.5 * kl

    task.loss = elbo


@fault("autoencoder", "Tensor.__mul__.0.*", "Torch.exp.0.*")
def variance_for_deviation(model: Any) -> None:
    replace(model, "sample", lambda self, mu, logvar: mu + torch.randn_like(mu) * torch.exp(logvar))


@task_fault("autoencoder", "Functional.mse_loss.0.*", "Functional.l1_loss.0.*")
def wrong_loss_function(task: Task) -> None:
    def elbo(model: Any, data: dict[str, Tensor]) -> Tensor:
        y, mu, logvar = model(data["x"])
        kl = -0.5 * torch.mean(1 + logvar - mu**2 - logvar.exp())
        return F.l1_loss(y, data["x"]) + 0.1 * kl

    task.loss = elbo


@fault("autoencoder", "Torch.rand.0.*", "Torch.randn_like.0.*")
def consumed_random_numbers(model: Any) -> None:
    def sample(self: Any, mu: Tensor, logvar: Tensor) -> Tensor:
        torch.rand(1)
        return mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)

    replace(model, "sample", sample)


@fault("autoencoder", "Tensor.detach.0.*", "Tensor.__add__.0.backward")
def detached_mean(model: Any) -> None:
    replace(
        model,
        "sample",
        lambda self, mu, logvar: mu.detach() + torch.randn_like(mu) * torch.exp(0.5 * logvar),
    )


@fault("autoencoder", "module:dec.1", "Module.dec.1.*")
def wrong_decoder_activation(model: Any) -> None:
    model.dec[1] = nn.ReLU()


# --- graph ------------------------------------------------------------------------------------


@fault("graph", "Functional.leaky_relu.0.*", "Module.g1.GraphLayer.*")
def wrong_slope(model: Any) -> None:
    def score(self: Any, h: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        s = (h * self.att[0]).sum(-1)[src] + (h * self.att[1]).sum(-1)[dst]
        return F.leaky_relu(s, 0.01)

    replace(model.g1, "score", score)


@fault("graph", "Tensor.flip.0.*", "Tensor.index_add.2.*", "Module.g2.GraphLayer.*")
def summed_over_wrong_end(model: Any) -> None:
    def normalise(self: Any, score: Tensor, dst: Tensor, nodes: int) -> Tensor:
        score = torch.exp(score - score.max())
        total = score.new_zeros(nodes).index_add(0, dst.flip(0), score)
        return score / (total[dst] + 1e-9)

    replace(model.g2, "normalise", normalise)


@fault(
    "graph",
    "Tensor.__truediv__.0.*",
    "Tensor.__add__.1.*",
    "Tensor.__getitem__.4.*",
    "Tensor.index_add.0.*",
    "Tensor.new_zeros.0.*",
)
def missing_normalisation(model: Any) -> None:
    replace(model.g1, "normalise", lambda self, score, dst, nodes: torch.exp(score - score.max()))


@fault("graph", "Module.g2.GraphLayer.*", "Tensor.__getitem__.8.*")
def flipped_attention_parameter(model: Any) -> None:
    with_no_grad(model.g2.att, lambda a: a[1].mul_(-1))


# --- ranker -----------------------------------------------------------------------------------


@fault("ranker", "Autograd.Doubling.0.backward", "Tensor.__mul__.1.forward")
def wrong_custom_backward(model: Any) -> None:
    original = model.double

    class Doubling(torch.autograd.Function):
        forward = original.forward

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * -2.0

    model.double = Doubling


@fault("ranker", "module:items")
def wrong_bag_mode(model: Any) -> None:
    model.items.mode = "sum"


@fault("ranker", "module:norm")
def wrong_number_of_groups(model: Any) -> None:
    model.norm.num_groups = 4


@fault("ranker", "module:users")
def lost_embedding_row(model: Any) -> None:
    row = 0
    with_no_grad(model.users.weight, lambda w: w[row].zero_())


@fault("ranker", "Torch.stack.0.*")
def wrong_operand(model: Any) -> None:
    interact = type(model).interact
    replace(model, "interact", lambda self, u, i, d: interact(self, u, u, d))


@task_fault("ranker", "Functional.binary_cross_entropy_with_logits.0.*")
def weighted_positives(task: Task) -> None:
    task.loss = lambda model, data: F.binary_cross_entropy_with_logits(
        model(data["user"], data["bag"], data["dense"]),
        data["click"],
        pos_weight=torch.tensor(4.0),
    )


# --- vit --------------------------------------------------------------------------------------


@fault("vit", "in:patches:Tensor.permute.*", "in:patches:Tensor.reshape.*")
def permuted_pixels(model: Any) -> None:
    def cut(self: Any, x: Tensor) -> Tensor:
        b = x.shape[0]
        x = x.reshape(b, 3, 3, 4, 3, 4).permute(0, 2, 4, 3, 5, 1)
        return x.reshape(b, 9, 48)

    replace(model.patches, "cut", cut)


@fault("vit", "in:patches:Tensor.permute.*", "in:patches:Tensor.reshape.*")
def permuted_patches(model: Any) -> None:
    def cut(self: Any, x: Tensor) -> Tensor:
        b = x.shape[0]
        x = x.reshape(b, 3, 3, 4, 3, 4).permute(0, 4, 2, 1, 3, 5)
        return x.reshape(b, 9, 48)

    replace(model.patches, "cut", cut)
