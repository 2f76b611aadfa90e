# SPDX-License-Identifier: Apache-2.0
"""`msprobe monitor check`: the numbers of a run against the log of its training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from builders.monitor_runs import Step, write
from msprobe.cli import main
from msprobe.monitor.reader import open_monitor


def with_norm(values: Step, step: int, rank: int) -> None:
    values["run"]["value"]["grad_norm"] = 2 - 0.0137 * step


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write(tmp_path / "run", with_norm)


def numbers(run: Path) -> list[dict[str, float]]:
    with open_monitor(run) as found:
        table = found.table("run", ranks=[0])
    steps: list[dict[str, float]] = [{} for _ in range(80)]
    for row in table.iter_rows(named=True):
        steps[row["step"]][row["name"]] = row["value"]
    return steps


def megatron(step: int, one: dict[str, float]) -> str:
    return (
        f" [2026-11-26 10:00:00] iteration {step + 1:8d}/     100 | consumed samples: {16 * step} |"
        f" learning rate: {one['lr.0']:.3E} | global batch size: 16 | lm loss: {one['loss']:.6E} |"
        f" load balancing loss: 9.9E-01 | loss scale: 1.0 | grad norm: {one['grad_norm']:.3f} |"
    )


def transformers(step: int, one: dict[str, float]) -> str:
    loss, norm = round(one["loss"], 4), str(one["grad_norm"])
    return str({"loss": loss, "grad_norm": norm, "learning_rate": one["lr.0"], "epoch": 0.1})


def plain(step: int, one: dict[str, float]) -> str:
    return f"step {step}: loss={one['loss']:.4f} val loss 7.0 lr={one['lr.0']:g}"


def check(run: Path, lines: list[str], capsys: Any, *words: str) -> tuple[int, Any]:
    log = run.parent / "train.log"
    log.write_text("\n".join(["loading data: 3 files", *lines]))
    code = main(["monitor", "check", str(run), "-l", str(log), "--json", "--exit-code", *words])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("style", [megatron, transformers, plain])
def test_a_log_agrees_up_to_its_last_digit(style: Any, run: Path, capsys: Any) -> None:
    lines = [style(step, one) for step, one in enumerate(numbers(run))]
    code, found = check(run, lines, capsys)
    expected = {"loss", "lr.0"} if style is plain else {"loss", "grad_norm", "lr.0"}
    assert {one["name"] for one in found} == expected
    assert all(one["steps"] == 80 and not one["apart"] for one in found)
    assert code == 0


def test_one_digit_off_is_apart(run: Path, capsys: Any) -> None:
    steps = numbers(run)
    norm = steps[7]["grad_norm"]
    steps[7]["grad_norm"] += 0.001
    lines = [megatron(step, one) for step, one in enumerate(steps)]
    code, found = check(run, lines, capsys)
    (apart,) = [one["apart"] for one in found if one["apart"]]
    logged = float(f"{norm + 0.001:.3f}")
    assert apart == [{"step": 7, "logged": logged, "recorded": norm}]
    assert code == 1
    assert main(["monitor", "check", str(run), "--log", str(run.parent / "train.log")]) == 0
    assert "grad_norm: apart in 1 of 80 steps, first in step 7: log" in capsys.readouterr().out


def test_the_number_of_the_first_step_may_be_told(run: Path, capsys: Any) -> None:
    lines = [megatron(step + 499, one) for step, one in enumerate(numbers(run))]
    assert check(run, lines, capsys, "--first", "500")[0] == 0
    log = str(run.parent / "train.log")
    assert main(["monitor", "check", str(run), "--log", log]) == 2
    assert "no line has a step of" in capsys.readouterr().err
