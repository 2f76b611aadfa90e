# SPDX-License-Identifier: Apache-2.0
"""The JSON of graphs: its columns, and what each of them says."""

from __future__ import annotations

import json
import math

from builders.dumps import write_rank
from builders.records import forward, group, scalar, tensor
from msprobe.cli import main
from msprobe.graph.page_json import whole
from msprobe.graph.sources import open_graphs


def column(page, name, part="nodes", graph=0):
    """A column as texts or numbers, one for each entry."""
    found = page["graphs"][graph][part][name]
    count = page["graphs"][graph]["count"] if part == "nodes" else len(found)
    return found * count if len(found) == 1 else found


def texts(page, name, **choices):
    return [page["texts"][place] for place in column(page, name, **choices)]


def write(tmp_path, rank=0, **fields):
    module, call = "Module.fc.Linear.forward.0", "Functional.linear.0.forward"
    records = {
        call: forward([tensor()], [tensor(number=3.0, **fields)]),
        module: forward([tensor()], [tensor(number=3.0, **fields)]),
    }
    stack = ["File train.py, line 12, in forward, \n y = self.fc(x)"]
    return write_rank(
        tmp_path / f"rank{rank}",
        records,
        parents={module: None, call: module},
        stacks={call: stack, module: stack},
    )


def test_columns_are_as_long_as_the_graph(tmp_path):
    page = whole(open_graphs(write(tmp_path)))

    nodes = page["graphs"][0]["nodes"]
    assert {len(entries) for entries in nodes.values()} <= {1, page["graphs"][0]["count"]}
    assert texts(page, "label") == ["DefaultModel", "fc", "linear"]
    assert texts(page, "source") == ["", "train.py:12", "train.py:12"]
    assert column(page, "norm") == [None, 39, 39]
    assert page["headline"] is None


def test_nan_is_strict_json_and_a_flag(tmp_path):
    page = whole(open_graphs(write(tmp_path, Max=math.nan, Norm=math.nan)))

    assert column(page, "norm") == [None, "NaN", "NaN"]
    assert [flags & 256 for flags in column(page, "flags")] == [0, 256, 256]
    json.dumps(page, allow_nan=False)


def test_details_hold_the_values_and_the_stack(tmp_path):
    page = whole(open_graphs(write(tmp_path)))

    detail = page["graphs"][0]["details"]["2"]
    assert detail["stack"] == ["File train.py, line 12, in forward, \n y = self.fc(x)"]
    (half,) = detail["halves"]
    assert [(each["slot"], each["max"]) for each in half["values"]] == [
        ("input.0", 2.0),
        ("output.0", 4.0),
    ]


def test_ranks_are_linked_where_they_communicate(tmp_path):
    for rank in (0, 1):
        name = "Distributed.all_reduce.0.forward"
        record = forward([tensor()], [tensor()], group=group([0, 1]), op=scalar("str", "sum"))
        write_rank(tmp_path / f"rank{rank}", {name: record}, parents={name: None})

    page = whole(open_graphs(tmp_path))

    assert page["links"] == [
        {"step": 0, "kind": "collective", "members": [["0", 1], ["1", 1]]},
    ]
    assert page["graphs"][0]["details"]["1"]["group"] == [0, 1]


def test_overflow_grades_are_there_when_asked_for(tmp_path):
    path = write(tmp_path, Max=math.inf)

    assert column(whole(open_graphs(path)), "overflow") == [0, 0, 0]
    assert column(whole(open_graphs(path, overflow=True)), "overflow") == [0, 3, 3]


def test_the_command_writes_the_json(tmp_path, capsys):
    output = tmp_path / "graph.json"

    assert main(["graph", str(write(tmp_path)), "-o", str(output), "--export", "json"]) == 0
    assert capsys.readouterr().out.strip() == str(output)
    assert json.loads(output.read_text())["graphs"][0]["count"] == 3
