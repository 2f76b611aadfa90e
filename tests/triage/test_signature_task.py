# SPDX-License-Identifier: Apache-2.0
"""The task `signature`, from a training to the answer of `msprobe bisect`."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from training_runs import PLANTED, STEPS, Change, Training, nothing, train

from builders.warm_python import run_warm
from msprobe.capture.session import reset_session
from msprobe.compare.verdicts.verdict_classes import VerdictClass
from msprobe.config import load_config
from msprobe.dump.signature_file import FOLDER, SignatureFile
from msprobe.errors import ConfigError
from msprobe.pytorch import PrecisionDebugger
from msprobe.triage.bisect import bisect_runs
from msprobe.triage.bisect_lines import sentence
from msprobe.triage.ladder import climb
from msprobe.triage.parting import Phase


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    yield
    reset_session()


def steps_of(folder: Path, rank: str = "rank") -> list[int]:
    with SignatureFile(folder / FOLDER / f"{rank}.msig") as file:
        return list(map(int, file.heads["step"]))


def test_equal_runs_are_equal_and_as_without_msprobe(tmp_path: Path) -> None:
    plain = train(None)
    for name, behind in (("one", False), ("two", True)):
        state = train(tmp_path / name, stops_behind=behind)
        assert all(torch.equal(state[key], plain[key]) for key in plain)
    found = bisect_runs(tmp_path / "one", tmp_path / "two")
    assert (found.first, found.steps) == (None, STEPS)
    assert [path.name for path in (tmp_path / "one").iterdir()] == [FOLDER]


def test_numbers_of_a_step(tmp_path: Path) -> None:
    state = train(tmp_path, steps=range(1))
    with SignatureFile(tmp_path / FOLDER / "rank.msig") as file:
        step = file.step(0)
    assert set(step.names) == set(state)
    start = Training().model.state_dict()
    for name, column in zip(step.names, step.entries.T, strict=True):
        parameter, gradient, update = column
        assert parameter["norm"] == pytest.approx(start[name].double().norm().item())
        moved = (state[name].double() - start[name].double()).norm().item()
        if moved:
            assert 0.05 * moved < update["norm"] < 5 * moved
        assert (gradient["checksum"] == 0) == name.startswith("1.running") or "num" in name
    assert step.head["loss"] > 0
    assert step.head["data"] != 0
    assert step.head["random"] != 0
    assert step.settings["0.AdamW"][0]["lr"] == 1e-2


def test_the_types_of_parameters_are_told(tmp_path: Path) -> None:
    def of_half_precision(run: Training) -> None:
        run.model.to(torch.bfloat16)
        run.batch = run.batch.to(torch.bfloat16)

    steps = range(PLANTED, PLANTED + 1)
    train(tmp_path / "reference", steps=steps)
    train(tmp_path / "target", steps=steps, before=of_half_precision)

    words = sentence(bisect_runs(tmp_path / "target", tmp_path / "reference"))
    told = climb(tmp_path / "target", tmp_path / "reference")

    assert "parameters are bfloat16 in the target, float32 in the reference" in words
    assert told.verdict_class is VerdictClass.PRECISION


def other_rate(run: Training) -> None:
    run.optimizer.param_groups[0]["lr"] = 2e-2


def other_data(run: Training) -> None:
    run.batch = run.batch + 1e-3


def other_seed(_: Training) -> None:
    torch.manual_seed(5)


def other_parameter(run: Training) -> None:
    run.model[0].weight.data[3, 2] += 1e-3


def double_gradient(run: Training) -> None:
    gradient = run.model[4].weight.grad
    assert gradient is not None
    gradient.mul_(2)


def double_step(run: Training) -> None:
    run.optimizer.step()


@pytest.mark.parametrize(
    ("planted", "phase", "parameter"),
    [
        ({"before": other_rate}, Phase.SETTINGS, None),
        ({"before": other_data}, Phase.DATA, None),
        ({"before": other_seed}, Phase.RANDOM, None),
        ({"before": other_parameter}, Phase.PARAMETER, "0.weight"),
        ({"between": double_gradient}, Phase.GRADIENT, "4.weight"),
    ],
)
def test_planted_changes_are_named(
    tmp_path: Path, planted: dict[str, Change], phase: Phase, parameter: str | None
) -> None:
    train(tmp_path / "reference")
    train(tmp_path / "target", **planted)
    first = bisect_runs(tmp_path / "target", tmp_path / "reference").first
    assert first is not None
    assert (first.parting.jump, first.parting.jump_phase) == (PLANTED, phase)
    if parameter is not None:
        assert [change.name for change in first.changes] == [parameter]
    if phase is Phase.SETTINGS:
        assert first.settings == (("0.AdamW.0.lr", 2e-2, 1e-2),)


def test_a_second_step_of_the_optimizer_is_seen(tmp_path: Path) -> None:
    train(tmp_path / "reference")
    train(tmp_path / "target", between=double_step)
    found = bisect_runs(tmp_path / "target", tmp_path / "reference")
    assert f"in step {PLANTED}: AdamW makes 2 steps within it in the target" in sentence(found)
    told = climb(tmp_path / "target", tmp_path / "reference")
    assert told.verdict_class is VerdictClass.UPDATE


def step_at_another_rate(run: Training) -> None:
    run.optimizer.step()
    other_rate(run)


def test_settings_of_a_second_step_come_behind_its_being_there(tmp_path: Path) -> None:
    train(tmp_path / "reference")
    train(tmp_path / "target", between=step_at_another_rate)
    found = bisect_runs(tmp_path / "target", tmp_path / "reference")
    assert f"in step {PLANTED}: AdamW makes 2 steps within it in the target" in sentence(found)


def clipped(limit: float) -> Change:
    def clip(run: Training) -> None:
        nn.utils.clip_grad_norm_(run.model.parameters(), limit)

    return clip


@pytest.mark.parametrize("stops_behind", [False, True])
def test_clipping_is_named(tmp_path: Path, stops_behind: bool) -> None:
    train(tmp_path / "reference", between=clipped(0.01), stops_behind=stops_behind)
    for name, between, words in (
        ("other", clipped(0.02), "clip_grad_norm_ has max_norm 0.02 in the target, 0.01 in the"),
        ("none", nothing, "only the reference calls clip_grad_norm_, with"),
    ):
        train(tmp_path / name, between=between, stops_behind=stops_behind)
        found = bisect_runs(tmp_path / name, tmp_path / "reference")
        assert f"in step {PLANTED}: {words}" in sentence(found)
        assert "times the reference's, with equal losses" in sentence(found)
        told = climb(tmp_path / name, tmp_path / "reference")
        assert told.verdict_class is VerdictClass.CLIPPING


def test_clipping_without_effect_is_no_cause(tmp_path: Path) -> None:
    train(tmp_path / "reference", between=clipped(100.0))
    train(tmp_path / "target", between=clipped(200.0))
    assert bisect_runs(tmp_path / "target", tmp_path / "reference").first is None


def frozen(run: Training) -> None:
    run.model[4].weight.requires_grad_(False)


def test_a_parameter_without_gradient_is_named(tmp_path: Path) -> None:
    train(tmp_path / "reference")
    train(tmp_path / "target", before=frozen)
    found = bisect_runs(tmp_path / "target", tmp_path / "reference")
    assert f"step {PLANTED}: 4.weight has no gradient in the target alone" in sentence(found)


def test_micro_batches_make_one_step(tmp_path: Path) -> None:
    train(tmp_path, micro=3)
    assert steps_of(tmp_path) == list(range(STEPS))


def test_a_new_run_replaces_the_file_and_a_continued_one_appends(tmp_path: Path) -> None:
    train(tmp_path)
    train(tmp_path, steps=range(5))
    assert steps_of(tmp_path) == [0, 1, 2, 3, 4]
    train(tmp_path, steps=range(5, 9))
    assert steps_of(tmp_path) == list(range(9))


def test_without_an_optimizer_and_with_one_that_the_model_lacks(tmp_path: Path) -> None:
    model, loose = nn.Linear(3, 2), nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([loose], lr=0.5)
    debugger = PrecisionDebugger(task="signature", dump_path=tmp_path)
    for step in range(2):
        debugger.start(model)
        (model(torch.ones(1, 3)) * loose).sum().backward()
        if step:
            optimizer.step()
        debugger.step()
    reset_session()
    with SignatureFile(tmp_path / FOLDER / "rank.msig") as file:
        first, second = file.step(0), file.step(1)
    assert first.names == ["weight", "bias"]
    assert (first.entries["checksum"][1] == 0).all()
    assert (first.entries["norm"][2] == 0).all()
    assert second.names == ["weight", "bias", "optimizer.0.group.0.0"]
    assert second.entries["norm"][0][2] == pytest.approx(2**0.5)
    assert np.isfinite(second.entries["norm"][1][2])


def test_a_parameter_whose_memory_was_given_back_has_no_numbers(tmp_path: Path) -> None:
    model = nn.Linear(200, 200)
    debugger = PrecisionDebugger(task="signature", dump_path=str(tmp_path))
    for _ in range(2):
        debugger.start(model)
        debugger.step()
        model.weight.untyped_storage().resize_(0)
    reset_session()
    with SignatureFile(tmp_path / FOLDER / "rank.msig") as file:
        step = file.step(1)
    assert step.names == ["weight", "bias"]
    assert [checksum == 0 for checksum in step.entries[0]["checksum"]] == [True, False]


def test_steps_and_ranks_of_the_configuration(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(task="signature", dump_path=tmp_path, step=[1, 3])
    model = nn.Linear(3, 2)
    for _ in range(5):
        debugger.start(model, rank_id=6)
        model(torch.ones(1, 3)).sum().backward()
        debugger.step()
    reset_session()
    assert steps_of(tmp_path, "rank6") == [1, 3]


def test_an_unwritable_file_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FOLDER).write_text("in the way")
    with caplog.at_level(logging.WARNING):
        state = train(tmp_path)
    plain = train(None)
    assert all(torch.equal(state[key], plain[key]) for key in plain)
    assert len([one for one in caplog.records if "signature" in one.getMessage()]) == 1


KILLED = """
import os, signal, sys, torch
from msprobe.pytorch import PrecisionDebugger
debugger = PrecisionDebugger(task="signature", dump_path=sys.argv[1])
model = torch.nn.Linear(3, 2)
for step in range(100):
    debugger.start(model)
    model(torch.ones(1, 3)).sum().backward()
    if step == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    debugger.step()
"""


def test_a_killed_process_keeps_its_finished_steps(tmp_path: Path) -> None:
    assert run_warm("-c", KILLED, tmp_path).returncode == -signal.SIGKILL
    assert steps_of(tmp_path) == [0, 1, 2, 3, 4]


def test_the_model_is_asked_for(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(task="signature", dump_path=tmp_path)
    with pytest.raises(ConfigError, match="signature"):
        debugger.start()


def test_a_framework_that_lacks_it_refuses(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"task": "signature", "dump_path": tmp_path}
    with pytest.raises(ConfigError, match="for PyTorch"):
        load_config(**settings, dumps_kernels=True)


@pytest.mark.parametrize("inside", [False, True])
def test_autocast_is_precision(tmp_path: Path, inside: bool) -> None:
    for name in ("target", "reference"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        cast = torch.autocast("cpu", torch.bfloat16, enabled=name == "target")
        if inside:
            model.forward = cast(model.forward)
        debugger = PrecisionDebugger(task="signature", dump_path=tmp_path / name)
        for _ in range(3):
            data = torch.randn(8, 16)
            debugger.start(model)
            loss = model(data) if inside else cast(model)(data)
            loss.float().square().mean().backward()
            optimizer.step()
            debugger.step()
        reset_session()
    found = bisect_runs(tmp_path / "target", tmp_path / "reference")
    assert "autocast: the target computes in bfloat16" in sentence(found)
    assert (
        climb(tmp_path / "target", tmp_path / "reference").verdict["class"]
        == VerdictClass.PRECISION
    )
