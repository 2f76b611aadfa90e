# SPDX-License-Identifier: Apache-2.0
"""Trainings that differ in one planted setting: its class and its place are named first."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from settings_corpus import EQUAL, PLANTS, Plant, train  # noqa: E402

from msprobe.run_config.comparing import RunComparison, compare_packs  # noqa: E402
from msprobe.run_config.conclusion import Kind  # noqa: E402
from msprobe.run_config.levels import Level  # noqa: E402

pytestmark = pytest.mark.torch


def compared(plant: Plant, folder: Path) -> RunComparison:
    """Run both from one line: places of random calls are told apart by their stacks."""
    packs = []
    for name, change, around in (("base", {}, None), ("planted", plant.change, plant.around)):
        with around(folder) if around else nullcontext():
            packs.append(train(folder / f"{name}.zip", change))
    return compare_packs(*packs)


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.name)
def test_the_planted_setting_is_named_first(plant: Plant, tmp_path: Path) -> None:
    found = compared(plant, tmp_path).conclusion
    assert (found.kind, found.sentence) == (plant.kind, found.sentence)
    assert found.difference is not None
    assert plant.place in found.difference.name, found.sentence


@pytest.mark.parametrize("plant", EQUAL, ids=lambda plant: plant.name)
def test_what_is_no_difference_passes(plant: Plant, tmp_path: Path) -> None:
    found = compared(plant, tmp_path)
    assert found.conclusion.kind is Kind.NOTHING, found.conclusion.sentence
    assert found.level is Level.PASS
