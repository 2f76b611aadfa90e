# SPDX-License-Identifier: Apache-2.0
"""Graphs for other programs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest

from builders.dumps import write_rank
from builders.records import forward, tensor
from msprobe.cli import main

BOX, ONE, TWO, LAST = (
    "Module.Net.forward.0",
    "Functional.linear.0.forward",
    "Functional.relu.0.forward",
    'Functional.odd"name.0.forward',
)


def write(folder, number=3.0):
    """A box with two calls that use each other's values, and one behind it."""
    middle, made = tensor(number=number, value_id=1), tensor(number=number + 1, value_id=2)
    records = {
        ONE: forward([tensor()], [middle]),
        TWO: forward([middle], [made]),
        BOX: forward([tensor()], [made]),
        LAST: forward([made], [tensor(number=100.0, value_id=3)]),
    }
    write_rank(folder / "rank0", records, parents={BOX: None, ONE: BOX, TWO: BOX, LAST: None})
    return str(folder)


@pytest.fixture
def sides(tmp_path) -> list[str]:
    return [write(tmp_path / "new"), write(tmp_path / "old", 2.0)]


def test_model_explorer_gets_boxes_edges_and_an_overlay(tmp_path, sides, capsys):
    path = tmp_path / "graph.json"

    assert main(["graph", *sides, "-o", str(path), "--export", "model-explorer"]) == 0

    assert capsys.readouterr().out.split() == [str(path), str(tmp_path / "graph.overlay.json")]
    ((target, reference),) = [each["graphs"] for each in json.loads(path.read_text())]
    nodes = {node["id"]: node for node in target["nodes"]}
    assert {node["label"] for node in nodes.values()} >= {"linear", "relu"}
    relu = next(node for node in nodes.values() if node["label"] == "relu")
    assert relu["namespace"] == "Net (Net)"
    assert [edge["sourceNodeId"] for edge in relu["incomingEdges"]] == ["2"]
    for node in nodes.values():
        assert {edge["sourceNodeId"] for edge in node["incomingEdges"]} <= nodes.keys()
    overlay = json.loads((tmp_path / "graph.overlay.json").read_text())
    assert overlay.keys() == {target["id"], reference["id"]}
    assert overlay[target["id"]]["results"].keys() <= nodes.keys()


def test_graphviz_gets_clusters_and_edges(tmp_path, sides):
    path = tmp_path / "graph.dot"

    assert main(["graph", *sides, "-o", str(path)]) == 0

    text = path.read_text()
    assert text.count("{") == text.count("}")
    assert re.findall(r"n0_(\d) -> n0_(\d)", text) == [("2", "3"), ("3", "4")]
    assert r"odd\"name" in text


@pytest.mark.skipif(shutil.which("dot") is None, reason="needs Graphviz")
def test_graphviz_draws_it(tmp_path, sides):
    path = tmp_path / "graph.dot"
    main(["graph", *sides, "-o", str(path)])

    subprocess.run(["dot", "-Tsvg", str(path), "-o", str(tmp_path / "graph.svg")], check=True)
