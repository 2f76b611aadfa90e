# SPDX-License-Identifier: Apache-2.0
"""Edges of recorded models against those that torch.fx traces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from traced_models import TRACED_MODELS, TracedModel, computed_edges, traced_edges

from builders.recordings import recording
from msprobe.dump.reader import open_dump
from msprobe.dump.record_names import RecordKind
from msprobe.graph.model import Graph, How, NodeKind
from msprobe.graph.sources import open_graphs


def record(folder: Path, case: TracedModel, **choices: str) -> torch.nn.Module:
    """Record one step of a model; return it."""
    torch.manual_seed(0)
    model = case.model().eval()
    inputs = case.inputs()
    with recording(folder, **choices) as dump, dump.step_of(model):
        model(*inputs).square().mean().backward()
    return model


def graph_of(folder: Path) -> Graph:
    return open_graphs(folder).places[0].target.graph


def api_calls(folder: Path, graph: Graph) -> list[str]:
    """The API calls inside the model, in order."""
    view = open_dump(folder).step().rank()
    model = next(node for node in graph.nodes if node.kind is NodeKind.MODULE)
    return [
        node.name
        for node in graph.nodes[model.id : model.id + model.size]
        if node.kind is NodeKind.API and view.records.parsed(node.name).kind is RecordKind.FORWARD
    ]


def compared_with_traced(folder: Path, model: torch.nn.Module) -> tuple[int, int, object]:
    """How many edges are right, of how many that either side knows; and the wrong ones."""
    graph = graph_of(folder)
    calls = api_calls(folder, graph)
    truth = traced_edges(model, calls)
    found = {(graph.nodes[edge.source].name, graph.nodes[edge.target].name) for edge in graph.edges}
    found = {(maker, user) for maker, user in found if maker in calls and user in calls}
    wrong = {"missing": sorted(truth - found), "too many": sorted(found - truth)}
    return len(truth & found), len(truth | found), wrong


def forget(folder: Path, *keys: str) -> None:
    """Take fields out of all values of a dump, as other recorders do not write them."""
    path = folder / "step0" / "rank" / "dump.json"

    def without(tree: object) -> object:
        if isinstance(tree, dict):
            return {key: without(item) for key, item in tree.items() if key not in keys}
        return [without(item) for item in tree] if isinstance(tree, list) else tree

    path.write_text(json.dumps(without(json.loads(path.read_text())), indent=1))


@pytest.mark.parametrize("case", TRACED_MODELS, ids=str)
def test_recorded_edges_are_those_of_the_traced_model(tmp_path, case):
    model = record(tmp_path, case)

    right, known, wrong = compared_with_traced(tmp_path, model)

    assert right >= 0.99 * known, wrong


@pytest.mark.parametrize("case", TRACED_MODELS, ids=str)
def test_recorded_edges_are_those_of_the_operators_that_ran(tmp_path, case):
    model = record(tmp_path, case)
    graph = graph_of(tmp_path)
    calls = api_calls(tmp_path, graph)

    truth, idle = computed_edges(case, model, calls)

    assert {name.split(".")[1] for name in idle} <= {"dropout", "contiguous"}
    found = {(graph.nodes[edge.source].name, graph.nodes[edge.target].name) for edge in graph.edges}
    found = {pair for pair in found if {*pair} <= {*calls}}
    for call in idle:  # what hands its input on runs no operator
        makers = {maker for maker, user in found if user == call}
        found |= {(maker, user) for maker in makers for known, user in found if known == call}
        found = {pair for pair in found if call not in pair}
    assert len(truth & found) >= 0.99 * len(truth | found), truth ^ found


@pytest.mark.parametrize("case", TRACED_MODELS, ids=str)
@pytest.mark.parametrize("forgotten", [("value_id",), ("value_id", "projections")], ids=len)
def test_inferred_edges_are_those_of_the_traced_model(tmp_path, case, forgotten):
    model = record(tmp_path, case)
    forget(tmp_path, *forgotten)

    right, known, wrong = compared_with_traced(tmp_path, model)

    assert right >= 0.95 * known, wrong
    assert all(edge.how is How.STATISTICS for edge in graph_of(tmp_path).edges)
