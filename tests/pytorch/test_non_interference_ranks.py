# SPDX-License-Identifier: Apache-2.0
"""Distributed trainings are the same with and without being recorded, on every rank."""

from __future__ import annotations

from pathlib import Path

import pytest
from families import Fingerprint, differences
from families.process_group import DISTRIBUTED_FAMILIES, run_ranks

from builders.recordings import read

pytestmark = pytest.mark.torch

PLAIN = "report(train(DISTRIBUTED_FAMILIES[options['family']](7)))"
OBSERVED = """
from builders.recordings import Setting
from restoration import changes, snapshot
from msprobe.pytorch import PrecisionDebugger
case = DISTRIBUTED_FAMILIES[options["family"]](7)
before = snapshot(*case.modules)
setting = Setting(options["level"], options["task"])
config = folder / f"config{rank}.json"
config.write_text(json.dumps(setting.config(folder / "dump")))
debugger = PrecisionDebugger(config_path=str(config))
for step in range(5):
    debugger.start(case.model)
    loss = case.run_step(step)
    debugger.stop()
    debugger.step()
    case.snapshot(loss)
report(case.state() | {"left behind": "; ".join(changes(before, snapshot(*case.modules)))})
"""


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Fingerprint]]:
    """Every distributed family without the tool."""
    return {
        family: run_ranks(PLAIN, tmp_path_factory.mktemp(family), options={"family": family})
        for family in DISTRIBUTED_FAMILIES
    }


@pytest.mark.parametrize("family", DISTRIBUTED_FAMILIES)
@pytest.mark.parametrize(
    ("level", "task"),
    [
        ("mix", "statistics"),
        pytest.param("L0", "tensor", marks=pytest.mark.slow),
        pytest.param("L1", "md5", marks=pytest.mark.slow),
        pytest.param("mix", "tensor", marks=pytest.mark.slow),
    ],
)
def test_an_observed_distributed_training_is_bit_identical(
    family: str,
    level: str,
    task: str,
    references: dict[str, list[Fingerprint]],
    tmp_path: Path,
) -> None:
    options = {"family": family, "level": level, "task": task}
    found = run_ranks(OBSERVED, tmp_path, options=options)
    for rank, (expected, observed) in enumerate(zip(references[family], found, strict=True)):
        assert observed.pop("left behind") == ""
        assert differences(expected, observed) == []
        for step in range(5):
            assert read(tmp_path / "dump", step, f"rank{rank}", "account.json")["errors"] == {}
            assert len(read(tmp_path / "dump", step, f"rank{rank}", "dump.json")["data"]) >= 3
