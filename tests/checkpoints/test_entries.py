# SPDX-License-Identifier: Apache-2.0
"""Everything in a checkpoint is compared: every key path, and values that are no tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from msprobe.checkpoints.comparing import compare_checkpoints  # noqa: E402
from msprobe.checkpoints.opening import open_checkpoint  # noqa: E402
from msprobe.checkpoints.result_json import comparison_json  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture
def compare(tmp_path: Path):
    def run(target: Any, reference: Any, **options):
        torch.save(target, tmp_path / "t.pt")
        torch.save(reference, tmp_path / "r.pt")
        return compare_checkpoints(tmp_path / "t.pt", tmp_path / "r.pt", **options)

    return run


@pytest.mark.parametrize(
    ("changed", "base", "name"),
    [
        (
            {"a.b": torch.full((3,), 7.0), "a": {"b": torch.zeros(3)}},
            {"a.b": torch.ones(3), "a": {"b": torch.zeros(3)}},
            '["a.b"]',
        ),
        (
            {1: torch.full((3,), 9.0), "1": torch.zeros(3)},
            {1: torch.ones(3), "1": torch.zeros(3)},
            "[1]",
        ),
    ],
    ids=["joined", "number and text"],
)
def test_keys_that_are_equal_when_joined_stay_apart(compare, changed, base, name: str) -> None:
    found = compare(changed, base)
    assert {each.name: each.change.value for each in found.differences} == {
        name: "changed",
        name.strip('[]"'): "equal",
    }
    assert set(comparison_json(found)["parameters"]) == {each.name for each in found.differences}
    assert compare(base, base).is_equal


def test_a_flat_and_a_nested_checkpoint_with_the_same_joined_keys_are_equal(compare) -> None:
    assert compare({"a.b": torch.ones(3)}, {"a": {"b": torch.ones(3)}}).is_equal


def test_an_added_key_does_not_take_the_place_of_the_one_it_looks_like(compare) -> None:
    found = compare(
        {"a": {"b": torch.zeros(3)}}, {"a.b": torch.ones(3), "a": {"b": torch.zeros(3)}}
    )
    assert sorted(each.change.value for each in found.differences) == ["equal", "removed"]
    assert len(comparison_json(found)["parameters"]) == 2


def test_names_are_those_of_the_file_where_no_two_paths_look_alike(tmp_path: Path) -> None:
    torch.save({"a": {"b.c": torch.ones(1), 0: [torch.ones(1)]}}, tmp_path / "x.pt")
    assert set(open_checkpoint(tmp_path / "x.pt").parameters) == {"a.b.c", "a.0.0"}
