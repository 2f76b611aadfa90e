# SPDX-License-Identifier: Apache-2.0
"""Trainings that differ in one planted setting: its class and its place are named first."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from settings_corpus import EQUAL, LATER, LATER_EQUAL, PLANTS, Plant, train  # noqa: E402

from msprobe.run_config.comparing import RunComparison, compare_packs  # noqa: E402
from msprobe.run_config.conclusion import Kind  # noqa: E402
from msprobe.run_config.levels import Level  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the code of the tests out: it may be edited while they run."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory):
    """Compare a plant with the run that has none, which each test function makes once.

    Both run from one line: places of random calls are told apart by their stacks.
    """
    bases: dict[str, Path] = {}

    def run(plant: Plant, folder: Path, test: str) -> RunComparison:
        packs = []
        runs = (("base", plant.base, None), ("planted", plant.change, plant.around))
        for name, change, around in runs:
            if name == "base" and not change and test in bases:
                continue
            with around(folder) if around else nullcontext():
                packs.append(train(tmp_path_factory.mktemp(name) / "run.zip", change))
        base = packs[0] if plant.base else bases.setdefault(test, packs[0])
        return compare_packs(base, packs[-1])

    return run


@pytest.mark.parametrize("plant", [*PLANTS, *LATER], ids=lambda plant: plant.name)
def test_the_planted_setting_is_named_first(plant: Plant, compared, tmp_path: Path) -> None:
    found = compared(plant, tmp_path, "planted").conclusion
    assert (found.kind, found.sentence) == (plant.kind, found.sentence)
    assert found.difference is not None
    assert plant.place in found.difference.name, found.sentence


@pytest.mark.parametrize("plant", [*EQUAL, *LATER_EQUAL], ids=lambda plant: plant.name)
def test_what_is_no_difference_passes(plant: Plant, compared, tmp_path: Path) -> None:
    found = compared(plant, tmp_path, "equal")
    assert found.conclusion.kind is Kind.NOTHING, found.conclusion.sentence
    assert found.level is Level.PASS
