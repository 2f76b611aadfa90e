# SPDX-License-Identifier: Apache-2.0
"""The calls of a rank as trees, of whole dumps and of damaged ones."""

from __future__ import annotations

from pathlib import Path

import pytest

import msprobe
from builders.dumps import write_rank
from msprobe.dump.call_forest import CallNode, Section, call_forest

MODEL, LAYER = "Module.Net.forward.0", "Module.fc.Linear.forward.0"
CALL, BACK = "Functional.linear.0.forward", "Module.fc.Linear.backward.0"
GRADS = "Module.fc.Linear.parameters_grad"


def rank_of(folder: Path, parents: dict, records: list[str]):
    write_rank(folder, {name: {} for name in records}, parents=parents)
    return msprobe.open_dump(folder.parent).step().rank()


def shape(nodes: list[CallNode]) -> dict:
    return {node.name.full: shape(node.children) for node in nodes}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "rank"


def test_what_ran_inside_what_by_section(folder):
    parents = {MODEL: None, LAYER: MODEL, CALL: LAYER, BACK: None}
    forest = call_forest(rank_of(folder, parents, [MODEL, CALL, BACK, GRADS, "x.0.debug"]))
    assert {section: shape(roots) for section, roots in forest.items()} == {
        Section.FORWARD: {MODEL: {LAYER: {CALL: {}}}},
        Section.BACKWARD: {BACK: {GRADS: {}}},
        Section.SAVED_VALUES: {"x.0.debug": {}},
    }
    (model,) = forest[Section.FORWARD]
    assert (model.is_recorded, model.children[0].is_recorded, model.count()) == (True, False, 2)


def test_a_selection_keeps_what_encloses_it(folder):
    parents = {MODEL: None, LAYER: MODEL, CALL: LAYER, "Tensor.add.0.forward": MODEL}
    forest = call_forest(rank_of(folder, parents, [*parents]), {CALL})
    assert shape(forest[Section.FORWARD]) == {MODEL: {LAYER: {CALL: {}}}}


def test_a_group_is_where_its_first_call_is(folder):
    step = {f"Tensor.add_.{n}.forward": "optimizer" for n in range(2)}
    parents = {MODEL: None, **step, "optimizer": None, "clip_grad": None}
    forest = call_forest(rank_of(folder, parents, [MODEL, *step]))
    assert [*shape(forest[Section.FORWARD])] == [MODEL, "optimizer"]
    assert shape(forest[Section.FORWARD])["optimizer"] == {name: {} for name in step}


def test_calls_inside_each_other_are_cut_apart(folder):
    parents = {MODEL: LAYER, LAYER: MODEL, CALL: LAYER}
    forest = call_forest(rank_of(folder, parents, [CALL]))
    (root,) = forest[Section.FORWARD]
    assert root.count() == 2
