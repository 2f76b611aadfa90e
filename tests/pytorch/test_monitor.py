# SPDX-License-Identifier: Apache-2.0
"""The monitor's rows are what torch itself says of the tensors, at the right step and name."""

from __future__ import annotations

import inspect
import json
import logging
import math
import os
import re
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import msprobe
from builders.monitor_runs import config
from msprobe.errors import ConfigError, MonitorStop, UnsupportedError, UsageError
from msprobe.monitor.alerts.actions import read_incidents
from msprobe.monitor.collecting.control import ControlFile
from msprobe.monitor.reader import MonitorRun
from msprobe.monitor.rows import Rows
from msprobe.monitor.settings import squashed
from msprobe.pytorch import TrainerMon

pytestmark = pytest.mark.torch


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.unused = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x + self.layers[0](x)  # a shared module: its second call


def trained(
    folder: Path,
    keys: dict[str, Any],
    *,
    steps: int = 3,
    micro_steps: int = 1,
    observe: Any = None,
    **arguments: Any,
) -> tuple[MonitorRun, nn.Module]:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with TrainerMon(config(folder, **keys)) as monitor:
        monitor.set_monitor(model, optimizer, grad_acc_steps=micro_steps, **arguments)
        path = monitor.path
        for step in range(steps):
            for micro in range(micro_steps):
                loss = model(torch.randn(3, 4)).square().mean()
                loss.backward()
                if observe is not None:
                    observe("backward", step, micro, model, optimizer, loss)
            if observe is not None:
                observe("step", step, 0, model, optimizer, None)
            optimizer.step()
            if observe is not None:
                observe("after", step, 0, model, optimizer, None)
            optimizer.zero_grad()
    return msprobe.open_monitor(path), model


def value(run: MonitorRun, stream: str, name: str, op: str, step: int, **more: Any) -> float:
    found = run.series(stream, name, op, **more).filter(pl.col("step") == step)["value"]
    assert len(found) == 1, found
    return float(found[0])


def test_parameters_gradients_and_states_are_exact(tmp_path: Path) -> None:
    seen: dict[tuple[str, int], Tensor] = {}

    def observe(
        event: str, step: int, _micro: int, model: Net, optimizer: torch.optim.Adam, _loss: Any
    ) -> None:
        weight = model.layers[1].weight
        if event == "step":
            seen["grad", step] = weight.grad.clone()
            seen["before", step] = weight.detach().clone()
            if step:
                seen["v", step] = optimizer.state[weight]["exp_avg_sq"].clone()
        elif event == "after":
            seen["after", step] = weight.detach().clone()

    ops = ["norm", "mean", "std", "rms", "absmax", "zeros", "min", "max"]
    keys = {"wg_distribution": True, "mv_distribution": True, "param_distribution": True}
    run, _ = trained(tmp_path, {**keys, "ur_distribution": True, "ops": ops}, observe=observe)

    name = "layers.1.weight"
    for step in range(3):
        grad = seen["grad", step].double()
        for stream in ("grad_reduced", "grad_unreduced"):
            assert value(run, stream, name, "norm", step) == pytest.approx(
                grad.norm().item(), 1e-14
            )
            std = grad.std(correction=0).item()
            assert value(run, stream, name, "std", step) == pytest.approx(std, 1e-9)
            rms = grad.square().mean().sqrt().item()
            assert value(run, stream, name, "rms", step) == pytest.approx(rms, 1e-14)
            assert value(run, stream, name, "absmax", step) == grad.abs().max().item()
            assert value(run, stream, name, "max", step) == grad.max().item()
            zeros = (grad.abs() < 1e-8).double().mean().item()
            assert value(run, stream, name, "zeros", step) == zeros
        before, after = seen["before", step], seen["after", step]
        assert value(run, "param_origin", name, "max", step) == before.max().item()
        assert value(run, "param_updated", name, "max", step) == after.max().item()
        ratio = ((before - after).norm() / before.norm()).item()
        assert value(run, "update", name, "ratio", step) == pytest.approx(ratio, 1e-6)
        assert run.table("update", steps=[step]).filter(pl.col("name") == name).height == 1
    # The state before the step: there is none in the first.
    assert run.table("exp_avg_sq", steps=[0]).is_empty()
    found = value(run, "exp_avg_sq", name, "norm", 2)
    assert found == pytest.approx(seen["v", 2].double().norm().item(), 1e-14)
    # No gradient, no row.
    assert "unused.weight" not in run.names("grad_reduced")
    assert "unused.weight" in run.names("param_origin")


def test_gradients_before_reduction_follow_the_micro_steps(tmp_path: Path) -> None:
    norms: list[float] = []

    def observe(event: str, _s: int, _m: int, model: Net, _o: Any, _l: Any) -> None:
        if event == "backward":
            norms.append(model.layers[1].weight.grad.double().norm().item())

    keys = {"wg_distribution": True, "ops": ["norm"], "monitor_mbs_grad": True}
    run, _ = trained(tmp_path, keys, steps=2, micro_steps=2, observe=observe)
    found = run.series("grad_unreduced", "layers.1.weight", "norm")
    assert found["micro_step"].to_list() == [0, 1, 0, 1]
    assert found["value"].to_list() == pytest.approx(norms, 1e-14)

    run, _ = trained(tmp_path, {**keys, "monitor_mbs_grad": False}, steps=2, micro_steps=2)
    last = run.series("grad_unreduced", "layers.1.weight", "norm")
    assert last["value"].to_list() == pytest.approx(norms[1::2], 1e-14)


def test_numbers_of_the_run(tmp_path: Path) -> None:
    losses: list[float] = []
    norms: list[float] = []

    def observe(event: str, _s: int, _m: int, model: Net, _o: Any, loss: Tensor | None) -> None:
        if event == "backward":
            losses.append(loss.item())
        elif event == "step":
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.01).item())

    run, _ = trained(tmp_path, {}, micro_steps=2, observe=observe)
    assert run.streams == ["run"]
    assert run.series("run", "loss", "value")["value"].to_list() == pytest.approx(losses)
    assert run.series("run", "loss", "value")["micro_step"].to_list() == [0, 1] * 3
    assert run.series("run", "grad_norm", "value")["value"].to_list() == pytest.approx(norms)
    clipped = run.series("run", "grad_norm_clipped", "value")["value"].to_list()
    assert clipped == pytest.approx([min(norm, 0.01) for norm in norms], 1e-4)
    assert run.series("run", "lr.0", "value")["value"].to_list() == [0.01] * 3
    assert "betas[1].0" in run.names("run")


def test_each_of_two_monitors_has_the_losses_of_its_model(tmp_path: Path) -> None:
    def codes() -> list[Any]:
        functions = (nn.utils.clip_grad_norm_, torch.amp.GradScaler.scale)
        return [inspect.unwrap(one).__code__ for one in functions]

    before = codes()
    models = [nn.Linear(2, 1), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))]
    optimizers = [torch.optim.SGD(one.parameters(), 0.1) for one in models]
    monitors = []
    for number, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
        monitors.append(TrainerMon(config(tmp_path, run=f"{number}")))
        monitors[number].set_monitor(model, optimizer)
    losses: list[list[float]] = [[], []]
    for step in range(3):
        for number in (1, 0):
            loss = models[number](torch.full((3, 2), step + 1.0)).square().mean()
            loss.backward()
            optimizers[number].step()
            losses[number].append(loss.item())
    both = models[0](torch.ones(1, 2)) + models[1](torch.ones(1, 2))
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(both.sum()).backward()  # it trains both
    for model, optimizer in zip(models, optimizers, strict=True):
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
    scaler.update()
    paths = [monitor.path for monitor in monitors]
    for monitor in monitors:
        monitor.close()
    assert codes() == before
    for number in range(2):
        with msprobe.open_monitor(paths[number]) as run:
            found = [
                run.series("run", name, "value")["value"].to_list()
                for name in ("loss", "0+other.loss")
            ]
        assert found[0] == pytest.approx(losses[number], rel=1e-6)
        assert found[1] == pytest.approx([both.item()], rel=1e-6)


@pytest.mark.parametrize(
    ("watched", "own", "other"),
    [
        ("generator", "loss", "other.loss"),
        ("judge", "0+other.loss", "loss"),
        ("list", "loss", "1.loss"),
        ("one model", "loss", "other.loss"),
    ],
)
def test_losses_that_train_other_models_are_series_of_their_own(
    tmp_path: Path, watched: str, own: str, other: str
) -> None:
    generator, judge = nn.Linear(2, 3), nn.Linear(3, 1)
    makers = torch.optim.SGD(generator.parameters(), 0.1)
    judges = torch.optim.SGD(judge.parameters(), 0.1)
    model: Any = {
        "generator": generator,
        "judge": judge,
        "list": [generator, judge],
        "one model": nn.ModuleList([generator, judge]),
    }[watched]
    losses: dict[str, list[float]] = {own: [], other: []}
    with TrainerMon(config(tmp_path)) as monitor:
        monitor.set_monitor(model, judges if watched == "judge" else makers)
        for step in range(3):
            made = generator(torch.full((4, 2), step + 1.0))
            judged = judge(made.detach()).square().mean()
            judged.backward()
            losses[other].append(judged.item())
            if watched == "judge":  # its step ends here
                judges.step()
            fooled = (judge(made) - 1).square().mean()
            fooled.backward()
            losses[own].append(fooled.item())
            makers.step()
            if watched != "judge":
                judges.step()
            makers.zero_grad()
            judges.zero_grad()
        path = monitor.path
    if watched == "judge":
        losses[own].pop()  # of a step that never ended
    with msprobe.open_monitor(path) as run:
        for name, values in losses.items():
            assert run.series("run", name, "value")["value"].to_list() == pytest.approx(values)


def test_monitors_of_one_program_have_runs_of_their_own_and_resume_them(tmp_path: Path) -> None:
    models = [nn.Linear(2, 1), nn.Linear(3, 1)]

    def train(start: int) -> list[Path]:
        monitors = []
        for model in models:
            monitors.append(TrainerMon(config(tmp_path, wg_distribution=True)))
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            monitors[-1].set_monitor(model, optimizer, start_iteration=start)
            model(torch.ones(1, model.in_features)).sum().backward()
            optimizer.step()
        paths = [monitor.path for monitor in monitors]
        for monitor in monitors:
            monitor.close()
        return paths

    first = train(0)
    assert len({*first, *train(0)}) == 4  # at once, and one soon after the other
    last = train(0)
    assert train(1) == last
    for path, model in zip(last, models, strict=True):
        with msprobe.open_monitor(path) as run:
            assert run.steps() == [0, 1]
            assert run.table("grad_reduced")["shape"][0] == f"[1, {model.in_features}]"


def test_activations_and_their_gradients(tmp_path: Path) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 3)

        def forward(self, x: Tensor, *, scale: Tensor) -> tuple[Tensor, None, Tensor]:
            y = self.inner(x) * scale
            return y, None, y.detach()

    model = Two()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, scale = torch.randn(2, 3, requires_grad=True), torch.tensor(2.0)
    keys = {"xy_distribution": True, "ops": ["norm", "id"]}
    with TrainerMon(config(tmp_path, **keys)) as monitor:
        monitor.set_monitor(model, optimizer)
        out = model(x, scale=scale)[0]
        out.retain_grad()
        out.square().sum().backward()
        optimizer.step()
        with monitor.open() as run:
            table = run.table("actv")
            gradients = run.table("actv_grad")
        pulled = monitor.generate_xy_metrics()[0]
    names = set(table["name"])
    assert names == {
        "input_0",
        "input_1",
        "inner.input",
        "inner.output",
        "output_0",
        "output_1",
    }
    by_name = {row["name"]: row for row in table.iter_rows(named=True)}
    assert by_name["input_1"]["id"] == 2.0
    assert by_name["input_0"]["id"] is None
    assert by_name["input_0"]["norm"] == pytest.approx(x.detach().double().norm().item(), 1e-14)
    assert by_name["input_0"]["shape"] == "[2, 3]"
    of_gradient = dict(gradients.select("name", "norm").iter_rows())
    assert of_gradient["output_0"] == pytest.approx(out.grad.double().norm().item(), 1e-14)
    assert of_gradient["input_0"] == pytest.approx(x.grad.double().norm().item(), 1e-14)
    assert pulled["inner.output", "actv"]["norm"] == by_name["inner.output"]["norm"]


def test_calls_micro_steps_evaluation_and_recomputation(tmp_path: Path) -> None:
    class Checkpointed(Net):
        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(super().forward, x, use_reentrant=False)

    model = Checkpointed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    keys = {"xy_distribution": True, "ops": ["norm"]}
    with TrainerMon(config(tmp_path, **keys)) as monitor:
        monitor.set_monitor(model, optimizer, grad_acc_steps=2)
        for _ in range(2):
            model.layers[1].eval()  # inside a model that trains: measured
            model.train(mode=True)
            model(torch.randn(3, 4)).sum().backward()
            model.eval()
            model(torch.randn(3, 4))
            model.train()
        optimizer.step()
        with monitor.open() as run:
            table = run.table("actv").filter(pl.col("name") == "layers.0.output")
            gradients = run.table("actv_grad").filter(pl.col("name") == "layers.0.output")
    expected = [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert table.select("micro_step", "call").rows() == expected
    assert sorted(gradients.select("micro_step", "call").rows()) == expected


def test_an_evaluation_of_a_wrapper_that_hands_its_mode_on_is_no_micro_step(tmp_path: Path) -> None:
    class Engine(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

        def train(self, mode: bool = True) -> Engine:
            self.module.train(mode)
            return self

        def forward(self, x: Tensor) -> Tensor:
            return self.module(x)

    engine = Engine(Net())
    optimizer = torch.optim.SGD(engine.parameters(), lr=0.1)
    with TrainerMon(config(tmp_path, xy_distribution=True, ops=["norm"])) as monitor:
        monitor.set_monitor(engine, optimizer, grad_acc_steps=2)
        for _ in range(2):
            engine(torch.randn(3, 4)).sum().backward()
            engine.eval()
            with torch.no_grad():
                engine(torch.randn(3, 4))
            engine(torch.randn(3, 4)).sum().backward()  # trained in evaluation mode
            engine.train()
        optimizer.step()
        with monitor.open() as run:
            table = run.table("actv").filter(pl.col("name") == "module.output")
    assert table.select("micro_step", "call").rows() == [(step, 0) for step in range(4)]


def test_unreduced_gradients_are_read_before_earlier_hooks_use_them_up(tmp_path: Path) -> None:
    model = nn.Linear(4, 1)
    norms: list[float] = []

    def use_up(parameter: Tensor) -> None:
        assert parameter.grad is not None
        norms.append(parameter.grad.norm().item())
        parameter.grad = None

    model.weight.register_post_accumulate_grad_hook(use_up)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    keys = {"ur_distribution": True, "wg_distribution": True, "ops": ["norm"]}
    with TrainerMon(config(tmp_path, **keys)) as monitor:
        monitor.set_monitor(model, optimizer)
        path = monitor.path
        for _ in range(2):
            model(torch.randn(3, 4)).sum().backward()
            optimizer.step()
    with msprobe.open_monitor(path) as run:
        found = run.series("grad_unreduced", "weight", "norm")["value"]
    assert found.to_list() == pytest.approx(norms)


def test_include_exclude_interval_and_ops_of_a_stream(tmp_path: Path) -> None:
    streams = {
        "actv": {"include": ["layers.*"], "exclude": ["re:.*\\.1$"], "ops": ["max"]},
        "param_origin": {"step_interval": 2},
    }
    keys = {"ops": ["norm"], "streams": streams, "start_step": 1, "run_distribution": False}
    run, _ = trained(tmp_path, keys, steps=4)
    assert set(run.names("actv")) == {"layers.0.input", "layers.0.output"}
    assert run.ops("actv") == ["max"]
    assert run.table("param_origin")["step"].unique().sort().to_list() == [1, 3]
    assert run.table("actv")["step"].unique().sort().to_list() == [1, 2, 3]


def test_targets_and_short_names(tmp_path: Path) -> None:
    keys = {
        "targets": {"layers.1": {"input": "tensor"}},
        "xy_distribution": True,
        "param_distribution": True,
        "squash_name": True,
    }
    run, _ = trained(tmp_path, keys)
    assert set(run.names("actv")) == {"layers.1.input", "layers.1.output"}
    assert set(run.names("param_origin")) == {"layers.1.weight", "layers.1.bias"}


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("encoder.layers.3.sub.layers.2.fc.weight", "layers.2.fc.weight"),
        ("a.embedding.x.embeddings.y", "embeddings.y"),
        ("m.final.x.final_norm", "final_norm"),
        ("blocks.output.x", "output.x"),
        ("head.weight", "head.weight"),
    ],
)
def test_short_names_begin_at_the_last_layer(name: str, short: str) -> None:
    assert squashed(name) == short


def test_states_of_a_parameter_without_dimensions(tmp_path: Path) -> None:
    model = nn.ParameterDict({"scale": torch.tensor(2.0)})
    optimizer = torch.optim.Adam(model.parameters())
    keys = {"mv_distribution": True, "streams": {"state": {}}}
    with TrainerMon(config(tmp_path, **keys)) as monitor:
        monitor.set_monitor(model, optimizer)
        for _ in range(2):
            model["scale"].square().backward()
            moments = optimizer.state.get(model["scale"], {}).get("exp_avg", torch.tensor(0.0))
            before = moments.abs().item()
            optimizer.step()
        run = monitor.open()
    assert run.names("exp_avg") == run.names("exp_avg_sq") == ["scale"]
    assert value(run, "exp_avg", "scale", "norm", 1) == before > 0
    assert "state" not in run.streams


@pytest.mark.parametrize("limit", [0.5, 1e6])
@pytest.mark.parametrize("norm_type", [math.inf, 1.0])
def test_the_norm_before_clipping_by_another_norm(
    tmp_path: Path, norm_type: float, limit: float
) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    norms: dict[str, list[float]] = {"grad_norm": [], "grad_norm_clipped": []}
    with TrainerMon(config(tmp_path)) as monitor:
        monitor.set_monitor(model, optimizer)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(5, 4)).square().sum().backward()
            before = nn.utils.get_total_norm([p.grad for p in model.parameters()])
            norms["grad_norm"].append(before.item())
            nn.utils.clip_grad_norm_(model.parameters(), limit, norm_type)
            after = nn.utils.get_total_norm([p.grad for p in model.parameters()])
            norms["grad_norm_clipped"].append(after.item())
            optimizer.step()
        run = monitor.open()
    for name, wanted in norms.items():
        assert run.series("run", name, "value")["value"].to_list() == pytest.approx(wanted)


def test_a_step_without_gradients_has_no_norm_of_them(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with TrainerMon(config(tmp_path)) as monitor:
        monitor.set_monitor(model, optimizer)
        optimizer.step()
        assert not [one for one in monitor.open().names("run") if "norm" in one]


def test_collect_times_ends_collecting(tmp_path: Path) -> None:
    run, model = trained(tmp_path, {"collect_times": 2, "wg_distribution": True}, steps=4)
    assert run.steps() == [0, 1]
    assert not model.layers[0].weight._post_accumulate_grad_hooks


def test_configure_and_stop_hold_from_the_next_step(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = TrainerMon(config(tmp_path, ops=["norm"], param_distribution=True))
    monitor.set_monitor(model, optimizer)
    for step in range(6):
        model(torch.randn(3, 4)).sum().backward()
        if step == 1:
            monitor.configure(ops=["max"])
        if step == 3:
            monitor.stop()
        if step == 4:
            monitor.configure(ops=["min"])
        optimizer.step()
    with monitor.open() as run:
        table = run.table("param_origin")
        ops = {
            step: [op for op in ("norm", "max", "min") if frame[op].is_not_null().any()]
            for (step,), frame in table.group_by("step")
        }
    monitor.close()
    assert ops == {0: ["norm"], 1: ["norm"], 2: ["max"], 5: ["min"]}
    with pytest.raises(ConfigError, match="step_interval"):
        monitor.configure(step_interval=0)
    with pytest.raises(ConfigError, match="cc_codeline"):
        monitor.configure(cc_distribution={"enable": True, "cc_codeline": ["("]})


@pytest.mark.parametrize(("start_step", "collected"), [(0, [3, 4]), (5, [5, 6])])
def test_the_file_is_followed_and_never_written(
    start_step: int, collected: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYNAMIC_MONITOR", "True")
    path = config(tmp_path, param_distribution=True)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with TrainerMon(path) as monitor:
        monitor.set_monitor(model, optimizer)
        for step in range(8):
            model(torch.randn(3, 4)).sum().backward()
            if step == 2:
                keys = {"dynamic_on": True, "collect_times": 2, "start_step": start_step}
                config(tmp_path, param_distribution=True, **keys)
                written = path.read_text()
            if step == 6:
                path.write_text("{ broken")
            optimizer.step()
            if step == 5:
                assert path.read_text() == written
        with monitor.open() as run:
            assert run.steps() == collected


def test_a_changed_file_that_cannot_be_used_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("DYNAMIC_MONITOR", "True")
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with TrainerMon(config(tmp_path)) as monitor:
        monitor.set_monitor(model, optimizer)
        path = config(tmp_path, dynamic_on=True, ops=["nrom"])
        optimizer.step()
    assert f'is left out: {path}: "ops[0]" is "nrom"' in caplog.text


def test_resuming_appends_to_the_same_run(tmp_path: Path) -> None:
    first, _ = trained(tmp_path, {"param_distribution": True}, steps=3)
    second, _ = trained(tmp_path, {"param_distribution": True}, steps=3, start_iteration=2)
    assert first.path == second.path
    assert second.steps() == [0, 1, 2, 3, 4]
    assert [head["start_iteration"] for head in second.heads(0)] == [0, 2]
    third, _ = trained(tmp_path, {"param_distribution": True, "run": "mine"})
    assert third.path.name == "mine"


def test_resuming_from_an_earlier_step_undoes_the_later_ones(tmp_path: Path) -> None:
    keys = {"param_distribution": True}
    trained(tmp_path, keys, steps=6)
    run, _ = trained(tmp_path, {**keys, "step_interval": 2}, steps=1, start_iteration=2)
    assert run.steps() == [0, 1, 2]
    run, _ = trained(tmp_path, keys, steps=3, start_iteration=3)
    assert run.steps() == [0, 1, 2, 3, 4, 5]
    sessions = run.series("param_origin", "layers.0.weight", "norm")["value"].to_list()
    assert len(sessions) == 6


def test_a_scaler_that_skips_a_step(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=100)
    losses = []
    with TrainerMon(config(tmp_path, xy_distribution=True)) as monitor:
        monitor.set_monitor(model, optimizer)
        for attempt in range(4):
            x = torch.full((1, 2), math.inf if attempt == 1 else 1.0)
            loss = model(x).sum()
            scaler.scale(loss).backward()
            if attempt != 1:
                losses.append(loss.item())
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        with monitor.open() as run:
            assert run.steps() == [0, 1, 2]
            assert run.table("actv")["micro_step"].to_list() == [0] * 6
            assert run.series("run", "skipped", "value")["value"].to_list() == [1.0, 0.0]
            assert run.series("run", "loss_scale", "value")["value"].to_list() == [2.0, 2.0]
            assert run.series("run", "loss", "value")["value"].to_list() == losses  # unscaled


def test_each_of_two_monitors_has_the_scale_and_the_norm_of_its_optimizer(tmp_path: Path) -> None:
    models = [nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)), nn.Linear(2, 1)]
    optimizers = [torch.optim.SGD(one.parameters(), 0.1) for one in models]
    scalers = [torch.amp.GradScaler("cpu", init_scale=scale) for scale in (4.0, 64.0)]
    keys = {"wg_distribution": True, "xy_distribution": True, "ur_distribution": True, "alert": {}}
    monitors = [TrainerMon(config(tmp_path, run=str(number), **keys)) for number in range(2)]
    norms: list[list[float]] = [[], []]
    for monitor, model, optimizer in zip(monitors, models, optimizers, strict=True):
        monitor.set_monitor(model, optimizer)
    for step in range(4):
        for number in (1, 0):
            made = models[0](torch.randn(4, 2))
            loss = models[1](made.bfloat16().float() if number else made).square().mean()
            if step == 2 and number == 0:
                loss = loss * math.inf
            scalers[number].scale(loss).backward()
            scalers[number].unscale_(optimizers[number])
            norm = nn.utils.clip_grad_norm_(models[number].parameters(), 1.0)
            if math.isfinite(norm):
                norms[number].append(norm.item())
            scalers[number].step(optimizers[number])
            scalers[number].update()
            for one in optimizers:
                one.zero_grad()
    paths = [monitor.path for monitor in monitors]
    for monitor in monitors:
        monitor.close()
    for number, scales in enumerate(([2.0], [64.0] * 3)):
        with msprobe.open_monitor(paths[number]) as run:
            found = run.series("run", "grad_norm", "value")["value"].to_list()
            assert found == pytest.approx(norms[number], rel=1e-5)
            scaled = run.series("run", "loss_scale", "value")["value"].to_list()
            assert scaled[-len(scales) :] == scales
            # A bias that begins with zeros has no ratio of its change to itself then.
            assert np.isfinite(run.matrix("update", "ratio", rank=0).values).any()
            assert not np.isinf(run.matrix("update", "ratio", rank=0).values).any()
        assert read_incidents(paths[number]) == []


@pytest.mark.skipif(find_spec("accelerate") is None, reason="accelerate is not installed")
def test_what_accelerate_prepared_is_monitored(tmp_path: Path) -> None:
    from accelerate import Accelerator

    def train(*, monitored: bool) -> tuple[list[Tensor], list[float], Path | None]:
        torch.manual_seed(0)
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
        model = Net()
        model, optimizer, batches = accelerator.prepare(
            model,
            torch.optim.AdamW(model.layers.parameters(), 1e-2),
            torch.utils.data.DataLoader(torch.randn(12, 4), batch_size=2, shuffle=True),
        )
        monitor = TrainerMon(config(tmp_path, wg_distribution=True, xy_distribution=True))
        if monitored:
            monitor.set_monitor(model, optimizer, grad_acc_steps=2)
        losses = []
        for x in batches:
            with accelerator.accumulate(model):
                loss = model(x).square().mean()
                accelerator.backward(loss)
                losses.append(loss.item())
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.01)
                optimizer.step()
                optimizer.zero_grad()
        path = monitor.path if monitored else None
        monitor.close()
        return [one.detach() for one in model.parameters()], losses, path

    plain, losses, _ = train(monitored=False)
    monitored, same_losses, path = train(monitored=True)
    assert losses == same_losses
    assert all(map(torch.equal, plain, monitored))
    assert path is not None
    with msprobe.open_monitor(path) as run:
        halves = [loss / 2 for loss in losses]  # accelerate divides them by the micro steps
        assert run.series("run", "loss", "value")["value"].to_list() == pytest.approx(halves)
        clipped = run.series("run", "grad_norm_clipped", "value")["value"]
        assert clipped.to_list() == pytest.approx([0.01] * 3, rel=1e-3)
        assert "layers.0.output" in run.names("actv")


def test_older_scripts(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = TrainerMon(
        str(config(tmp_path)), params_have_main_grad=False, opt_ty="Megatron_DistributedOptimizer"
    )
    with pytest.raises(UsageError, match="set_wrapped_optimizer"):
        monitor.monitor_gnorm_with_ad(model)
    monitor.set_wrapped_optimizer(optimizer)
    monitor.monitor_gnorm_with_ad(model, grad_acc_steps=1)
    monitor.ops = ["norm", "max"]
    monitor.reload_xy(xy_distribution=True)
    for _ in range(2):
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
    assert monitor.generate_xy_metrics()[0]["output", "actv"].keys() == {"norm", "max"}
    found = monitor.adhoc_check(torch.ones(4), "m", "t", [0], ["norm", "zeros"])
    assert found == {"norm": 2.0, "zeros": 0.0}
    assert monitor.adhoc_check(torch.ones(4), "m", "t", [5], ["norm"]) == {}
    monitor.close()


def test_typos_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "msprobe")
    TrainerMon(config(tmp_path, xy_distributoin=True, streams={"actv": {"includ": []}}))
    assert 'did you mean "xy_distribution"' in caplog.text
    assert 'did you mean "include"' in caplog.text
    for wrong in (
        {"ops": ["nrom"]},
        {"step_interval": 0},
        {"ndigits": 30},
        {"streams": {"activ": {}}},
        {"xy_distribution": "yes"},
        {"l2_targets": {"linear": []}},
        {"streams": {"actv": {"include": ["re:("]}}},
        {"append_output": ["a"]},
    ):
        with pytest.raises(ConfigError):
            TrainerMon(config(tmp_path, **wrong))


@pytest.mark.parametrize(
    ("key", "found", "allowed"),
    [
        ("ndigits", 21, "a whole number from 1 to 20"),
        ("step_count_per_record", 0, "a whole number from 1 to 1000000"),
        ("start_step", -1, "a whole number >= 0"),
        ("eps", -1, "a number >= 0"),
    ],
)
def test_limits_of_numbers_are_told(key: str, found: int, allowed: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f'"{key}" is {found}; use {allowed}$'):
        TrainerMon(config(tmp_path, **{key: found}))


def test_what_is_asked_for_and_not_there_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = {
        "targets": {"layers.1": {}, "layers.7": {}, "unused": {}},
        "xy_distribution": True,
        "wg_distribution": True,
        "recording_l2_features": True,
        "l2_targets": {"attention_hook": ["layers.0"]},
        "streams": {"actv": {"include": ["layers.1", "attention*"]}, "state": {}},
    }
    trained(tmp_path, keys, steps=4)
    told = [one.getMessage() for one in caplog.records if "absences" in one.name]
    assert told == [
        "targets: no module or parameter here is named layers.7",
        'streams.actv.include: no name here fits "attention*"',
        "nothing is collected of state so far: the optimizer has no other states",
        "nothing is collected of attention_hook so far: it needs modules whose first two inputs, "
        "q and k, have 4 dimensions",
    ]


def test_whole_numbers_for_eps(tmp_path: Path) -> None:
    run, _ = trained(tmp_path, {"eps": 1, "ops": ["zeros"], "param_distribution": True})
    assert value(run, "param_origin", "layers.0.weight", "zeros", 0) == 1.0


def test_a_listener_sees_rows_and_may_end_the_training(tmp_path: Path) -> None:
    class Listener:
        def __init__(self) -> None:
            self.seen: list[tuple[str, int]] = []
            self.ended: list[int] = []

        def take(self, rows: Rows) -> None:
            self.seen.append((rows.layout.stream, rows.step))

        def end_step(self, step: int, time: float) -> None:
            self.ended.append(step)

        def close(self) -> None:
            self.ended.append(-1)

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    listener = Listener()
    monitor = TrainerMon(config(tmp_path, param_distribution=True))
    monitor.set_monitor(model, optimizer)
    monitor.add_listener(listener)
    for _ in range(2):
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
    monitor.recorder.ask_to_stop("the loss explodes")
    with pytest.raises(MonitorStop, match="explodes"):
        optimizer.step()
    monitor.close()
    assert ("param_origin", 1) in listener.seen
    assert listener.ended == [0, 1, -1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs POSIX limits")
def test_a_full_disk_stops_the_monitor_and_not_the_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    import resource
    import signal
    import sys

    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # the limit would cut modules short

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    steps = 0
    try:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        monitor = TrainerMon(config(tmp_path, xy_distribution=True, ops=["log2_hist"]))
        monitor.set_monitor(model, optimizer)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
        for _ in range(12):
            model(torch.ones(3, 4)).sum().backward()
            optimizer.step()
            steps += 1
        path = monitor.path
        monitor.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert steps == 12
    assert "stops writing" in caplog.text
    with msprobe.open_monitor(path) as run:
        assert 1 <= len(run.steps()) < 12


def test_features_do_not_touch_the_random_state(tmp_path: Path) -> None:
    class Attention(nn.Module):
        def forward(self, query: Tensor, key: Tensor) -> Tensor:
            return query + key

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = Attention()
            self.router = nn.Linear(4, 3, bias=False)
            self.wide = nn.Linear(3, 4, bias=False)  # its weight is (width, experts)

        def forward(self, x: Tensor) -> Tensor:
            heads = x.view(2, 5, 1, 4)
            return self.wide(self.router(self.attention(heads, heads)))

    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    targets = {
        "attention_hook": ["0:attention"],
        "linear_hook": [],
        "moe_router_weight_hook": ["router", "wide"],
        "moe_router_logit_hook": ["router"],
    }
    keys = {"recording_l2_features": True, "l2_targets": targets, "sa_order": "b,s,h,d"}
    with TrainerMon(config(tmp_path, **keys)) as monitor:
        monitor.set_monitor(model, optimizer)
        x = torch.randn(2, 20)
        before = torch.get_rng_state()
        weight, wide = (one.weight.detach().clone().double() for one in (model.router, model.wide))
        model(x).sum().backward()
        assert torch.equal(before, torch.get_rng_state())
        optimizer.step()
        with monitor.open() as run:
            spectral = value(run, "linear_hook", "router.linear", "kernel_norm", 0)
            rank = value(run, "linear_hook", "router.linear", "sr", 0)
            name = "router.moe_router"
            entropy = value(run, "moe_router_logit_hook", name, "per_token_expert_entropy", 0)
            cosines = [
                value(run, "moe_router_weight_hook", one, "router_weight_similarity", 0)
                for one in (name, "wide.moe_router")
            ]
            largest = value(run, "attention_hook", "attention.attention", "softmax_max", 0)
    exact = torch.linalg.matrix_norm(weight, 2).item()
    assert 0.7 * exact <= spectral <= exact * (1 + 1e-6)  # estimated from below
    assert rank == pytest.approx(weight.norm().item() / spectral, rel=1e-5)
    for cosine, experts in zip(cosines, (weight, wide.T), strict=True):
        unit = experts / experts.norm(dim=1, keepdim=True)
        pairs = [(unit[i] @ unit[j]).item() for i in range(3) for j in range(i)]
        assert cosine == pytest.approx(sum(pairs) / 3, rel=1e-4)
    q = x.double().view(2, 5, 4)
    shares = ((q + q) @ weight.T).softmax(-1)
    assert entropy == pytest.approx(-(shares * shares.log()).sum(-1).mean().item(), rel=1e-4)
    assert 0 < largest <= 1


def test_csv_files_stacks_and_structure(tmp_path: Path) -> None:
    keys = {
        "format": "csv",
        "step_count_per_record": 2,
        "xy_distribution": True,
        "stack_info": True,
        "print_struct": True,
    }
    run, _ = trained(tmp_path, keys)  # the training goes on behind print_struct
    assert run.steps() == [0, 1, 2]
    files = {path.name for path in run.path.glob("csv/*/*.csv")}
    assert {"actv_0-1.csv", "actv_2-3.csv", "actv_grad_0-1.csv"} <= files
    stacks = pl.read_csv(run.path / "stack_info_rank0.csv")
    assert stacks.columns == ["module_name", "stack_info"]
    assert "layers.0" in stacks["module_name"].to_list()
    assert "test_monitor.py" in stacks["stack_info"][0]
    text = (run.path / "module_struct" / "rank0" / "module_struct.json").read_text()
    assert (run.path / "module_struct.json").read_text() == text
    layer = json.loads(text)["0:layers.1"]
    assert layer["input"] == {"0": "size=(3, 4), dtype=torch.float32", "config": "tensor"}
    assert layer["output_grad"]["0"] == "size=(3, 4), dtype=torch.float32"


def test_a_process_group_whose_first_rank_has_ended_disturbs_no_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    code = (
        "import sys, torch.distributed as dist\n"
        "store = dist.TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False)\n"
        "print(store.port, flush=True); sys.stdin.read()\n"
    )
    first = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with first:
        store = dist.TCPStore("127.0.0.1", int(first.stdout.readline()), is_master=False)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        try:
            path = tmp_path / "monitor.json"
            path.write_text("{}")
            control = ControlFile(path, 1, lambda: store)
            assert control.due(0) is None
            first.kill()
            first.wait()
            assert control.due(1) is None
        finally:
            dist.destroy_process_group()
    assert "are not followed any more" in caplog.text


def test_collectives_are_chosen_by_name_and_by_caller(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def collected(run: str, **keys: Any) -> set[str]:
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        own = {"cc_distribution": {"enable": True, **keys.pop("cc", {})}, **keys}
        with TrainerMon(config(tmp_path, run=run, **own)) as monitor:
            monitor.set_monitor(model, optimizer)
            model(torch.ones(1, 2)).sum().backward()
            dist.all_reduce(torch.ones(2))
            dist.broadcast(torch.ones(2), 0)
            optimizer.step()
            with monitor.open() as found:
                return {name.partition(".")[0] for name in found.names("other")}

    here = re.escape(__file__)
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        assert collected("all") == {"all_reduce", "broadcast"}
        assert collected("one", streams={"other": {"include": ["all_*"]}}) == {"all_reduce"}
        assert collected("lines", cc={"cc_codeline": [here]}) == {"all_reduce", "broadcast"}
        hidden = {"cc_codeline": [here], "stack_blacklist": [here]}
        assert collected("hidden", cc=hidden) == set()
        (tmp_path / "ops.yaml").write_text("distributed:\n  - broadcast\n  - all_gahter\n")
        assert collected("file", cc={"distributed_ops": "ops.yaml"}) == {"broadcast"}
        (tmp_path / "stacks.yaml").write_text(f"stack:\n- {here}\n- multiprocessing\n")
        hidden = {"cc_codeline": [here], "stack_blacklist": "stacks.yaml"}
        assert collected("hidden by file", cc=hidden) == set()
        with caplog.at_level("WARNING"):
            collected("log", cc={"cc_log_only": True, "stack_blacklist": ["pytest|pluggy"]})
    finally:
        dist.destroy_process_group()
    (unknown,) = [one for one in caplog.messages if "all_gahter" in one]
    assert 'did you mean "all_gather"?' in unknown
    callers = [one for one in caplog.messages if one.startswith("all_reduce called at")]
    assert len(callers) == 1
    assert __file__ in callers[0]
    assert "pluggy" not in callers[0]


def test_csv_files_are_written_while_the_run_grows_and_continued(tmp_path: Path) -> None:
    keys = {"format": "csv", "step_count_per_record": 4, "wg_distribution": True, "run": "one"}
    seen = []

    def observe(event: str, step: int, *_: Any) -> None:
        if event == "backward" and step == 2:
            for _ in range(500):
                paths = list((tmp_path / "runs" / "one" / "csv").glob("*/grad_reduced_0-3.csv"))
                has_rows = bool(paths and paths[0].stat().st_size)
                if has_rows and set(pl.read_csv(paths[0])["step"]) == {0, 1}:
                    seen.append(step)
                    break
                time.sleep(0.01)

    trained(tmp_path, keys, steps=7, observe=observe)
    assert seen == [2]
    (folder,) = (tmp_path / "runs" / "one" / "csv").iterdir()
    with (folder / "grad_reduced_4-7.csv").open("a") as file:
        file.write("0,layers.0.wei")  # a killed process
    run, _ = trained(tmp_path, keys, steps=4, start_iteration=5)
    assert list((run.path / "csv").iterdir()) == [folder]
    first, second, third = (
        pl.read_csv(folder / f"grad_reduced_{n}-{n + 3}.csv") for n in (0, 4, 8)
    )
    assert first["step"].unique().sort().to_list() == [0, 1, 2, 3]
    assert second.height == 4 * 4  # four parameters have gradients
    assert second["step"].unique().sort().to_list() == [4, 5, 6, 7]
    assert third["step"].unique().to_list() == [8]
    expected = run.table("grad_reduced", steps=range(4, 8))["norm"].round_sig_figs(6)
    assert second["norm"].to_list() == expected.to_list()


@pytest.mark.parametrize("has_folder", [False, True])
def test_a_format_without_its_package_is_refused_before_the_training(
    has_folder: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if has_folder:  # of wandb's files, beside the script
        (tmp_path / "wandb").mkdir()
        monkeypatch.delitem(sys.modules, "wandb", raising=False)
        monkeypatch.setattr(sys, "path", [str(tmp_path)])
    else:
        monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UnsupportedError, match='"wandb" needs the package wandb'):
        trained(tmp_path, {"format": "wandb"})


def test_events_of_tensorboard_are_there_while_the_run_grows(tmp_path: Path) -> None:
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    trained(tmp_path, {"format": "tensorboard", "run": "one"}, steps=3)
    run, _ = trained(tmp_path, {"format": "tensorboard", "run": "one"}, steps=2, start_iteration=2)
    files = (run.path / "tensorboard" / "rank0" / "run").iterdir()
    events = [list(loader.EventFileLoader(str(path)).Load()) for path in files]
    # Names of files end with a count without leading zeros: their order is not that of time.
    events.sort(key=lambda found: min(one.step for one in found if one.summary.value))
    assert [{one.step for one in found if one.summary.value} for found in events] == [
        {0, 1, 2},
        {2, 3},
    ]
    # From it on TensorBoard forgets what the first process wrote.
    assert [one.step for one in events[1] if one.session_log.status] == [2]
    loss = next(one for one in events[1] if one.summary.value and one.step == 3)
    tags = {one.tag for one in loss.summary.value}
    assert "vp0:loss/value" in tags


@pytest.mark.slow
def test_a_run_of_wandb_beside_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    code = """
import json, sys, random, wandb
from pathlib import Path
import torch
from torch import nn
from msprobe.pytorch import TrainerMon
folder = Path(sys.argv[1])
mine = wandb.init(project="mine", dir=str(folder))
model = nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
state = random.getstate()
path = folder / "monitor.json"
path.write_text(json.dumps({"output_dir": str(folder / "runs"), "format": "wandb"}))
with TrainerMon(path) as monitor:
    monitor.set_monitor(model, optimizer)
    run = monitor.path
    for step in range(3):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
assert wandb.run is mine and random.getstate() == state
mine.finish()
print(run)
"""
    found = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    (file,) = Path(found.stdout.split()[-1]).glob("wandb/offline-run-*/*.wandb")
    content = file.read_bytes()
    assert b"run/vp0:loss/value" in content
    assert b"run/vp0:lr.0/value" in content


def test_gradients_that_a_closure_computes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2, lr=0.1)
    x = torch.randn(8, 3)
    norms = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (model(x) - 1).square().mean()
        loss.backward()
        return loss

    with TrainerMon(config(tmp_path, wg_distribution=True, ops=["norm"])) as monitor:
        monitor.set_monitor(model, optimizer)
        for _ in range(3):
            optimizer.step(closure)
            norms.append(model.weight.grad.norm().item())
        run = monitor.open()
    with run:
        found = run.series("grad_reduced", "weight", "norm")["value"].to_list()
        assert found == pytest.approx(norms, rel=1e-6)
        assert run.series("run", "grad_norm", "value").height == 3


def test_outliers(tmp_path: Path) -> None:
    model = nn.Linear(4, 1, bias=False)
    model.weight.data = torch.tensor([[1.0, -1.0, 1.0, -9.0]])
    with TrainerMon(config(tmp_path)) as monitor:
        monitor.set_monitor(model, torch.optim.SGD(model.parameters(), lr=0.1))
        found = monitor.adhoc_check(model.weight, "model", "weight", [], ["outlier_ratio"])
        zero = monitor.adhoc_check(torch.zeros(3), "model", "zero", [], ["outlier_ratio"])
    assert found["outlier_ratio"] == pytest.approx(9 / 21**0.5)
    assert math.isnan(zero["outlier_ratio"])
