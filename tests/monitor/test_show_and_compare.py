# SPDX-License-Identifier: Apache-2.0
"""`msprobe monitor show` and `compare`: incidents first, then where runs part."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from builders.monitor_runs import LAYERS, Step, write
from msprobe.cli import main
from msprobe.monitor.comparing import compare_runs
from msprobe.monitor.reader import open_monitor
from msprobe.monitor.rows import Layout, Rows
from msprobe.monitor.store import RunWriter

BAD = 60


def diverge(values: Step, step: int, rank: int) -> None:
    if step >= 10:  # rounding
        for name in values["grad_reduced"]["norm"]:
            values["grad_reduced"]["norm"][name] *= 1 + 1e-9
    if step >= BAD:
        for name in LAYERS[:3]:
            values["grad_reduced"]["norm"][name] *= 1.02
    if step > BAD:
        values["param_origin"]["norm"][LAYERS[0]] *= 1.01


def explode(values: Step, step: int, rank: int) -> None:
    if step >= BAD:
        values["param_origin"]["norm"][LAYERS[2]] *= 50


def test_show_puts_incidents_first(tmp_path, capsys):
    run = write(tmp_path / "run", explode)
    assert main(["monitor", "show", str(run)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split("   ")[1:] == ["steps 0 to 79, 80 collected", "ranks 0"]
    assert lines[3].startswith(f"warning  steps {BAD} to 68: ")
    assert f"values explode: param_origin {LAYERS[2]} norm is 153, was 3.0" in lines[3]
    assert lines[5].startswith("loss ")
    assert lines[8] == "grad_reduced norm, rank 0 (log scale)"
    assert lines[9].startswith(LAYERS[2])
    assert len(lines) == 9 + len(LAYERS)


def test_show_judges_ranks_together(tmp_path, capsys):
    def spoil(values: Step, step: int, rank: int) -> None:
        if step >= BAD:
            for name in LAYERS:
                values["grad_reduced"]["norm"][name] *= 1 + 0.2 * rank

    run = write(tmp_path / "run", spoil, ranks=2)
    main(["monitor", "show", str(run), "--json"])
    (incident,) = json.loads(capsys.readouterr().out)["incidents"]
    assert (incident["cause"], incident["start"]) == ("ranks_part", BAD)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--stream", "actvs"], "no stream actvs; it has param_origin, actv"),
        (["--op", "rms"], "grad_reduced has no rms; it has norm"),
        (["--rank", "3"], "no rank 3"),
    ],
)
def test_show_refuses(words, message, tmp_path, capsys):
    run = write(tmp_path / "run", steps=2)
    assert main(["monitor", "show", str(run), *words]) == 2
    assert message in capsys.readouterr().err


def test_sparkline_marks_nan_and_absent_values(tmp_path, capsys):
    def spoil(values: Step, step: int, rank: int) -> None:
        values["grad_reduced"]["norm"][LAYERS[0]] = [1.0, 10.0, math.inf, 100.0][step]

    run = write(tmp_path / "run", spoil, steps=4)
    main(["monitor", "show", str(run)])
    assert "▁▅!█" in capsys.readouterr().out


def test_first_divergence_is_computed(tmp_path, capsys):
    target, reference = write(tmp_path / "a", diverge), write(tmp_path / "b")
    with open_monitor(target) as a, open_monitor(reference) as b:
        found = compare_runs(a, b)
    different, apart = found.first_different, found.first_apart
    assert different is not None
    assert apart is not None
    assert (different.stream, different.first_different) == ("grad_reduced", 10)
    # A backward pass comes from the last layer.
    assert (apart.stream, apart.name, apart.first_apart) == ("grad_reduced", LAYERS[2], BAD)
    assert apart.values[0] / apart.values[1] == pytest.approx(1.02)
    assert main(["monitor", "compare", str(target), str(reference), "--exit-code"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[3].startswith("differ from step 10: grad_reduced layers.7.weight norm")
    assert lines[4].startswith(f"apart from step {BAD}: grad_reduced {LAYERS[2]} norm")


def test_equal_runs(tmp_path, capsys):
    target, reference = write(tmp_path / "a"), write(tmp_path / "b")
    assert main(["monitor", "compare", str(target), str(reference), "--exit-code"]) == 0
    assert "equal: 67 series over 80 steps" in capsys.readouterr().out


def test_runs_without_sizes_are_not_said_to_stay_together(tmp_path, capsys):
    layout = Layout("actv", ("max",), ("\x1b[31mfc",), (0,), (0,), ("[2]",), ("torch.float32",))
    for name, factor in (("a", 1.0), ("b", 10.0)):
        with RunWriter(tmp_path / name, 0, {}) as writer:
            for step in range(4):
                writer.append(Rows(layout, 0, step, 0, 0.0, np.array([[factor * (step + 1.0)]])))
    main(["monitor", "compare", str(tmp_path / "a"), str(tmp_path / "b")])
    out = capsys.readouterr().out
    assert "differ from step 0: actv \N{REPLACEMENT CHARACTER}[31mfc max" in out
    assert "whether they are apart is not known" in out
    assert "\x1b" not in out


def test_a_shorter_run_is_not_equal(tmp_path, capsys):
    target, reference = write(tmp_path / "a", steps=20), write(tmp_path / "b", steps=30)
    assert main(["monitor", "compare", str(target), str(reference), "--exit-code"]) == 1
    assert "10 steps are in one run only" in capsys.readouterr().out


def test_nan_on_one_side_is_apart(tmp_path, capsys):
    def spoil(values: Step, step: int, rank: int) -> None:
        if step >= BAD:
            values["run"]["value"]["loss"] = math.nan

    target, reference = write(tmp_path / "a", spoil), write(tmp_path / "b")
    main(["monitor", "compare", str(target), str(reference), "--json"])
    first = json.loads(capsys.readouterr().out)["first_apart"]
    assert (first["name"], first["first_apart"], first["largest"]) == ("loss", BAD, "Infinity")
