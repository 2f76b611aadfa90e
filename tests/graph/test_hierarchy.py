# SPDX-License-Identifier: Apache-2.0
"""Hierarchies of dumps written by hand: repairs, and dumps that do not say what is inside what."""

from __future__ import annotations

from builders.dumps import write_rank
from builders.records import backward, forward, tensor
from msprobe.graph.model import Graph, HalfKind, NodeFlag, NodeKind
from msprobe.graph.sources import open_graphs

MODEL = "Module.Net.forward.0"
LAYER = "Module.fc.Linear.forward.0"
CALL = "Functional.linear.0.forward"
RECORDS = {
    CALL: forward([tensor()], [tensor()]),
    LAYER: forward([tensor()], [tensor()]),
    MODEL: forward([tensor()], [tensor()]),
    "Module.Net.backward.0": backward([tensor()], [tensor()]),
    "Functional.linear.0.backward": backward([tensor()], [tensor()]),
    "Module.fc.Linear.backward.0": backward([tensor()], [tensor()]),
}
PARENTS = {MODEL: None, LAYER: MODEL, CALL: LAYER}
BACKWARD_PARENTS = {
    "Module.Net.backward.0": None,
    "Module.fc.Linear.backward.0": "Module.Net.backward.0",
    "Functional.linear.0.backward": "Module.fc.Linear.backward.0",
}


def graph_of(folder) -> Graph:
    return open_graphs(folder).places[0].target.graph


def tree(graph: Graph) -> dict[str, str]:
    """Name of each node → name of the node around it."""
    return {node.name: graph.nodes[node.parent].name for node in graph.nodes[1:]}


def write(tmp_path, records=RECORDS, parents=None, **head):
    return graph_of(write_rank(tmp_path / "rank0", records, parents=parents, **head))


def test_forward_and_backward_of_a_call_are_one_node(tmp_path):
    graph = write(tmp_path, parents=PARENTS | BACKWARD_PARENTS)

    assert tree(graph) == {MODEL: "DefaultModel", LAYER: MODEL, CALL: LAYER}
    call = graph.nodes[3]
    assert [half.kind for half in call.halves] == [HalfKind.FORWARD, HalfKind.BACKWARD]
    assert call.flags == NodeFlag.FORWARD | NodeFlag.BACKWARD


def test_a_backward_call_without_or_with_another_parent_stays_at_its_forward_call(tmp_path):
    lost = {"Functional.linear.0.backward": None, "Module.fc.Linear.backward.0": CALL}
    graph = write(tmp_path, parents=PARENTS | BACKWARD_PARENTS | lost)

    assert tree(graph) == {MODEL: "DefaultModel", LAYER: MODEL, CALL: LAYER}


def test_a_call_of_which_only_the_backward_is_known_is_where_that_is(tmp_path):
    records = {name: record for name, record in RECORDS.items() if name != CALL}
    parents = {name: parent for name, parent in PARENTS.items() if name != CALL}
    graph = write(tmp_path, records, parents=parents | BACKWARD_PARENTS)

    assert tree(graph)[CALL] == LAYER
    assert NodeFlag.UNCALLED in graph.nodes[3].flags


def test_gradients_of_parameters_are_at_the_last_call_of_their_module(tmp_path):
    again = "Module.fc.Linear.forward.1"
    records = RECORDS | {
        again: forward([tensor()], [tensor()]),
        "Module.fc.Linear.parameters_grad": {"weight": [tensor()]},
    }
    graph = write(tmp_path, records, parents=PARENTS | {again: MODEL})

    node = next(node for node in graph.nodes if node.name == again)
    assert node.half(HalfKind.PARAMETERS_GRAD).record == "Module.fc.Linear.parameters_grad"


def test_modules_are_nested_by_their_paths_where_nothing_else_tells(tmp_path):
    records = {name: record for name, record in RECORDS.items() if "Functional" not in name}
    graph = write(tmp_path, records)

    assert tree(graph) == {MODEL: "DefaultModel", LAYER: MODEL}
    assert "nested by their paths" in graph.notes[0]


def test_a_dump_of_apis_alone_is_a_flat_list(tmp_path):
    records = {name: record for name, record in RECORDS.items() if "Functional" in name}
    graph = write(tmp_path, records, parents={}, level="L1")

    assert tree(graph) == {CALL: "DefaultModel"}
    assert "flat list" in graph.notes[0]


def test_a_dump_of_structure_has_nodes_without_values(tmp_path):
    graph = write(tmp_path, {}, parents=PARENTS, task="structure")

    assert tree(graph) == {MODEL: "DefaultModel", LAYER: MODEL, CALL: LAYER}
    assert not any(half.is_recorded for node in graph.nodes for half in node.halves)
    assert graph.edges == []


def test_parents_in_a_circle_are_cut(tmp_path):
    graph = write(tmp_path, parents={MODEL: CALL, LAYER: MODEL, CALL: LAYER})

    assert {node.name for node in graph.nodes} == {"DefaultModel", MODEL, LAYER, CALL}
    assert [node.size for node in graph.nodes] == [4, 3, 2, 1]


def test_apis_beside_modules_are_gathered_and_groups_are_boxes(tmp_path):
    names = ["Torch.add.0.forward", "Torch.mul.0.forward", "Torch.sub.0.forward"]
    step = "Torch.sqrt.0.forward"
    records = RECORDS | {name: forward([tensor()], [tensor()]) for name in [*names, step]}
    parents = {names[0]: None, names[1]: None, **PARENTS, names[2]: None, step: "optimizer"}
    graph = write(tmp_path, records, parents=parents)

    top = [graph.nodes[child] for child in graph.children(0)]
    assert [(node.name, node.kind) for node in top] == [
        ("Apis_Between_Modules.0", NodeKind.COLLECTION),
        (MODEL, NodeKind.MODULE),
        (names[2], NodeKind.API),
        ("optimizer", NodeKind.GROUP),
    ]
    assert tree(graph)[step] == "optimizer"


def test_a_recomputed_call_is_part_of_the_call_that_it_repeats(tmp_path):
    again = f"{CALL}.recompute"
    records = RECORDS | {again: forward([tensor()], [tensor()])}
    graph = write(tmp_path, records, parents=PARENTS | {again: None})

    node = graph.nodes[3]
    assert node.name == CALL
    assert [half.kind for half in node.halves][:2] == [HalfKind.FORWARD, HalfKind.RECOMPUTED]
    assert NodeFlag.RECOMPUTED in node.flags


def test_a_micro_step_begins_with_a_forward_call_after_a_backward_one(tmp_path):
    parents = {}
    for number in range(3):
        parents |= {f"Module.Net.forward.{number}": None, f"Module.Net.backward.{number}": None}
    records = {name: forward([tensor()], [tensor()]) for name in parents}
    graph = write(tmp_path, records, parents=parents)

    assert [node.micro_step for node in graph.nodes[1:]] == [0, 1, 2]


def layered(count: int, odd: int | None = None):
    """A model with layers, one of them with one more call inside."""
    parents: dict[str, str | None] = {"Module.Net.forward.0": None}
    for layer in range(count):
        block = f"Module.layers.{layer}.Block.forward.0"
        parents |= {block: "Module.Net.forward.0"}
        for call in range(2 if layer == odd else 1):
            parents[f"Functional.linear.{2 * layer + call}.forward"] = block
    return parents


def test_layers_that_are_alike_are_rolled(tmp_path):
    graph = write(tmp_path, {}, parents=layered(5), task="structure")

    assert [(roll.label, len(roll.members)) for roll in graph.rolls] == [("5 \u00d7 Block", 5)]


def test_a_layer_that_is_different_ends_the_roll(tmp_path):
    graph = write(tmp_path, {}, parents=layered(7, odd=3), task="structure")

    paths = [[graph.nodes[member].path for member in roll.members] for roll in graph.rolls]
    assert paths == [[f"layers.{n}" for n in (0, 1, 2)], [f"layers.{n}" for n in (4, 5, 6)]]
