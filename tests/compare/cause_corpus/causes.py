# SPDX-License-Identifier: Apache-2.0
"""Causes of differences between two runs, each with its class and words that the verdict says."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .training import InterruptionError, Plant, Training, warm_up


@dataclass(frozen=True)
class Case:
    """One planted cause.

    Attributes:
        name: a short name.
        family: the program.
        plant: changes the target.
        classes: classes that are right, the best one first.
        words: regular expression that the verdict's sentence matches.
        reference: changes the reference, too; None leaves it as it is.
        steps: how many steps are run.
        skip: how many of them are not recorded.
    """

    name: str
    family: str
    plant: Plant
    classes: tuple[str, ...]
    words: str
    reference: Plant | None = None
    steps: int = 3
    skip: int = 0


def option(key: str, value: Any) -> Plant:
    """Set an option of all groups of the optimizer."""

    def plant(training: Training) -> None:
        for group in training.optimizer.param_groups:
            group[key] = value

    return plant


def no_decay_groups(training: Training) -> None:
    """Decay norms and biases, too."""
    for group in training.optimizer.param_groups:
        group["weight_decay"] = 0.1


def other_optimizer(make: Callable[[Training], torch.optim.Optimizer]) -> Plant:
    """Use another optimizer, with the same schedule."""

    def plant(training: Training) -> None:
        training.optimizer = make(training)
        if training.scheduler is not None:
            training.scheduler = torch.optim.lr_scheduler.LambdaLR(training.optimizer, warm_up)

    return plant


def adam_l2(training: Training) -> torch.optim.Optimizer:
    return torch.optim.Adam(training.model.parameters(), lr=1e-2, weight_decay=0.1)


def schedule_ahead(training: Training) -> None:
    training.optimizer.step()
    assert training.scheduler is not None
    training.scheduler.step()


def no_schedule(training: Training) -> None:
    training.scheduler = None


def slower_warm_up(training: Training) -> None:
    for group in training.optimizer.param_groups:
        del group["initial_lr"]
        group["lr"] = 1e-2
    training.scheduler = torch.optim.lr_scheduler.LambdaLR(
        training.optimizer, lambda step: min((step + 1) / 6, 1.0)
    )


def max_norm(value: float | None) -> Plant:
    def plant(training: Training) -> None:
        training.max_norm = value

    return plant


def loss_times(factor: float) -> Plant:
    """Multiply the loss before backward."""

    def plant(training: Training) -> None:
        backward = training.backward
        training.backward = lambda loss: backward(loss * factor)  # type: ignore[method-assign]

    return plant


def undivided(training: Training) -> None:
    training.micro_loss = lambda loss, count: loss  # type: ignore[method-assign]


def hidden_factor(factor: float) -> Plant:
    """Multiply gradients after backward, where no call is recorded."""

    def plant(training: Training) -> None:
        def scale(_step: int) -> None:
            for p in training.model.parameters():
                if p.grad is not None:
                    p.grad.numpy()[...] *= factor

        training.after_backward = scale

    return plant


def scaled(training: Training) -> None:
    training.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)


def not_unscaled(training: Training) -> None:
    scaled(training)

    def update() -> None:
        if training.max_norm is not None:
            nn.utils.clip_grad_norm_(training.model.parameters(), training.max_norm)
        training.optimizer.step()

    training.update = update  # type: ignore[method-assign]


def not_cleared(training: Training) -> None:
    training.zero_grad = False


def stale(training: Training) -> None:
    """Hand the gradients of the first step to the optimizer in the second."""
    kept: list[Tensor] = []

    def swap(step: int) -> None:
        parameters = [p for p in training.model.parameters() if p.grad is not None]
        if step == 0:
            kept.extend(p.grad.clone() for p in parameters if p.grad is not None)
        elif step == 1:
            for p, grad in zip(parameters, kept, strict=True):
                p.grad.numpy()[...] = grad.numpy()  # type: ignore[union-attr]

    training.after_backward = swap


def frozen(name: str) -> Plant:
    def plant(training: Training) -> None:
        training.model.get_parameter(name).requires_grad_(False)

    return plant


def untied(training: Training) -> None:
    model = training.model
    model.head.weight = nn.Parameter(model.embed.weight.detach().clone())  # type: ignore[union-attr]
    training.optimizer.add_param_group(
        {"params": [model.head.weight], "weight_decay": 0.1, "initial_lr": 1e-2}  # type: ignore[union-attr]
    )
    training.scheduler = torch.optim.lr_scheduler.LambdaLR(training.optimizer, warm_up)


def changed(name: str, amount: float = 0.5) -> Plant:
    """Change one element of a parameter or buffer at the start."""

    def plant(training: Training) -> None:
        state = dict(training.model.state_dict(keep_vars=True))
        with torch.no_grad():
            state[name].view(-1)[1] += amount

    return plant


def changed_between(name: str, step: int) -> Plant:
    """Change a parameter between two steps, as an average or a reload would."""

    def plant(training: Training) -> None:
        def change(now: int) -> None:
            if now == step:
                with torch.no_grad():
                    training.model.get_parameter(name).mul_(0.999)

        training.before_step = change

    return plant


def averaged(training: Training) -> None:
    """Replace the parameters by their moving average between steps."""
    parameters = list(training.model.parameters())
    average = [p.detach().clone() for p in parameters]

    def average_now(_step: int) -> None:
        with torch.no_grad():
            for p, mean in zip(parameters, average, strict=True):
                mean.lerp_(p, 0.5)
                p.copy_(mean)

    training.between_steps = average_now


def as_it_is(training: Training) -> None:
    """Change nothing."""


def state_lost(training: Training) -> None:
    """Forget the optimizer's state after the first step, as a resume without it does."""

    def forget(step: int) -> None:
        if step == 1:
            training.optimizer.state.clear()

    training.before_step = forget


def swapped_batches(training: Training) -> None:
    batches = training.batches
    batches[1], batches[2] = batches[2], batches[1]


def one_batch_ahead(training: Training) -> None:
    training.batches = [*training.batches[1:], training.make_batches(training.steps)]


def corrupted_sample(step: int) -> Plant:
    def plant(training: Training) -> None:
        inputs, labels = training.batches[step][0]
        inputs = inputs.clone()
        inputs[0] = inputs[1]
        training.batches[step][0] = inputs, labels

    return plant


def wrong_label(training: Training) -> None:
    inputs, labels = training.batches[1][0]
    training.batches[1][0] = inputs, (labels + 1) % 5


def short_batch(training: Training) -> None:
    inputs, labels = training.batches[-1][0]
    training.batches[-1][0] = inputs[:-1], labels[:-1]


def permuted_samples(training: Training) -> None:
    inputs, labels = training.batches[0][0]
    training.batches[0][0] = inputs.flip(0), labels.flip(0)


def one_micro_batch(training: Training) -> None:
    training.batches = [batches[:1] for batches in training.batches]


def other_seed(training: Training) -> None:
    training.seed += 1


def mode_of(name: str) -> Plant:
    def plant(training: Training) -> None:
        training.model.get_submodule(name).eval()

    return plant


def twice(training: Training) -> None:
    training.after_step = lambda _step: training.optimizer.step()


def not_in_optimizer(name: str) -> Plant:
    def plant(training: Training) -> None:
        left_out = training.model.get_parameter(name)
        for group in training.optimizer.param_groups:
            group["params"] = [p for p in group["params"] if p is not left_out]

    return plant


def not_updated(name: str) -> Plant:
    """Leave a parameter out of the optimizer's update, though it is in a group of it."""

    def skip(place: int, lists: tuple[list[Any], ...]) -> None:
        for column in lists:
            del column[place]

    return in_update(name, skip)


def wrong_rule(name: str) -> Plant:
    """Move a parameter 1 % further than the rule of the optimizer."""

    def scale(place: int, lists: tuple[list[Any], ...]) -> None:
        lists[1][place] = lists[1][place] * 1.01

    return in_update(name, scale)


def in_update(name: str, change: Callable[[int, tuple[list[Any], ...]], None]) -> Plant:
    """Change the lists of parameters, gradients … that an optimizer's update is given."""

    def plant(training: Training) -> None:
        parameter, optimizer = training.model.get_parameter(name), training.optimizer
        gather = optimizer._init_group  # type: ignore[attr-defined]

        def changed(group: Any, *lists: list[Any]) -> Any:
            found = gather(group, *lists)
            for place, each in enumerate(lists[0]):
                if each is parameter:
                    change(place, lists)
            return found

        optimizer._init_group = changed  # type: ignore[attr-defined]

    return plant


def interrupted(training: Training) -> None:
    def stop(_module: nn.Module, _inputs: Any) -> None:
        if next(count) == 1:
            raise InterruptionError("out of memory")

    count = itertools.count()
    training.model.layers[1].register_forward_pre_hook(stop)  # type: ignore[index, union-attr]


def autocast(training: Training) -> None:
    training.forward_context = lambda: torch.autocast("cpu", torch.bfloat16)


SETTING = ("optimizer_setting",)
CAUSES = [
    Case("beta1", "llama", option("betas", (0.8, 0.95)), SETTING, r"beta1 is 0.8 .* 0.9 "),
    Case("beta2", "llama", option("betas", (0.9, 0.99)), SETTING, r"beta2 is 0.99 .* 0.95 "),
    Case("eps", "llama", option("eps", 1e-3), SETTING, r"eps is 0.001 .* 1e-08 "),
    Case("decay", "llama", option("weight_decay", 0.0), SETTING, r"weight_decay is 0 .* 0.1 "),
    Case("decay of norms", "llama", no_decay_groups, SETTING, r"weight_decay is 0.1 .* 0 .*norm"),
    Case("amsgrad", "llama", option("amsgrad", True), SETTING, r"amsgrad is True .* False "),
    Case("maximize", "llama", option("maximize", True), SETTING, r"maximize is True .* False "),
    Case("Adam, not AdamW", "llama", other_optimizer(adam_l2), SETTING, r"Adam .*AdamW"),
    Case("lr", "conv", option("lr", 0.06), SETTING, r"SGD lr is 0.06 .* 0.05 "),
    Case("momentum", "conv", option("momentum", 0.8), SETTING, r"momentum is 0.8 .* 0.9 "),
    Case("nesterov", "conv", option("nesterov", True), SETTING, r"nesterov is True .* False "),
    Case("dampening", "conv", option("dampening", 0.1), SETTING, r"dampening is 0.1 .* 0 "),
    Case("schedule ahead", "llama", schedule_ahead, ("schedule",), r"1 step ahead"),
    Case("no schedule", "llama", no_schedule, ("schedule",), r"only the reference calls"),
    Case("other schedule", "llama", slower_warm_up, ("schedule",), r"learning rate is"),
    Case(
        "no clipping",
        "llama",
        max_norm(None),
        ("clipping",),
        r"only the reference calls clip_grad_norm_, with 0.5,",
    ),
    Case("other max_norm", "llama", max_norm(0.25), ("clipping",), r"max_norm 0.25 .* 0.5 "),
    Case("loss halved", "conv", loss_times(0.5), ("gradient", "call", "argument"), r"0\.5|1/2|mul"),
    Case("loss not divided", "llama", undivided, ("gradient", "call"), r"micro batches|2|div"),
    Case("gradients doubled", "conv", hidden_factor(2.0), ("gradient",), r"is 2: they are doubled"),
    Case("gradients tripled", "conv", hidden_factor(3.0), ("gradient",), r"3 times"),
    Case("not unscaled", "conv", not_unscaled, ("gradient",), r"1024.*not unscaled", scaled),
    Case("not cleared", "conv", not_cleared, ("gradient",), r"not cleared|sum"),
    Case("stale gradients", "conv", stale, ("gradient",), r"step before"),
    Case(
        "frozen", "llama", frozen("layers.0.up.weight"), ("mode",), r"layers.0.up.weight is frozen"
    ),
    Case("frozen bias", "conv", frozen("fc.bias"), ("mode",), r"fc.bias is frozen"),
    Case(
        "untied",
        "llama",
        untied,
        ("parameters",),
        r"head.weight is tied to embed.weight in the ref",
    ),
    Case("parameter", "llama", changed("layers.1.down.weight"), ("parameters",), r"layers.1.down"),
    Case("buffer", "conv", changed("bn1.running_var"), ("parameters",), r"bn1.running_var"),
    Case(
        "changed between steps",
        "conv",
        changed_between("conv2.weight", 1),
        ("parameters", "call", "update"),
        r"conv2.*step 1|mul_",
    ),
    Case(
        "average not applied",
        "conv",
        as_it_is,
        ("update",),
        r"all 10 parameters differ when step 1 starts.*though they agreed",
        averaged,
    ),
    Case(
        "state lost", "llama", state_lost, ("optimizer_state",), r"step count .* is 0 .* 1 .*lost"
    ),
    Case("momentum lost", "conv", state_lost, ("optimizer_state",), r"momentum_buffer.*lost"),
    Case("batches swapped", "llama", swapped_batches, ("data",), r"another order"),
    Case("one batch ahead", "conv", one_batch_ahead, ("data",), r"1 batch ahead"),
    Case("corrupted sample", "conv", corrupted_sample(1), ("data",), r"step 1 .*1 of 3 batches"),
    Case("corrupted at once", "llama", corrupted_sample(0), ("data",), r"batch of step 0"),
    Case("last batch shorter", "conv", short_batch, ("data",), r"step 2 .*3 samples instead of 4"),
    Case("micro batch dropped", "llama", one_micro_batch, ("data",), r"1 micro batch .* 2 "),
    Case("samples permuted", "conv", permuted_samples, ("data",), r"another order"),
    Case("other seed", "llama", other_seed, ("random",), r"generators? .*cpu"),
    Case("other seed, conv", "conv", other_seed, ("random",), r"generators? .*cpu"),
    Case(
        "eval left on", "conv", mode_of(""), ("mode",), r"the model is in eval mode in the target"
    ),
    Case(
        "one dropout in eval",
        "llama",
        mode_of("layers.1.drop"),
        ("mode",),
        r"layers.1.drop is in eval mode",
    ),
    Case("batch norm in eval", "conv", mode_of("bn2"), ("mode",), r"bn2 is in eval mode"),
    Case("updated twice", "conv", twice, ("update",), r"twice in the target, once"),
    Case(
        "not in the optimizer",
        "conv",
        not_in_optimizer("fc.weight"),
        ("update",),
        r"only the reference's optimizer updates fc.weight",
    ),
    Case("not updated", "conv", not_updated("fc.weight"), ("update",), r"fc.weight is not updated"),
    Case(
        "wrong rule",
        "conv",
        wrong_rule("conv2.weight"),
        ("update",),
        r"conv2.weight .*something else than its rule.* 1.01 times",
    ),
    Case("interrupted", "llama", interrupted, ("incomplete",), r"interrupted by .*out of memory"),
    Case("autocast", "llama", autocast, ("precision",), r"autocast is|bfloat16"),
]
