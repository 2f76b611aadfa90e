# SPDX-License-Identifier: Apache-2.0
"""Small trainings that differ in one planted setting, and the cause that must be named first."""

from __future__ import annotations

import argparse
import logging
import os
import random
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from msprobe.config_check import ConfigChecker
from msprobe.run_config.conclusion import Kind

# Everything that a plant may change; the program has one argument of its own.
BASE: Mapping[str, Any] = {
    "seed": 7, "python_seed": 7, "numpy_seed": 7, "extra_draw": False, "width": 8,
    "p": 0.1, "eps": 1e-5, "momentum": 0.1, "bias": True, "act": torch.relu, "negative_slope": 0.01,
    "scale": 1.0, "dtype": torch.float32, "data_dtype": torch.float32, "optimizer": "AdamW",
    "options": {}, "group": {}, "schedule": "StepLR", "schedule_options": {"step_size": 2},
    "clip": 1.0, "clip_kind": "norm", "loss_scale": None, "autocast": None, "shuffle": True,
    "batch_size": 4, "drop_last": False, "loader_seed": 11, "data": 0.0, "order": False,
    "weights": 0.0, "buffer": 0.0, "train": True, "eval_of": None, "frozen": None,
    "scripts": None, "arguments": None, "argv": [], "loss": 1.0, "in_training": None,
    "before_step": None, "std": 0.02, "attributes": {}, "of_loader": {}, "of_optimizer": {},
    "prepare": None, "loader_options": {},
}  # fmt: skip


class Plant(NamedTuple):
    """One changed setting.

    Attributes:
        name: says what is changed.
        kind: the class of the cause.
        place: text in the name of the difference that is named first.
        change: settings of the run that differ.
        around: what else is changed while it runs.
        base: settings of the run without it that differ from `BASE`.
    """

    name: str
    kind: Kind
    place: str
    change: Mapping[str, Any] = {}
    around: Callable[[Path], Any] | None = None
    base: Mapping[str, Any] = {}


class Net(nn.Module):
    """A little of everything that has settings."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__()
        width = settings["width"]
        self.a = nn.Linear(4, width, bias=settings["bias"])
        self.norm = nn.LayerNorm(width, eps=settings["eps"])
        self.batch = nn.BatchNorm1d(width, momentum=settings["momentum"])
        self.drop = nn.Dropout(settings["p"])
        self.leaky = nn.LeakyReLU(settings["negative_slope"])
        self.b = nn.Linear(width, 1)
        self.act = settings["act"]
        self.scale = settings["scale"]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.leaky(self.act(self.batch(self.norm(self.a(x)))))
        return self.b(self.drop(hidden)) * self.scale


def train(path: Path, changed: Mapping[str, Any]) -> Path:
    """Train four steps with some settings changed; return the pack."""
    settings = {**BASE, **changed}
    before = sys.argv
    sys.argv = ["train.py", *settings["argv"]]
    ConfigChecker.apply_patches("pytorch")
    try:
        _train(path, settings)
    finally:
        ConfigChecker.remove_patches("pytorch")
        sys.argv = before
    return path


def _train(path: Path, settings: Mapping[str, Any]) -> None:
    random.seed(settings["python_seed"])
    np.random.seed(settings["numpy_seed"])  # noqa: NPY002 - what scripts share
    torch.manual_seed(settings["seed"])
    given = argparse.Namespace(epochs=1, **(settings["arguments"] or {}))
    if settings["extra_draw"]:
        torch.rand(1)
    net = Net(settings).to(settings["dtype"])
    _change_model(net, settings)
    optimizer = _optimizer(net, settings)
    vars(optimizer).update(settings["of_optimizer"])
    schedule = getattr(torch.optim.lr_scheduler, settings["schedule"])(
        optimizer, **settings["schedule_options"]
    )
    loader = _loader(settings)
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=settings["loss_scale"] or 1.0, enabled=settings["loss_scale"] is not None
    )
    ConfigChecker(net, settings["scripts"], path, max_steps=4)
    for number, (x,) in enumerate(loader):
        if number == 4:
            break
        if settings["before_step"] is not None:
            settings["before_step"](number, net, optimizer)
        with torch.autocast(
            "cpu", dtype=settings["autocast"] or torch.bfloat16, enabled=bool(settings["autocast"])
        ):
            loss = net(x).square().mean() * settings["loss"]
        scaler.scale(loss).backward()
        if settings["in_training"] is not None:
            settings["in_training"](net)
        _clip(net, settings)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    del given


def _change_model(net: Net, settings: Mapping[str, Any]) -> None:
    with torch.no_grad():
        nn.init.normal_(net.a.weight, std=settings["std"])
        net.b.weight[0, 0] += settings["weights"]
        net.batch.running_mean += settings["buffer"]
    vars(net).update(settings["attributes"])
    if settings["prepare"] is not None:
        settings["prepare"](net)
    net.train(settings["train"])
    if settings["eval_of"] is not None:
        net.get_submodule(settings["eval_of"]).eval()
    if settings["frozen"] is not None:
        net.get_parameter(settings["frozen"]).requires_grad_(False)


def _optimizer(net: Net, settings: Mapping[str, Any]) -> torch.optim.Optimizer:
    options = {"lr": 0.01, **settings["options"]}
    last = {"params": list(net.b.parameters()), **settings["group"]}
    rest = [one for name, one in net.named_parameters() if not name.startswith("b.")]
    kind: Any = getattr(torch.optim, settings["optimizer"])
    return kind([{"params": rest}, last], **options)


def _loader(settings: Mapping[str, Any]) -> DataLoader[Any]:
    x = torch.arange(64.0).reshape(16, 4).sin().to(settings["data_dtype"])
    x[5, 1] += settings["data"]
    if settings["order"]:
        x = x.flip(0)
    data = TensorDataset(x)
    vars(data).update(settings["of_loader"])
    return DataLoader(
        data,
        **settings["loader_options"],
        batch_size=settings["batch_size"],
        shuffle=settings["shuffle"],
        drop_last=settings["drop_last"],
        generator=torch.Generator().manual_seed(settings["loader_seed"]),
    )


def _clip(net: Net, settings: Mapping[str, Any]) -> None:
    if settings["clip_kind"] == "norm":
        torch.nn.utils.clip_grad_norm_(net.parameters(), settings["clip"])
    elif settings["clip_kind"] == "value":
        torch.nn.utils.clip_grad_value_(net.parameters(), settings["clip"])


def draw(bound: int) -> None:
    """Draw a number below a bound, as diffusion models draw a time step."""
    torch.randint(0, bound, (2,))


@contextmanager
def variable(name: str, value: str) -> Iterator[None]:
    """Set an environment variable meanwhile."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@contextmanager
def package(folder: Path, name: str, version: str) -> Iterator[None]:
    """Let a version of a package be the installed one meanwhile."""
    info = folder / "packages" / f"{name}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    sys.path.insert(0, str(info.parent))
    try:
        yield
    finally:
        sys.path.remove(str(info.parent))


@contextmanager
def switched(get: Callable[[], Any], put: Callable[[Any], Any], value: Any) -> Iterator[None]:
    """Change a setting of torch meanwhile, also where its own tests froze the backends."""
    before = get()
    with torch.backends.__allow_nonbracketed_mutation():
        put(value)
    try:
        yield
    finally:
        with torch.backends.__allow_nonbracketed_mutation():
            put(before)


def git(folder: Path, *words: str) -> None:
    """Run git with a name and an address."""
    user = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", "-C", str(folder), *user, *words], check=True, capture_output=True)


OPT = "optimizer.0.group.0."
PLANTS = (
    Plant("seed of torch", Kind.SEED, "torch.manual_seed", {"seed": 8}),
    Plant("seed of python", Kind.SEED, "random.seed", {"python_seed": 8}),
    Plant("seed of numpy", Kind.SEED, "np.random.seed", {"numpy_seed": 8}),
    Plant("learning rate", Kind.OPTIMIZER, OPT + "lr", {"options": {"lr": 0.02}}),
    Plant("betas", Kind.OPTIMIZER, OPT + "betas", {"options": {"betas": (0.9, 0.99)}}),
    Plant("eps of Adam", Kind.OPTIMIZER, OPT + "eps", {"options": {"eps": 1e-6}}),
    Plant("weight decay", Kind.OPTIMIZER, OPT + "weight_decay", {"options": {"weight_decay": 0.1}}),
    Plant("amsgrad", Kind.OPTIMIZER, OPT + "amsgrad", {"options": {"amsgrad": True}}),
    Plant("optimizer", Kind.OPTIMIZER, "optimizer.0.class", {"optimizer": "Adam"}),
    Plant("one group", Kind.OPTIMIZER, "group.1.lr", {"group": {"lr": 0.5}}),
    Plant("schedule", Kind.SCHEDULE, "step_size", {"schedule_options": {"step_size": 1}}),
    Plant("dropout", Kind.MODEL, "module.drop", {"p": 0.2}),
    Plant("eps of a norm", Kind.MODEL, "module.norm", {"eps": 1e-6}),
    Plant("activation", Kind.MODEL, "module.act", {"act": torch.tanh}),
    Plant("clipping", Kind.CLIPPING, "max_norm", {"clip": 0.5}),
    Plant("eval mode", Kind.MODE, "training.model", {"train": False}),
    Plant("frozen", Kind.MODE, "requires_grad.a.weight", {"frozen": "a.weight"}),
    Plant("autocast", Kind.MODE, "autocast.cpu", {"autocast": torch.bfloat16}),
    Plant("one weight", Kind.WEIGHTS, "b.weight", {"weights": 1e-4}),
    Plant("a buffer", Kind.BUFFERS, "batch.running_mean", {"buffer": 0.5}),
    Plant("one datum", Kind.DATA, "args.0", {"data": 1e-3}),
    Plant("shuffle", Kind.LOADER, "sampler", {"shuffle": False}),
    Plant("dtype", Kind.DTYPE, "a.weight",
          {"dtype": torch.float64, "data_dtype": torch.float64}),
    Plant("an argument", Kind.ARGUMENT, "lr",
          {"arguments": {"lr": 0.02}, "options": {"lr": 0.02}}),
    # The second half: written after the code, and scored once before anything was changed.
    Plant("one random number more", Kind.RANDOM_CALL, "torch.rand", {"extra_draw": True}),
    Plant("standard deviation of the first weights", Kind.RANDOM_CALL, "torch.Tensor.normal_",
          {"std": 0.03}),
    Plant("seed of the loader", Kind.LOADER, "generator_seed", {"loader_seed": 12}),
    Plant("order of the data", Kind.ORDER, "args.0", {"order": True}),
    Plant("momentum of a norm", Kind.MODEL, "module.batch", {"momentum": 0.2}),
    Plant("slope", Kind.MODEL, "module.leaky", {"negative_slope": 0.02}),
    Plant("a plain attribute", Kind.MODEL, "module.scale", {"scale": 2.0}),
    Plant("no bias", Kind.MODEL, "module.a", {"bias": False}),
    Plant("width", Kind.MODEL, "module.a", {"width": 12}),
    Plant("maximize", Kind.OPTIMIZER, OPT + "maximize", {"options": {"maximize": True}}),
    Plant("momentum of SGD", Kind.OPTIMIZER, "optimizer.0.", {"optimizer": "SGD"}),
    Plant("decay of one group", Kind.OPTIMIZER, "group.1.weight_decay",
          {"group": {"weight_decay": 0.0}}),
    Plant("gamma", Kind.SCHEDULE, "gamma", {"schedule_options": {"step_size": 2, "gamma": 0.5}}),
    Plant("another schedule", Kind.SCHEDULE, "schedule.0.",
          {"schedule": "ExponentialLR", "schedule_options": {"gamma": 0.5}}),
    Plant("clipping of values", Kind.CLIPPING, "clip_grad", {"clip_kind": "value"}),
    Plant("no clipping", Kind.CLIPPING, "clip_grad_norm_", {"clip_kind": "none"}),
    Plant("loss scale", Kind.SCALER, "scaler.0", {"loss_scale": 8.0}),
    Plant("batch size", Kind.LOADER, "batch_size", {"batch_size": 2}),
    Plant("dropout in eval mode", Kind.MODE, "training.drop", {"eval_of": "drop"}),
    Plant("a flag", Kind.ARGUMENT, "bf16", {"argv": ["--bf16"]}),
    Plant("a short option", Kind.ARGUMENT, "b", {"argv": ["-b", "32"]}),
    Plant("an override", Kind.ARGUMENT, "model.dim", {"argv": ["model.dim=64"]}),
    Plant("a variable", Kind.VARIABLE, "NCCL_ALGO", {}, lambda _: variable("NCCL_ALGO", "Tree")),
    Plant("deterministic", Kind.VARIABLE, "CUBLAS_WORKSPACE_CONFIG", {},
          lambda _: variable("CUBLAS_WORKSPACE_CONFIG", ":4096:8")),
    Plant("a package", Kind.PACKAGE, "transformers", {},
          lambda folder: package(folder, "transformers", "9.9")),
    Plant("another version", Kind.PACKAGE, "numpy", {},
          lambda folder: package(folder, "numpy", "9.9")),
    Plant("threads", Kind.SYSTEM, "torch.cpu_threads", {},
          lambda _: switched(torch.get_num_threads, torch.set_num_threads,
                             3 - min(torch.get_num_threads(), 2))),
    Plant("matmul precision", Kind.SYSTEM, "float32_matmul_precision", {},
          lambda _: switched(torch.get_float32_matmul_precision,
                             torch.set_float32_matmul_precision, "high")),
    Plant("default type", Kind.SYSTEM, "default_dtype", {},
          lambda _: switched(torch.get_default_dtype, torch.set_default_dtype, torch.float64)),
    Plant("denormals", Kind.SYSTEM, "flush_denormal", {},
          lambda _: switched(lambda: False, torch.set_flush_denormal, True)),
    Plant("anomaly detection", Kind.SYSTEM, "anomaly_detection", {},
          lambda _: switched(torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly, True)),
    Plant("deterministic algorithms", Kind.SYSTEM, "deterministic_algorithms", {},
          lambda _: switched(torch.are_deterministic_algorithms_enabled,
                             torch.use_deterministic_algorithms, True)),
    Plant("warm-up", Kind.SCHEDULE, "schedule.0.",
          {"schedule": "LinearLR", "schedule_options": {}}),
    Plant("eval mode after the checker was made", Kind.MODE, "training.model",
          {"before_step": lambda number, net, _: net.eval()}),
    Plant("eval mode from a later step", Kind.MODE, "training.drop",
          {"before_step": lambda number, net, _: net.drop.train(number < 2)}),
    Plant("frozen from a later step", Kind.MODE, "requires_grad.b.weight",
          {"before_step": lambda number, net, _: net.b.weight.requires_grad_(number < 2)}),
    Plant("decay from a later step", Kind.OPTIMIZER, OPT + "weight_decay",
          {"before_step": lambda number, _, optimizer: optimizer.param_groups[0].update(
              weight_decay=0.5 if number == 3 else 0.01)}),
    Plant("changed in the training", Kind.COURSE, "step 1 rank 0", {"loss": 2.0}),
)  # fmt: skip


class Holder:
    """An object of a class that is not known."""

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)

    def __call__(self, rows: Any) -> Any:
        return torch.utils.data.default_collate(rows)


class Slots:
    """An object without a dictionary."""

    __slots__ = ("_hidden", "rate")

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._hidden = id(self)


@dataclass
class Inner:
    """A settings object in another one."""

    heads: int = 2
    more: Any = None


def on_net(name: str, first: Any, other: Any, place: str = "") -> Plant:
    """Return a plant of an attribute of the model, which the other run has in another form."""
    return Plant(
        f"attribute {name}",
        Kind.MODEL,
        f"module.{place or name}",
        {"attributes": {name: other}},
        base={"attributes": {name: first}},
    )


def lambda_schedule(rate: float) -> Mapping[str, Any]:
    """Return a schedule by a function, and its options."""
    return {"schedule": "LambdaLR", "schedule_options": {"lr_lambda": lambda step: rate**step}}


# Written on 2026-11-27 before they were run; docs/performance.md has the first score.
LATER = (
    on_net("router", Holder(k=2), Holder(k=3), "router.k"),
    on_net("nested", Holder(inner=Holder(theta=1e4)), Holder(inner=Holder(theta=1e5)),
           "nested.inner.theta"),
    on_net("slots", Slots(0.1), Slots(0.2), "slots.rate"),
    on_net("box", Holder(part=Inner(2)), Holder(part=Inner(4)), "box.part.heads"),
    on_net("deep", Inner(2, Inner(1, Inner(3))), Inner(2, Inner(1, Inner(5))), "deep"),
    on_net("table", {str(n): n for n in range(40)}, {str(n): n + (n == 39) for n in range(40)}),
    on_net("many", [0.5] * 5000, [*([0.5] * 4999), 0.25]),
    on_net("text", "x" * 300 + "a", "x" * 300 + "b"),
    on_net("fn", lambda x: x * 2, lambda x: x * 3),
    on_net("scales", torch.ones(3), torch.ones(3) * 2),
    on_net("mask", np.zeros(4), np.ones(4)),
    on_net("names", {"a", "b"}, {"a", "c"}),
    on_net("raw", b"ab", b"ac"),
    on_net("steps", range(3), range(4)),
    on_net("kind", torch.float16, torch.bfloat16),
    on_net("queue", deque([1, 2]), deque([1, 3])),
    on_net("chain", [Holder(p=0.1), Holder(p=0.5)], [Holder(p=0.1), Holder(p=0.4)], "chain.1.p"),
    on_net("by_name", {"a": Holder(p=1)}, {"a": Holder(p=2)}, "by_name.a.p"),
    on_net("hidden_layers", [nn.Linear(2, 3)], [nn.Linear(2, 4)], "hidden_layers"),
    on_net("call", partial(torch.clamp, min=0.0), partial(torch.clamp, min=1.0)),
    on_net("mixed", [1, "a", Holder(q=1)], [1, "b", Holder(q=1)], "mixed"),
    Plant("a transform", Kind.LOADER, "dataset.transform",
          {"of_loader": {"transform": Holder(p=0.2)}},
          base={"of_loader": {"transform": Holder(p=0.1)}}),
    Plant("transforms", Kind.LOADER, "dataset.transforms.1.size",
          {"of_loader": {"transforms": [Holder(), Holder(size=8)]}},
          base={"of_loader": {"transforms": [Holder(), Holder(size=4)]}}),
    Plant("how rows are joined", Kind.LOADER, "collate_fn",
          {"loader_options": {"collate_fn": Holder(pad=1)}},
          base={"loader_options": {"collate_fn": Holder(pad=0)}}),
    Plant("lookahead", Kind.OPTIMIZER, "optimizer.0.k", {"of_optimizer": {"k": 6}},
          base={"of_optimizer": {"k": 5}}),
    Plant("projection", Kind.OPTIMIZER, "optimizer.0.projector.rank",
          {"of_optimizer": {"projector": Holder(rank=8)}},
          base={"of_optimizer": {"projector": Holder(rank=4)}}),
    Plant("rate of a lambda", Kind.SCHEDULE, "lr_lambdas", lambda_schedule(0.9),
          base=lambda_schedule(0.8)),
    Plant("milestones", Kind.SCHEDULE, "milestones",
          {"schedule": "MultiStepLR", "schedule_options": {"milestones": [1, 3]}},
          base={"schedule": "MultiStepLR", "schedule_options": {"milestones": [1, 2]}}),
    Plant("a hook", Kind.MODEL, "module.a",
          {"prepare": lambda net: net.a.register_forward_hook(lambda m, i, o: o * 2)}),
    Plant("weight norm", Kind.MODEL, "module.a",
          {"prepare": lambda net: nn.utils.parametrizations.weight_norm(net.a)}),
    Plant("a module more", Kind.MODEL, "module.b",
          {"prepare": lambda net: setattr(net, "b", nn.Sequential(net.b, nn.Identity()))}),
    Plant("a tied weight", Kind.MODEL, "module.a2",
          {"prepare": lambda net: setattr(net, "a2", net.a)}),
    Plant("a variable of the program's", Kind.VARIABLE, "MY_WARMUP", {},
          lambda _: variable("MY_WARMUP", "7")),
    Plant("a draw of python", Kind.RANDOM_CALL, "random.random",
          {"prepare": lambda net: random.random() and None}),
    Plant("the bound of drawn numbers", Kind.RANDOM_CALL, "torch.randint",
          {"before_step": lambda *_: draw(20)}, base={"before_step": lambda *_: draw(10)}),
    Plant("scale at first", Kind.SCALER, "init_scale", {"loss_scale": 4.0},
          base={"loss_scale": 2.0}),
)  # fmt: skip
LATER_EQUAL = tuple(
    Plant(f"{name}, equal", Kind.NOTHING, "", {"attributes": {name: other}},
          base={"attributes": {name: first}})
    for name, first, other in (
        ("router", Holder(k=2, j=1), Holder(j=1, k=2)),
        ("names", {"a", "b", "c"}, {"c", "b", "a"}),
        ("table", {"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ("slots", Slots(0.1), Slots(0.1)),
        ("logger", logging.getLogger("a"), logging.getLogger("b")),
        ("began", Holder(start_time=1.0), Holder(start_time=2.0)),
        ("lock", threading.Lock(), threading.Lock()),
        ("log", Holder(log_dir="/a"), Holder(log_dir="/b")),
        ("tensor", torch.ones(3), torch.ones(6)[::2]),
        ("handle", Holder(weak=weakref.ref(Inner)), Holder(weak=weakref.ref(Plant))),
    )
)  # fmt: skip


EQUAL = (
    Plant("again", Kind.NOTHING, ""),
    Plant("another output folder", Kind.NOTHING, "", {"argv": ["--output_dir", "/elsewhere"]}),
    Plant("another log", Kind.NOTHING, "", {"arguments": {"log_dir": "/elsewhere"}}),
    Plant("an unrelated variable", Kind.NOTHING, "", {}, lambda _: variable("EDITOR", "ed")),
    Plant("the default said", Kind.NOTHING, "", {},
          lambda _: variable("CUDA_LAUNCH_BLOCKING", "0")),
    Plant("an unrelated package", Kind.NOTHING, "", {},
          lambda folder: package(folder, "cowsay", "9.9")),
)  # fmt: skip
