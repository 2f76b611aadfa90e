# SPDX-License-Identifier: Apache-2.0
"""Causes that were planted after the code was written, and scored once before it was changed.

docs/performance.md has the first score.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .causes import Case
from .later_training import EncoderTraining, LowRank, TeacherTraining
from .training import InterruptionError, Plant, Training

# --- resumed runs


def resumed(*left_out: str, step: int = 2) -> Plant:
    """Save a checkpoint, and go on in new objects that load it but for some parts."""

    def plant(training: EncoderTraining) -> None:
        def resume(now: int) -> None:
            if now == step:
                saved = training.state()
                training.resume({k: v for k, v in saved.items() if k not in left_out})

        training.between_steps = resume

    return plant  # type: ignore[return-value]


def with_scaler(training: EncoderTraining) -> None:
    training.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1)


def resumed_without_scaler(training: EncoderTraining) -> None:
    with_scaler(training)
    resumed("scaler")(training)


def older_checkpoint(training: EncoderTraining) -> None:
    """Load the checkpoint of step 1 when step 2 begins."""
    saved: list[dict[str, Any]] = []

    def between(step: int) -> None:
        if step == 1:
            saved.append(training.state())
        elif step == 2:
            training.resume(saved[0])

    training.between_steps = between


def generator_not_restored(training: EncoderTraining) -> None:
    """Resume with all but the state of the random generator."""

    def resume(step: int) -> None:
        if step == 1:
            training.resume(training.state())
            torch.manual_seed(training.seed)

    training.between_steps = resume


def teacher_not_restored(training: TeacherTraining) -> None:
    """Make the teacher anew from the student, as a resume without its average does."""

    def resume(step: int) -> None:
        if step == 2:
            model: Any = training.model
            model.teacher.load_state_dict(model.student.state_dict())

    training.between_steps = resume


def layer_not_loaded(training: EncoderTraining) -> None:
    """Load pretrained weights but for a layer, whose name does not fit (`strict=False`)."""
    pretrained(training, "layers.1.up.")


def pretrained(training: EncoderTraining, left_out: str = "none") -> None:
    torch.manual_seed(77)
    weights = training.make_model().state_dict()
    wanted = {name: value for name, value in weights.items() if not name.startswith(left_out)}
    training.model.load_state_dict(wanted, strict=False)


# --- optimizer and schedule


def other_head_rate(training: Training) -> None:
    """Give the body's rate to the head."""
    training.optimizer = torch.optim.AdamW(training.model.parameters(), lr=1e-3, weight_decay=0.01)
    training.make_scheduler()  # type: ignore[attr-defined]


def warm_up_from_zero(training: Training) -> None:
    training.optimizer.param_groups[0]["lr"] = training.optimizer.param_groups[0]["initial_lr"]
    training.optimizer.param_groups[1]["lr"] = training.optimizer.param_groups[1]["initial_lr"]
    training.scheduler = torch.optim.lr_scheduler.LambdaLR(
        training.optimizer, lambda step: min(step / 4, 1.0)
    )


def schedule_per_micro_batch(training: Training) -> None:
    backward = training.backward

    def backward_and_step(loss: Tensor) -> None:
        backward(loss)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch notices, but many programs are not read
            training.scheduler.step()  # type: ignore[union-attr]

    training.backward = backward_and_step  # type: ignore[method-assign]


def head_replaced(training: Training) -> None:
    """Replace the head by a copy of it after the optimizer was made."""
    model: Any = training.model
    head = nn.Linear(16, 4)
    head.load_state_dict(model.head.state_dict())
    model.head = head


def second_not_stepped(training: TeacherTraining) -> None:
    training.second_optimizer.step = lambda: None  # type: ignore[assignment, method-assign]


def rmsprop_alpha(alpha: float) -> Plant:
    def plant(training: Training) -> None:
        training.optimizer = torch.optim.RMSprop(
            training.model.parameters(), lr=0.01, alpha=alpha, momentum=0.5
        )

    return plant


# --- gradients


def four_micro_batches(training: EncoderTraining) -> None:
    training.micro_batches = 4


def divided_twice(training: Training) -> None:
    training.micro_loss = lambda loss, count: loss / count / count  # type: ignore[method-assign]


def summed(training: Training) -> None:
    training.loss = lambda output, labels: F.cross_entropy(  # type: ignore[method-assign]
        output, labels, reduction="sum"
    )


def smoothed(training: Training) -> None:
    training.loss = lambda output, labels: F.cross_entropy(  # type: ignore[method-assign]
        output, labels, label_smoothing=0.1
    )


def cleared_between(training: Training) -> None:
    """Clear the gradients before each micro batch, not before each step."""
    backward = training.backward

    def clear_and_go(loss: Tensor) -> None:
        training.optimizer.zero_grad()
        backward(loss)

    training.backward = clear_and_go  # type: ignore[method-assign]


def clipped_before_unscaling(training: Training) -> None:
    with_scaler(training)  # type: ignore[arg-type]

    def update() -> None:
        assert training.scaler is not None
        nn.utils.clip_grad_norm_(training.model.parameters(), 0.5)
        training.scaler.step(training.optimizer)
        training.scaler.update()
        training.scheduler.step()  # type: ignore[union-attr]

    training.update = update  # type: ignore[method-assign]


def clipped_by_value(training: Training) -> None:
    def update() -> None:
        nn.utils.clip_grad_value_(training.model.parameters(), 0.01)
        training.optimizer.step()
        training.scheduler.step()  # type: ignore[union-attr]

    training.update = update  # type: ignore[method-assign]


def clipped_in_part(training: Training) -> None:
    """Clip the parameters of the layers only."""

    def update() -> None:
        nn.utils.clip_grad_norm_(training.model.layers.parameters(), 0.5)  # type: ignore[union-attr]
        training.optimizer.step()
        training.scheduler.step()  # type: ignore[union-attr]

    training.update = update  # type: ignore[method-assign]


def detached(training: Training) -> None:
    layer: Any = training.model.layers[1]  # type: ignore[index, union-attr]
    forward = layer.forward
    layer.forward = lambda x, mask: forward(x.detach(), mask)


def halving_hook(training: Training) -> None:
    parameter = training.model.get_parameter("layers.0.down.weight")
    parameter.register_hook(lambda grad: grad * 0.5)


def no_gradient_of_embedding(training: Training) -> None:
    model: Any = training.model
    embedded = model.embedded

    def without_gradients(tokens: Tensor) -> Tensor:
        with torch.no_grad():
            return embedded(tokens)

    model.embedded = without_gradients


def recomputed(*, preserve: bool) -> Plant:
    """Recompute the layers in backward, with or without the random numbers of forward."""

    def plant(training: Training) -> None:
        for layer in training.model.layers:  # type: ignore[union-attr]
            forward = layer.forward

            def again(x: Tensor, mask: Tensor, forward: Any = forward) -> Tensor:
                out = checkpoint(forward, x, mask, use_reentrant=False, preserve_rng_state=preserve)
                assert isinstance(out, Tensor)
                return out

            layer.forward = again

    return plant


def teacher_weight(training: TeacherTraining) -> None:
    training.teacher_weight = 0.05


def teacher_average(training: TeacherTraining) -> None:
    training.average = 0.99


# --- data


def left_padding(training: EncoderTraining) -> None:
    training.padding_side = "left"


def drop_last(training: EncoderTraining) -> None:
    training.loader = training.make_loader(drop_last=True)


def other_shuffle(training: EncoderTraining) -> None:
    training.loader = training.make_loader(seed=6)


def corrupted_label(training: EncoderTraining) -> None:
    """Change one label; no call of the model sees it."""
    training.data.labels = [(label + 1) % 4 for label in training.data.labels[:1]] + (
        training.data.labels[1:]
    )


def seed_in_loader(training: EncoderTraining) -> None:
    """Shuffle the same way in each epoch."""

    def epochs() -> Iterator[Any]:
        while True:
            training.loader = training.make_loader()
            yield from training.loader

    training._batches = epochs()


def normalised_in_place(training: Training) -> None:
    """Normalise the images of a data set of two batches each time they are read."""
    two_batches(training)
    run_step = training.run_step

    def normalise_and_run(step: int) -> None:
        for images, _ in training.batches[step]:
            images.sub_(0.1).div_(1.5)
        run_step(step)

    training.run_step = normalise_and_run  # type: ignore[method-assign]


def normalised(training: Training) -> None:
    two_batches(training)
    training.batches = [
        [(images.sub(0.1).div(1.5), labels) for images, labels in batches]
        for batches in training.batches
    ]


def two_batches(training: Training) -> None:
    training.batches = [training.batches[step % 2] for step in range(training.steps)]


def token_cut_off(training: EncoderTraining) -> None:
    """Lose the last token of long texts."""
    training.data.texts = [text[:6] for text in training.data.texts]


# --- the model


def without_mask(training: Training) -> None:
    training.model.uses_mask = False


def norm_eps(training: Training) -> None:
    training.model.layers[1].norm2.eps = 1e-2  # type: ignore[index, union-attr]


def tanh_gelu(training: Training) -> None:
    for layer in training.model.layers:  # type: ignore[union-attr]
        layer.act = nn.GELU(approximate="tanh")


def dropout_of_one(training: Training) -> None:
    training.model.layers[1].drop.p = 0.2  # type: ignore[index, union-attr]


def batch_norm_momentum(training: Training) -> None:
    training.model.bn1.momentum = 0.01  # type: ignore[union-attr]


def not_scaled_embedding(training: Training) -> None:
    model: Any = training.model

    def embedded(tokens: Tensor) -> Tensor:
        return model.embed(tokens) + model.places(torch.arange(tokens.shape[1]))

    model.embedded = embedded


def places_from_one(training: Training) -> None:
    training.model.first_place = 1


def not_causal(training: Training) -> None:
    """Lose the causal mask of the second layer's attention."""
    layer: Any = training.model.layers[1]  # type: ignore[index, union-attr]

    def forward(x: Tensor) -> Tensor:
        b, t, d = x.shape
        shape = (b, t, 3, layer.heads, d // layer.heads)
        q, k, v = layer.qkv(layer.norm1(x)).view(shape).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v)
        x = x + layer.drop(layer.out(mixed.transpose(1, 2).reshape(b, t, d)))
        y = layer.norm2(x)
        return x + layer.down(F.silu(layer.gate(y)) * layer.up(y))

    layer.forward = forward


def activation_before_norm(training: Training) -> None:
    model: Any = training.model

    def forward(x: Tensor) -> Tensor:
        x = model.bn1(F.relu(model.conv1(x)))
        x = x + F.relu(model.bn2(model.conv2(x)))
        return model.fc(model.drop(x.mean(dim=(2, 3))))

    model.forward = forward


def bfloat16_weights(training: Training) -> None:
    training.model.head.to(torch.bfloat16)  # type: ignore[union-attr]
    head: Any = training.model.head
    forward = head.forward
    head.forward = lambda x: forward(x.to(torch.bfloat16)).float()


def all_autocast(training: Training) -> None:
    training.forward_context = lambda: torch.autocast("cpu", torch.bfloat16)


def one_without_autocast(training: Training) -> None:
    all_autocast(training)
    layer: Any = training.model.layers[0]  # type: ignore[index, union-attr]
    forward = layer.forward

    def in_full(x: Tensor, mask: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return forward(x.float(), mask)

    layer.forward = in_full


# --- modes, random numbers


def adapter_frozen(training: Training) -> None:
    layer: Any = training.model.layers[1]  # type: ignore[index, union-attr]
    adapter: LowRank = layer.value
    adapter.lora_a.requires_grad_(False)
    adapter.lora_b.requires_grad_(False)


def eval_after_validation(training: Training) -> None:
    def validate(step: int) -> None:
        if step == 1:
            training.model.eval()

    training.between_steps = validate


def validated_in_training_mode(training: Training) -> None:
    """Validate between steps, and forget `model.eval()`."""

    def validate(step: int) -> None:
        if step == 1:
            with torch.no_grad():
                training.model(training.batches[0][0][0])

    training.between_steps = validate


def seeded_in_the_loop(training: Training) -> None:
    training.before_step = lambda _step: torch.manual_seed(training.seed)


def sampled_for_the_log(training: Training) -> None:
    """Draw a sample for a log line from the global generator, once."""

    def draw(step: int) -> None:
        if step == 1:
            torch.randint(0, 10, (1,))

    training.between_steps = draw


# --- ends of steps


def raised_in_backward(training: Training) -> None:
    def fail(_grad: Tensor) -> Tensor:
        raise InterruptionError("value out of range")

    def arm(step: int) -> None:
        if step == 1:
            training.model.get_parameter("layers.0.up.weight").register_hook(fail)

    training.before_step = arm


def stopped_by_hand(training: Training) -> None:
    """Press Ctrl-C between forward and backward of the last step."""
    backward = training.backward

    def interrupt(step: int) -> None:
        if step == 2:
            training.backward = press  # type: ignore[method-assign]

    def press(loss: Tensor) -> None:
        training.backward = backward  # type: ignore[method-assign]
        raise KeyboardInterrupt

    training.before_step = interrupt


def unchanged_threads(training: Training) -> None:
    """Use two threads."""
    training.before_step = lambda _step: torch.set_num_threads(2)


NO_CAUSE = ("equal", "rounding")
LATER_CAUSES = [
    Case(
        "resumed without schedule",
        "encoder",
        resumed("scheduler"),
        ("schedule",),
        r"step.? behind|learning rate is .* 0\.0",
        steps=5,
    ),
    Case(
        "resumed without optimizer",
        "encoder",
        resumed("optimizer", "scheduler"),
        ("optimizer_state", "optimizer_setting", "schedule"),
        r"step count|lost|lr is|learning rate",
        resumed("scheduler"),
        steps=4,
    ),
    Case(
        "resumed without scaler",
        "encoder",
        resumed_without_scaler,
        ("gradient", "optimizer_state"),
        r"scale.* 1024 .*4096|1/4|0\.25",
        with_scaler,
    ),
    Case(
        "older checkpoint",
        "encoder",
        older_checkpoint,
        ("update",),
        r"all \d+ parameters differ when step 2 starts",
    ),
    Case(
        "generator not restored",
        "encoder",
        generator_not_restored,
        ("random",),
        r"generators? .*cpu",
    ),
    Case(
        "teacher not restored",
        "teacher",
        teacher_not_restored,
        ("update",),
        r"teacher.* step 2",
    ),
    Case(
        "layer not loaded",
        "encoder",
        layer_not_loaded,
        ("parameters",),
        r"layers\.1\.up",
        pretrained,
    ),
    Case(
        "other head rate",
        "encoder",
        other_head_rate,
        ("optimizer_setting",),
        r"lr is .*0\.001.*head|lr is .*0\.00025.*head",
    ),
    Case(
        "warm-up from zero",
        "encoder",
        warm_up_from_zero,
        ("schedule",),
        r"1 step behind|learning rate is",
    ),
    Case(
        "schedule per micro batch",
        "encoder",
        schedule_per_micro_batch,
        ("schedule",),
        r"ahead|step\(\)|learning rate|twice|2 times",
    ),
    Case("head replaced", "encoder", head_replaced, ("update",), r"head\.(weight|bias)"),
    Case(
        "second optimizer not stepped",
        "teacher",
        second_not_stepped,
        ("update",),
        r"student\.0|SGD|1 optimizer step",
    ),
    Case(
        "alpha",
        "conv",
        rmsprop_alpha(0.9),
        ("optimizer_setting",),
        r"alpha is 0.9 .* 0.99 ",
        rmsprop_alpha(0.99),
    ),
    Case("four micro batches", "encoder", four_micro_batches, ("data",), r"4 micro batches .* 2 "),
    Case(
        "divided twice",
        "encoder",
        divided_twice,
        ("gradient", "call", "argument"),
        r"0\.5|1/2|halved|div",
    ),
    Case("loss summed", "encoder", summed, ("argument", "gradient"), r"reduction|sum|4 times|loss"),
    Case(
        "label smoothing",
        "encoder",
        smoothed,
        ("argument",),
        r"label_smoothing|loss",
    ),
    Case(
        "cleared between micro batches",
        "encoder",
        cleared_between,
        ("gradient",),
        r"micro batch|not accumulated|cleared|accumulat",
    ),
    Case(
        "clipped before unscaling",
        "encoder",
        clipped_before_unscaling,
        ("clipping", "gradient"),
        r"clip|unscaled",
        with_scaler,
    ),
    Case("clipped by value", "encoder", clipped_by_value, ("clipping",), r"clip_grad_value_|value"),
    Case(
        "clipped in part", "encoder", clipped_in_part, ("clipping",), r"\d+ parameters|parameters"
    ),
    Case(
        "detached",
        "encoder",
        detached,
        ("gradient", "call"),
        r"detach|gradient.*(layers\.0|layers\.1)|None where the reference has a tensor",
    ),
    Case(
        "halving hook",
        "encoder",
        halving_hook,
        ("gradient",),
        r"layers\.0\.down.*(0\.5|half|halved|1/2)|(0\.5|half|halved|1/2).*layers\.0\.down",
    ),
    Case(
        "embedding without gradient",
        "encoder",
        no_gradient_of_embedding,
        ("gradient", "mode"),
        r"embed|places|no gradient",
    ),
    Case(
        "recomputed with other numbers",
        "encoder",
        recomputed(preserve=False),
        ("gradient", "random"),
        r"recomput|layers\.\d|random|dropout\.\d\.backward",
        recomputed(preserve=True),
    ),
    Case(
        "weight of a loss",
        "teacher",
        teacher_weight,
        ("argument", "call", "gradient"),
        r"0\.05|mul|mse_loss|loss|0\.1",
    ),
    Case("average", "teacher", teacher_average, ("update", "argument"), r"teacher.* step 1|lerp_"),
    Case("padding side", "encoder", left_padding, ("data",), r"step 0|batch"),
    Case(
        "drop last", "encoder", drop_last, ("data",), r"4 samples instead of 2|4 instead of 2|batch"
    ),
    Case("other shuffle", "encoder", other_shuffle, ("data",), r"order|batch"),
    Case("same order in each epoch", "encoder", seed_in_loader, ("data",), r"step 1.*batch|batch"),
    Case(
        "corrupted label",
        "encoder",
        corrupted_label,
        ("data", "argument"),
        r"target|label|cross_entropy|loss|Torch\.tensor\.\d+\.forward .*later_training",
    ),
    Case(
        "normalised in place",
        "conv",
        normalised_in_place,
        ("data", "call"),
        r"step 2",
        normalised,
        steps=4,
    ),
    Case("token cut off", "encoder", token_cut_off, ("data",), r"batch|step 0"),
    Case(
        "without mask",
        "encoder",
        without_mask,
        ("argument", "call"),
        r"mask|bool|EncoderLayer\.forward\.0",
    ),
    Case(
        "eps of a norm",
        "encoder",
        norm_eps,
        ("argument",),
        r"eps|layers\.1\.norm2",
    ),
    Case(
        "gelu by tanh",
        "encoder",
        tanh_gelu,
        ("argument",),
        r"approximate|layers\.0\.act",
    ),
    Case(
        "dropout of one layer",
        "encoder",
        dropout_of_one,
        ("argument",),
        r"\bp\b.*0\.2|layers\.1\.drop",
    ),
    Case(
        "batch norm momentum",
        "conv",
        batch_norm_momentum,
        ("argument",),
        r"momentum|bn1\.running",
    ),
    Case(
        "embedding not scaled",
        "encoder",
        not_scaled_embedding,
        ("call",),
        r"mul|Module\.Encoder\.",
    ),
    Case(
        "places from one",
        "encoder",
        places_from_one,
        ("argument", "call"),
        r"arange|places|add|Module\.Encoder\.",
    ),
    Case(
        "not causal",
        "llama",
        not_causal,
        ("argument",),
        r"is_causal|Module\.layers\.1\.Block",
    ),
    Case(
        "activation before norm",
        "conv",
        activation_before_norm,
        ("order", "call", "argument"),
        r"relu|bn1|batch_norm|Module\.Conv\.",
    ),
    Case("bfloat16 weights", "encoder", bfloat16_weights, ("precision",), r"bfloat16|head"),
    Case(
        "one without autocast",
        "encoder",
        one_without_autocast,
        ("precision", "mode"),
        r"float32|autocast|bfloat16|Tensor\.float\.",
        all_autocast,
    ),
    Case(
        "adapter frozen", "adapters", adapter_frozen, ("mode",), r"layers\.1\.value\.lora.*frozen"
    ),
    Case(
        "eval after validation",
        "encoder",
        eval_after_validation,
        ("mode",),
        r"the model is in eval mode in the target.*step 1",
    ),
    Case(
        "validated in training mode",
        "conv",
        validated_in_training_mode,
        ("parameters", "random"),
        r"buffers|running|num_batches|generator",
    ),
    Case("seeded in the loop", "llama", seeded_in_the_loop, ("random",), r"generator|drop"),
    Case("sampled for the log", "encoder", sampled_for_the_log, ("random",), r"generators? .*cpu"),
    Case(
        "raised in backward",
        "encoder",
        raised_in_backward,
        ("incomplete",),
        r"interrupted by .*value out of range",
    ),
    Case(
        "stopped by hand",
        "encoder",
        stopped_by_hand,
        ("incomplete",),
        r"interrupted by .*KeyboardInterrupt",
    ),
    Case("other threads", "encoder", unchanged_threads, NO_CAUSE, r"equal|rounding"),
]
