# SPDX-License-Identifier: Apache-2.0
"""`msprobe graph` to the page: from two recordings to a picture."""

from __future__ import annotations

import threading

import pytest

from builders.dumps import write_rank
from builders.records import forward, tensor
from msprobe.cli import main
from msprobe.graph.source import source_of
from msprobe.graph.sources import open_graphs
from msprobe.report.graph_server import GraphServer


def record(path, *, number: float = 3.0):
    """Write two layers, the second with another result if asked to; return the dump."""
    records, parents = {}, {}
    for layer, result in enumerate((3.0, number)):
        module = f"Module.layers.{layer}.Linear.forward.0"
        call = f"Functional.linear.{layer}.forward"
        for name in (call, module):
            records[name] = forward(
                [tensor(value_id=layer)], [tensor(number=result, value_id=layer + 1)]
            )
        parents |= {module: None, call: module}
    write_rank(path / "step0" / "rank0", records, parents=parents)
    return path


@pytest.fixture
def pair(tmp_path):
    return record(tmp_path / "new", number=4.0), record(tmp_path / "old")


def test_the_page_is_what_is_written_unless_asked_otherwise(pair, tmp_path, capsys):
    target, reference = map(str, pair)
    assert main(["graph", target, reference, "-o", str(tmp_path)]) == 0
    written = capsys.readouterr().out.strip()
    assert written.endswith(".html")
    text = (tmp_path / written).read_text()
    assert "layers.1" in text
    assert "connect-src" not in text  # a file asks nobody for anything


def test_one_recording_too(pair, tmp_path):
    path = tmp_path / "one.html"
    assert main(["graph", str(pair[0]), "-o", str(path)]) == 0
    assert "Functional.linear.1" in path.read_text()


def test_a_search_on_the_server_is_that_of_the_page(pair):
    source = source_of(open_graphs(*pair))

    def found(text, *conditions):
        return source.find(0, text, list(conditions), 100)["total"]

    assert found("") == 4
    assert found("linear") == 4
    assert found("functional linear.1") == 1
    assert found("", ("status", ":", "error")) == 2
    assert found("", ("dir", ":", "backward")) == 0
    assert found("", ("norm", ">", "1e4")) == 0


def test_served_with_its_pieces(pair):
    server = GraphServer(lambda: source_of(open_graphs(*pair)))
    thread = threading.Thread(target=server.run)
    thread.start()
    token = server.url.split("/")[3]
    for what in ("children?graph=0&node=0", "detail?graph=0&node=1", "path?graph=1&node=2"):
        assert server.answer(f"/{token}/{what}&version=0")[0] == 200
    asked = "conditions=[[%22norm%22,%22%3E%22,%221%22]]&limit=5"
    status, _, body = server.answer(f"/{token}/find?graph=0&text=&version=0&{asked}")
    assert status == 200
    assert '"total"' in body
    server.close()
    thread.join()
