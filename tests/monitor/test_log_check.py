# SPDX-License-Identifier: Apache-2.0
"""`msprobe monitor check`: a run against its training's log, and its gradients before and after."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders.monitor_runs import Step, write
from msprobe.cli import main
from msprobe.monitor.reader import open_monitor
from msprobe.monitor.rows import Layout, Rows
from msprobe.monitor.store import RunWriter


def with_norm(values: Step, step: int, rank: int) -> None:
    values["run"]["value"]["grad_norm"] = math.hypot(*values["grad_reduced"]["norm"].values())


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
    assert {one["first"] for one in found} == {1 if style is not plain else 0}
    assert code == 0
    capsys.readouterr()
    main(["monitor", "check", str(run), "--log", str(run.parent / "train.log")])
    assert f"the log calls the first step {found[0]['first']})" in capsys.readouterr().out


def test_one_digit_off_is_apart(run: Path, capsys: Any) -> None:
    steps = numbers(run)
    norm = steps[7]["grad_norm"]
    steps[7]["grad_norm"] += 0.001
    lines = [megatron(step, one) for step, one in enumerate(steps)]
    code, found = check(run, lines, capsys)
    recorded, of_all = [one for one in found if one["apart"]]
    apart = recorded["apart"]
    assert of_all["way"].startswith("of grad_reduced")
    assert of_all["apart"][0]["step"] == 7
    logged = float(f"{norm + 0.001:.3f}")
    assert apart == [{"step": 7, "expected": logged, "recorded": norm, "parameter": ""}]
    assert code == 1
    assert main(["monitor", "check", str(run), "--log", str(run.parent / "train.log")]) == 0
    assert "grad_norm: apart in 1 of 80 steps, first in step 7: log" in capsys.readouterr().out


def test_the_number_of_the_first_step_may_be_told(run: Path, capsys: Any) -> None:
    lines = [megatron(step + 499, one) for step, one in enumerate(numbers(run))]
    assert check(run, lines, capsys, "--first", "500")[0] == 0
    log = str(run.parent / "train.log")
    assert main(["monitor", "check", str(run), "--log", log]) == 2
    assert "no line has a step of" in capsys.readouterr().err


RANKS, STEPS, SIZES = 3, 4, (30, 12, 6, 90)
NAMES = tuple(f"w{number}" for number in range(len(SIZES)))


def gradients(run: Path, kind: str, clip: float = 1.0) -> Path:
    """Write gradients of ranks before and after reduction: averages, sums, shards, faults."""
    noise = np.random.default_rng(5)

    def rows(stream: str, rank: int, step: int, tensors: list[Any]) -> Rows:
        none, shapes = (0,) * len(tensors), tuple(f"[{len(one)}]" for one in tensors)
        kinds = ("torch.float32",) * len(tensors)
        layout = Layout(stream, ("norm", "mean"), NAMES, none, none, shapes, kinds)
        values = [[np.linalg.norm(one) for one in tensors], [one.mean() for one in tensors]]
        return Rows(layout, rank, step, 0, 0.0, np.array(values))

    number = Layout(
        "run", ("value",), ("grad_norm", "grad_norm_clipped"), *((0, 0),) * 2, *(("", ""),) * 2
    )
    writers = [RunWriter(run, rank, {"world_size": RANKS}) for rank in range(RANKS)]
    for step in range(STEPS):
        own = [[noise.normal(size=size) for size in SIZES] for _ in range(RANKS)]
        means = [sum(one) / RANKS for one in zip(*own, strict=True)]
        total = np.sqrt(sum(float(one @ one) for one in means)) * (RANKS if kind == "sum" else 1)
        for rank, writer in enumerate(writers):
            reduced = [(1 if kind == "clipped later" else clip) * one for one in means]
            if kind == "sum":
                reduced = [RANKS * one for one in reduced]
            elif kind == "shards":
                reduced = [np.array_split(one, RANKS)[rank] for one in reduced]
            elif kind == "one not reduced" and step == 2:
                reduced[1] = own[rank][1]
            elif kind == "none reduced":
                reduced = own[rank]
            norms = np.array([[total, clip * total]])
            writer.append(Rows(number, rank, step, 0, 0.0, norms))
            writer.append(rows("grad_unreduced", rank, step, own[rank]))
            writer.append(rows("grad_reduced", rank, step, reduced))
    for writer in writers:
        writer.flush()
        writer.close()
    return run


@pytest.mark.parametrize(
    ("kind", "way"),
    [("average", "average"), ("sum", "sum"), ("shards", "average"), ("clipped later", "average")],
)
@pytest.mark.parametrize("clip", [1.0, 0.3])
def test_reduced_gradients_are_those_of_the_ranks(
    kind: str, way: str, clip: float, tmp_path: Path, capsys: Any
) -> None:
    run = gradients(tmp_path / "run", kind, clip)
    assert main(["monitor", "check", str(run), "--json", "--exit-code"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["way"] == f"{way} of grad_unreduced over ranks 0, 1, 2"
    assert (found["name"], found["steps"], found["apart"]) == ("grad_reduced", STEPS, [])


def test_a_gradient_that_was_not_reduced_is_named(tmp_path: Path, capsys: Any) -> None:
    run = gradients(tmp_path / "run", "one not reduced")
    assert main(["monitor", "check", str(run), "--json", "--exit-code"]) == 1
    (found,) = json.loads(capsys.readouterr().out)
    assert {(one["step"], one["parameter"]) for one in found["apart"]} == {(2, "w1")}
    assert main(["monitor", "check", str(gradients(tmp_path / "no", "none reduced"))]) == 0
    assert "apart in 4 of 4 steps, first in step 0: w0: before" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["average", "shards"])
def test_the_norm_of_the_log_is_that_of_all_gradients(
    kind: str, tmp_path: Path, capsys: Any
) -> None:
    run = gradients(tmp_path / "run", kind, 0.5)
    with open_monitor(run) as found:
        norms = found.series("run", "grad_norm", "value", ranks=[0])["value"].to_list()
    code, facts = check(
        run, [f"step {step} grad_norm {one:.6f}" for step, one in enumerate(norms)], capsys
    )
    of_all = [one for one in facts if one["way"].startswith("of grad_reduced")]
    assert code == 0
    assert [(one["name"], one["steps"]) for one in of_all] == [("grad_norm", STEPS)]
    lines = [f"step {step} grad_norm {1.01 * one:.6f}" for step, one in enumerate(norms)]
    assert check(run, lines, capsys)[0] == 1


def test_without_a_log_and_without_means_there_is_nothing_to_check(run: Path, capsys: Any) -> None:
    assert main(["monitor", "check", str(run)]) == 2
    assert "no log is named" in capsys.readouterr().err
