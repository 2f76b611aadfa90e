# SPDX-License-Identifier: Apache-2.0
"""Measure a .vis.db of 1,000,000 nodes as the page's server reads it: open, expand, search.

    python benchmarks/graph_million.py [FILE]

FILE is written if it is not there: 101 stages of 100 blocks of 7 modules of 13 calls, forward and
backward, with values and edges. Times in ms, in seconds of the processor as well.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msprobe.dump.values import Role, Value
from msprobe.graph.model import ROOT_NAME, Edge, Graph, Half, HalfKind, How, Node, NodeKind
from msprobe.graph.sources import GraphPlace, GraphSet, GraphSide
from msprobe.graph.stored import open_pieces
from msprobe.graph.vis_writer import write_vis_db

APIS = ("linear", "layer_norm", "gelu", "softmax", "matmul", "dropout", "add")


def value(slot: str, role: Role, number: int) -> Value:
    path = tuple(slot.split("."))
    made = Value(path, slot, role, True, "torch.Tensor", dtype="float32", shape=(2, 16, 64))
    made.max, made.min, made.mean, made.norm = 3.1, -3.2, 0.01 * number, 45.0 + number
    return made


class Million:
    """The graph, made without a dump."""

    def __init__(self) -> None:
        root = Node(id=0, parent=-1, kind=NodeKind.ROOT, name=ROOT_NAME, label=ROOT_NAME)
        self.nodes, self.edges, self.values = [root], [], {}
        self._counts: Counter[str] = Counter()
        self._inputs = [value("input.0", Role.INPUT, number) for number in range(1000)]
        self._outputs = [value("output.0", Role.OUTPUT, number) for number in range(997)]
        model = self.module(0, "model", "GPT")
        for stage in range(101):
            around = self.module(model, f"model.stages.{stage}", "Stage")
            for layer in range(100):
                block = self.module(around, f"model.stages.{stage}.layers.{layer}", "Block")
                for part in range(7):
                    path = f"model.stages.{stage}.layers.{layer}.part{part}"
                    inner = self.module(block, path, "Linear")
                    for call in range(13):
                        self.call(inner, APIS[(part + call) % 7])
        for node in reversed(self.nodes[1:]):
            self.nodes[node.parent].size += node.size

    def module(self, parent: int, path: str, kind: str) -> int:
        names = f"Module.{path}.{kind}.forward.0", f"Module.{path}.{kind}.backward.0"
        label = path.rpartition(".")[2]
        return self._add(names, NodeKind.MODULE, parent, label, class_name=kind, path=path)

    def call(self, parent: int, api: str) -> None:
        number, last = self._counts[api], len(self.nodes) - 1
        self._counts[api] += 1
        name = f"Functional.{api}.{number}"
        own = self._add(
            (f"{name}.forward", f"{name}.backward"), NodeKind.API, parent, api, path=api
        )
        while self.nodes[last].kind is not NodeKind.API and last > 0:
            last -= 1
        known = {"source_slot": "output.0", "target_slot": "input.0", "shape": (2, 16, 64)}
        how: dict[str, Any] = {"how": How.RECORDED, "confidence": 1.0, "has_gradient": True}
        if last:
            self.edges.append(Edge(source=last, target=own, dtype="float32", **known, **how))

    def _add(
        self, names: tuple[str, str], kind: NodeKind, parent: int, label: str, **more: str
    ) -> int:
        number = len(self.nodes)
        halves = [
            Half(HalfKind.FORWARD, names[0], number, is_recorded=True),
            Half(HalfKind.BACKWARD, names[1], 2_000_000 - number, is_recorded=True),
        ]
        named = {"name": names[0], "label": label, **more}
        self.nodes.append(Node(id=number, parent=parent, kind=kind, halves=halves, **named))
        for name in names:
            self.values[name] = (self._inputs[number % 1000], self._outputs[number % 997])
        return number

    def graphs(self) -> GraphSet:
        about = {"framework": "pytorch", "task": "statistics", "level": "mix"}
        graph = Graph(step=0, rank=0, nodes=self.nodes, edges=self.edges, **about)
        side = GraphSide(side="target", graph=graph, values=self.values)
        place = GraphPlace(step=0, rank=0, target=side)
        return GraphSet(target="million", reference="", places=[place])


def report(name: str, act: Callable[[], Any], wanted: str = "", rounds: int = 5) -> Any:
    """Print how long something takes."""
    walls, cpus = [], []
    for _ in range(rounds):
        wall, cpu = time.perf_counter(), time.process_time()
        found = act()
        walls.append(1000 * (time.perf_counter() - wall))
        cpus.append(1000 * (time.process_time() - cpu))
    wall, cpu = statistics.median(walls), statistics.median(cpus)
    print(f"  {name:44} {wall:9.1f} ms, {cpu:9.1f} of the processor   {wanted}", flush=True)
    return found


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp(), "million.vis.db")
    if not path.exists():
        graphs = report("make 1,000,000 nodes", lambda: Million().graphs(), rounds=1)
        report("write them", lambda: write_vis_db(path, graphs), rounds=1)
    print(f"{path}: {path.stat().st_size / 1e6:.0f} MB")

    def first() -> Any:
        source = open_pieces(path)
        assert source is not None
        source.overview()
        source.children(0, 0)
        return source

    source = report("open, first level", first, "at most 2000")
    print(f"  {source.overview()['graphs'][0]['count']:,} nodes")
    report("expand a box", lambda: source.children(0, 1), "at most 150")
    report("search, the first time", lambda: source.find(0, "gelu", ()), "at most 300", rounds=1)
    for text, conditions in (
        ("stages.7", ()),
        ("gelu part3", ()),
        ("", (("norm", ">", "1000"), ("class", ":", "linear"))),
        ("", (("name", ":", "softmax.99"),)),
    ):
        act = lambda text=text, conditions=conditions: source.find(0, text, conditions)  # noqa: E731
        report(f"search {text} {' '.join(map(''.join, conditions))}", act, "at most 300")
    report("details of a call", lambda: source.detail(0, 500_000))
    report("what reached a call", lambda: source.upstream(0, 500_000))


if __name__ == "__main__":
    main()
