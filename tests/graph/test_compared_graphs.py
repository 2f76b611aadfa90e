# SPDX-License-Identifier: Apache-2.0
"""Two recordings of one model side by side: the planted fault is found, nothing is lost."""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from traced_models import Transformer

from builders.recordings import recording
from msprobe.cli import main
from msprobe.graph.model import HalfKind, Severity
from msprobe.graph.page_json import whole
from msprobe.graph.sources import open_graphs


class Product(torch.autograd.Function):
    """A linear layer whose backward pass is code that nothing records."""

    share = 1.0

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return torch.nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, gradient):
        x, weight = (tensor.detach().numpy() for tensor in ctx.saved_tensors)
        given = gradient.numpy()
        rows = given.reshape(-1, given.shape[-1])
        own = rows.T @ x.reshape(-1, x.shape[-1])
        made = given @ weight * np.float32(Product.share), own, rows.sum(0)
        return tuple(map(torch.from_numpy, made))


def record(folder, *, spoil=False, extra=False, share=None, **choices):
    torch.manual_seed(0)
    model = Transformer()
    if share is not None:
        layer, Product.share = model.layers[2].up, share
        layer.forward = lambda x: Product.apply(x, layer.weight, layer.bias)
    if spoil:
        weight = model.layers[2].up.weight
        with torch.no_grad():
            weight.add_(torch.randn_like(weight) * 0.02)
    if extra:
        model.layers[0].down.register_forward_hook(lambda *args: torch.tanh(args[2]))
    with recording(folder, **choices) as dump, dump.step_of(model):
        model(torch.arange(10).reshape(2, 5)).square().mean().backward()
    return folder


def compared(tmp_path, *, spoil=False, extra=False, **choices):
    target = record(tmp_path / "target", spoil=spoil, extra=extra, **choices)
    return open_graphs(target, record(tmp_path / "reference", **choices))


EVERY_TASK = pytest.mark.parametrize(
    "choices",
    [{}, {"task": "tensor"}, {"section": {"summary_mode": "md5"}}],
    ids=["statistics", "tensor", "md5"],
)


@EVERY_TASK
def test_a_wrong_backward_is_the_headline(tmp_path, choices):
    target = record(tmp_path / "target", share=1.01, **choices)
    graphs = open_graphs(target, record(tmp_path / "reference", share=1.0, **choices))
    headline = whole(graphs)["headline"]

    side = graphs.places[0].target
    node = side.graph.nodes[headline["node"]]
    assert "Autograd.Product.0.backward" in headline["sentence"]
    assert side.graph.nodes[node.parent].path == "layers.2.up"
    backward = next(half for half in node.halves if half.kind is HalfKind.BACKWARD)
    assert side.results.halves[backward.record].severity is Severity.INTRODUCED
    boxes = [node.id, *side.graph.ancestors(node.id)]
    assert {side.results.tallies[box].worst for box in boxes} == {Severity.INTRODUCED}
    assert {side.results.tallies[box].introduced for box in boxes} == {1}


@EVERY_TASK
def test_the_changed_weight_is_the_headline_and_the_worst_of_its_boxes(tmp_path, choices):
    graphs = compared(tmp_path, spoil=True, **choices)
    page = whole(graphs)

    side = graphs.places[0].target
    node = side.graph.nodes[page["headline"]["node"]]
    assert node.path == "layers.2.up"
    assert "layers.2.up.weight" in page["headline"]["sentence"]
    assert [entry["node"] for entry in page["culprits"]] == [node.id]
    boxes = [node.id, *side.graph.ancestors(node.id)]
    assert {side.results.tallies[box].worst for box in boxes} == {Severity.INTRODUCED}
    assert {side.results.tallies[box].introduced for box in boxes} == {1}


def test_errors_of_single_statistics_are_at_the_nodes(tmp_path):
    graphs = compared(tmp_path, spoil=True)
    page = whole(graphs)
    node = page["headline"]["node"]
    target, reference = graphs.graphs
    record = target.graph.nodes[node].halves[0].record
    (own, other) = (
        next(value for value in side.values[record] if value.slot.startswith("output"))
        for side in (target, reference)
    )
    columns = page["graphs"][0]["nodes"]
    for name in ("max", "min", "mean", "norm"):
        expected = abs((getattr(own, name) - getattr(other, name)) / getattr(other, name))
        assert columns[f"error_{name}"][node] == pytest.approx(expected, rel=1e-6)
        assert expected > 0


def test_every_call_is_matched_and_the_additional_one_is_shown_as_added(tmp_path):
    graphs = compared(tmp_path, extra=True)

    target, reference = graphs.graphs
    assert -1 not in reference.results.matches
    alone = [
        target.graph.nodes[place].name
        for place, match in enumerate(target.results.matches)
        if match < 0
    ]
    assert alone == ["Torch.tanh.0.forward"]
    assert target.results.tallies[0].unmatched == 2  # forward and backward


def test_matches_are_mutual_and_boxes_match_boxes(tmp_path):
    graphs = compared(tmp_path, extra=True)

    target, reference = (side.results.matches for side in graphs.graphs)
    assert target[0] == 0
    assert all(reference[match] == place for place, match in enumerate(target) if match >= 0)


def test_counts_of_a_box_are_the_sum_of_what_is_inside(tmp_path):
    graphs = compared(tmp_path, spoil=True)
    side = graphs.places[0].target
    for node in side.graph.nodes:
        own = [half.record for half in node.halves if half.record in side.results.halves]
        inside = [side.results.tallies[child] for child in side.graph.children(node.id)]
        tally = side.results.tallies[node.id]
        assert tally.halves == len(own) + sum(each.halves for each in inside)


def test_equal_runs_have_no_culprit(tmp_path):
    page = whole(compared(tmp_path))

    assert page["culprits"] == []
    assert page["headline"]["node"] == -1
    assert page["cells"][0]["severity"] == Severity.EQUAL


def test_dumps_of_structure_show_the_calls_that_one_side_has(tmp_path):
    graphs = compared(tmp_path, extra=True, task="structure")
    (place,) = graphs.places
    target, reference = place.target, place.reference
    alone = [
        node.name
        for node in target.graph.nodes
        if node.id and target.results.matches[node.id] < 0 and node.halves
    ]
    assert [name.split(".")[1] for name in alone] == ["tanh"]
    assert all(match >= 0 for match in reference.results.matches)
    head = whole(graphs)["headline"]
    assert head["sentence"].startswith("structure: 1 calls only in the target, 0 only in the")
    assert target.graph.nodes[head["node"]].name == alone[0]


def test_equal_structures_have_no_finding(tmp_path):
    graphs = compared(tmp_path, task="structure")
    assert whole(graphs)["headline"]["class"] == "equal"
    assert graphs.places[0].target.results.tallies[0].worst is Severity.NONE


class Stack(torch.nn.Module):
    """Three layers under a name of choice, with parts under names of choice."""

    def __init__(self, layers, part, first):
        super().__init__()
        self.names = layers, part, first
        blocks = [torch.nn.Module() for _ in range(3)]
        for block in blocks:
            inner = torch.nn.Sequential()
            inner.add_module(first, torch.nn.Linear(6, 6))
            inner.add_module("act", torch.nn.GELU())
            block.add_module(part, inner)
            block.forward = lambda x, block=block: x + block.get_submodule(part)(x)
        self.add_module(layers, torch.nn.ModuleList(blocks))

    def forward(self, x):
        for block in self.get_submodule(self.names[0]):
            x = block(x)
        return x


def test_a_proposed_mapping_names_what_was_renamed_and_pairs_all_of_it(tmp_path, capsys):
    wrapped = torch.nn.Sequential(OrderedDict(decoder=Stack("blocks", "ff", "up")))
    for name, model in (("new", Stack("layers", "mlp", "fc1")), ("old", wrapped)):
        with recording(tmp_path / name) as dump, dump.step_of(model):
            model(torch.ones(2, 6)).square().mean().backward()
    dumps, mapping = [f"{tmp_path / 'new'}", f"{tmp_path / 'old'}"], f"{tmp_path / 'names.yaml'}"
    written = ["-o", f"{tmp_path / 'graph.json'}"]

    assert main(["graph", *dumps, *written, "--propose-mapping", mapping]) == 0

    assert capsys.readouterr().out.splitlines()[0] == mapping
    lines = {line.partition("#")[0].strip() for line in Path(mapping).read_text().splitlines()}
    assert lines == {
        *("TopLayer:", "layers: decoder.blocks"),
        *("Module:", "mlp: ff", "Sequential:", "fc1: up"),
    }
    assert main(["graph", *dumps, *written, "-lm", mapping]) == 0
    (cell,) = json.loads((tmp_path / "graph.json").read_text())["cells"]
    assert cell["counts"]["unmatched"] == 0


def test_a_mapping_is_proposed_of_two_dumps_only(tmp_path, capsys):
    dump = record(tmp_path / "dump")
    words = ["graph", f"{dump}", "-o", f"{tmp_path / 'graph.json'}"]
    assert main([*words, "--propose-mapping", f"{tmp_path / 'names.yaml'}"]) == 2
    assert "--propose-mapping needs two dumps" in capsys.readouterr().err
