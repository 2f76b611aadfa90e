# SPDX-License-Identifier: Apache-2.0
"""Kernels of compiled graphs: boxes and edges are those of the graph file beside the dump."""

from __future__ import annotations

import numpy as np

from builders.kernel_trees import iteration, save
from msprobe.graph.model import How
from msprobe.graph.sources import open_graphs

CELL = "Default/network-Net"
IR = f"""\
%para1_x: <Tensor[Float32], (3, 8)>
%para2_fc.weight: <Ref[Tensor[Float32]], (4, 8), ref_key=fc.weight>
subgraph @main.1() {{
  %0(equiv_w) = Load(%para2_fc.weight, UMonad[U]) cnode_attrs: {{}}
      : (<Ref[Tensor[Float32]], (4, 8)>, <UMonad, NoShape>) -> (<Tensor[Float32], (4, 8)>)
      # Fullname with scope: (Default/Load-op0)
  %1(equiv_n) = PrimFunc_LayerNorm(%para1_x, I64(-1), F32(1e-07)) {{instance name: norm}}
      : (<Tensor[Float32], (3, 8)>) -> (<Tuple[Tensor[Float32]*2]>)
      # Fullname with scope: ({CELL}/ln-LayerNorm/LayerNorm-op0)
  %2(equiv_y) = TupleGetItem(%1, I64(0)) cnode_attrs: {{}}
      # Fullname with scope: (Default/TupleGetItem-op0)
  %3(equiv_z) = PrimFunc_MatMul(%2, %0, Bool(0), Bool(1)) {{}}
      : (<Tensor[Float32], (3, 8)>, <Tensor[Float32], (4, 8)>) -> (<Tensor[Float32], (3, 4)>)
      # Fullname with scope: ({CELL}/fc-Dense/MatMul-op0)
  %4(equiv_v) = TupleGetItem(%1, I64(1)) cnode_attrs: {{}}
      # Fullname with scope: (Default/TupleGetItem-op1)
  %5(equiv_s) = PrimFunc_Add(%3, %4) {{}}
      : (<Tensor[Float32], (3, 4)>, <Tensor[Float32], (3, 1)>) -> (<Tensor[Float32], (3, 4)>)
      # Fullname with scope: ({CELL}/Add-op0)
  Return(%5)
      # Fullname with scope: (Default/Return-op0)
}}
"""


def write(tmp_path):
    folder = iteration(tmp_path)
    (tmp_path / "rank_0" / "graphs").mkdir(parents=True, exist_ok=True)
    (tmp_path / "rank_0" / "graphs" / "ms_output_trace_code_graph_0.ir").write_text(IR)
    same = np.ones((3, 8), np.float32)  # equal values everywhere: only the graph tells
    product = np.ones((3, 4), np.float32)
    kernels = (
        ("LayerNorm", f"{CELL}/ln-LayerNorm/LayerNorm-op0", [same], [same, same[:, :1]]),
        ("MatMul", f"{CELL}/fc-Dense/MatMul-op0", [same, np.ones((4, 8), np.float32)], [product]),
        ("Add", f"{CELL}/Add-op0", [product, same[:, :1]], [product]),
    )
    for time, (kind, name, inputs, outputs) in enumerate(kernels):
        for io, arrays in (("input", inputs), ("output", outputs)):
            for place, array in enumerate(arrays):
                save(folder, kind, name, array, time=time + 1, io=io, index=str(place))
    return tmp_path


def test_edges_are_those_of_the_graph_and_boxes_its_cells(tmp_path):
    (side,) = open_graphs(write(tmp_path)).graphs

    graph = side.graph
    edges = {
        (
            *(graph.nodes[edge.source].label, edge.source_slot),
            *(graph.nodes[edge.target].label, edge.target_slot),
        )
        for edge in graph.edges
    }
    assert edges == {
        ("LayerNorm", "output.0", "MatMul", "input.0"),
        ("MatMul", "output.0", "Add", "input.0"),
        ("LayerNorm", "output.1", "Add", "input.1"),
    }
    assert {edge.how for edge in graph.edges} == {How.GRAPH}
    boxes = [node.name for node in graph.nodes if node.name.startswith("Cell.")]
    assert boxes == [
        "Cell.network.Net.forward.0",
        "Cell.network.ln.LayerNorm.forward.0",
        "Cell.network.fc.Dense.forward.0",
    ]


def test_a_damaged_graph_file_costs_only_what_it_tells(tmp_path):
    path = write(tmp_path)
    (path / "rank_0" / "graphs" / "ms_output_trace_code_graph_0.ir").write_text("no graph")

    (side,) = open_graphs(path).graphs

    assert {node.label for node in side.graph.nodes} >= {"LayerNorm", "MatMul", "Add"}
