# SPDX-License-Identifier: Apache-2.0
"""Troubles that are planted in the runs of `monitor_runs`, with the layer and stream of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from monitor_runs import Recipe, Replica, Run

START: Final = 120


@dataclass
class Trouble:
    """A planted trouble.

    Attributes:
        kind: its kind.
        recipe: of the run.
        layer: part of the name of the series that leads; any of these.
        streams: streams that may lead.
        act: changes the run before each step from `START` on.
    """

    kind: str
    recipe: Recipe
    layer: tuple[str, ...]
    streams: tuple[str, ...]
    act: Callable[[Run, int], None]


def parameter(replica: Replica, name: str) -> torch.nn.Parameter:
    return replica.parameters[replica.names.index(name)]


def once(change: Callable[[Run], None]) -> Callable[[Run, int], None]:
    return lambda run, step: change(run) if step == START else None


@torch.no_grad()
def scale_weight(run: Run, name: str, factor: float) -> None:
    for replica in run.replicas:
        parameter(replica, name).mul_(factor)


@torch.no_grad()
def nan_weight(run: Run, name: str) -> None:
    for replica in run.replicas:
        parameter(replica, name).view(-1)[0] = float("nan")


def scale_gradients(names: tuple[str, ...], factor: float) -> Callable[[Run], None]:
    def change(run: Run) -> None:
        def scaled(replica: Replica) -> None:
            for name, one in zip(replica.names, replica.parameters, strict=True):
                if name.startswith(names) and one.grad is not None:
                    one.grad.mul_(factor)

        run.before_gradients = scaled

    return change


def reset_state(run: Run) -> None:
    for replica in run.replicas:
        replica.optimizer.state.clear()


def set_factor(factor: float) -> Callable[[Run], None]:
    return lambda run: setattr(run, "factor", factor)


def set_beta(beta: float) -> Callable[[Run], None]:
    def change(run: Run) -> None:
        for replica in run.replicas:
            for group in replica.optimizer.param_groups:
                group["betas"] = (group["betas"][0], beta)

    return change


def half_state(dtype: torch.dtype) -> Callable[[Run, int], None]:
    def act(run: Run, _step: int) -> None:
        for replica in run.replicas:
            for state in replica.optimizer.state.values():
                state["exp_avg_sq"] = state["exp_avg_sq"].to(dtype)

    return act


def dead_expert(run: Run, layer: int, expert: int) -> None:
    for replica in run.replicas:
        replica.model.layers[layer].moe.dead = expert


def bad_batches(ranks: set[int], steps: int) -> Callable[[Run, int], None]:
    def act(run: Run, step: int) -> None:
        run.corrupt = ranks if step < START + steps else set()

    return act


def overflow(run: Run, _step: int) -> None:
    run.overflows = True


FORWARD: Final = ("param_origin", "actv")
UPDATES: Final = ("param_origin", "param_updated", "update")
GRADIENTS: Final = ("grad_unreduced", "grad_reduced", "actv_grad")


def tuning_troubles() -> list[Trouble]:
    """Return the troubles that the rules were tuned with."""
    lm = Recipe("transformer", "adamw", "constant", seed=11)
    deep = Recipe("deep transformer", "adam", "warm-up, cosine", seed=12, clip=1.0)
    points = Recipe("mlp", "adamw", "constant", seed=13)
    pictures = Recipe("conv", "sgd", "constant", seed=14)
    moe = Recipe("moe", "adamw", "constant", seed=15)
    two = Recipe("transformer", "adamw", "constant", ranks=2, seed=16)
    four = Recipe("mlp", "adam", "constant", ranks=4, seed=17)
    scaled = Recipe("transformer", "adamw", "constant", seed=18, scaled=True)
    return [
        Trouble(
            "exploding layer",
            lm,
            ("layers.0.fc1",),
            FORWARD,
            once(lambda run: scale_weight(run, "layers.0.fc1.weight", 30)),
        ),
        Trouble(
            "exploding layer",
            deep,
            ("layers.2.qkv",),
            FORWARD,
            lambda run, _: scale_weight(run, "layers.2.qkv.weight", 1.6),
        ),
        Trouble(
            "vanishing",
            points,
            ("layers.4",),
            FORWARD,
            once(lambda run: scale_weight(run, "layers.4.weight", 1e-3)),
        ),
        Trouble(
            "vanishing",
            lm,
            ("layers.0.", "embed"),
            GRADIENTS,
            once(scale_gradients(("layers.0.", "embed"), 1e-4)),
        ),
        Trouble(
            "NaN",
            deep,
            ("layers.1.proj",),
            FORWARD,
            once(lambda run: nan_weight(run, "layers.1.proj.weight")),
        ),
        Trouble(
            "NaN",
            pictures,
            ("layers.3",),
            GRADIENTS,
            once(scale_gradients(("layers.3.",), float("nan"))),
        ),
        Trouble("lr x10", lm, ("lr.0",), ("run",), once(set_factor(10))),
        Trouble("lr zero", points, ("lr.0",), ("run",), once(set_factor(0))),
        Trouble(
            "stale parameter",
            lm,
            ("layers.1.fc2.weight",),
            UPDATES,
            once(lambda run: run.stale.add("layers.1.fc2.weight")),
        ),
        Trouble(
            "dead expert",
            moe,
            ("experts.2",),
            (*GRADIENTS, "actv"),
            once(lambda run: dead_expert(run, 0, 2)),
        ),
        Trouble("corrupt batch", lm, ("loss", "embed"), ("run", "actv"), bad_batches({0}, 1)),
        Trouble(
            "corrupt batch", pictures, ("loss", "layers.0"), ("run", "actv"), bad_batches({0}, 2)
        ),
        Trouble(
            "one rank's wrong data",
            two,
            ("loss", "embed", "layers.0"),
            ("run", "actv"),
            bad_batches({1}, 300),
        ),
        Trouble(
            "one rank's wrong data",
            four,
            ("loss", "layers.0"),
            ("run", "actv"),
            bad_batches({2}, 300),
        ),
        Trouble("optimizer state reset", lm, ("",), ("exp_avg", "exp_avg_sq"), once(reset_state)),
        Trouble("optimizer state reset", four, ("",), ("exp_avg", "exp_avg_sq"), once(reset_state)),
        Trouble("loss-scale collapse", scaled, ("loss_scale",), ("run",), overflow),
        Trouble(
            "second moment in bfloat16", lm, ("",), ("exp_avg_sq",), half_state(torch.bfloat16)
        ),
        Trouble("wrong beta", points, ("betas.1",), ("run",), once(set_beta(0.9))),
        Trouble(
            "missing all-reduce",
            two,
            ("",),
            ("grad_reduced",),
            once(lambda run: setattr(run, "reduces", False)),
        ),
        Trouble(
            "missing all-reduce",
            four,
            ("",),
            ("grad_reduced",),
            once(lambda run: setattr(run, "reduces", False)),
        ),
    ]


def unseen_troubles() -> list[Trouble]:
    """Return troubles that were written after the rules and scored once."""
    lm = Recipe("transformer", "adam", "warm-up, cosine", seed=31, clip=1.0)
    deep = Recipe("deep transformer", "adamw", "constant", seed=32)
    points = Recipe("tanh mlp", "sgd", "constant", seed=33)
    gru = Recipe("gru", "adamw", "constant", seed=34)
    pictures = Recipe("conv", "adam", "constant", seed=35)
    moe = Recipe("moe", "adam", "warm-up, cosine", seed=36)
    two = Recipe("mlp", "adamw", "constant", ranks=2, seed=37)
    four = Recipe("transformer", "adamw", "constant", ranks=4, seed=38)
    scaled = Recipe("mlp", "adamw", "constant", seed=39, scaled=True)
    rms = Recipe("transformer", "rmsprop", "linear to zero", seed=40)
    return [
        Trouble(
            "exploding layer",
            lm,
            ("head",),
            FORWARD,
            once(lambda run: scale_weight(run, "head.weight", 12)),
        ),
        Trouble(
            "exploding layer",
            gru,
            ("layers.0",),
            FORWARD,
            once(lambda run: scale_weight(run, "layers.0.weight_ih_l0", 20)),
        ),
        Trouble(
            "exploding layer",
            deep,
            ("layers.1.fc2",),
            FORWARD,
            lambda run, _: scale_weight(run, "layers.1.fc2.weight", 1.8),
        ),
        Trouble(
            "vanishing",
            deep,
            ("layers.2.proj",),
            FORWARD,
            once(lambda run: scale_weight(run, "layers.2.proj.weight", 1e-4)),
        ),
        Trouble(
            "vanishing",
            rms,
            ("layers.1.",),
            (*GRADIENTS, "state"),
            once(scale_gradients(("layers.1.",), 1e-3)),
        ),
        Trouble(
            "NaN", gru, ("layers.2",), FORWARD, once(lambda run: nan_weight(run, "layers.2.weight"))
        ),
        Trouble("NaN", lm, ("embed",), GRADIENTS, once(scale_gradients(("embed",), float("nan")))),
        Trouble("lr x10", gru, ("lr.0",), ("run",), once(set_factor(10))),
        Trouble("lr x10", points, ("lr.0",), ("run",), once(set_factor(10))),
        Trouble("lr zero", deep, ("lr.0",), ("run",), once(set_factor(0))),
        Trouble(
            "stale parameter",
            deep,
            ("layers.3.qkv.weight",),
            UPDATES,
            once(lambda run: run.stale.add("layers.3.qkv.weight")),
        ),
        Trouble(
            "stale parameter",
            points,
            ("layers.4.weight",),
            UPDATES,
            once(lambda run: run.stale.add("layers.4.weight")),
        ),
        Trouble(
            "dead expert",
            moe,
            ("experts.1",),
            (*GRADIENTS, "actv"),
            once(lambda run: dead_expert(run, 0, 1)),
        ),
        Trouble("corrupt batch", gru, ("loss", "layers.0"), ("run", "actv"), bad_batches({0}, 1)),
        Trouble("corrupt batch", deep, ("loss", "embed"), ("run", "actv"), bad_batches({0}, 2)),
        Trouble(
            "one rank's wrong data",
            two,
            ("loss", "layers.0"),
            ("run", "actv"),
            bad_batches({0}, 300),
        ),
        Trouble(
            "one rank's wrong data",
            four,
            ("loss", "embed", "layers.0"),
            ("run", "actv"),
            bad_batches({3}, 300),
        ),
        Trouble("optimizer state reset", deep, ("",), ("exp_avg", "exp_avg_sq"), once(reset_state)),
        Trouble("optimizer state reset", rms, ("",), ("state",), once(reset_state)),
        Trouble("loss-scale collapse", scaled, ("loss_scale",), ("run",), overflow),
        Trouble(
            "second moment in bfloat16", gru, ("",), ("exp_avg_sq",), half_state(torch.bfloat16)
        ),
        Trouble("second moment in float16", lm, ("",), ("exp_avg_sq",), half_state(torch.float16)),
        Trouble("wrong beta", pictures, ("betas.1",), ("run",), once(set_beta(0.5))),
        Trouble(
            "missing all-reduce",
            four,
            ("",),
            ("grad_reduced",),
            once(lambda run: setattr(run, "reduces", False)),
        ),
        Trouble(
            "missing all-reduce",
            two,
            ("",),
            ("grad_reduced",),
            once(lambda run: setattr(run, "reduces", False)),
        ),
    ]
