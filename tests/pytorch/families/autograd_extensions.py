# SPDX-License-Identifier: Apache-2.0
"""Families that extend or look into autograd: Functions, checkpoints, hooks, double backward."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from .training import TrainCase, seed_everything, simple_case, without_warnings

WIDTH = 8


class ScaledTanh(torch.autograd.Function):
    """Forward without a context: `setup_context` saves."""

    @staticmethod
    def forward(x: Tensor, scale: float) -> Tensor:
        return torch.tanh(x * scale)

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Tensor, float], output: Tensor) -> None:
        ctx.save_for_backward(output)
        ctx.scale = inputs[1]

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor, None]:
        (y,) = ctx.saved_tensors
        return grad * (1 - y * y) * ctx.scale, None


class DoubleInPlace(torch.autograd.Function):
    """Writes into its input and says so."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor) -> Tensor:
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> Tensor:
        return grad * 2


class SplitBySign(torch.autograd.Function):
    """Several outputs, one of them not differentiable; gradients that may be missing."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mask = x > 0
        ctx.save_for_backward(mask)
        ctx.mark_non_differentiable(mask)
        ctx.set_materialize_grads(False)
        return x * mask, x * ~mask, mask

    @staticmethod
    @once_differentiable
    def backward(
        ctx: FunctionCtx, positive: Tensor | None, negative: Tensor | None, _mask: None
    ) -> Tensor | None:
        (mask,) = ctx.saved_tensors
        if positive is None:
            return None if negative is None else negative * ~mask
        return positive * mask if negative is None else torch.where(mask, positive, negative)


class CustomFunctions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        h = ScaledTanh.apply(self.first(x), 0.7)
        h = DoubleInPlace.apply(h * 1.5)
        positive, negative, mask = SplitBySign.apply(h)
        alone, _, _ = SplitBySign.apply(self.second(h))
        return positive - 0.1 * negative + alone + mask.float()


def custom_functions(seed: int) -> TrainCase:
    """`autograd.Function`: mark_dirty, once_differentiable, setup_context, missing gradients."""
    seed_everything(seed)
    model = CustomFunctions()
    x = torch.randn(4, WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    return simple_case(model, lambda _: model(x).square().mean(), optimizer)


class Checkpointed(nn.Module):
    """Both checkpoint modes, one inside the other each way round, and a checkpointed sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Dropout(0.2)) for _ in range(6)
        )

    def forward(self, x: Tensor) -> Tensor:
        first, second, third, fourth, *rest = self.blocks
        x = self.blocks[0](x) + x
        x = x + checkpoint(first, x, use_reentrant=True)
        x = x + checkpoint(second, x, use_reentrant=False)
        x = checkpoint(self._outer, x, third, False, use_reentrant=True)
        x = checkpoint(self._outer, x, fourth, True, use_reentrant=False)
        return checkpoint_sequential(nn.Sequential(*rest), 2, x, use_reentrant=False)

    def _outer(self, x: Tensor, block: nn.Module, inner_reentrant: bool) -> Tensor:
        y = torch.sin(x)
        return x + checkpoint(block, y, use_reentrant=inner_reentrant)


def checkpointing(seed: int) -> TrainCase:
    """Activation checkpointing: reentrant, non-reentrant, nested, with dropout inside."""
    seed_everything(seed)
    model = Checkpointed()
    x = torch.randn(4, WIDTH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return simple_case(model, lambda _: model(x).square().mean(), optimizer)


def gradient_penalty(seed: int) -> TrainCase:
    """Double backward: the loss contains the norm of a gradient taken with `create_graph`."""
    seed_everything(seed)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))
    x = torch.randn(5, WIDTH)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def run_step(_step: int) -> Tensor:
        optimizer.zero_grad()
        point = x.clone().requires_grad_()
        value = model(point).sum()
        (slope,) = torch.autograd.grad(value, point, create_graph=True)
        loss = (slope.norm(dim=1) - 1).square().mean() + value.square() * 1e-3
        loss.backward()
        optimizer.step()
        case.extra["input gradient"] = point.grad
        return loss

    case = TrainCase(model, run_step, [optimizer])
    return case


class Generator(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(3, WIDTH), nn.LeakyReLU(0.2, inplace=True), nn.Linear(WIDTH, 4))


class Discriminator(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(4, WIDTH), nn.LeakyReLU(0.2, inplace=True), nn.Linear(WIDTH, 1))


def adversarial(seed: int) -> TrainCase:
    """Two models, two optimisers: detach, a retained graph, three backward passes a step."""
    seed_everything(seed)
    generator, discriminator = Generator(), Discriminator()
    real = torch.randn(6, 4) + 2
    for_generator = torch.optim.Adam(generator.parameters(), lr=1e-2, betas=(0.5, 0.99))
    for_discriminator = torch.optim.Adam(discriminator.parameters(), lr=1e-2)

    def judge(sample: Tensor, is_real: bool) -> Tensor:
        verdict = discriminator(sample)
        return F.binary_cross_entropy_with_logits(verdict, torch.full_like(verdict, is_real))

    def run_step(_step: int) -> Tensor:
        fake = generator(torch.randn(6, 3))
        for_discriminator.zero_grad()
        on_real = judge(real, is_real=True)
        on_real.backward()
        on_fake = judge(fake.detach(), is_real=False)
        on_fake.backward()
        for_discriminator.step()
        for_generator.zero_grad()
        fooled = judge(fake, is_real=True)
        fooled.backward(retain_graph=True)
        fake.square().mean().mul(1e-3).backward()
        for_generator.step()
        return on_real.detach() + on_fake.detach() + fooled.detach()

    return TrainCase([generator, discriminator], run_step, [for_generator, for_discriminator])


def user_hooks(seed: int) -> TrainCase:
    """The user's own hooks of every kind, saved-tensor hooks and anomaly mode; all must still fire.

    Tensor hooks change gradients, module hooks change inputs and outputs.
    """
    seed_everything(seed)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 2))
    x = torch.randn(4, WIDTH, requires_grad=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    seen: list[str] = []

    model[0].register_forward_pre_hook(lambda _m, args: (args[0] * 0.5,))
    model[1].register_forward_hook(lambda _m, _args, out: out + 0.25)
    model[2].register_full_backward_pre_hook(lambda _m, grads: (grads[0] * 2,))
    model[0].register_full_backward_hook(
        lambda _m, into, out: seen.append(f"full {len(into)} {len(out)}")
    )
    model[2].weight.register_hook(lambda grad: grad.clamp(-0.1, 0.1))
    model[2].bias.register_post_accumulate_grad_hook(
        lambda p: seen.append(f"accumulated {p.grad.sum().item():.9g}")
    )

    def pack(tensor: Tensor) -> Tensor:
        seen.append(f"pack {tuple(tensor.shape)}")
        return tensor.double()

    def run_step(_step: int) -> Tensor:
        optimizer.zero_grad()
        with (
            without_warnings(r"Anomaly Detection has been enabled"),
            torch.autograd.set_detect_anomaly(True, check_nan=True),
            torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed.float()),
        ):
            hidden = model[1](model[0](x))
            hidden.retain_grad()
            hidden.register_hook(lambda grad: grad * 1.25)
            loss = model[2](hidden).logsumexp(-1).mean()
            loss.backward()
        optimizer.step()
        case.extra["hidden gradient"] = hidden.grad
        case.extra["hook calls"] = list(seen)
        return loss

    case = TrainCase(model, run_step, [optimizer])
    return case


def functional_transforms(seed: int) -> TrainCase:
    """Per-sample gradients by vmap over grad, a Jacobian-vector product, and a vmapped Hessian."""
    seed_everything(seed)
    model = nn.Sequential(nn.Linear(WIDTH, 4), nn.Tanh(), nn.Linear(4, 1))
    x, y = torch.randn(5, WIDTH), torch.randn(5, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def sample_loss(parameters: dict[str, Tensor], one: Tensor, target: Tensor) -> Tensor:
        return F.mse_loss(torch.func.functional_call(model, parameters, (one,)), target)

    def run_step(_step: int) -> Tensor:
        optimizer.zero_grad()
        parameters = {name: p.detach() for name, p in model.named_parameters()}
        each = torch.func.vmap(torch.func.grad(sample_loss), in_dims=(None, 0, 0))
        gradients = each(parameters, x, y)
        case.extra["per sample"] = gradients
        # torch scripts its forward-mode formulas when they are first used, and remarks on itself
        with without_warnings(r"`torch\.jit\.script"):
            case.extra["jvp"] = torch.func.jvp(torch.sin, (x,), (torch.ones_like(x),))
            case.extra["hessian"] = torch.func.hessian(lambda v: v.pow(3).sum())(x[0])
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients.values()]).norm(dim=0)
        loss = F.mse_loss(model(x), y) * (1 + norms.mean())
        loss.backward()
        optimizer.step()
        return loss

    case = TrainCase(model, run_step, [optimizer])
    return case
