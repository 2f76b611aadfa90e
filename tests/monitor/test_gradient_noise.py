# SPDX-License-Identifier: Apache-2.0
"""The gradient noise scale against the covariance of the ranks' gradients themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import msprobe
from msprobe.cli import main
from msprobe.monitor.pictures import Pictures
from msprobe.monitor.rows import Layout, Rows
from msprobe.monitor.store import RunWriter

RANKS, STEPS = 4, 200
SIZES = (30, 12)


def layout(stream: str, sizes: tuple[int, ...]) -> Layout:
    names = tuple(f"w{place}" for place in range(len(sizes)))
    none = (0,) * len(sizes)
    shapes = tuple(f"[{size}]" for size in sizes)
    return Layout(stream, ("norm",), names, none, none, shapes, ("torch.float32",) * len(sizes))


def recorded(
    folder: Path, *, sharded: bool = False, clip: float = 1.0, head: Any = None, scale: float = 1.0
) -> tuple[Path, list[float], float]:
    """Return a run, the trace of the covariance in each step, and the expected scale."""
    generator = np.random.default_rng(0)
    true = [generator.normal(size=size) for size in SIZES]
    spread = 3.0
    gradients = [
        [one + spread * generator.normal(size=(RANKS, len(one))) for one in true]
        for _ in range(STEPS)
    ]
    before = layout("grad_unreduced", SIZES)
    after = layout("grad_reduced", tuple(size // RANKS for size in SIZES) if sharded else SIZES)
    if sharded:  # 30 = 8 + 8 + 8 + 6
        parts = [layout("grad_reduced", (8 if rank < 3 else 6, 3)) for rank in range(RANKS)]
    run = Layout(
        "run",
        ("value",),
        ("grad_norm", "grad_norm_clipped", "loss_scale"),
        *((0,) * 3,) * 2,
        *(("",) * 3,) * 2,
    )
    for rank in range(RANKS):
        with RunWriter(folder, rank, head(rank) if head else {}) as writer:
            for step, of_step in enumerate(gradients):
                norms = [np.linalg.norm(one[rank]) for one in of_step]
                writer.append(Rows(before, rank, step, 0, 0.0, np.array([norms])))
                means = [one.mean(axis=0) * clip for one in of_step]
                whole = np.sqrt(sum(float(one @ one) for one in means))
                if sharded:
                    pieces = [
                        np.array_split(means[0], [8, 16, 24])[rank],
                        np.split(means[1], 4)[rank],
                    ]
                    norms = [np.linalg.norm(one) for one in pieces]
                else:
                    norms = [np.linalg.norm(one) for one in means]
                    writer.append(
                        Rows(run, rank, step, 0, 0.0, np.array([[whole / clip, whole, scale]]))
                    )
                of_rank = parts[rank] if sharded else after
                writer.append(Rows(of_rank, rank, step, 0, 0.0, np.array([norms])))
    traces = [sum(float(one.var(axis=0, ddof=1).sum()) for one in found) for found in gradients]
    expected = spread**2 * sum(SIZES) / sum(float(one @ one) for one in true)
    return folder, traces, expected


@pytest.mark.parametrize("case", [{}, {"clip": 0.25}, {"sharded": True}])
def test_noise_is_the_covariance_of_the_ranks(case: dict[str, Any], tmp_path: Path) -> None:
    folder, traces, expected = recorded(tmp_path / "run", **case)
    with msprobe.open_monitor(folder) as run:
        found = run.gradient_noise(window=STEPS)
    assert found["step"].to_list() == list(range(STEPS))
    assert found["noise"].to_list() == pytest.approx(traces, rel=1e-9)
    assert found["scale"][-1] == pytest.approx(expected, rel=0.1)


def test_groups_of_ranks_that_were_told(tmp_path: Path) -> None:
    groups = lambda rank: {"groups": {"dp": [rank % 2, rank % 2 + 2], "tp": [rank]}}  # noqa: E731
    folder, traces, _ = recorded(tmp_path / "run", head=groups)
    with msprobe.open_monitor(folder) as run:
        found = run.gradient_noise()
    assert found.height == STEPS  # two groups, whose reduced gradients are not their own means
    assert found["noise"].to_list() != pytest.approx(traces, rel=1e-3)
    alone, _, _ = recorded(tmp_path / "alone", head=lambda rank: {"groups": {"tp": [rank]}})
    with msprobe.open_monitor(alone) as run:
        assert run.gradient_noise().is_empty()


def test_steps_with_a_loss_scale_are_left_out(tmp_path: Path) -> None:
    folder, _, _ = recorded(tmp_path / "run", scale=1024.0)
    with msprobe.open_monitor(folder) as run:
        assert run.gradient_noise().is_empty()


def test_terminal_and_page_show_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, _, _ = recorded(tmp_path / "run")
    assert main(["monitor", "show", str(folder)]) == 0
    assert "gradient noise scale" in capsys.readouterr().out
    with msprobe.open_monitor(folder) as run:
        (shown,) = (one for one in Pictures([run]).overview()["scalars"] if "noise" in one["name"])
        assert len(shown["lines"]) == 1
        assert shown["lines"][0]["values"] == pytest.approx(
            run.gradient_noise()["scale"].to_list(), rel=1e-5
        )
