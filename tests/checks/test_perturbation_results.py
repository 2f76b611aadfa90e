# SPDX-License-Identifier: Apache-2.0
"""The files of the task `free_benchmark`."""

from __future__ import annotations

import json
from pathlib import Path

from msprobe.checks.perturbation import Change, Judged, Severity
from msprobe.checks.perturbation_results import (
    PerturbationResults,
    PerturbationRun,
    PerturbedCall,
)


def test_the_ranking_holds_undecodable_file_names_and_infinite_amplifications(
    tmp_path: Path,
) -> None:
    results = PerturbationResults(PerturbationRun(mode="ulp_noise", stage="forward"))
    results.begin(tmp_path, 0)
    for name, amplification in (
        ("Torch.exp.0.forward", 3.0),
        ("Torch.log.0.forward", float("inf")),
    ):
        judged = Judged(
            change=Change(output_index=0, dtype="float32", shape=(2,)),
            input_change=1e-8,
            amplification=amplification,
            severity=Severity.WARNING,
        )
        results.add(PerturbedCall(step=0, name=name, judged=judged, source="tr\udcff.py:3"))
    results.write()
    found = json.loads((tmp_path / "free_benchmark.json").read_text())["calls"]
    assert [(one["api_name"], one["amplification"]) for one in found] == [
        ("Torch.log.0.forward", "Infinity"),
        ("Torch.exp.0.forward", 3.0),
    ]
    assert found[0]["source"] == "tr\udcff.py:3"
    results.write_page()
    assert '"amplification":"Infinity"' in (tmp_path / "free_benchmark.html").read_text()
