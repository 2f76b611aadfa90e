# SPDX-License-Identifier: Apache-2.0
"""Small training programs whose every part can be replaced, and how they are recorded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from builders.recordings import recording

SEED = 20261123
Batch = tuple[Tensor, Tensor]


class Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = Norm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.drop = nn.Dropout(0.1)
        self.norm2 = Norm(width)
        self.gate = nn.Linear(width, 2 * width, bias=False)
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        shape = (b, t, 3, self.heads, d // self.heads)
        q, k, v = self.qkv(self.norm1(x)).view(shape).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.out(mixed.transpose(1, 2).reshape(b, t, d)))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, *, tied: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(31, 16)
        self.layers = nn.ModuleList(Block(16, 2) for _ in range(2))
        self.norm = Norm(16)
        self.head = nn.Linear(16, 31, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.2)
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = x + F.relu(self.bn2(self.conv2(x)))
        return self.fc(self.drop(x.mean(dim=(2, 3))))


def decay_groups(model: nn.Module, decay: float) -> list[dict[str, Any]]:
    """Return groups of parameters with weight decay on matrices only."""
    parameters = list(model.parameters())
    return [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]


def warm_up(step: int) -> float:
    """Return the factor of the learning rate in a step: it rises, then falls."""
    return min((step + 1) / 3, 1.0) * 0.9**step


class Training(ABC):
    """One training run; causes replace its parts.

    Attributes:
        model: the model.
        optimizer: made by `make_optimizer`.
        scheduler: None for a constant learning rate.
        batches: one list of micro batches for each step.
        max_norm: None clips nothing.
        scaler: None scales no loss.
    """

    def __init__(self, steps: int) -> None:
        torch.manual_seed(SEED)
        self.steps = steps
        self.model = self.make_model()
        self.batches = [self.make_batches(step) for step in range(steps)]
        self.max_norm: float | None = None
        self.scaler: torch.amp.GradScaler | None = None
        self.optimizer: torch.optim.Optimizer = self.make_optimizer()
        self.scheduler: torch.optim.lr_scheduler.LRScheduler | None = None
        self.forward_context: Callable[[], Any] = nullcontext
        self.before_step: Callable[[int], object] = lambda _step: None
        self.after_backward: Callable[[int], object] = lambda _step: None
        self.after_step: Callable[[int], object] = lambda _step: None
        self.between_steps: Callable[[int], object] = lambda _step: None
        self.zero_grad = True
        self.seed = SEED + 1

    @abstractmethod
    def make_model(self) -> nn.Module:
        """Return the model, with its initial parameters."""

    @abstractmethod
    def make_batches(self, step: int) -> list[Batch]:
        """Return the micro batches of a step."""

    @abstractmethod
    def make_optimizer(self) -> torch.optim.Optimizer:
        """Return the optimizer of `model`."""

    def loss(self, output: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(output.flatten(0, -2), labels.flatten())

    def micro_loss(self, loss: Tensor, count: int) -> Tensor:
        return loss / count if count > 1 else loss

    def backward(self, loss: Tensor) -> None:
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def update(self) -> None:
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        if self.max_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        if self.scheduler is not None:
            self.scheduler.step()

    def run_step(self, step: int) -> None:
        self.before_step(step)
        batches = self.batches[step]
        for inputs, labels in batches:
            with self.forward_context():
                loss = self.loss(self.model(inputs), labels)
            self.backward(self.micro_loss(loss, len(batches)))
        self.after_backward(step)
        self.update()
        self.after_step(step)
        if self.zero_grad:
            self.optimizer.zero_grad()


class LlamaTraining(Training):
    """Two micro batches a step, AdamW with groups, clipping, a schedule."""

    tied = True

    def __init__(self, steps: int) -> None:
        super().__init__(steps)
        self.max_norm = 0.5
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, warm_up)

    def make_model(self) -> nn.Module:
        return Llama(tied=self.tied)

    def make_batches(self, step: int) -> list[Batch]:
        tokens = torch.randint(0, 31, (2, 2, 7))
        return [(part[:, :-1], part[:, 1:]) for part in tokens]

    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(decay_groups(self.model, 0.1), lr=1e-2, betas=(0.9, 0.95))


class ConvTraining(Training):
    """One batch a step, SGD with momentum and a constant learning rate."""

    def make_model(self) -> nn.Module:
        return Conv()

    def make_batches(self, step: int) -> list[Batch]:
        return [(torch.randn(4, 3, 6, 6), torch.randint(0, 5, (4,)))]

    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)


FAMILIES: dict[str, type[Training]] = {"llama": LlamaTraining, "conv": ConvTraining}


def record(
    folder: Path,
    training: Training,
    *,
    level: str,
    task: str,
    skip: int = 0,
) -> Path:
    """Run a training, and record its steps.

    Args:
        folder: an empty folder.
        training: the program.
        level: level of the dump.
        task: task of the dump.
        skip: how many steps are run before the first one is recorded.
    """
    with _one_thread(), recording(folder, level, task) as debugged:
        torch.manual_seed(training.seed)
        for step in range(training.steps):
            if step < skip:
                training.run_step(step)
                continue
            training.between_steps(step)
            with _interruptible(), debugged.step_of(training.model):
                training.run_step(step)
    return folder


class InterruptionError(Exception):
    """Planted in the middle of a step; the program catches it and goes on."""


@contextmanager
def _interruptible() -> Iterator[None]:
    try:
        yield
    except (InterruptionError, KeyboardInterrupt):
        return


@contextmanager
def _one_thread() -> Iterator[None]:
    # Waiting threads cost more than the whole of such small models.
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


Plant = Callable[[Training], object]


def planted(family: str, plants: Sequence[Plant], steps: int) -> Training:
    """Return a training with causes planted."""
    training = FAMILIES[family](steps)
    for plant in plants:
        plant(training)
    return training
