# SPDX-License-Identifier: Apache-2.0
"""Causes planted after the verdict was corrected for the later ones; scored once, too."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from .causes import Case
from .later_training import EncoderTraining
from .training import Training


def labels_not_shifted(training: Training) -> None:
    """Let the model predict the tokens that it is given."""
    training.batches = [[(tokens, tokens) for tokens, _ in step] for step in training.batches]


def schedule_twice(training: Training) -> None:
    training.after_step = lambda _step: training.scheduler.step()  # type: ignore[union-attr]


def penalty_in_loss(training: Training) -> None:
    """Add the squares of the head's weights to the loss."""
    loss = training.loss
    head: Any = training.model.head
    training.loss = lambda output, labels: (  # type: ignore[method-assign]
        loss(output, labels) + 1e-2 * head.weight.square().sum()
    )


def noise_on_gradients(training: Training) -> None:
    made = torch.Generator().manual_seed(1)

    def add(_step: int) -> None:
        for p in training.model.parameters():
            p.grad += torch.randn(p.shape, generator=made) * 1e-3  # type: ignore[operator]

    training.after_backward = add


def statistics_reset(training: Training) -> None:
    """Reset the statistics of batch norm before the last step."""

    def reset(step: int) -> None:
        if step == 2:
            training.model.bn2.reset_running_stats()  # type: ignore[operator, union-attr]

    training.between_steps = reset


def renormalised_embedding(training: Training) -> None:
    training.model.embed.max_norm = 1.0  # type: ignore[union-attr]


def attention_scale(training: Training) -> None:
    """Forget that the scale of the second layer's attention was a half once."""
    layer: Any = training.model.layers[1]  # type: ignore[index, union-attr]

    def forward(x: Tensor, mask: Tensor) -> Tensor:
        y = layer.norm1(x)
        query, key, value = (layer.split(f(y)) for f in (layer.query, layer.key, layer.value))
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=0.5)
        x = x + layer.drop(layer.out(mixed.transpose(1, 2).reshape(x.shape)))
        return x + layer.drop(layer.down(layer.act(layer.up(layer.norm2(x)))))

    layer.forward = forward


def head_without_rate(training: EncoderTraining) -> None:
    training.optimizer.param_groups[1]["initial_lr"] = 0.0
    training.optimizer.param_groups[1]["lr"] = 0.0
    training.scheduler.base_lrs[1] = 0.0  # type: ignore[union-attr]


def first_class_ignored(training: Training) -> None:
    training.loss = lambda output, labels: F.cross_entropy(  # type: ignore[method-assign]
        output, labels, ignore_index=0
    )


def double_model(training: Training) -> None:
    training.model.double()
    training.batches = [
        [(images.double(), labels) for images, labels in step] for step in training.batches
    ]


def clipped_by_largest(training: Training) -> None:
    def update() -> None:
        nn.utils.clip_grad_norm_(training.model.parameters(), 0.5, norm_type=math.inf)
        training.optimizer.step()
        training.scheduler.step()  # type: ignore[union-attr]

    training.update = update  # type: ignore[method-assign]


def loader_restarted(training: EncoderTraining) -> None:
    """Begin the epoch again when training is resumed."""

    def restart(step: int) -> None:
        if step == 1:
            training.loader = training.make_loader()
            training._batches = training.epochs()

    training.between_steps = restart


LAST_CAUSES = [
    Case(
        "labels not shifted",
        "llama",
        labels_not_shifted,
        ("data", "argument"),
        r"target|input\.1 of Functional\.cross_entropy|labels|loss",
    ),
    Case("schedule twice", "llama", schedule_twice, ("schedule",), r"ahead|twice|learning rate"),
    Case(
        "penalty in the loss",
        "encoder",
        penalty_in_loss,
        ("call",),
        r"square|add|sum|mul|loss",
    ),
    Case(
        "noise on gradients",
        "conv",
        noise_on_gradients,
        ("gradient", "call"),
        r"gradients? .*differ|randn|__iadd__|only the target",
    ),
    Case("statistics reset", "conv", statistics_reset, ("parameters",), r"(bn2|buffers).* step 2"),
    Case(
        "renormalised embedding",
        "encoder",
        renormalised_embedding,
        ("argument",),
        r"max_norm|embed",
    ),
    Case(
        "attention scale",
        "encoder",
        attention_scale,
        ("argument",),
        r"scale .*0\.5|scale of|\.scale|layers\.1\.EncoderLayer",
    ),
    Case(
        "head without rate",
        "encoder",
        head_without_rate,
        ("optimizer_setting", "schedule"),
        r"(lr|learning rate) is 0 .*head",
    ),
    Case(
        "first class ignored",
        "encoder",
        first_class_ignored,
        ("argument",),
        r"ignore_index|loss",
    ),
    Case("double model", "conv", double_model, ("precision", "data"), r"float64"),
    Case("clipped by the largest", "llama", clipped_by_largest, ("clipping",), r"norm_type is|inf"),
    Case("loader restarted", "encoder", loader_restarted, ("data",), r"step 1|batch"),
]
