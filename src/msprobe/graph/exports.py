# SPDX-License-Identifier: Apache-2.0
"""Graphs for other programs: Model Explorer and Graphviz."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from msprobe.dump.values import Role, Value
from msprobe.files import write_report
from msprobe.graph.model import Edge, HalfKind, How, Node, NodeKind, Severity
from msprobe.graph.page_json import number, shape_text
from msprobe.graph.sources import GraphSet, GraphSide

# Both from calm to alarming, safe for colour-blind people.
COLORS: Final = {
    Severity.EQUAL: "#e6f2ff",
    Severity.CLOSE: "#cfe5f7",
    Severity.INHERITED: "#fde9b8",
    Severity.AMPLIFIED: "#f9b35b",
    Severity.ONE_SIDED: "#c9b6e4",
    Severity.INTRODUCED: "#d7301f",
}


def write_model_explorer(path: Path, graphs: GraphSet) -> list[Path]:
    """Write graphs for Model Explorer; return the files.

    Args:
        path: the file of graphs. What a comparison found is in a second file, which Model Explorer
            loads as custom node data: ``graph.json`` and ``graph.overlay.json``.
        graphs: all graphs.

    Raises:
        ReportWriteError: a file cannot be written.
    """
    collection = {"label": path.stem, "graphs": [_explorer_graph(side) for side in graphs.graphs]}
    files = [write_report(path, json.dumps([collection], allow_nan=False))]
    if graphs.reference:
        overlay = path.with_suffix(f".overlay{path.suffix}")
        files.append(write_report(overlay, json.dumps(_overlay(graphs), allow_nan=False)))
    return files


def _graph_id(side: GraphSide) -> str:
    return f"{side.side} step {side.graph.step} rank {side.graph.rank}"


def _explorer_graph(side: GraphSide) -> dict[str, Any]:
    incoming: defaultdict[int, list[Edge]] = defaultdict(list)
    for edge in side.graph.edges:
        incoming[edge.target].append(edge)
    ends = {edge.source for edge in side.graph.edges} | set(incoming)
    nodes, attributes = [], {}
    for node in side.graph.nodes[1:]:
        if node.size > 1:
            attributes[_namespace(side, node.id, inside=True)] = dict(_attributes(side, node))
        if node.size == 1 or node.id in ends:
            nodes.append(_explorer_node(side, node, incoming[node.id]))
    return {"id": _graph_id(side), "nodes": nodes, "groupNodeAttributes": attributes}


def _explorer_node(side: GraphSide, node: Node, incoming: list[Edge]) -> dict[str, Any]:
    return {
        "id": str(node.id),
        "label": node.label,
        "namespace": _namespace(side, node.id, inside=node.size > 1),
        "attrs": [{"key": key, "value": text} for key, text in _attributes(side, node)],
        "incomingEdges": [
            {
                "sourceNodeId": str(edge.source),
                "sourceNodeOutputId": edge.source_slot,
                "targetNodeInputId": edge.target_slot,
            }
            for edge in incoming
        ],
        "inputsMetadata": [*_metadata(side, node, Role.INPUT)],
        "outputsMetadata": [*_metadata(side, node, Role.OUTPUT)],
    }


def _namespace(side: GraphSide, node: int, *, inside: bool) -> str:
    """Return the boxes around a node, its own with `inside`; slashes in names would be boxes."""
    boxes = side.graph.ancestors(node)[-2::-1] + ([node] if inside else [])
    return "/".join(_box_name(side.graph.nodes[box]).replace("/", "_") for box in boxes)


def _box_name(node: Node) -> str:
    """Return a name of a box that no neighbour has: further calls of a module have a number."""
    name = f"{node.label} ({node.class_name})" if node.class_name else node.label
    call = node.name.rpartition(".")[2]
    return f"{name} {call}" if node.class_name and call.isdecimal() and call != "0" else name


def _attributes(side: GraphSide, node: Node) -> Iterator[tuple[str, str]]:
    yield "record", node.name
    if node.class_name:
        yield "class", node.class_name
    if side.results is None:
        return
    for half in node.halves:
        result = side.results.halves.get(half.record)
        if result is not None:
            origin = "" if result.origin is None else f", {result.origin}"
            yield half.kind, f"{result.status}{origin}"
            if result.error is not None:
                yield f"{half.kind} error", str(number(result.error))
    tally = side.results.tallies[node.id]
    if node.size > 1:
        yield "differs", f"{tally.differs} of {tally.halves}, {tally.introduced} introduced"


def _metadata(side: GraphSide, node: Node, role: Role) -> Iterator[dict[str, Any]]:
    half = node.half(HalfKind.FORWARD)
    for value in side.values.get(half.record, ()) if half is not None else ():
        if value.role is role and value.is_tensor:
            yield {
                "id": value.slot,
                "attrs": [{"key": key, "value": text} for key, text in _tensor_attributes(value)],
            }


def _tensor_attributes(value: Value) -> Iterator[tuple[str, str]]:
    yield "tensor_shape", f"{value.dtype} {shape_text(value.shape or ())}"
    for name in ("max", "min", "mean", "norm"):
        statistic = getattr(value, name)
        if statistic is not None:
            yield name, str(number(statistic))


def _overlay(graphs: GraphSet) -> dict[str, Any]:
    """Return the severity of each node as custom node data of Model Explorer."""
    thresholds = [
        {"value": int(severity) + 0.5, "bgColor": color} for severity, color in COLORS.items()
    ]
    return {
        _graph_id(side): {
            "results": {
                str(node.id): {"value": int(side.results.tallies[node.id].worst)}
                for node in side.graph.nodes[1:]
                if node.size == 1
            },
            "thresholds": thresholds,
        }
        for side in graphs.graphs
        if side.results is not None
    }


def write_dot(path: Path, graphs: GraphSet) -> Path:
    """Write graphs for Graphviz, boxes as clusters; return the file.

    Raises:
        ReportWriteError: the file cannot be written.
    """
    return write_report(path, _dot_lines(graphs))


def _dot_lines(graphs: GraphSet) -> Iterator[str]:
    yield "digraph msprobe {\n  compound=true; node [shape=box, style=filled, fillcolor=white];\n"
    for place, side in enumerate(graphs.graphs):
        yield f"  subgraph cluster_{place} {{\n  label={_quoted(_graph_id(side))};\n"
        yield from _dot_nodes(side, place)
        for edge in side.graph.edges:
            style = "" if edge.how is How.RECORDED else ", style=dashed"
            label = _quoted(shape_text(edge.shape))
            ends = f"{_dot_id(place, edge.source)} -> {_dot_id(place, edge.target)}"
            yield f"  {ends} [label={label}{style}];\n"
        yield "  }\n"
    yield "}\n"


def _dot_nodes(side: GraphSide, place: int) -> Iterator[str]:
    ends: list[int] = []  # of the open clusters
    boxes_with_edges = {edge.source for edge in side.graph.edges} | {
        edge.target for edge in side.graph.edges
    }
    for node in side.graph.nodes[1:]:
        while ends and ends[-1] <= node.id:
            ends.pop()
            yield "  }\n"
        is_box = node.size > 1 or node.kind is NodeKind.COLLECTION
        if is_box:
            ends.append(node.id + node.size)
            yield f"  subgraph cluster_{_dot_id(place, node.id)} {{ label={_dot_label(node)};\n"
        if not is_box or node.id in boxes_with_edges:
            color = _dot_color(side, node)
            yield f"  {_dot_id(place, node.id)} [label={_dot_label(node)}{color}];\n"
    yield "  }\n" * len(ends)


def _dot_color(side: GraphSide, node: Node) -> str:
    if side.results is None:
        return ""
    color = COLORS.get(side.results.tallies[node.id].worst)
    return "" if color is None else f", fillcolor={_quoted(color)}"


def _dot_id(place: int, node: int) -> str:
    return f"n{place}_{node}"


def _dot_label(node: Node) -> str:
    return _quoted(f"{node.label} {node.class_name}" if node.class_name else node.label)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
    return f'"{escaped}"'
