# SPDX-License-Identifier: Apache-2.0
"""Causes planted in fine-tunings by HF Trainer, Accelerate and Lightning."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .trainers import Plan, Planted, Sample

ALL = ("trainer", "accelerate", "lightning")


@dataclass(frozen=True)
class TrainerCase:
    """One planted cause.

    Attributes:
        name: a short name.
        target: the arguments of the target.
        classes: classes that are right, the best one first.
        words: regular expression that the verdict's sentence matches.
        trainers: where it can be planted.
        reference: the arguments of the reference.
    """

    name: str
    target: Plan
    classes: tuple[str, ...]
    words: str
    trainers: tuple[str, ...] = ALL
    reference: Plan = field(default_factory=Plan)


def frozen_embedding(model: Any) -> None:
    model.model.embed_tokens.weight.requires_grad_(False)


def frozen_adapter(model: Any) -> None:
    for p in model.model.layers[1].self_attn.v_proj.parameters():
        p.requires_grad_(False)


def tied(model: Any) -> None:
    model.lm_head.weight = model.model.embed_tokens.weight


def untied(model: Any) -> None:
    tied(model)
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())


def norm_eps(model: Any) -> None:
    model.model.layers[1].input_layernorm.variance_epsilon = 1e-3


def more_dropout(model: Any) -> None:
    model.model.layers[1].self_attn.attention_dropout = 0.3


def other_weight(model: Any) -> None:
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[3, 5] += 0.25


def halved_gradient(model: Any) -> None:
    model.model.layers[1].self_attn.q_proj.weight.register_hook(lambda grad: grad * 0.5)


def scaled_output(model: Any) -> None:
    """Scale the logits, as a forgotten temperature does."""
    head = model.lm_head.forward
    model.lm_head.forward = lambda x: head(x) * 0.8


def corrupted(key: str) -> Any:
    """Change an element of all samples."""

    def change(samples: list[Sample]) -> list[Sample]:
        def changed(value: Tensor) -> Tensor:
            value = value.clone()
            value[2] = 0 if key == "attention_mask" else (value[2] + 1) % 31
            return value

        return [{**sample, key: changed(sample[key])} for sample in samples]

    return change


def one_sample_less(samples: list[Sample]) -> list[Sample]:
    return samples[1:]


def eval_left_on(step: int, model: Any) -> None:
    if step == 1:
        model.eval()


def averaged_weights(step: int, model: Any) -> None:
    if step == 2:
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(0.99)


def failing(step: int, model: Any) -> None:
    def fail(*_: Any) -> None:
        raise Planted("out of memory")

    if step == 1:
        model.model.layers[1].register_forward_pre_hook(fail)


def number_drawn(step: int, _model: Any) -> None:
    if step == 1:
        torch.rand(3)


SETTING, LATE = ("optimizer_setting",), ("optimizer_setting", "schedule")
TRAINER_CAUSES = [
    TrainerCase("rate", Plan(lr=9e-3), LATE, r"lr|learning rate"),
    TrainerCase("beta2", Plan(beta2=0.99), SETTING, r"beta2 is 0.99 .* 0.95 "),
    TrainerCase("eps", Plan(eps=1e-4), SETTING, r"eps is 0.0001 .* 1e-08 "),
    TrainerCase("decay", Plan(weight_decay=0.0), SETTING, r"weight_decay is 0 .* 0.1 "),
    TrainerCase("SGD", Plan(optimizer=torch.optim.SGD), SETTING, r"SGD.*AdamW"),
    TrainerCase(
        "Adam",
        Plan(optimizer=torch.optim.Adam),
        SETTING,
        r"Adam.*AdamW",
        trainers=("accelerate", "lightning"),
    ),
    TrainerCase("warm-up", Plan(warmup_steps=4), LATE, r"lr|learning rate"),
    TrainerCase("constant", Plan(constant=True), LATE, r"lr|learning rate"),
    TrainerCase(
        "accumulation",
        Plan(accumulate=4, steps=2),
        ("data",),
        r"4 micro batches .* 2 ",
        reference=Plan(steps=2),
    ),
    TrainerCase("clipping", Plan(max_norm=0.1), ("clipping",), r"0\.1 .* 0\.5"),
    TrainerCase("no clipping", Plan(max_norm=1e9), ("clipping",), r"1e\+09 .* 0\.5"),
    TrainerCase("order of data", Plan(data_seed=5), ("data",), r"order|batch"),
    TrainerCase("larger batches", Plan(batch_size=3), ("data",), r"3 samples|batch"),
    TrainerCase("seed", Plan(seed=12), ("random",), r"generators? .*cpu"),
    TrainerCase(
        "number drawn",
        Plan(at_step=number_drawn),
        ("random",),
        r"generators? .*cpu.*step 1|step 1.*generator",
    ),
    TrainerCase("bf16", Plan(bf16=True), ("precision",), r"autocast|bfloat16"),
    TrainerCase(
        "smoothing",
        Plan(label_smoothing=0.1),
        ("argument", "call"),
        # The trainer hands no labels to the model then; a loop computes a loss of its own.
        r"smooth|loss|log_softmax|cross_entropy|labels|trainers\.py:1\d\d",
        ("gradient", "unexplained"),
    ),
    TrainerCase("one sample less", Plan(change_data=one_sample_less), ("data",), r"order|batch"),
    TrainerCase("tokens", Plan(change_data=corrupted("input_ids")), ("data",), r"input_ids|batch"),
    TrainerCase("labels", Plan(change_data=corrupted("labels")), ("data",), r"labels"),
    TrainerCase(
        "mask", Plan(change_data=corrupted("attention_mask")), ("data",), r"attention_mask"
    ),
    TrainerCase(
        "frozen embedding",
        Plan(change_model=frozen_embedding),
        ("mode",),
        r"embed_tokens\.weight is frozen",
    ),
    TrainerCase(
        "frozen projection",
        Plan(change_model=frozen_adapter),
        ("mode",),
        r"v_proj\.weight is frozen",
    ),
    TrainerCase(
        "untied",
        Plan(change_model=untied),
        ("parameters",),
        r"lm_head.*tied",
        reference=Plan(change_model=tied),
    ),
    TrainerCase("weight", Plan(change_model=other_weight), ("parameters",), r"up_proj"),
    TrainerCase(
        "eps of a norm",
        Plan(change_model=norm_eps),
        ("argument",),
        r"add|eps|layers\.1\.input_layernorm",
        ("unexplained",),
    ),
    TrainerCase(
        "dropout",
        Plan(change_model=more_dropout),
        ("argument",),
        r"\bp\b.*0\.3|dropout|layers\.1\.self_attn",
        ("unexplained", "random"),
    ),
    TrainerCase(
        "temperature",
        Plan(change_model=scaled_output),
        ("call",),
        r"mul|lm_head",
        ("unexplained", "argument"),
    ),
    TrainerCase(
        "halved gradient",
        Plan(change_model=halved_gradient),
        ("gradient",),
        r"layers\.1\.self_attn\.q_proj",
    ),
    TrainerCase(
        "eval left on",
        Plan(at_step=eval_left_on),
        ("mode",),
        r"the model is in eval mode|is in eval mode",
        trainers=("accelerate", "lightning"),
    ),
    TrainerCase(
        "averaged",
        Plan(at_step=averaged_weights),
        ("update",),
        r"parameters differ when step 2 starts",
    ),
    TrainerCase(
        "interrupted", Plan(at_step=failing), ("incomplete",), r"interrupted by .*out of memory"
    ),
]
