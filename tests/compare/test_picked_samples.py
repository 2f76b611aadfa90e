# SPDX-License-Identifier: Apache-2.0
"""Samples that a call takes of a data set are data; a tensor of one side is an argument."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builders.recordings import recording
from msprobe.compare.run import compare_dumps

torch = pytest.importorskip("torch")


def record(folder: Path, *, skipped: int = 0, seed: int | None = None) -> None:
    """Record a step that takes its batch out of a data set; sampled if there is a seed."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    samples = torch.linspace(-1, 1, 64).sin().view(16, 4)
    with recording(folder, "L1") as run, run.step_of(model):
        places = list(range(16))
        if seed is not None:
            places = torch.randperm(16, generator=torch.Generator().manual_seed(seed)).tolist()
        batch = torch.stack([samples[place] for place in places[skipped : skipped + 4]])
        model(batch).square().mean().backward()


@pytest.mark.parametrize(
    ("target", "reference"), [({"skipped": 1}, {}), ({"seed": 1}, {"seed": 2})], ids=str
)
def test_other_samples_are_other_data(
    tmp_path: Path, target: dict[str, Any], reference: dict[str, Any]
) -> None:
    record(tmp_path / "target", **target)
    record(tmp_path / "reference", **reference)

    verdict = compare_dumps(tmp_path / "target", tmp_path / "reference").summary["verdict"]

    assert verdict["class"] == "data"
    assert "batch of step 0 differs" in verdict["sentence"]


def test_a_tensor_that_one_side_leaves_out_is_an_argument(tmp_path: Path) -> None:
    """Though it has one element for each sample, as labels have."""
    weights = {"target": torch.tensor([1.0, 1.0, 1.0, 3.0]), "reference": None}
    for name, weight in weights.items():
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 4)
        with recording(tmp_path / name, "L1") as run, run.step_of(model):
            scores = model(torch.linspace(-1, 1, 12).sin().view(4, 3))
            torch.nn.functional.cross_entropy(scores, torch.arange(4), weight).backward()

    verdict = compare_dumps(tmp_path / "target", tmp_path / "reference").summary["verdict"]

    assert verdict["class"] == "argument"
    assert "of Functional.cross_entropy.0.forward" in verdict["sentence"]
