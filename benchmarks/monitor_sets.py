# SPDX-License-Identifier: Apache-2.0
"""The runs that score the alert rules, in six sets: healthy ones, and ones with a planted trouble.

A trouble is a row: its kind, the run, and what is planted, with the layer where it shows. The rules
were tuned with the troubles of the first set. Each later set was written after the rules, with
other models, optimizers and schedules, and scored before anything was changed; first scores are in
docs/tasks/monitor-alerts.md.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import torch
from monitor_models import MODELS
from monitor_optimizers import OPTIMIZERS, SCHEDULES
from monitor_runs import Recipe, Replica, Run
from torch import Tensor, nn

START = 120
"""The step of a trouble."""

Act = Callable[[Run, int], None]
Change = Callable[[Run], None]


class Planted(NamedTuple):
    """What is planted: the layers and streams that may lead, and what changes the run."""

    layers: tuple[str, ...]
    streams: tuple[str, ...]
    act: Act


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
    act: Act


class AlertSet(NamedTuple):
    """Runs of one set."""

    healthy: list[Recipe]
    troubles: list[Trouble]


FORWARD: Final = ("param_origin", "actv")
UPDATES: Final = ("param_origin", "param_updated", "update")
GRADIENTS: Final = ("grad_unreduced", "grad_reduced", "actv_grad")
_STATES: Final = ("exp_avg", "exp_avg_sq", "state")
_RUN: Final = ("run",)
_ANY: Final = ("",)


# ---- what is planted -----------------------------------------------------------------------------


def _once(change: Change) -> Act:
    return lambda run, step: change(run) if step == START else None


def _parameter(replica: Replica, name: str) -> nn.Parameter:
    return replica.parameters[replica.names.index(name)]


@torch.no_grad()
def _scale(run: Run, name: str, factor: float) -> None:
    for replica in run.replicas:
        _parameter(replica, name).mul_(factor)


def grown(layer: str, factor: float, name: str = "weight") -> Planted:
    """A parameter of a layer is multiplied."""
    change = partial(_scale, name=f"{layer}.{name}", factor=factor)
    return Planted((layer,), FORWARD, _once(change))


def growing(layer: str, factor: float) -> Planted:
    """A layer's weight is multiplied in each step."""
    name = f"{layer}.weight"
    return Planted((layer,), FORWARD, lambda run, _: _scale(run, name, factor))


def not_finite(layer: str) -> Planted:
    """A weight becomes NaN."""

    @torch.no_grad()
    def change(run: Run) -> None:
        for replica in run.replicas:
            _parameter(replica, f"{layer}.weight").view(-1)[0] = math.nan

    return Planted((layer,), FORWARD, _once(change))


def gradients(factor: float, *layers: str, streams: tuple[str, ...] = GRADIENTS) -> Planted:
    """Gradients of layers are multiplied."""

    def scaled(replica: Replica) -> None:
        for name, one in zip(replica.names, replica.parameters, strict=True):
            if name.startswith(layers) and one.grad is not None:
                one.grad.mul_(factor)

    return Planted(layers, streams, _once(lambda run: setattr(run, "before_gradients", scaled)))


def rate(factor: float) -> Planted:
    return Planted(("lr.0",), _RUN, _once(lambda run: setattr(run, "factor", factor)))


def _raise_rate(run: Run, _step: int) -> None:
    run.factor = min(10.0, run.factor * 2.2)  # within three steps


def stale(name: str) -> Planted:
    return Planted((name,), UPDATES, _once(lambda run: run.stale.add(name)))


def dead(expert: int) -> Planted:
    def change(run: Run) -> None:
        for replica in run.replicas:
            replica.model.layers[0].moe.dead = expert

    return Planted((f"experts.{expert}",), (*GRADIENTS, "actv"), _once(change))


def noise(*first: str, rank: int = 0, steps: int = 300) -> Planted:
    """Batches of a rank are noise; it shows in the loss or the first layers."""

    def act(run: Run, step: int) -> None:
        run.corrupt = {rank} if step < START + steps else set()

    return Planted(("loss", *first), ("run", "actv"), act)


def _clear_state(run: Run) -> None:
    for replica in run.replicas:
        replica.optimizer.state.clear()


def _overflow(run: Run, _step: int) -> None:
    run.overflows = True


def half(dtype: torch.dtype = torch.bfloat16) -> Planted:
    """The second moment has a coarser type."""

    def act(run: Run, _step: int) -> None:
        for replica in run.replicas:
            for state in replica.optimizer.state.values():
                state["exp_avg_sq"] = state["exp_avg_sq"].to(dtype)

    return Planted(_ANY, ("exp_avg_sq",), act)


def beta(value: float) -> Planted:
    def change(run: Run) -> None:
        for replica in run.replicas:
            for group in replica.optimizer.param_groups:
                group["betas"] = (group["betas"][0], value)

    return Planted(("betas",), _RUN, _once(change))


RESET: Final = Planted(_ANY, _STATES, _once(_clear_state))
OVERFLOW: Final = Planted(("loss_scale",), _RUN, _overflow)
UNREDUCED: Final = Planted(
    _ANY, ("grad_reduced",), _once(lambda run: setattr(run, "reduces", False))
)


# ---- of the sixth set alone ----------------------------------------------------------------------


@torch.no_grad()
def _drift_of_one_rank(run: Run) -> None:
    _parameter(run.replicas[1], "head.weight").mul_(1.001)


@torch.no_grad()
def _dead_units(run: Run) -> None:
    _parameter(run.replicas[0], "body.2.bias").fill_(-50.0)


def _clip_lost(run: Run) -> None:
    run.recipe = dataclasses.replace(run.recipe, clip=1e9)


def _heavier(run: Run) -> None:
    for group in run.replicas[0].optimizer.param_groups:
        group["weight_decay"] *= 100


def _labels_off(run: Run) -> None:
    model = run.replicas[0].model
    true = type(model).batch

    def shifted(size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        x, y = true(model, size, generator)
        return x, (y + 1) % 5

    model.batch = shifted


def _detached(run: Run) -> None:
    for name in ("gates.1.weight", "gates.1.bias"):
        _parameter(run.replicas[0], name).requires_grad_(False)


@torch.no_grad()
def _rounded(run: Run, _step: int) -> None:
    for one in run.replicas[0].parameters:
        one.copy_(one.bfloat16())


# ---- the sets ------------------------------------------------------------------------------------


def _troubles(
    recipes: dict[str, Recipe], rows: Iterable[tuple[str, str, Planted]]
) -> list[Trouble]:
    return [Trouble(kind, recipes[name], *planted) for kind, name, planted in rows]


def _each(kind: str, names: str, planted: Planted) -> list[tuple[str, str, Planted]]:
    return [(kind, name, planted) for name in names.split()]


def _first() -> AlertSet:
    healthy = []
    names = (list(MODELS)[:7], list(OPTIMIZERS)[:4], list(SCHEDULES)[:6])
    for number, (model, optimizer, schedule) in enumerate(itertools.product(*names)):
        if number % 13 in (0, 2, 4, 7, 10) or (schedule == "drops" and number % 5 == 0):
            ranks, clip = (1, 1, 2, 1, 4)[number % 5], 1.0 if number % 3 == 0 else None
            healthy.append(Recipe(model, optimizer, schedule, ranks, number, clip, number % 4 == 1))
    recipes = {
        "lm": Recipe("transformer", "adamw", "constant", seed=11),
        "deep": Recipe("deep transformer", "adam", "warm-up, cosine", seed=12, clip=1.0),
        "points": Recipe("mlp", "adamw", "constant", seed=13),
        "pictures": Recipe("conv", "sgd", "constant", seed=14),
        "moe": Recipe("moe", "adamw", "constant", seed=15),
        "two": Recipe("transformer", "adamw", "constant", ranks=2, seed=16),
        "four": Recipe("mlp", "adam", "constant", ranks=4, seed=17),
        "scaled": Recipe("transformer", "adamw", "constant", seed=18, scaled=True),
    }
    rows = [
        ("exploding layer", "lm", grown("layers.0.fc1", 30)),
        ("exploding layer", "deep", growing("layers.2.qkv", 1.6)),
        ("vanishing", "points", grown("layers.4", 1e-3)),
        ("vanishing", "lm", gradients(1e-4, "layers.0.", "embed")),
        ("NaN", "deep", not_finite("layers.1.proj")),
        ("NaN", "pictures", gradients(math.nan, "layers.3.")._replace(layers=("layers.3",))),
        ("lr x10", "lm", rate(10)),
        ("lr zero", "points", rate(0)),
        ("stale parameter", "lm", stale("layers.1.fc2.weight")),
        ("dead expert", "moe", dead(2)),
        ("corrupt batch", "lm", noise("embed", steps=1)),
        ("corrupt batch", "pictures", noise("layers.0", steps=2)),
        ("one rank's wrong data", "two", noise("embed", "layers.0", rank=1)),
        ("one rank's wrong data", "four", noise("layers.0", rank=2)),
        *_each("optimizer state reset", "lm four", RESET),
        ("loss-scale collapse", "scaled", OVERFLOW),
        ("second moment in bfloat16", "lm", half()),
        ("wrong beta", "points", beta(0.9)),
        *_each("missing all-reduce", "two four", UNREDUCED),
    ]
    return AlertSet(healthy, _troubles(recipes, rows))


def _second() -> AlertSet:
    recipes = {
        "lm": Recipe("transformer", "adam", "warm-up, cosine", seed=31, clip=1.0),
        "deep": Recipe("deep transformer", "adamw", "constant", seed=32),
        "points": Recipe("tanh mlp", "sgd", "constant", seed=33),
        "gru": Recipe("gru", "adamw", "constant", seed=34),
        "pictures": Recipe("conv", "adam", "constant", seed=35),
        "moe": Recipe("moe", "adam", "warm-up, cosine", seed=36),
        "two": Recipe("mlp", "adamw", "constant", ranks=2, seed=37),
        "four": Recipe("transformer", "adamw", "constant", ranks=4, seed=38),
        "scaled": Recipe("mlp", "adamw", "constant", seed=39, scaled=True),
        "rms": Recipe("transformer", "rmsprop", "linear to zero", seed=40),
    }
    rows = [
        ("exploding layer", "lm", grown("head", 12)),
        ("exploding layer", "gru", grown("layers.0", 20, "weight_ih_l0")),
        ("exploding layer", "deep", growing("layers.1.fc2", 1.8)),
        ("vanishing", "deep", grown("layers.2.proj", 1e-4)),
        ("vanishing", "rms", gradients(1e-3, "layers.1.", streams=(*GRADIENTS, "state"))),
        ("NaN", "gru", not_finite("layers.2")),
        ("NaN", "lm", gradients(math.nan, "embed")),
        *_each("lr x10", "gru points", rate(10)),
        ("lr zero", "deep", rate(0)),
        ("stale parameter", "deep", stale("layers.3.qkv.weight")),
        ("stale parameter", "points", stale("layers.4.weight")),
        ("dead expert", "moe", dead(1)),
        ("corrupt batch", "gru", noise("layers.0", steps=1)),
        ("corrupt batch", "deep", noise("embed", steps=2)),
        ("one rank's wrong data", "two", noise("layers.0")),
        ("one rank's wrong data", "four", noise("embed", "layers.0", rank=3)),
        *_each("optimizer state reset", "deep rms", RESET),
        ("loss-scale collapse", "scaled", OVERFLOW),
        ("second moment in bfloat16", "gru", half()),
        ("second moment in float16", "lm", half(torch.float16)),
        ("wrong beta", "pictures", beta(0.5)),
        *_each("missing all-reduce", "four two", UNREDUCED),
    ]
    return AlertSet([], _troubles(recipes, rows))


def _third() -> AlertSet:
    models = ("autoencoder", "regression", "tied transformer", "lstm", "groups")
    optimizers = ("nadam", "radam", "adamax", "adagrad", "nesterov", "amsgrad")
    schedules = ("warm-up, stable, decay", "one cycle", "exponential", "inverse root", "plateaus")
    healthy = [
        Recipe(
            models[number % 5],
            optimizers[(number + number // 5) % 6],
            schedules[(2 * number + number // 5) % 5],
            ranks=(1, 2, 1, 1, 3)[number % 5] if number % 2 else 1,
            seed=500 + number,
            clip=(None, 0.5, None, 2.0)[number % 4],
            scaled=number % 7 == 3,
            batch=(8, 24, 64)[number % 3],
        )
        for number in range(30)
    ]
    decay = "warm-up, stable, decay"
    recipes = {
        "auto": Recipe("autoencoder", "nadam", decay, seed=601),
        "auto2": Recipe("autoencoder", "amsgrad", "inverse root", ranks=2, seed=602, clip=1.0),
        "reg": Recipe("regression", "radam", "exponential", seed=603),
        "reg3": Recipe("regression", "nesterov", "plateaus", ranks=3, seed=604),
        "tied": Recipe("tied transformer", "amsgrad", "inverse root", seed=605, clip=1.0),
        "tied2": Recipe("tied transformer", "nadam", decay, ranks=2, seed=606),
        "lstm": Recipe("lstm", "adamax", "one cycle", seed=607),
        "lstm2": Recipe("lstm", "adagrad", "plateaus", ranks=2, seed=608),
        "groups": Recipe("groups", "nesterov", decay, seed=609),
        "groups4": Recipe("groups", "adamax", "exponential", ranks=4, seed=610, batch=12),
        "moe": Recipe("moe", "nadam", "inverse root", seed=611),
        "moe2": Recipe("moe", "amsgrad", decay, ranks=2, seed=612),
        "scaled": Recipe("groups", "nadam", "one cycle", seed=613, scaled=True),
        "scaled2": Recipe("tied transformer", "radam", "exponential", seed=614, scaled=True),
        "deep": Recipe("deep transformer", "radam", "inverse root", seed=615, batch=48),
    }
    rows = [
        ("exploding layer", "auto", grown("decoder.0", 15)),
        ("exploding layer", "reg", grown("blocks.2.2", 40)),
        ("exploding layer", "tied", growing("layers.1.linear1", 1.7)),
        ("exploding layer", "lstm", grown("cell", 25, "weight_hh_l1")),
        ("exploding layer", "deep", growing("layers.3.fc2", 2.0)),
        ("vanishing", "groups", grown("layers.4", 1e-4)),
        ("vanishing", "tied", gradients(1e-3, "layers.0.")),
        ("vanishing", "reg3", gradients(1e-5, "inlet", "blocks.0")),
        ("NaN", "reg", not_finite("outlet")),
        ("NaN", "tied2", not_finite("layers.2.linear2")),
        ("NaN", "lstm", gradients(math.inf, "head")),
        ("NaN", "groups4", not_finite("layers.0")),
        *_each("lr x10", "auto reg3", rate(10)),
        ("lr x10", "deep", Planted(("lr.0",), _RUN, _raise_rate)),
        *_each("lr zero", "tied2 groups", rate(0)),
        ("stale parameter", "tied", stale("layers.2.linear1.weight")),
        ("stale parameter", "reg", stale("blocks.4.2.bias")),
        ("stale parameter", "lstm2", stale("cell.weight_ih_l0")),
        ("dead expert", "moe", dead(0)),
        ("dead expert", "moe2", dead(3)),
        ("corrupt batch", "tied", noise("embed", steps=1)),
        ("corrupt batch", "lstm", noise("cell", steps=1)),
        ("corrupt batch", "groups", noise("layers.0", steps=2)),
        ("corrupt batch", "moe", noise("embed", steps=1)),
        ("one rank's wrong data", "groups4", noise("layers.0", rank=3)),
        ("one rank's wrong data", "tied2", noise("embed", rank=1)),
        ("one rank's wrong data", "lstm2", noise("cell")),
        *_each("optimizer state reset", "auto groups4 tied2", RESET),
        *_each("loss-scale collapse", "scaled scaled2", OVERFLOW),
        *_each("second moment in bfloat16", "tied deep", half()),
        ("wrong beta", "auto", beta(0.9)),
        ("wrong beta", "tied", beta(0.9999)),
        ("wrong beta", "lstm", beta(0.5)),
        *_each("missing all-reduce", "auto2 groups4 lstm2", UNREDUCED),
    ]
    return AlertSet(healthy, _troubles(recipes, rows))


def _fourth() -> AlertSet:
    models = ("counting", "mixer", "variational", "towers", "residual")
    optimizers = ("lion", "adadelta", "adafactor", "adamw 0.95", "plain sgd", "rmsprop, momentum")
    schedules = ("long warm-up", "halves", "triangles", "square", "growing restarts")
    healthy = [
        Recipe(
            models[number % 5],
            optimizers[number % 6],
            schedules[(number + number // 5) % 5],
            ranks=(1, 1, 1, 2, 1, 3)[(number // 5) % 6],
            seed=700 + number,
            clip=0.5 if number % 4 == 1 else None,
            scaled=number % 7 == 3,
            batch=20,
        )
        for number in range(30)
    ]
    recipes = {
        "text": Recipe("counting", "adamw 0.95", "long warm-up", seed=801, clip=1.0),
        "text2": Recipe("counting", "lion", "square", ranks=2, seed=802),
        "mixer": Recipe("mixer", "adam", "triangles", seed=803),
        "mixer3": Recipe("mixer", "adamw 0.95", "halves", ranks=3, seed=804),
        "vae": Recipe("variational", "adamw 0.95", "growing restarts", seed=805),
        "vae2": Recipe("variational", "adam", "square", ranks=2, seed=806),
        "towers": Recipe("towers", "adamw", "halves", seed=807),
        "towers4": Recipe("towers", "adam", "long warm-up", ranks=4, seed=808),
        "pictures": Recipe("residual", "rmsprop, momentum", "triangles", seed=809),
        "pictures2": Recipe("residual", "adamw 0.95", "square", ranks=2, seed=810),
        "delta": Recipe("residual", "adadelta", "long warm-up", seed=811),
        "moe": Recipe("moe", "adamw 0.95", "halves", seed=812),
        "moe2": Recipe("moe", "lion", "triangles", ranks=2, seed=813),
        "scaled": Recipe("towers", "adam", "square", seed=814, scaled=True),
        "scaled2": Recipe("counting", "adamw 0.95", "halves", seed=815, scaled=True),
        "scaled3": Recipe("mixer", "lion", "long warm-up", seed=816, scaled=True),
    }
    rows = [
        ("exploding layer", "text", grown("layers.1.up", 25)),
        ("exploding layer", "pictures", grown("convs.2", 20)),
        ("exploding layer", "vae", growing("decoder.2", 1.7)),
        ("vanishing", "mixer", grown("channels.1", 1e-3)),
        ("vanishing", "towers", grown("right.2", 1e-4)),
        ("vanishing", "text", gradients(1e-4, "layers.0.")),
        ("NaN", "mixer3", not_finite("tokens.1")),
        ("NaN", "delta", not_finite("convs.1")),
        ("NaN", "towers", gradients(math.nan, "left.2")),
        *_each("lr x10", "vae mixer text2", rate(10)),
        *_each("lr zero", "towers pictures moe", rate(0)),
        ("stale parameter", "text", stale("layers.0.q.weight")),
        ("stale parameter", "vae", stale("encoder.2.bias")),
        ("stale parameter", "pictures", stale("norms.3.weight")),
        ("dead expert", "moe", dead(1)),
        ("dead expert", "moe2", dead(0)),
        ("dead expert", "moe", dead(3)),
        ("corrupt batch", "text", noise("embed", steps=1)),
        ("corrupt batch", "vae", noise("encoder.0", steps=1)),
        ("corrupt batch", "towers", noise("left.0", steps=2)),
        ("one rank's wrong data", "text2", noise("embed", rank=1)),
        ("one rank's wrong data", "towers4", noise("left.0", rank=2)),
        ("one rank's wrong data", "pictures2", noise("stem")),
        *_each("optimizer state reset", "mixer vae2 text2", RESET),
        *_each("loss-scale collapse", "scaled scaled2 scaled3", OVERFLOW),
        *_each("second moment in bfloat16", "towers mixer towers4", half()),
        ("wrong beta", "vae", beta(0.5)),
        ("wrong beta", "towers", beta(0.99999)),
        ("wrong beta", "text2", beta(0.8)),
        *_each("missing all-reduce", "text2 mixer3 vae2", UNREDUCED),
    ]
    return AlertSet(healthy, _troubles(recipes, rows))


def _fifth() -> AlertSet:
    models = ("denoiser", "graph", "uncertain", "triplets", "recommender")
    optimizers = ("signum", "lamb", "asgd", "adam, large eps", "adamw, no first", "damped sgd")
    schedules = ("one cycle", "inverse root", "stable, decay", "exponential", "steps up")
    healthy = [
        Recipe(
            models[number % 5],
            optimizers[number % 6],
            schedules[(number // 2) % 5],
            ranks=2 if number % 10 == 4 else 1,
            seed=900 + number,
            clip=1.0 if number % 4 == 2 else None,
            scaled=number % 9 == 5,
        )
        for number in range(30)
    ]
    recipes = {
        "noise": Recipe("denoiser", "adam, large eps", "one cycle", seed=951),
        "noise2": Recipe("denoiser", "lamb", "inverse root", ranks=2, seed=952),
        "graph": Recipe("graph", "adamw, no first", "stable, decay", seed=953, clip=1.0),
        "graph2": Recipe("graph", "adam, large eps", "exponential", ranks=2, seed=954),
        "unsure": Recipe("uncertain", "lamb", "steps up", seed=955),
        "unsure3": Recipe("uncertain", "adamw, no first", "one cycle", ranks=3, seed=956),
        "triplets": Recipe("triplets", "adam, large eps", "inverse root", seed=957),
        "tables": Recipe("recommender", "damped sgd", "exponential", seed=958),
        "tables2": Recipe("recommender", "signum", "stable, decay", ranks=2, seed=959),
        "scaled": Recipe("graph", "lamb", "one cycle", seed=960, scaled=True),
    }
    rows = [
        ("exploding layer", "noise", grown("middle", 40)),
        ("exploding layer", "graph", grown("messages.1", 30)),
        ("exploding layer", "tables", grown("top.0", 50)),
        ("vanishing", "unsure", grown("body.2", 1e-3)),
        ("vanishing", "graph", gradients(1e-4, "messages.0")),
        ("NaN", "noise2", not_finite("up")),
        ("NaN", "triplets", gradients(math.nan, "embed.0")),
        *_each("lr x10", "graph tables", rate(10)),
        *_each("lr zero", "noise unsure", rate(0)),
        ("stale parameter", "noise", stale("down.weight")),
        ("stale parameter", "unsure", stale("body.0.weight")),
        ("corrupt batch", "graph", noise("inlet", steps=2)),
        ("corrupt batch", "unsure", noise("body.0", steps=1)),
        ("one rank's wrong data", "noise2", noise("down", rank=1)),
        ("one rank's wrong data", "graph2", noise("inlet", rank=1)),
        *_each("optimizer state reset", "unsure3 tables2", RESET),
        ("loss-scale collapse", "scaled", OVERFLOW),
        ("second moment in bfloat16", "graph2", half()),
        ("wrong beta", "noise", beta(0.5)),
        *_each("missing all-reduce", "graph2 tables2", UNREDUCED),
    ]
    return AlertSet(healthy, _troubles(recipes, rows))


def _sixth() -> AlertSet:
    heavy, tenth = "adamw, heavy decay", "cosine to a tenth"
    healthy = [
        Recipe("patches", heavy, tenth, ranks=2, seed=1000, clip=1.0),
        Recipe("patches", "muon", "warmed again", seed=1001),
        Recipe("waves", "adafactor", "polynomial", seed=1002),
        Recipe("waves", heavy, "sawtooth", seed=1003),
        Recipe("state space", "muon", "sawtooth", ranks=2, seed=1004),
        Recipe("state space", "plain sgd", "warmed again", seed=1005, scaled=True),
        Recipe("flow", "adafactor", tenth, seed=1006, clip=1.0),
        Recipe("values", heavy, "polynomial", seed=1007),
    ]
    recipes = {
        "patches": Recipe("patches", heavy, tenth, seed=1052),
        "patches2": Recipe("patches", "muon", "warmed again", ranks=2, seed=1051),
        "waves": Recipe("waves", "plain sgd", tenth, seed=1053, clip=0.05),
        "waves2": Recipe("waves", "adafactor", "sawtooth", seed=1054),
        "space": Recipe("state space", "muon", "sawtooth", seed=1055),
        "flow": Recipe("flow", heavy, "polynomial", seed=1056),
        "flow2": Recipe("flow", "plain sgd", "polynomial", seed=1057),
        "values": Recipe("values", "adafactor", "warmed again", seed=1058),
    }
    of_run = ("run", *GRADIENTS)
    off = Planted(("loss", "head"), of_run, _once(_labels_off))
    gone = Planted(("gates.1",), (*GRADIENTS, *UPDATES, *_STATES), _once(_detached))
    rows = [
        ("weights of one rank", "patches2", Planted(("head",), FORWARD, _once(_drift_of_one_rank))),
        ("dead units", "values", Planted(("body.2", "body.3"), FORWARD, _once(_dead_units))),
        ("clipping lost", "waves", Planted(_ANY, ("run", *UPDATES), _once(_clip_lost))),
        ("gradients undivided", "waves2", gradients(8, "", streams=of_run)),
        ("weight decay x100", "flow", Planted(("weight_decay",), _RUN, _once(_heavier))),
        ("labels off by one", "patches", off),
        ("detached layer", "space", gone),
        ("weights in bfloat16", "flow2", Planted(_ANY, UPDATES, _rounded)),
    ]
    return AlertSet(healthy, _troubles(recipes, rows))


def sets() -> dict[str, AlertSet]:
    """Return the sets by name."""
    made = (_first(), _second(), _third(), _fourth(), _fifth(), _sixth())
    return dict(zip(("first", "second", "third", "fourth", "fifth", "sixth"), made, strict=True))
