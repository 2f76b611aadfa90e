# SPDX-License-Identifier: Apache-2.0
"""Models, faults and clean pairs that nothing was tuned on.

They were written after the analysis had been finished on `faults` and `clean_pairs`, in other
architectures, and scored once. When the analysis is changed because of one of them, it belongs to
the others, and a new one here.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from .clean_pairs import CleanPair, autocast, compiled, in_type, two_threads, without_draws
from .faults import Fault, replace, with_no_grad
from .models import Task


class RmsNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = 1e-6

    def power(self, x: Tensor) -> Tensor:
        return x.pow(2).mean(-1, keepdim=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(self.power(x) + self.eps))


class RotaryAttention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads, self.size = 4, width // 4
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, width // 2, bias=False)
        self.v = nn.Linear(width, width // 2, bias=False)
        self.o = nn.Linear(width, width, bias=False)
        angles = torch.outer(torch.arange(16.0), 0.1 ** torch.arange(self.size // 2))
        self.register_buffer("cos", torch.cat([angles.cos(), angles.cos()], -1))
        self.register_buffer("sin", torch.cat([angles.sin(), angles.sin()], -1))

    def half_turn(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        return torch.cat([-second, first], dim=-1)

    def rotate(self, x: Tensor) -> Tensor:
        t = x.shape[-2]
        return x * self.cos[:t] + self.half_turn(x) * self.sin[:t]

    def widen(self, x: Tensor) -> Tensor:
        return x.repeat_interleave(2, dim=1)

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.size)).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        q, k = self.rotate(q), self.widen(self.rotate(k))
        y = F.scaled_dot_product_attention(q, k, self.widen(v), is_causal=True)
        return self.o(y.transpose(1, 2).flatten(-2))


class Gated(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, 2 * width, bias=False)
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def mix(self, x: Tensor) -> Tensor:
        return F.silu(self.gate(x)) * self.up(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.mix(x))


class DecoderLayer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.attn = RmsNorm(width), RotaryAttention(width)
        self.norm2, self.mlp = RmsNorm(width), Gated(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tok = nn.Embedding(29, 32)
        self.layers = nn.ModuleList([DecoderLayer(32) for _ in range(2)])
        self.norm = RmsNorm(32)

    def project(self, x: Tensor) -> Tensor:
        return F.linear(x, self.tok.weight)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tok(ids)
        for layer in self.layers:
            x = layer(x)
        return self.project(self.norm(x))


def decoder_loss(model: nn.Module, data: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(model(data["ids"]).flatten(0, 1), data["next"].flatten())


def decoder() -> Task:
    ids = torch.randint(0, 29, (2, 11))
    data = {"ids": ids[:, :-1].clone(), "next": ids[:, 1:].clone()}
    return Task(Decoder(), decoder_loss, data)


class TimedBlock(nn.Module):
    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inner, outer, 3, stride=stride, padding=1)
        self.gn = nn.GroupNorm(2, outer)
        self.time = nn.Linear(8, outer)

    def add_time(self, y: Tensor, t: Tensor) -> Tensor:
        return y + self.time(t)[:, :, None, None]

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return F.silu(self.gn(self.add_time(self.conv(x), t)))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(4, 8), nn.SiLU())
        self.enter = TimedBlock(2, 6, 1)
        self.down = TimedBlock(6, 8, 2)
        self.mid = TimedBlock(8, 8, 1)
        self.up = TimedBlock(14, 6, 1)
        self.out = nn.Conv2d(6, 2, 1)

    def enlarge(self, x: Tensor) -> Tensor:
        return F.interpolate(x, scale_factor=2, mode="nearest")

    def join(self, big: Tensor, skip: Tensor) -> Tensor:
        return torch.cat([big, skip], dim=1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        t = self.time(t)
        a = self.enter(x, t)
        b = self.mid(self.down(a, t), t)
        return self.out(self.up(self.join(self.enlarge(b), a), t))


def denoising_loss(model: nn.Module, data: dict[str, Tensor]) -> Tensor:
    return F.mse_loss(model(data["x"], data["t"]), data["noise"])


def unet() -> Task:
    x, t, noise = torch.randn(2, 2, 8, 8), torch.randn(2, 4), torch.randn(2, 2, 8, 8)
    model = UNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=True)
    return Task(model, denoising_loss, {"x": x, "t": t, "noise": noise}, optimizer)


class Twins(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(3, 10, 5, padding=2)
        self.bn = nn.BatchNorm1d(10)
        self.head = nn.Linear(10, 6)
        self.temperature = 0.1

    def encode(self, x: Tensor) -> Tensor:
        y = F.leaky_relu(self.bn(self.conv(x)), 0.1)
        return self.head(y.amax(dim=-1))

    def compare(self, a: Tensor, b: Tensor) -> Tensor:
        a, b = F.normalize(a, dim=-1), F.normalize(b, dim=-1)
        return (a @ b.t()) / self.temperature

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.compare(self.encode(a), self.encode(b))


def contrastive_loss(model: nn.Module, data: dict[str, Tensor]) -> Tensor:
    logits = model(data["a"], data["b"])
    return F.cross_entropy(logits, torch.arange(logits.shape[0]))


def twins() -> Task:
    data = {"a": torch.randn(5, 3, 12), "b": torch.randn(5, 3, 12)}
    return Task(Twins(), contrastive_loss, data)


class Expert(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(10, 4, bias=False)
        self.experts = nn.ModuleList([Expert(10) for _ in range(4)])
        self.head = nn.Linear(10, 3)
        self.chosen = 2

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        share, place = torch.softmax(self.router(x), dim=-1).topk(self.chosen, dim=-1)
        return share / share.sum(-1, keepdim=True), place

    def forward(self, x: Tensor) -> Tensor:
        share, place = self.route(x)
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, slot = torch.where(place == number)
            y = y.index_add(0, token, expert(x[token]) * share[token, slot].unsqueeze(-1))
        return self.head(y)


def mixture_loss(model: nn.Module, data: dict[str, Tensor]) -> Tensor:
    return F.multi_margin_loss(model(data["x"]), data["y"])


def mixture() -> Task:
    data = {"x": torch.randn(14, 10), "y": torch.randint(0, 3, (14,))}
    model = Mixture()
    return Task(model, mixture_loss, data, torch.optim.SGD(model.parameters(), lr=0.1))


HELD_OUT_FAMILIES = {"decoder": decoder, "unet": unet, "twins": twins, "mixture": mixture}
HELD_OUT_FAULTS: list[Fault] = []


def fault(family: str, *planted: str, steps: int = 1, classes: tuple[str, ...] = ()) -> Any:
    """Register a function that changes a task as a held-out fault."""

    def register(change: Any) -> None:
        HELD_OUT_FAULTS.append(Fault(change.__name__, family, change, planted, steps, classes))

    return register


@fault("decoder", "in:layers.1.attn:Tensor.__neg__.*", "in:layers.1.attn:Torch.cat.*")
def rotation_without_sign(task: Task) -> None:
    def half_turn(self: Any, x: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        return torch.cat([second, first], dim=-1)

    replace(task.model.layers[1].attn, "half_turn", half_turn)


@fault("decoder", "in:layers.0.norm1:Tensor.__add__.*")
def wrong_rms_eps(task: Task) -> None:
    task.model.layers[0].norm1.eps = 1e-2


@fault("decoder", "in:layers.1.norm2:Tensor.mean.*", "in:layers.1.norm2:Tensor.sum.*")
def sum_for_mean(task: Task) -> None:
    replace(task.model.layers[1].norm2, "power", lambda self, x: x.pow(2).sum(-1, keepdim=True))


@fault(
    "decoder",
    "in:layers.0.mlp:Functional.silu.*",
    "module:layers.0.mlp.gate",
    "module:layers.0.mlp.up",
)
def gate_and_value_swapped(task: Task) -> None:
    replace(task.model.layers[0].mlp, "mix", lambda self, x: F.silu(self.up(x)) * self.gate(x))


@fault(
    "decoder",
    "in:layers.0.attn:Tensor.repeat.*",
    "in:layers.0.attn:Tensor.repeat_interleave.*",
)
def heads_repeated_in_wrong_order(task: Task) -> None:
    replace(task.model.layers[0].attn, "widen", lambda self, x: x.repeat(1, 2, 1, 1))


@fault("decoder", "in::Tensor.__mul__.*", "in::Functional.linear.*")
def scaled_output_embedding(task: Task) -> None:
    replace(task.model, "project", lambda self, x: F.linear(x, self.tok.weight * 1.02))


@fault("decoder", "Functional.cross_entropy.0.*")
def ignored_word(task: Task) -> None:
    word = int(task.data["next"][0, 0])
    task.loss = lambda model, data: F.cross_entropy(
        model(data["ids"]).flatten(0, 1), data["next"].flatten(), ignore_index=word
    )


@fault("decoder", "module:layers.1.attn", "in:layers.1.attn:*")
def wrong_rotation_table(task: Task) -> None:
    task.model.layers[1].attn.cos.mul_(0.9)


@fault("unet", "in::Torch.cat.*")
def skip_from_wrong_place(task: Task) -> None:
    replace(task.model, "join", lambda self, big, skip: torch.cat([big, skip * 0 + 1], dim=1))


@fault("unet", "Functional.interpolate.0.*")
def wrong_interpolation(task: Task) -> None:
    replace(
        task.model, "enlarge", lambda self, x: F.interpolate(x, scale_factor=2, mode="bilinear")
    )


@fault("unet", "in:mid:Tensor.__add__.*", "in:mid:Tensor.__getitem__.*")
def time_is_not_added(task: Task) -> None:
    def add_time(self: Any, y: Tensor, t: Tensor) -> Tensor:
        self.time(t)
        return y

    replace(task.model.mid, "add_time", add_time)


@fault("unet", "module:up.gn")
def changed_norm_weight(task: Task) -> None:
    with_no_grad(task.model.up.gn.weight, lambda w: w[2].mul_(1.1))


@fault("unet", "module:down.conv")
def wrong_dilation(task: Task) -> None:
    task.model.down.conv.dilation, task.model.down.conv.padding = (2, 2), (2, 2)


@fault(
    "unet",
    "module:optimizer",
    "module:time.0",
    "module:enter.conv",
    steps=2,
    classes=("optimizer_setting",),
)
def wrong_beta(task: Task) -> None:
    assert task.optimizer is not None
    task.optimizer.param_groups[0]["betas"] = (0.5, 0.999)


@fault("twins", "in::Functional.normalize.*")
def missing_normalisation_of_one_branch(task: Task) -> None:
    replace(
        task.model,
        "compare",
        lambda self, a, b: (F.normalize(a, dim=-1) @ b.t()) / self.temperature,
    )


@fault("twins", "in::Tensor.__truediv__.*")
def wrong_temperature(task: Task) -> None:
    task.model.temperature = 0.07


@fault("twins", "Tensor.t.0.backward", "Tensor.__matmul__.0.backward")
def stopped_gradient_of_one_branch(task: Task) -> None:
    def compare(self: Any, a: Tensor, b: Tensor) -> Tensor:
        a, b = F.normalize(a, dim=-1), F.normalize(b, dim=-1)
        return (a @ b.detach().t()) / self.temperature

    replace(task.model, "compare", compare)


@fault("twins", "Module.conv.Conv1d.parameters_grad*", "Tensor.clamp.*")
def clamped_gradient(task: Task) -> None:
    task.model.conv.weight.register_hook(lambda grad: grad.clamp(-1e-3, 1e-3))


@fault("mixture", "in::Tensor.topk.*")
def too_few_experts(task: Task) -> None:
    task.model.chosen = 1


@fault("mixture", "in::Torch.randn_like.*", "in::Tensor.__mul__.*", "in::Tensor.__add__.*")
def noisy_router(task: Task) -> None:
    def route(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        score = self.router(x)
        score = score + 0.3 * torch.randn_like(score)
        share, place = torch.softmax(score, dim=-1).topk(self.chosen, dim=-1)
        return share / share.sum(-1, keepdim=True), place

    replace(task.model, "route", route)


@fault("mixture", "module:experts.2.down")
def changed_expert(task: Task) -> None:
    with_no_grad(task.model.experts[2].down.bias, lambda b: b.add_(1e-3))


@fault("mixture", "in::Tensor.__truediv__.*", "in::Tensor.sum.*")
def shares_that_do_not_sum_to_one(task: Task) -> None:
    replace(
        task.model,
        "route",
        lambda self, x: torch.softmax(self.router(x), dim=-1).topk(self.chosen, dim=-1),
    )


_FLOAT64 = in_type(torch.float64)
_BFLOAT16 = in_type(torch.bfloat16)

HELD_OUT_PAIRS: tuple[CleanPair, ...] = (
    CleanPair("decoder in float32 against float64", "decoder", reference=_FLOAT64),
    CleanPair("unet in float32 against float64", "unet", reference=_FLOAT64, steps=2),
    CleanPair("twins in float32 against float64", "twins", reference=_FLOAT64),
    CleanPair("mixture in float32 against float64", "mixture", reference=_FLOAT64),
    CleanPair("decoder in bfloat16 against float32", "decoder", _BFLOAT16, without_draws),
    CleanPair("unet in bfloat16 against float32", "unet", _BFLOAT16, without_draws),
    CleanPair("twins in bfloat16 against float32", "twins", _BFLOAT16, without_draws),
    CleanPair("decoder under autocast", "decoder", around=autocast),
    CleanPair("unet with two threads", "unet", around=two_threads, steps=2),
    CleanPair("decoder layer compiled", "decoder", compiled("layers.0")),
)
