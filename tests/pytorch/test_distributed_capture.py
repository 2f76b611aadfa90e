# SPDX-License-Identifier: Apache-2.0
"""Distributed trainings under the debugger: untouched, and completely recorded on every rank.

Each family is trained without the debugger and then at every level, all in the same processes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from families.process_group import DISTRIBUTED_FAMILIES, SHARDED_FAMILIES, run_ranks

import msprobe
from builders.recordings import Setting

pytestmark = [pytest.mark.torch, pytest.mark.slow]

STEPS = 5
FAMILIES = [*DISTRIBUTED_FAMILIES, *SHARDED_FAMILIES]
SETTINGS = [
    Setting(level, task) for level in ("L0", "L1", "mix") for task in ("statistics", "tensor")
]
SETTINGS.append(Setting("mix", "overflow_check"))

# What each family must be seen to call, at least, in step 1: the names on rank 0.
CALLS = {
    "data_parallel": {"all_reduce", "all_gather"},
    "pipeline": {"send", "recv"},
    "fully_sharded": {"all_gather_single", "reduce_scatter_single", "functional_all_reduce"},
    "tensor_parallel": {"functional_all_gather_single", "functional_reduce_scatter_single"},
    "scheduled_pipeline": {"isend", "irecv", "batch_isend_irecv"},
}
# Memory that nobody has filled holds NaN: a record of it would be seen by `overflow_check`.
CODE = """
import torch
torch.use_deterministic_algorithms(True)
assert torch.utils.deterministic.fill_uninitialized_memory
import msprobe.pytorch
from families.training import differences
from msprobe.capture.session import reset_session
from builders.recordings import Setting
build = (DISTRIBUTED_FAMILIES | SHARDED_FAMILIES)[options["family"]]

def run(setting=None):
    case = build(7)
    if setting is None:
        return train(case, options["steps"])
    config = folder / f"config{rank}.json"
    config.write_text(json.dumps(setting.config(folder / str(setting))))
    reset_session()
    debugger = msprobe.pytorch.PrecisionDebugger(config_path=str(config))
    for step in range(options["steps"]):
        debugger.start(case.model)
        loss = case.run_step(step)
        debugger.stop()
        debugger.step()
        case.snapshot(loss)
    reset_session()
    return case.state()

plain = run()
changed = {"again": differences(plain, run())}
for level, task in options["settings"]:
    changed[f"{level}-{task}"] = differences(plain, run(Setting(level, task)))
changed["values"] = len(plain)
report(changed)
"""


@pytest.fixture(scope="module", params=FAMILIES)
def trained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path, list[dict[str, Any]]]:
    """One family after all its runs: name, folder of the dumps, what each rank reported."""
    family: str = request.param
    folder = tmp_path_factory.mktemp(family)
    settings = [(setting.level, setting.task) for setting in SETTINGS]
    options = {"family": family, "steps": STEPS, "settings": settings}
    return family, folder, run_ranks(CODE, folder, options=options)


def test_training_is_bit_identical_at_every_level(
    trained: tuple[str, Path, list[dict[str, Any]]],
) -> None:
    _, _, reports = trained
    assert len(reports) == 2
    for changed in reports:
        assert changed.pop("values") >= 40
        assert changed == {name: [] for name in ["again", *map(str, SETTINGS)]}


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_every_rank_leaves_a_complete_dump_without_errors(
    setting: Setting, trained: tuple[str, Path, list[dict[str, Any]]]
) -> None:
    _, folder, _ = trained
    dump = msprobe.open_dump(folder / str(setting))
    assert list(dump.steps) == list(range(STEPS))
    for step in range(STEPS):
        assert sorted(dump.steps[step].ranks) == [0, 1]
        for rank in dump.steps[step].ranks.values():
            account = rank.account
            assert account["complete"], account
            assert account["errors"] == {}
            assert account["write_errors"] == []
            assert len(rank.records) == account["records"]
            if setting.task == "overflow_check":
                assert account["records"] == 0
            else:
                assert account["records"] >= 7
    assert list((folder / str(setting)).rglob("dump_error_info.log")) == []


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_the_communication_of_each_family_is_recorded(
    level: str, trained: tuple[str, Path, list[dict[str, Any]]]
) -> None:
    family, folder, _ = trained
    dump = msprobe.open_dump(folder / f"{level}-statistics")
    for number, rank in dump.steps[1].ranks.items():
        names = [name for name in rank.records if name.startswith("Distributed.")]
        apis = {name.split(".")[1] for name in names}
        wanted = CALLS[family] if number == 0 or family != "pipeline" else {"irecv"}
        assert wanted <= apis, apis
        for name in names:
            assert rank.records[name].data["output"] is not None, name
        assert not any(name.startswith("Aten.") for name in rank.records)


def test_levels_without_apis_record_no_communication(
    trained: tuple[str, Path, list[dict[str, Any]]],
) -> None:
    _, folder, _ = trained
    for rank in msprobe.open_dump(folder / "L0-statistics").steps[1].ranks.values():
        assert not any(name.startswith("Distributed.") for name in rank.records)


def test_a_pipeline_of_four_processes_is_recorded_on_each(tmp_path: Path) -> None:
    options = {"family": "scheduled_pipeline", "steps": 2, "settings": [("mix", "statistics")]}
    for changed in run_ranks(CODE, tmp_path, ranks=4, options=options):
        assert changed["mix-statistics"] == []
    dump = msprobe.open_dump(tmp_path / "mix-statistics")
    for step in dump.steps.values():
        assert sorted(step.ranks) == [0, 1, 2, 3]
        for rank in step.ranks.values():
            assert rank.account["complete"]
            assert rank.account["errors"] == {}
            assert sum(name.startswith("Distributed.") for name in rank.records) >= 4
