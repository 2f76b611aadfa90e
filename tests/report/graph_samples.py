# SPDX-License-Identifier: Apache-2.0
"""Graphs for pages, made without a dump: a transformer, nets of any shape, two sides."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from msprobe.graph.source import GraphTables, PieceSource
from msprobe.graph.tables import Table
from msprobe.graph.text_block import TextBlock

TEXTS = (
    *("name", "label", "class", "path", "source", "forward", "backward", "dtype", "device"),
    *("status", "status_backward", "origin", "origin_backward"),
)
USUAL: dict[str, Any] = {
    "kind": 2,
    "flags": 3,
    "name": "",
    "label": "",
    "class": "",
    "path": "",
    "source": "",
    "forward": "",
    "backward": "",
    "overflow": 0,
    "norm": 1.5,
    "grad_norm": 0.25,
    "micro": 0,
    "dtype": "float32",
    "match": -1,
    "confidence": 1.0,
    "status": "",
    "status_backward": "",
    "origin": "",
    "origin_backward": "",
    "error": None,
    "error_backward": None,
    "severity": 0,
    "severity_backward": 0,
    "worst": 0,
    "introduced": 0,
    "differs": 0,
    "unmatched": 0,
    "halves": 2,
    "device": "",
}
INTRODUCED, ALONE, EQUAL, INHERITED = 6, 5, 1, 3


@dataclass
class Made:
    """One graph: nodes in preorder, edges by the names of both ends.

    Attributes:
        names: node by a short name of the test's own.
    """

    nodes: list[dict[str, Any]] = field(default_factory=list)
    edges: list[dict[str, Any]] = field(default_factory=list)
    rolls: list[dict[str, Any]] = field(default_factory=list)
    names: dict[str, int] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)

    def add(self, parent: int, label: str, *, key: str = "", **more: Any) -> int:
        """Add a node behind all others; its parent must be open, as in any preorder."""
        number = len(self.nodes)
        self.nodes.append({**USUAL, "label": label, "name": label, "parent": parent, **more})
        self.names[key or label] = number
        return number

    def flow(self, start: int, end: int, *, how: int = 0, shape: str = "[2, 16]") -> None:
        edge = {"from": start, "to": end, "from_slot": "output.0", "to_slot": "input.0"}
        more = {"shape": shape, "dtype": "float32", "confidence": 1.0, "gradient": 1}
        self.edges.append({**edge, **more, "how": how})

    def path(self, node: int) -> list[int]:
        above = []
        while node >= 0:
            above.append(node)
            node = self.nodes[node]["parent"]
        return above[::-1]

    def finish(self, texts: dict[str, int], side: str, **more: Any) -> dict[str, Any]:
        """Return the graph as the page takes it."""
        for number, node in enumerate(self.nodes):
            node.setdefault("order", number)
            node["order_backward"] = 2 * len(self.nodes) - number
            node["size"] = 1
        for node in reversed(self.nodes[1:]):
            above = self.nodes[node["parent"]]
            above["size"] += node["size"]
            for count in ("introduced", "differs", "unmatched", "halves"):
                above[count] += node[count]
            own = max(node["worst"], node["severity"], node["severity_backward"])
            node["worst"] = own
            above["worst"] = max(above["worst"], own)
        for edge in self.edges:
            shared = [
                one
                for one, other in zip(self.path(edge["from"]), self.path(edge["to"]), strict=False)
                if one == other
            ]
            edge["lca"] = shared[-1]
        slots = ("from_slot", "to_slot", "shape", "dtype")
        head = {"side": side, "step": 0, "rank": "0", "framework": "pytorch", "notes": []}
        return {
            **head,
            "micro_steps": 1,
            "count": len(self.nodes),
            "nodes": table(self.nodes, TEXTS, texts),
            "edges": table(self.edges, slots, texts),
            "rolls": self.rolls,
            "details": self.details,
            **more,
        }


def table(rows: list[dict[str, Any]], text_names: tuple[str, ...], texts: dict[str, int]) -> dict:
    columns = {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}
    for name in set(columns) & set(text_names):
        columns[name] = [texts.setdefault(text, len(texts)) for text in columns[name]]
    return columns


def transformer(layers: int, *, bad: int = -1, extra: bool = False, rolled: bool = False) -> Made:
    """Return a stack of residual blocks.

    Args:
        layers: number of blocks.
        bad: the layer whose fc1 begins the difference; what follows inherits it.
        extra: whether layer 0 has one more call, without a partner.
        rolled: whether the blocks are rolled up.
    """
    made = Made()

    def module(parent: int, path: str, kind: str, **more: Any) -> int:
        name = f"Module.{path}.{kind}"
        halves = {"forward": f"{name}.forward.0", "backward": f"{name}.backward.0"}
        label = more.pop("label", path.rpartition(".")[2])
        fixed = {"kind": 1, "class": kind, "path": path, "source": "model.py:11"}
        known = {**fixed, "name": name, **halves, **more}
        return made.add(parent, label, key=path, **known)

    state = {"severity": EQUAL if bad >= 0 else 0, "call": 0}

    def call(parent: int, label: str, path: str, *inputs: int, **more: Any) -> int:
        severity = state["severity"]
        number, state["call"] = state["call"], state["call"] + 1
        name = f"Functional.{label}.{number}"
        known = {"name": name, "forward": f"{name}.forward", "backward": f"{name}.backward"}
        if severity:
            differs = severity > 2
            known |= {"severity": severity, "severity_backward": severity, "halves": 2}
            known |= {"status": "differs" if differs else "equal", "differs": 2 * differs}
            known |= {"error": 0.01 if differs else 0.0}
        node = made.add(parent, label, key=path, **{**known, **more})
        for source in inputs:
            made.flow(source, node)
        return node

    made.add(-1, "all", kind=0, flags=0)
    model = module(0, "model", "GPT")
    embedding = module(model, "model.embed", "Embedding")
    x = call(embedding, "embedding", "model.embed.call")
    blocks = []
    for layer in range(layers):
        base = f"model.layers.{layer}"
        block = module(model, base, "Block", label=f"layers.{layer}")
        blocks.append(block)
        norm = call(module(block, f"{base}.norm", "LayerNorm"), "layer_norm", f"{base}.n", x)
        if extra and layer == 0:
            alone = {"severity": ALONE, "severity_backward": ALONE, "status": "added"}
            more = {**alone, "status_backward": "added", "unmatched": 2, "differs": 0}
            norm = call(block, "dropout", f"{base}.extra", norm, **more)
        mlp = module(block, f"{base}.mlp", "MLP")
        fc1 = module(mlp, f"{base}.mlp.fc1", "Linear")
        if layer == bad:
            state["severity"] = INHERITED
            origin = {"severity": INTRODUCED, "origin": "introduced", "introduced": 1}
            made.nodes[fc1] |= {**origin, "status": "differs", "error": 0.35, "differs": 1}
        y = call(fc1, "linear", f"{base}.fc1", norm)
        y = call(mlp, "view", f"{base}.view", y, flags=7)
        y = call(mlp, "gelu", f"{base}.gelu", y)
        y = call(module(mlp, f"{base}.mlp.fc2", "Linear"), "linear", f"{base}.fc2", y)
        x = call(block, "__add__", f"{base}.add", y, x)
    call(module(model, "model.head", "Linear"), "linear", "model.head.call", x)
    if rolled:
        error = [None if bad < 0 or layer < bad else 0.01 for layer in range(layers)]
        worst = [INTRODUCED if layer == bad else INHERITED for layer in range(layers)]
        label = {"label": f"{layers} x Block", "class": "Block"}
        made.rolls.append(
            {"parent": model, "members": blocks, **label, "error": error, "worst": worst}
        )
    return made


def match(target: Made, reference: Made) -> None:
    """Match nodes of two graphs by their names."""
    for name, number in target.names.items():
        if name in reference.names:
            target.nodes[number]["match"] = reference.names[name]
            reference.nodes[reference.names[name]]["match"] = number


def whole(target: Made, reference: Made | None = None, *, culprit: str = "") -> dict[str, Any]:
    """Return graphs of one rank and step as the page takes them."""
    texts: dict[str, int] = {"": 0}
    if reference is not None:
        match(target, reference)
    sides = [("target", target), *([("reference", reference)] if reference else [])]
    graphs = [made.finish(texts, side) for side, made in sides]
    node = target.names.get(culprit)
    where = {"step": 0, "rank": "0", "side": "target", "node": node, "half": "forward"}
    sentence = f"first divergence: {culprit} forward; parameter weight differs"
    root = target.nodes[0]
    counts = {name: root[name] for name in ("introduced", "differs", "unmatched", "halves")}
    cell = {"step": 0, "rank": "0", "severity": root["worst"], "counts": counts, "overflow": 0}
    return {
        "version": 1,
        "title": "msprobe graph",
        "target": "runs/new",
        "mode": "statistics",
        "reference": "runs/old" if reference else None,
        "headline": {"sentence": sentence, "class": "parameters", **where} if culprit else None,
        "culprits": [{**where, "reason": "the parameter itself differs"}] if culprit else [],
        "cells": [{**cell, "target": 0, "reference": 1 if reference else None}],
        "layers": {"labels": [], "rank": []},
        "links": [],
        "graphs": graphs,
        "texts": [*texts],
    }


def compared(layers: int = 6, *, bad: int = 3, **more: Any) -> dict[str, Any]:
    """Return two transformers, of which one layer differs in a parameter."""
    sides = (transformer(layers, bad=bad, **more), transformer(layers))
    sides[0].details = {str(sides[0].names[f"model.layers.{bad}.mlp.fc1"]): DETAIL}
    return whole(*sides, culprit=f"model.layers.{bad}.mlp.fc1")


NUMBERS = {"dtype": "torch.float32", "shape": [64, 32], "max": 0.22, "min": -0.2, "mean": 0.01}
DETAIL = {
    "name": "Module.model.layers.3.mlp.fc1.Linear.forward.0",
    "stack": ["File model.py, line 11, in forward, \n x = self.fc1(x)"],
    "halves": [
        {
            "half": "forward",
            "record": "Module.model.layers.3.mlp.fc1.Linear.forward.0",
            "pass": 0,
            "values": [
                {
                    "slot": "parameters.weight",
                    "role": "parameter",
                    **NUMBERS,
                    "norm": 4.5,
                    "status": "differs",
                    "origin": "introduced",
                    "error": 0.38,
                    "reference": {**NUMBERS, "norm": "NaN"},
                }
            ],
        }
    ],
}


def served(graphs: dict[str, Any]) -> PieceSource:
    """Return graphs of a page, handed out piece by piece."""
    tables, texts = [], TextBlock.of(graphs["texts"])
    for graph in graphs["graphs"]:
        boxes = graph["edges"].get("lca", [])
        order = sorted(range(len(boxes)), key=boxes.__getitem__)
        edges = {name: [cells[place] for place in order] for name, cells in graph["edges"].items()}
        left_out = ("nodes", "edges", "rolls", "details")
        tables.append(
            GraphTables(
                head={name: value for name, value in graph.items() if name not in left_out},
                nodes=Table.of(graph["nodes"], graph["count"], texts),
                edges=Table.of(edges, len(order), texts),
                rolls=graph["rolls"],
            )
        )
    nothing = {"halves": [], "stack": []}

    def detail(graph: int, node: int) -> dict[str, Any]:
        return graphs["graphs"][graph]["details"].get(str(node), nothing)

    return PieceSource({**graphs, "texts": []}, tables, detail)
