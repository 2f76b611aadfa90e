# SPDX-License-Identifier: Apache-2.0
"""Causes in programs that the verdict was never tuned for; each part was scored once when written.

The scores are in docs/performance.md.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from .causes import Case, option
from .training import InterruptionError, Plant, Training
from .unseen_training import ExpertsTraining, VariationalTraining

# --- in the calls -----------------------------------------------------------------------------


def fewer_groups(training: Training) -> None:
    training.model.norm.num_groups = 2  # type: ignore[union-attr]


def dilated(training: Training) -> None:
    conv: Any = training.model.conv
    conv.dilation, conv.padding = (2,), (4,)


def not_smoothed(training: Training) -> None:
    training.loss = lambda output, labels: F.cross_entropy(  # type: ignore[method-assign]
        output.flatten(0, -2), labels.flatten()
    )


def without_activation(training: Training) -> None:
    model: Any = training.model
    model.front = lambda x: model.norm(model.conv(x))


def activation_first(training: Training) -> None:
    model: Any = training.model
    model.front = lambda x: model.norm(model.act(model.conv(x)))


def output_bounded(training: Training) -> None:
    model: Any = training.model
    model.decoder.append(nn.Hardtanh(-0.5, 0.5))


def not_normalised(training: Training) -> None:
    """Forget to normalise the weights of the two best experts."""
    layer: Any = training.model.layers[1]  # type: ignore[index, union-attr]

    def weights(x: Tensor) -> Tensor:
        chances = torch.softmax(layer.router(x), dim=-1)
        best, places = chances.topk(2, dim=-1)
        return torch.zeros_like(chances).scatter(-1, places, best)

    layer.weights = weights


def half_router(training: Training) -> None:
    """Route in bfloat16."""
    layer: Any = training.model.layers[0]  # type: ignore[index, union-attr]

    def weights(x: Tensor) -> Tensor:
        scores = F.linear(x.bfloat16(), layer.router.weight.bfloat16()).float()
        best, places = torch.softmax(scores, dim=-1).topk(2, dim=-1)
        return torch.zeros_like(scores).scatter(-1, places, best / best.sum(-1, keepdim=True))

    layer.weights = weights


def wrong_kernel(training: Training) -> None:
    """Let one layer's result be wrong by a thousandth where no call is seen."""
    layer: Any = training.model.decoder[0]  # type: ignore[index, union-attr]

    def forward(x: Tensor) -> Tensor:
        y = F.linear(x, layer.weight, layer.bias)
        y.detach().numpy()[:, 3] *= 1.001
        return y

    layer.forward = forward


# --- state, data, random numbers, modes ---------------------------------------------------------


def other_start(training: Training) -> None:
    with torch.no_grad():
        expert: Any = training.model.layers[1].experts[2][0]  # type: ignore[index, union-attr]
        nn.init.orthogonal_(expert.weight)


def inputs_scaled(training: Training) -> None:
    training.batches = [[(x * 1.01, y) for x, y in step] for step in training.batches]


def micro_batch_repeated(training: Training) -> None:
    training.batches = [[step[0], step[0]] for step in training.batches]


def one_label(training: Training) -> None:
    training.batches[1][0][1][2, 5] = 0


def extra_draw(training: Training) -> None:
    def draw(step: int) -> None:
        if step == 1:
            torch.rand(1)

    training.before_step = draw


def router_frozen(training: Training) -> None:
    training.model.layers[0].router.requires_grad_(False)  # type: ignore[index, union-attr]


def eval_from_second(training: Training) -> None:
    def validate(step: int) -> None:
        if step == 1:
            training.model.eval()

    training.between_steps = validate


# --- gradients and clipping -------------------------------------------------------------------


def halved_by_hook(training: Training) -> None:
    training.model.mean.weight.register_hook(lambda grad: grad / 2)  # type: ignore[union-attr]


def first_micro_batch_lost(training: Training) -> None:
    """Clear gradients between the micro batches of a step."""
    backward = training.backward

    def cleared(loss: Tensor) -> None:
        training.optimizer.zero_grad()
        backward(loss)

    training.backward = cleared  # type: ignore[method-assign]


def expert_gradients_doubled(training: Training) -> None:
    def double(_step: int) -> None:
        for name, p in training.model.named_parameters():
            if ".experts." in name and p.grad is not None:
                p.grad.numpy()[...] *= 2

    training.after_backward = double


def clipped_too_late(training: Training) -> None:
    def update() -> None:
        training.optimizer.step()
        nn.utils.clip_grad_norm_(training.model.parameters(), 0.2)
        training.scheduler.step()  # type: ignore[union-attr]

    training.update = update  # type: ignore[method-assign]


def head_clipped_alone(training: Training) -> None:
    def update() -> None:
        nn.utils.clip_grad_norm_(training.model.head.parameters(), 0.2)  # type: ignore[union-attr]
        training.optimizer.step()
        training.scheduler.step()  # type: ignore[union-attr]

    training.update = update  # type: ignore[method-assign]


# --- optimizer, schedule, update ----------------------------------------------------------------


def one_group(key: str, value: Any) -> Plant:
    def plant(training: Training) -> None:
        training.optimizer.param_groups[1][key] = value

    return plant


def stepped_each_time(training: Training) -> None:
    training.scheduler.step_size = 1  # type: ignore[union-attr]


def shorter_cosine(training: Training) -> None:
    training.scheduler.T_max = 3  # type: ignore[union-attr]


def squares_lost(training: Training) -> None:
    """Forget the averages of squares before the second step."""

    def forget(step: int) -> None:
        if step == 1:
            for state in training.optimizer.state.values():
                state["square_avg"].zero_()

    training.between_steps = forget


def count_lost(training: Training) -> None:
    """Count the optimizer's steps from none again before the second step."""

    def forget(step: int) -> None:
        if step == 1:
            for state in training.optimizer.state.values():
                state["step"].zero_()

    training.between_steps = forget


def expert_left_out(training: ExpertsTraining) -> None:
    training.optimizer.param_groups[1]["params"] = training.optimizer.param_groups[1]["params"][1:]


def shrunk_after_step(training: Training) -> None:
    def shrink(_step: int) -> None:
        training.model.head.weight.data.numpy()[...] *= 0.999  # type: ignore[union-attr]

    training.after_step = shrink


def out_of_memory(training: Training) -> None:
    def fail(step: int) -> None:
        if step == 2:
            raise InterruptionError("no space left on device")

    training.after_backward = fail


def logged(training: Training) -> None:
    """Compute norms for a log: nothing changes."""

    def norms(_step: int) -> None:
        with torch.no_grad():
            for p in training.model.parameters():
                float(p.norm())

    training.after_backward = norms


def weaker_prior(training: VariationalTraining) -> None:
    training.prior_weight = 0.05


UNSEEN_CAUSES = [
    Case("fewer groups", "tagger", fewer_groups, ("argument",), r"num_groups|norm"),
    Case("dilated", "tagger", dilated, ("argument",), r"dilation|padding|conv"),
    Case(
        "not smoothed",
        "tagger",
        not_smoothed,
        ("argument",),
        r"label_smoothing|loss",
    ),
    Case(
        "without activation",
        "tagger",
        without_activation,
        ("call",),
        r"(?i)gelu|act\b|front is without_activation",
    ),
    Case(
        "activation first",
        "tagger",
        activation_first,
        ("order", "call"),
        r"(?i)order|gelu|act\b|norm",
    ),
    Case(
        "output bounded",
        "variational",
        output_bounded,
        ("call",),
        r"(?i)hardtanh|decoder\.3",
    ),
    Case(
        "not normalised",
        "experts",
        not_normalised,
        ("call",),
        r"div|sum|weights is not_normalised",
    ),
    Case(
        "half router",
        "experts",
        half_router,
        ("precision", "call"),
        r"bfloat16|float|linear|weights is half_router",
    ),
    Case(
        "wrong kernel",
        "variational",
        wrong_kernel,
        ("kernel", "unexplained", "call"),
        r"decoder\.0|linear",
    ),
    Case(
        "other start", "experts", other_start, ("parameters",), r"layers\.1\.experts\.2\.0\.weight"
    ),
    Case("inputs scaled", "variational", inputs_scaled, ("data",), r"batch|input"),
    Case(
        "micro batch repeated", "variational", micro_batch_repeated, ("data",), r"micro batch|batch"
    ),
    Case(
        "one label",
        "experts",
        one_label,
        ("data", "argument"),
        r"label|target|cross_entropy|batch|loss|step 1",
    ),
    Case("extra draw", "variational", extra_draw, ("random", "call"), r"generator|rand"),
    Case("router frozen", "experts", router_frozen, ("mode",), r"router.*frozen|router"),
    Case("eval from second", "variational", eval_from_second, ("mode",), r"eval.*step 1|eval"),
    Case(
        "halved by hook",
        "variational",
        halved_by_hook,
        ("gradient", "call"),
        r"mean\.weight|div|0\.5|1/2",
    ),
    Case(
        "first micro batch lost",
        "variational",
        first_micro_batch_lost,
        ("gradient",),
        r"cleared after 1 of 2 backward passes",
    ),
    Case(
        "expert gradients doubled",
        "experts",
        expert_gradients_doubled,
        ("gradient",),
        r"\b2\b|doubled",
    ),
    Case("clipped too late", "tagger", clipped_too_late, ("clipping", "order"), r"clip"),
    Case("head clipped alone", "tagger", head_clipped_alone, ("clipping",), r"clip"),
    Case("alpha", "tagger", option("alpha", 0.9), ("optimizer_setting",), r"alpha is 0\.9 .*0\.99"),
    Case("centered", "tagger", option("momentum", 0.0), ("optimizer_setting",), r"momentum is 0 "),
    Case(
        "momentum decay",
        "experts",
        option("momentum_decay", 0.1),
        ("optimizer_setting",),
        r"momentum_decay is 0\.1",
    ),
    Case(
        "beta2 of experts",
        "experts",
        one_group("betas", (0.9, 0.9)),
        ("optimizer_setting",),
        r"beta2 is 0\.9 .*0\.999",
    ),
    Case(
        "stepped each time", "tagger", stepped_each_time, ("schedule",), r"step_size|learning rate"
    ),
    Case("shorter cosine", "variational", shorter_cosine, ("schedule",), r"T_max|learning rate"),
    Case("squares lost", "tagger", squares_lost, ("optimizer_state",), r"square_avg"),
    Case("count lost", "variational", count_lost, ("optimizer_state",), r"step"),
    Case("expert left out", "experts", expert_left_out, ("update",), r"layers\.0\.experts\.0"),
    Case(
        "shrunk after the step",
        "experts",
        shrunk_after_step,
        ("update", "parameters"),
        r"head\.weight",
    ),
    Case("out of memory", "tagger", out_of_memory, ("incomplete",), r"no space left"),
    Case("logged", "tagger", logged, ("equal", "rounding"), r""),
    Case(
        "weaker prior",
        "variational",
        weaker_prior,
        ("argument",),
        r"mul|0\.05|the loss is",
    ),
]
