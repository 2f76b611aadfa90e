# SPDX-License-Identifier: Apache-2.0
"""The statistics of forward records are those that an independent observer works out in float64."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from families import FAMILIES
from oracle import ApiOracle, ModuleOracle, Observation, compare

from builders.recordings import Recording, Setting, observed, recording

pytestmark = pytest.mark.torch

SEED = 7
# Both observers read the same bits and add in float64 or better; only the order of adding differs.
REL = 1e-12

# Compiled code is traced through the oracle's hooks; its records are those of the eager model.
PLAIN_FAMILIES = [family for family in FAMILIES if family != "compiled"]


def oracle_of_modules(family: str) -> dict[str, Observation]:
    """What the submodules see in the first step of a run without the tool."""
    case = FAMILIES[family](SEED)
    several = len(case.modules) > 1
    oracles = [
        ModuleOracle(model, gradients=False, index=index if several else None)
        for index, model in enumerate(case.modules)
    ]
    case.run_step(0)
    return {name: seen for oracle in oracles for name, seen in oracle.calls.items()}


def oracle_of_apis(family: str) -> dict[str, Observation]:
    """What the API calls see in the first step of a run without the tool."""
    case = FAMILIES[family](SEED)
    oracle = ApiOracle()
    with oracle:
        case.run_step(0)
    return oracle.calls


def records_of(family: str, setting: Setting, folder: Path, **section: object) -> dict[str, object]:
    """The records of the first step."""
    with observed(folder, setting, **section) as run:
        return _first_step(family, run)


def _first_step(family: str, run: Recording) -> dict[str, object]:
    case = FAMILIES[family](SEED)
    with run.step_of(case.model):
        case.run_step(0)
    return run.records()


# Not comparable: modules with the user's own hooks, which change what is passed on before or after
# the record is made; calls that `torch.autograd.grad` makes itself, which the oracle does not see,
# so that it counts others.
UNSETTLED = {
    "functional_transforms": ("Torch.ones_like.",),
    "user_hooks": ("Module.0.", "Module.1."),
}


def disagreements(
    family: str, expected: dict[str, Observation], records: dict[str, object]
) -> list[str]:
    return [
        f"{name}: {problem}"
        for name, seen in expected.items()
        if not name.startswith(UNSETTLED.get(family, ("-",)))
        for problem in compare(seen.forward, records[name], REL)
    ]


@pytest.mark.parametrize("family", PLAIN_FAMILIES)
@pytest.mark.parametrize("level", [pytest.param("L0", marks=pytest.mark.slow), "mix"])
def test_module_statistics_are_exact(family: str, level: str, tmp_path: Path) -> None:
    expected = oracle_of_modules(family)
    records = records_of(family, Setting(level, "statistics"), tmp_path)
    assert set(expected) <= set(records)
    assert disagreements(family, expected, records) == []


@pytest.mark.parametrize("family", PLAIN_FAMILIES)
@pytest.mark.parametrize("level", ["L1", pytest.param("mix", marks=pytest.mark.slow)])
def test_api_statistics_are_exact(family: str, level: str, tmp_path: Path) -> None:
    expected = oracle_of_apis(family)
    with recording(tmp_path, level, optimizer_apis=True) as run:  # the oracle counts them, too
        records = _first_step(family, run)
    known = {name: seen for name, seen in expected.items() if name in records}
    assert len(known) >= 5
    assert disagreements(family, known, records) == []


@pytest.mark.parametrize("family", PLAIN_FAMILIES)
def test_every_differentiable_call_is_recorded(family: str, tmp_path: Path) -> None:
    records = records_of(family, Setting("L1", "statistics"), tmp_path)
    case = FAMILIES[family](SEED)
    oracle = ApiOracle()
    with warnings.catch_warnings(), oracle:
        case.run_step(0)
    oracle.finish()
    missing = [n for n, seen in oracle.calls.items() if seen.backward and n not in records]
    assert missing == []
