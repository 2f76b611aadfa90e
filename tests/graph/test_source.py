# SPDX-License-Identifier: Apache-2.0
"""Graphs by the piece are the same as graphs at once."""

from __future__ import annotations

import pytest

from builders.dumps import write_rank
from builders.records import forward, tensor
from msprobe.graph.page_json import whole
from msprobe.graph.searching import Condition
from msprobe.graph.source import PieceSource, source_of
from msprobe.graph.sources import GraphSet, open_graphs

BOX, ONE, TWO, LAST = (
    "Module.Net.forward.0",
    "Functional.linear.0.forward",
    "Functional.relu.0.forward",
    "Functional.linear.1.forward",
)


def write(folder, number=3.0):
    """A box with two calls that use each other's values, and one behind it."""
    middle = tensor(number=number, value_id=1)
    made = tensor(number=number + 1, value_id=2)
    records = {
        ONE: forward([tensor()], [middle]),
        TWO: forward([middle], [made]),
        BOX: forward([tensor()], [made]),
        LAST: forward([made], [tensor(number=100.0, value_id=3)]),
    }
    parents = {BOX: None, ONE: BOX, TWO: BOX, LAST: None}
    return write_rank(folder / "rank0", records, parents=parents)


@pytest.fixture
def graphs(tmp_path) -> GraphSet:
    return open_graphs(write(tmp_path / "new"), write(tmp_path / "old", 2.0))


@pytest.fixture
def source(graphs) -> PieceSource:
    return source_of(graphs)


def test_children_have_the_columns_of_the_whole(source, graphs):
    page = whole(graphs)
    nodes = page["graphs"][0]["nodes"]

    found = source.children(0, 1)

    assert found["ids"] == [2, 3]
    labels = [page["texts"][nodes["label"][node]] for node in found["ids"]]
    assert found["nodes"]["label"] == labels == ["linear", "relu"]


def test_edges_come_with_the_box_that_holds_both_ends(source):
    assert source.children(0, 1)["edges"]["from"] == [2]
    outer = source.children(0, 0)["edges"]
    assert (outer["from"], outer["to"], outer["shape"]) == ([3], [4], ["2\u00d73"])


def test_the_overview_has_the_root_of_each_graph(source):
    overview = source.overview()

    assert [head["root"]["size"] for head in overview["graphs"]] == [[5], [5]]
    assert all("nodes" not in head for head in overview["graphs"])


def test_the_way_to_a_node_and_what_it_depends_on(source):
    assert source.path_to(0, 3) == [0, 1]
    assert source.upstream(0, 4) == [3, 2]


def test_details_name_the_other_side(source):
    (half,) = source.detail(0, 2)["halves"]
    assert [value.get("reference", {}).get("max") for value in half["values"]] == [None, 3.0]


@pytest.mark.parametrize(
    ("text", "conditions", "found"),
    [
        ("linear", [], [2, 4]),
        ("", [Condition("norm", ">", 1000)], [4]),
        ("", [Condition("status", "=", "differs")], [1, 2, 3, 4]),
        ("relu", [Condition("norm", ">", 1000)], []),
        ("", [Condition("nonsense", "=", "1")], []),
        ("", [Condition("norm", ">", "many")], []),
        ("", [Condition("dir", ":", "backward")], []),
        ("LINEAR net", [Condition("class", "=", "net")], []),
    ],
)
def test_nodes_are_found_by_names_and_values(source, text, conditions, found):
    answer = source.find(0, text, conditions)
    assert (answer["ids"], answer["total"]) == (found, len(found))


def test_only_the_first_are_listed(source):
    answer = source.find(0, "", [], limit=1)
    assert (answer["ids"], answer["total"], answer["nodes"]["label"]) == ([1], 4, ["Net"])
