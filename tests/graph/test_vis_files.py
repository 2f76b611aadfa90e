# SPDX-License-Identifier: Apache-2.0
"""Files of graphs: written, read back, asked as other programs ask them, and hostile ones."""

from __future__ import annotations

import json
import math
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from builders.dumps import write_rank
from builders.records import backward, forward, group, scalar, tensor
from msprobe.cli import main
from msprobe.compare.model import Status
from msprobe.errors import DumpFormatError
from msprobe.graph.model import Severity
from msprobe.graph.page_json import whole
from msprobe.graph.sources import open_graphs
from msprobe.graph.vis_writer import write_vis_db

NET, FC, LINEAR, ADD = (
    "Module.Net.forward.0",
    "Module.fc.Linear.forward.0",
    "Functional.linear.0.forward",
    "Tensor.__add__.0.forward",
)
PARENTS = {
    NET: None,
    FC: NET,
    LINEAR: FC,
    "Module.Net.backward.0": None,
    "Module.fc.Linear.backward.0": "Module.Net.backward.0",
    "Functional.linear.0.backward": "Module.fc.Linear.backward.0",
}
STACK = ["File train.py, line 12, in forward, \n y = self.fc(x)"]


def records(number, **more):
    weight = {"parameters": {"weight": tensor((3, 3), number)}}
    made = tensor(number=number + 5)
    return {
        LINEAR: forward([tensor(), scalar("float", 0.5)], [made]),
        FC: forward([tensor()], [made]) | weight,
        NET: forward([tensor()], [made]),
        "Functional.linear.0.backward": backward([tensor()], [tensor(number=number + 7)]),
        "Module.fc.Linear.parameters_grad": {"weight": [tensor((3, 3), number + 8)]},
        "Module.fc.Linear.backward.0": backward([tensor()], [tensor(number=number + 7)]),
        "Module.Net.backward.0": backward([tensor()], [tensor(number=number + 7)]),
        **more,
    }


def write(folder, number=1.0, parents=PARENTS, **more):
    stacks = dict.fromkeys((NET, FC, LINEAR), STACK)
    write_rank(folder / "rank0", records(number, **more), parents=parents, stacks=stacks)
    return folder


@pytest.fixture
def compared(tmp_path):
    """Two dumps that differ in a weight, one of them with a call more."""
    more = {ADD: forward([tensor()], [tensor(number=50.0)])}
    target = write(tmp_path / "new", 1.25, {**PARENTS, ADD: NET}, **more)
    graphs = open_graphs(target, write(tmp_path / "old"))
    return graphs, write_vis_db(tmp_path / "compare.vis.db", graphs)


def rows(path, where, *parameters, columns="node_name"):
    with sqlite3.connect(path) as base:
        found = base.execute(f"SELECT {columns} FROM tb_nodes WHERE {where}", parameters)
        return found.fetchall()


def test_a_file_that_is_read_back_is_the_same_graph(compared):
    graphs, path = compared

    again = open_graphs(path)

    for side, other in zip(graphs.graphs, again.graphs, strict=True):
        assert [node.name for node in side.graph.nodes] == [node.name for node in other.graph.nodes]
        assert [node.parent for node in side.graph.nodes] == [
            node.parent for node in other.graph.nodes
        ]
        assert side.results.matches == other.results.matches
        assert side.results.tallies == other.results.tallies
        assert side.frames(LINEAR) == other.frames(LINEAR) == STACK


def test_values_survive_the_file(compared):
    graphs, path = compared

    (own, *_), (found, *_) = (each.graphs[0].values[LINEAR] for each in (graphs, open_graphs(path)))
    assert (found.slot, found.shape, found.max, found.norm, found.dtype) == (
        own.slot,
        own.shape,
        own.max,
        own.norm,
        own.dtype,
    )


def test_the_headline_survives_the_file(compared):
    graphs, path = compared

    before, after = whole(graphs), whole(open_graphs(path))
    assert after["headline"] == before["headline"]
    assert after["culprits"] == before["culprits"]
    assert after["cells"] == before["cells"]


@pytest.mark.parametrize("name", [NET, "Module.Net.backward.0", "DefaultModel"])
def test_children_are_asked_for_by_parent_in_order(compared, name):
    _, path = compared
    where = "step=0 AND rank=0 AND data_source='NPU' AND up_node=? ORDER BY node_order"
    children = [found for (found,) in rows(path, where, name)]

    (listed,) = rows(path, "data_source='NPU' AND node_name=?", name, columns="sub_nodes")
    assert children == json.loads(listed[0])
    assert len(children) == (1 if name == "Module.Net.backward.0" else 2)


def test_a_node_has_what_the_format_documents(compared):
    _, path = compared
    columns = "id, node_type, precision_index, matched_node_link, stack_id, input_data, output_data"
    (found,) = rows(path, "data_source='NPU' AND node_name=?", FC, columns=columns)
    identity, kind, precision, link, stack, inputs, outputs = found

    assert (identity, kind, precision) == (f"NPU_0_0_{FC}", "0", 1.0)
    assert json.loads(link) == ["DefaultModel", NET, FC]
    with sqlite3.connect(path) as base:
        frames = base.execute("SELECT stack_info FROM tb_stack WHERE id=?", (stack,)).fetchone()
    assert json.loads(frames[0]) == STACK
    weight = json.loads(inputs)[f"{FC}.parameters.weight"]
    assert (weight["Max"], weight["shape"], weight["Result"]) == ("2.25", "[3, 3]", "error")
    assert (weight["Max diff"], weight["MaxRelativeErr"]) == ("0.25", "12.500000%")
    assert list(json.loads(outputs)) == [f"{FC}.output.0"]


def test_calls_of_one_side_have_no_index_and_no_partner(compared):
    _, path = compared
    columns = "precision_index, matched_node_link"
    assert rows(path, "node_name=?", ADD, columns=columns) == [(None, "[]")]


def test_pairs_made_by_hand_are_kept(compared):
    _, path = compared
    with sqlite3.connect(path) as base:
        base.execute(
            "UPDATE tb_nodes SET matched_node_link=?, precision_index=?, input_data=?,"
            " output_data=?, modified=1"
            " WHERE step=0 AND rank=0 AND data_source='NPU' AND node_name=?",
            (json.dumps(["DefaultModel", FC]), 0.25, "{}", "{}", LINEAR),
        )
    columns = "data_source, matched_node_link, precision_index, modified"
    assert rows(path, "node_name=? AND modified=1", LINEAR, columns=columns) == [
        ("NPU", '["DefaultModel", "Module.fc.Linear.forward.0"]', 0.25, 1)
    ]


def test_numbers_that_are_none_are_kept(tmp_path):
    number = {"Max": math.nan, "Min": -math.inf, "Norm": math.nan}
    folder = write(tmp_path / "dump", **{ADD: forward([tensor(**number)], [tensor()])})
    path = write_vis_db(tmp_path / "a.vis.db", open_graphs(folder))

    (value, *_) = open_graphs(path).graphs[0].values[ADD]
    assert math.isnan(value.max)
    assert value.min == -math.inf


def test_ranks_and_their_communication_survive_the_file(tmp_path):
    name = "Distributed.all_reduce.0.forward"
    for rank in (0, 1):
        record = forward([tensor()], [tensor()], group=group([0, 1]), op=scalar("str", "sum"))
        write_rank(tmp_path / "dump" / f"rank{rank}", {name: record}, parents={name: None})
    graphs = open_graphs(tmp_path / "dump")
    path = write_vis_db(tmp_path / "a.vis.db", graphs)

    assert [place.rank for place in open_graphs(path).places] == [0, 1]
    assert whole(open_graphs(path))["links"] == whole(graphs)["links"] != []
    (found,) = rows(path, "rank=0 AND is_distributed=1", columns="matched_distributed")
    assert json.loads(found[0])["nodes_info"] == {"1": [None, name]}


def other_programs_file(path, nodes, compare=True):
    """A file with a real table of nodes, as mindstudio-probe writes it."""
    base = sqlite3.connect(path)
    base.executescript(
        "CREATE TABLE tb_nodes (id TEXT PRIMARY KEY, node_order, node_name, node_type, up_node,"
        " precision_index, overflow_level, micro_step_id, matched_node_link, stack_id,"
        " matched_distributed, input_data, output_data, data_source, step, rank);"
        "CREATE TABLE tb_stack (id TEXT PRIMARY KEY, stack_info TEXT);"
        "CREATE TABLE tb_config (id TEXT, graph_type TEXT, task TEXT);"
        "INSERT INTO tb_config VALUES ('1', 'compare', 'summary');"
        "INSERT INTO tb_stack VALUES ('0', '[\"File a.py, line 1, in f\"]');"
    )
    for order, (name, fields) in enumerate(nodes):
        row = {
            "id": f"{fields.get('data_source', 'NPU')}_{name}",
            "node_order": order,
            "node_name": name,
            "node_type": "1",
            "up_node": "DefaultModel",
            "precision_index": None,
            "overflow_level": None,
            "micro_step_id": 0,
            "matched_node_link": "[]",
            "stack_id": "0",
            "matched_distributed": "{}",
            "input_data": "{}",
            "output_data": "{}",
            "data_source": "NPU",
            "step": 0,
            "rank": 0,
        } | fields
        base.execute(
            f"INSERT INTO tb_nodes ({', '.join(row)}) VALUES ({','.join('?' * len(row))})",
            [*row.values()],
        )
    base.commit()
    base.close()
    return path


def data(number, result=None):
    entry = {
        "type": "torch.Tensor",
        "dtype": "torch.float32",
        "shape": "[2, 3]",
        "Max": str(number),
        "Min": "-1.0",
        "Mean": "0.0",
        "Norm": "2.5",
    }
    compared = {} if result is None else {"Result": result, "Err_message": "['why']"}
    return json.dumps({f"{LINEAR}.output.0": entry | compared})


def test_a_file_of_mindstudio_probe_opens(tmp_path):
    link = json.dumps(["DefaultModel", NET, LINEAR])
    path = other_programs_file(
        tmp_path / "compare_1.vis.db",
        [
            ("DefaultModel", {"node_type": "0", "up_node": ""}),
            (NET, {"node_type": "0", "matched_node_link": json.dumps(["DefaultModel", NET])}),
            (
                LINEAR,
                {
                    "up_node": NET,
                    "precision_index": 1,
                    "matched_node_link": link,
                    "output_data": data(3.0, "error"),
                },
            ),
            (NET, {"data_source": "Bench", "node_type": "0"}),
            (LINEAR, {"data_source": "Bench", "up_node": NET, "output_data": data(2.0)}),
        ],
    )
    graphs = open_graphs(path)

    target, reference = graphs.graphs
    assert [node.name for node in target.graph.nodes] == ["DefaultModel", NET, LINEAR]
    assert target.results.matches == reference.results.matches == [0, 1, 2]
    assert target.results.halves[LINEAR].severity is Severity.INTRODUCED
    (row,) = target.rows(LINEAR)
    assert (row.target.max, row.reference.max, row.finding) == (3.0, 2.0, "'why'")
    assert target.frames(LINEAR) == ["File a.py, line 1, in f"]


@pytest.mark.parametrize(
    ("target", "reference", "result", "status"),
    [
        ({}, {}, "error", Status.DIFFERS),  # the same statistics of other elements
        ({}, {}, "warning", Status.CLOSE),
        ({}, {}, "pass", Status.EQUAL),
        ({"md5": "a"}, {"md5": "b"}, None, Status.DIFFERS),
        ({"md5": "a"}, {"md5": "a"}, None, Status.EQUAL),
    ],
)
def test_a_result_is_not_overruled_by_equal_statistics(target, reference, result, status, tmp_path):
    def changed(text, more):
        tree = json.loads(text)
        return json.dumps({key: entry | more for key, entry in tree.items()})

    link = json.dumps(["DefaultModel", LINEAR])
    own = {"matched_node_link": link, "output_data": changed(data(2.0, result), target)}
    other = {"data_source": "Bench", "output_data": changed(data(2.0), reference)}
    path = other_programs_file(tmp_path / "a.vis.db", [(LINEAR, own), (LINEAR, other)])

    target_side, _ = open_graphs(path).graphs

    assert [row.status for row in target_side.rows(LINEAR)] == [status]
    is_wrong = target_side.results.halves[LINEAR].severity >= Severity.INHERITED
    assert is_wrong is (status is Status.DIFFERS)


def test_an_old_file_of_json_opens(tmp_path):
    node = {"node_type": 1, "upnode": "DefaultModel", "stack_info": ["File a.py, line 1, in f"]}
    tree = {
        "NPU": {
            "root": "DefaultModel",
            "node": {
                "DefaultModel": {"node_type": 0, "upnode": "None", "subnodes": [LINEAR]},
                LINEAR: node
                | {
                    "matched_node_link": ["B___DefaultModel", f"B___{LINEAR}"],
                    "output_data": json.loads(data(3.0)),
                    "data": {"precision_index": 0.5},
                },
            },
        },
        "Bench": {"node": {LINEAR: node | {"output_data": json.loads(data(2.0))}}},
        "Colors": {},
        "task": "summary",
    }
    path = tmp_path / "compare_step2_rank1_20250101.vis"
    path.write_text(json.dumps(tree))

    (place,) = open_graphs(path).places
    assert (place.step, place.rank) == (2, 1)
    assert place.target.results.matches == [0, 1]
    assert place.target.results.halves[LINEAR].severity is Severity.INHERITED


ENDLESS = """
CREATE TABLE tb_stack (id, stack_info);
CREATE TABLE tb_config (id, graph_type, task);
CREATE VIEW tb_nodes AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)
    SELECT 'a' AS node_name, '1' AS node_type, '' AS up_node, 0 AS precision_index,
    '' AS overflow_level, 0 AS micro_step_id, '' AS matched_node_link, '0' AS stack_id,
    '' AS matched_distributed, '' AS input_data, '' AS output_data, 'NPU' AS data_source,
    0 AS step, 0 AS rank, i AS node_order FROM n;
"""


@pytest.mark.parametrize(
    "script",
    [
        "CREATE TABLE other (a);",
        ENDLESS,
        ENDLESS.replace("i AS node_order FROM n", "0 AS node_order FROM n WHERE 0"),
    ],
    ids=["other tables", "a view without end", "no nodes"],
)
def test_hostile_databases_are_refused(tmp_path, script):
    path = tmp_path / "a.vis.db"
    base = sqlite3.connect(path)
    base.executescript(script)
    base.close()

    with pytest.raises(DumpFormatError, match=r"a\.vis\.db"):
        open_graphs(path)


@pytest.mark.parametrize("name", ["a.vis.db", "a.vis"])
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"SQLite format 3\x00" + b"\xff" * 2000,
        b"not json",
        b"[]",
        b"{}",
        b'{"node": []}',
        b"[" * 100_000,
        b'{"NPU": {"node": {"a": 3}}}',
    ],
    ids=len,
)
def test_damaged_files_are_refused(tmp_path, content, name):
    path = tmp_path / name
    path.write_bytes(content)

    with pytest.raises(DumpFormatError):
        open_graphs(path)


def test_a_file_of_ours_that_holds_other_bytes_is_refused(tmp_path):
    path = other_programs_file(tmp_path / "a.vis.db", [(LINEAR, {})])
    base = sqlite3.connect(path)
    base.execute("INSERT INTO tb_stack (id, stack_info) VALUES (99, CAST(x'5B97FE' AS TEXT))")
    base.commit()
    base.close()

    with pytest.raises(DumpFormatError, match=r"a\.vis\.db: is damaged"):
        open_graphs(path)


def test_a_summary_that_is_no_summary_is_left_out(tmp_path):
    path = other_programs_file(tmp_path / "a.vis.db", [(LINEAR, {})])
    base = sqlite3.connect(path)
    base.executescript(
        "CREATE TABLE msprobe (key, value); CREATE TABLE text (id, text);"
        "CREATE TABLE side (id, data_source, step, rank, rank_name);"
        "CREATE TABLE record (side, name, status, origin, error, severity);"
        "INSERT INTO msprobe VALUES ('summary', '999');"
    )
    base.close()

    assert len(open_graphs(path).graphs) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"input_data": "{"},
        {"step": "zero"},
        {"data_source": "Other"},
        {"matched_node_link": "[" * 10_000},
    ],
    ids=str,
)
def test_hostile_cells_are_refused(tmp_path, fields):
    path = other_programs_file(tmp_path / "a.vis.db", [(LINEAR, fields)])

    with pytest.raises(DumpFormatError):
        open_graphs(path)


def test_nodes_that_are_inside_each_other_end_in_a_tree(tmp_path):
    nodes = [(NET, {"up_node": FC}), (FC, {"up_node": NET}), (LINEAR, {"up_node": LINEAR})]
    graph = open_graphs(other_programs_file(tmp_path / "a.vis.db", nodes)).graphs[0].graph

    assert {node.name for node in graph.nodes} == {"DefaultModel", NET, FC, LINEAR}


def test_the_command_of_mindstudio_probe_writes_the_file(tmp_path, capsys):
    new, old = write(tmp_path / "new", 1.25), write(tmp_path / "old")

    assert main(["graph_visualize", "-tp", str(new), "-gp", str(old), "-o", str(tmp_path)]) == 0

    path = capsys.readouterr().out.strip()
    assert path.startswith(str(tmp_path / "compare_"))
    assert FC in [entry["name"] for entry in open_graphs(path).summary["introduced"]]


def test_the_old_command_takes_its_options_from_a_file(tmp_path, capsys):
    config = tmp_path / "compare.json"
    config.write_text(json.dumps({"npu_path": str(write(tmp_path / "new")), "bench_path": ""}))
    words = ["-f", "pytorch", "graph", "-i", str(config), "-o", str(tmp_path / "out"), "-oc", "-f"]

    assert main(words) == 0

    path = capsys.readouterr().out.strip()
    assert path.startswith(str(tmp_path / "out" / "build_"))


def test_a_mapping_with_a_fault_is_an_error(tmp_path, capsys):
    new, old = write(tmp_path / "new"), write(tmp_path / "old")
    mapping = tmp_path / "mapping.yaml"
    mapping.write_text("TopLayer: [")

    assert main(["graph", str(new), str(old), "-lm", str(mapping), "-o", str(tmp_path)]) == 2
    assert "mapping.yaml" in capsys.readouterr().err


@pytest.mark.skipif(
    "MSPROBE_GRAPH_PLUGIN_PYTHON" not in os.environ,
    reason="set MSPROBE_GRAPH_PLUGIN_PYTHON to a Python with tb-graph-ascend",
)
def test_the_plugin_of_tensorboard_opens_the_file(compared):
    graphs, path = compared
    program = Path(__file__).with_name("plugin_program.py")
    python = os.environ["MSPROBE_GRAPH_PLUGIN_PYTHON"]
    environment = {key: text for key, text in os.environ.items() if key != "PYTHONPATH"}
    words = [python, program, path, LINEAR, NET, FC]
    ran = subprocess.run(words, capture_output=True, env=environment, check=False)
    assert ran.returncode == 0, ran.stderr.decode(errors="replace")
    answers = json.loads(ran.stdout.splitlines()[-1])

    assert answers["read"] == "success"
    assert answers["config"]["isSingleGraph"] is False
    lists = answers["lists"]
    assert (lists["npuUnMatchNodes"], lists["benchUnMatchNodes"]) == (1, 0)
    # From the root down, each box that holds where the difference begins is red.
    assert {level["DefaultModel"] for level in answers["levels"]} == {1.0}
    assert (answers["levels"][1][NET], answers["levels"][2][FC]) == (1.0, 1.0)
    assert answers["reference"]["DefaultModel"] is None
    shown = answers["node"]["npu"]["output_data"][f"{LINEAR}.output.0"]
    value = next(
        value for value in graphs.places[0].target.values[LINEAR] if value.slot == "output.0"
    )
    assert float(shown["Max"]) == value.max
    assert (
        answers["apart"]["npuUnMatchNodes"] == lists["npuUnMatchNodes"] + 2
    )  # its backward call, too
    assert answers["together"] == lists
    # The plugin's filter asks for nodes without children, of any file.
    assert (answers["red"], answers["alone"]) == ([LINEAR], [ADD])
    assert answers["overflow"] == {"success": True, "data": []}
    assert (answers["chosen"]["success"], answers["chosen red"]) == (True, [])
    assert (answers["colours"]["success"], answers["laid out"]) == (True, True)
    assert (answers["saved"], answers["loaded"]) == (True, True)
    # Its `saveData` has code for files of JSON alone; databases are saved as they are changed.
    assert not answers["rewritten"]


def test_reading_a_file_needs_no_framework(compared):
    _, path = compared
    program = (
        "import sys; from msprobe.graph.sources import open_graphs; "
        f"open_graphs({str(path)!r}); print({{'torch', 'mindspore'}} & {{*sys.modules}})"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert ran.stdout.strip() == b"set()"
