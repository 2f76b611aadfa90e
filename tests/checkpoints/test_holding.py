# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of two formats, of which one does not hold everything that the other one holds."""

from __future__ import annotations

import copy
from itertools import product
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from builders.checkpoint_corpus import FC2, FORMATS, MODEL_ONLY, NORM, training  # noqa: E402
from msprobe.checkpoints.comparing import (  # noqa: E402
    Change,
    CheckpointComparison,
    compare_checkpoints,
)
from msprobe.checkpoints.holding import HOLDS, Role  # noqa: E402

pytestmark = pytest.mark.torch


def as_state_dict(folder: Path, state) -> Path:
    folder.mkdir()
    torch.save(state.model, folder / "model.pt")
    return folder / "model.pt"


WEIGHTS = {**MODEL_ONLY, "state dict": as_state_dict}
MORE = {name: write for name, write in FORMATS.items() if name not in MODEL_ONLY}
# Two files of PyTorch are of one format: one could have held what the other one holds.
PAIRS = [
    (one, other)
    for one, other in product(WEIGHTS, MORE)
    if (one, other) not in product(["state dict"], ["torch", "old torch"])
]


def compared(folder: Path, one: str, other: str, change=lambda _: None) -> CheckpointComparison:
    state = copy.deepcopy(training())
    change(state)
    return compare_checkpoints(
        (WEIGHTS | MORE)[one](folder / "one", state), MORE[other](folder / "other", training())
    )


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_equal_weights_are_not_different_and_not_equal(
    tmp_path: Path, one: str, other: str
) -> None:
    found = compared(tmp_path, one, other)
    assert not found.is_different, found.ranked()[:3]
    assert not found.is_equal
    assert found.counts[Change.EQUAL] == len(training().model)
    held = found.counts[Change.NOT_HELD] + found.value_counts[Change.NOT_HELD]
    assert held == sum(each.count for each in found.uncompared) > 0
    assert {each.side for each in found.uncompared} == {"reference"}


@pytest.mark.parametrize(("one", "other"), [*product(WEIGHTS, MORE)])
def test_a_changed_weight_comes_first_whatever_is_not_held(
    tmp_path: Path, one: str, other: str
) -> None:
    found = compared(tmp_path, one, other, lambda state: state.model[FC2].view(-1)[3:4].add_(1e-3))
    kind, name = found.ranked()[0]
    assert (kind, name.endswith(FC2)) == ("changed", True)


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_a_weight_of_one_side_is_a_difference(tmp_path: Path, one: str, other: str) -> None:
    found = compared(tmp_path, one, other, lambda state: state.model.pop(NORM))
    kind, name = found.ranked()[0]
    assert (kind, name.endswith(NORM)) == ("removed", True)


def test_what_the_format_could_hold_is_a_difference(tmp_path: Path) -> None:
    one, other = training(), training()
    one.values.pop("epoch")
    found = compare_checkpoints(
        FORMATS["torch"](tmp_path / "a", one), FORMATS["dcp"](tmp_path / "b", other)
    )
    assert found.ranked() == [("removed", "epoch")]
    found = compare_checkpoints(as_state_dict(tmp_path / "c", one), tmp_path / "a" / "x.pt")
    assert found.is_different


def test_other_names_of_optimizer_and_schedule_are_told(tmp_path: Path) -> None:
    state = copy.deepcopy(training())
    state.values["lr_scheduler"] = state.values.pop("scheduler") | {"last_epoch": 11}
    found = compare_checkpoints(
        FORMATS["torch"](tmp_path / "a", state), FORMATS["dcp"](tmp_path / "b", training())
    )
    assert found.ranked() == [("changed", "lr_scheduler.last_epoch")]
    assert "reference: 'scheduler' is compared with 'lr_scheduler'" in found.notes


def test_the_documented_table_is_that_of_the_program() -> None:
    text = (Path(__file__).parents[2] / "docs/tasks/checkpoints.md").read_text()
    title = "| format | " + " | ".join(Role) + " |"
    rows = text.partition(title)[2].split("\n\n")[0].splitlines()[2:]
    told = {}
    for row in rows:
        name, *cells = (cell.strip() for cell in row.strip("|").split("|"))
        told[name] = {role for role, cell in zip(Role, cells, strict=True) if cell == "yes"}
    assert told == {kind.value: set(roles) for kind, roles in HOLDS.items()}
