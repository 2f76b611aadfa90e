# SPDX-License-Identifier: Apache-2.0
"""Large files of graphs are opened by the piece, and answer as if they had been read whole."""

from __future__ import annotations

import json
import sqlite3
import zlib

import pytest

from builders.dumps import write_rank
from builders.records import backward, forward, tensor
from msprobe.errors import DumpFormatError
from msprobe.graph.source import source_of
from msprobe.graph.sources import open_graphs
from msprobe.graph.stored import open_pieces
from msprobe.graph.text_block import TextBlock
from msprobe.graph.vis_writer import write_vis_db

NET, FC, LINEAR, RELU = (
    "Module.Net.forward.0",
    "Module.fc.Linear.forward.0",
    "Functional.linear.0.forward",
    "Functional.relu.0.forward",
)
PARENTS = {NET: None, FC: NET, LINEAR: FC, RELU: NET, "Module.Net.backward.0": None}
STACK = ["File train.py, line 12, in forward, \n y = self.fc(x)"]


def write(folder, number):
    middle, made = tensor(number=number, value_id=2), tensor(number=number + 1, value_id=3)
    records = {
        LINEAR: forward([tensor(value_id=1)], [middle]),
        FC: forward([tensor(value_id=1)], [middle]) | {"parameters": {"weight": tensor((3, 3))}},
        RELU: forward([middle], [made]),
        NET: forward([tensor(value_id=1)], [made]),
        "Module.Net.backward.0": backward([tensor()], [tensor(number=number + 7)]),
    }
    stacks = dict.fromkeys((NET, FC, LINEAR), STACK)
    write_rank(folder / "rank0", records, parents=PARENTS, stacks=stacks)
    return folder


@pytest.fixture
def path(tmp_path):
    """Return a file with two sides that differ."""
    graphs = open_graphs(write(tmp_path / "new", 1.25), write(tmp_path / "old", 1.0))
    return write_vis_db(tmp_path / "graphs.vis.db", graphs, pieces_from=1)


def test_all_answers_are_those_of_the_whole_file(path):
    pieces, whole = open_pieces(path), source_of(open_graphs(path))

    heads = pieces.overview()["graphs"]
    assert [head["side"] for head in heads] == ["target", "reference"]
    assert all("nodes" not in head for head in heads)  # else the page takes it for whole
    assert pieces.overview()["headline"] == whole.overview()["headline"]
    for graph, head in enumerate(heads):
        for node in range(head["count"]):
            assert pieces.path_to(graph, node) == whole.path_to(graph, node)
            assert pieces.upstream(graph, node) == whole.upstream(graph, node)
            found, known = (each.children(graph, node) for each in (pieces, whole))
            assert found["ids"] == known["ids"]
            assert found["edges"].get("to") == known["edges"].get("to")
            for name in ("label", "severity", "status", "norm", "introduced"):
                assert found["nodes"].get(name) == known["nodes"].get(name)
        for text, conditions in (("relu", ()), ("", [("status", ":", "error")])):
            found, known = (each.find(graph, text, conditions) for each in (pieces, whole))
            assert found["ids"] == known["ids"]


def test_details_are_read_from_the_calls_of_the_file(path):
    pieces, whole = open_pieces(path), source_of(open_graphs(path))

    for node in range(1, pieces.overview()["graphs"][0]["count"]):
        assert pieces.detail(0, node) == whole.detail(0, node)
    (half,) = pieces.detail(0, 3)["halves"]
    assert half["record"] == LINEAR
    assert half["values"][1]["reference"]["max"] == 2.0
    with pytest.raises(IndexError):
        pieces.detail(0, 999)


def test_small_files_and_those_that_were_matched_by_hand_are_read_whole(path, tmp_path):
    small = write_vis_db(tmp_path / "small.vis.db", open_graphs(path))
    assert open_pieces(small) is None

    with sqlite3.connect(path) as base:
        base.execute("UPDATE tb_nodes SET modified = 1 WHERE node_name = ?", (FC,))
    assert open_pieces(path) is None


def packed(content: object) -> bytes:
    return zlib.compress(json.dumps(content).encode())


def bomb() -> bytes:
    """Return a GiB of zeros, compressed; each MiB of it is the same bytes."""
    packer = zlib.compressobj(wbits=-15)
    part = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    check = ((1 << 30) % 65521) << 16 | 1  # Adler-32 of a GiB of zeros
    return b"\x78\x9c" + part * 1024 + b"\x03\x00" + check.to_bytes(4, "big")


BOMB = bomb()
HOSTILE = {
    "count": ("head", "", packed({"side": "target", "rows": {"nodes": 1 << 40, "edges": 0}})),
    "bomb": ("text block", "", BOMB),
    "texts": ("text block", "", zlib.compress(b"without an end")),
    "overview": ("overview", "", packed([1])),
    "head": ("head", "", b"no zlib"),
    "rolls": ("rolls", "", packed([3])),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_damaged_parts_are_refused(path, case):
    part, name, content = HOSTILE[case]
    with sqlite3.connect(path) as base:
        changed = "UPDATE piece SET content = ? WHERE part = ? AND name = ? AND graph < 1"
        assert base.execute(changed, (content, part, name)).rowcount

    with pytest.raises(DumpFormatError, match=r"graphs\.vis\.db"):
        open_pieces(path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("size", zlib.compress(bytes(3))),
        ("size", BOMB),
        ("label", zlib.compress(b"\x7f" * 5)),
        ("parent", zlib.compress(bytes([4] * 5))),
        ("kind", b"no zlib"),
    ],
    ids=["short", "bomb", "text", "circle", "bytes"],
)
def test_damaged_columns_end_in_an_error_when_they_are_read(path, name, content):
    with sqlite3.connect(path) as base:
        changed = "UPDATE piece SET content = ?, kind = 'int8' WHERE part = 'nodes' AND name = ?"
        assert base.execute(changed, (content, name)).rowcount

    with pytest.raises((ValueError, DumpFormatError)):
        visit(path)


def visit(path):
    source = open_pieces(path)
    source.overview()
    for node in range(5):
        source.children(0, node)
        source.path_to(0, node)


TEXTS = (
    *("", "Linear", "linear 1", "a linear b", "ÄÖ Größe", "GRÖSSE Ж", "İ", "half \ud800 char"),
    *("层 Norm", "LINEARж", " linear", "lin", "linlinear"),
)


@pytest.mark.parametrize("texts", [TEXTS, TEXTS[:4], ("",)], ids=["all", "plain", "empty"])
def test_a_block_finds_the_texts_that_hold_a_part(texts):
    block = TextBlock.of(texts)
    assert [block[place] for place in range(len(block))] == list(texts)
    small = [text.lower() for text in texts]
    for part in ("linear", "lin", "ö", "ж", "i̇", "\ud800", "层", "r", "1", "linear lin", ""):
        assert block.having(part).tolist() == [part in text for text in small], part
        whole = [f" {part} " in f" {text} " for text in small]
        assert not part or block.having(part, whole=True).tolist() == whole, part
