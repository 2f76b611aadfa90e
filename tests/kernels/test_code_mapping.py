# SPDX-License-Identifier: Apache-2.0
"""Kernels are joined to lines of the program by exact name, in both spellings of graphs."""

from __future__ import annotations

import csv
from datetime import datetime

import numpy as np
import pytest
from graphs import NEW, OLD
from hypothesis import given, settings
from hypothesis import strategies as st

from msprobe.cli import main
from msprobe.dump.kernel_code import CodeMap
from msprobe.dump.kernel_ir import read_ir
from msprobe.dump.kernel_names import parse_kernel_file_name
from msprobe.errors import DumpFormatError
from msprobe.kernels.code_mapping import map_code

FC1 = "Default/network-Loss/net-Net/fc1-Dense"
NOW = datetime(2026, 1, 2, 3, 4, 5)
STAMP = "20260102030405"


@pytest.fixture
def graph(tmp_path):
    path = tmp_path / "graph.ir"
    path.write_text(NEW)
    return path


def lines(place):
    return [(frame.file, frame.line, frame.function) for frame in place.frames]


def save(folder, name):
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / f"{name}.npy", np.ones(2, np.float32))
    return folder / f"{name}.npy"


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.reader(file))


# -- reading graphs ----------------------------------------------------------------------------


def test_frames_stand_innermost_first_without_what_only_encloses_them(graph):
    place = CodeMap([read_ir(graph)]).kernel(f"{FC1}/MatMul-op1")
    assert lines(place) == [
        ("/lib/nn/basic.py", 807, "construct"),
        ("/code/train.py", 15, "construct"),
    ]
    assert str(place.frames[1]) == (
        "File /code/train.py, line 15, in construct, \n return self.net(*inputs)"
    )


def test_the_older_spelling(tmp_path):
    path = tmp_path / "old.ir"
    path.write_text(OLD)
    code = CodeMap([read_ir(path)])
    assert lines(code.kernel("Default/network-AlexNet/conv3-Conv2d/Conv2D-op12")) == [
        ("./models/alexnet.py", 175, ""),
        ("/lib/nn/layer/conv.py", 263, ""),
    ]
    # Older files of values tell the last part of the name alone.
    assert code.kernel("ReLU-op1").scope == "Default/network-AlexNet/relu-ReLU/ReLU-op1"


def test_a_last_part_that_two_kernels_share_means_neither(graph):
    graph.write_text(NEW.replace("fc_out-Dense/MatMul-op12", "fc_out-Dense/BiasAdd-op12"))
    assert CodeMap([read_ir(graph)]).kernel("BiasAdd-op12") is None


def test_names_are_exact(graph):
    code = CodeMap([read_ir(graph)])
    assert code.kernel(f"{FC1}/MatMul-op12") is None
    assert code.kernel(f"{FC1}/MatMul-op") is None
    assert code.kernel("Default_network-Loss_net-Net_fc1-Dense_MatMul-op1").scope.endswith("op1")
    assert lines(code.kernel("Default/network-Loss/net-Net/fc_out-Dense/MatMul-op12")) == [
        ("/code/train.py", 18, "")
    ]


def test_gradients_take_the_frames_of_their_forward_kernel(graph):
    code = CodeMap([read_ir(graph)])
    forward = code.kernel(f"{FC1}/MatMul-op1")
    gradient = code.kernel(f"Gradients/{FC1}/Grad_MatMul/MatMul-op2")
    assert gradient.frames == forward.frames
    # Whose forward kernel is not in the graph keeps its own.
    assert lines(code.kernel("Expand/_Muls/Mul-op0")) == [("/code/train.py", 19, "")]


@pytest.mark.parametrize(
    ("name", "scope"),
    [
        ("net.fc1.weight", FC1),
        ("net_fc1_weight", FC1),
        ("accum_net_fc1_weight", FC1),
        ("moments_net_fc1_weight", FC1),
        ("net_fc_out_weight", "Default/network-Loss/net-Net/fc_out-Dense"),
        ("net_fc1_part_bias", FC1),
        ("net_bias", "Default/network-Loss/net-Net"),
        ("inputs0", None),
        ("learning_rate", None),
        ("other_fc1_weight", None),
    ],
)
def test_parameters_belong_to_the_cell_that_defines_them(graph, name, scope):
    place = CodeMap([read_ir(graph)]).parameter(name)
    assert (place and place.scope) == scope


def test_a_parameter_has_the_frames_that_its_cell_shares(graph):
    place = CodeMap([read_ir(graph)]).parameter("net_fc1_weight")
    assert lines(place) == [("/code/train.py", 15, "construct")]


@pytest.mark.parametrize("content", ["", "no graph at all\n", "%1(a) = Add(%2)\n"])
def test_other_files_are_no_graphs(tmp_path, content):
    path = tmp_path / "graph.ir"
    path.write_text(content)
    with pytest.raises(DumpFormatError, match=r"graph\.ir: is no graph in text form"):
        read_ir(path)


# -- other numbers -----------------------------------------------------------------------------

GRADIENT = f"Gradients/{FC1}/Grad_MatMul/MatMul"


def test_the_only_kernel_of_its_scope_and_type_may_have_another_number(graph):
    code = CodeMap([read_ir(graph)])
    name = f"{GRADIENT}-op0".replace("/", "_")
    assert code.kernel(name) is None
    assert code.only_kernel_like(name) == code.kernel(f"{GRADIENT}-op2")
    for other in (f"{FC1}/Grad_MatMul/MatMul-op0", f"{GRADIENT}Add-op0", GRADIENT, "MatMul-op0"):
        assert code.only_kernel_like(other) is None


def test_one_of_several_is_never_taken(tmp_path, graph):
    path = tmp_path / "other.ir"
    two = NEW.replace("fc1-Dense/BiasAdd-op12", "fc1-Dense/MatMul-op5")
    path.write_text(two)
    assert CodeMap([read_ir(path)]).only_kernel_like(f"{FC1}/MatMul-op0") is None
    # In two graphs it is one operator only where both say the same calls.
    path.write_text(NEW)
    graphs = [read_ir(graph), read_ir(path)]
    assert CodeMap(graphs).only_kernel_like(f"{FC1}/MatMul-op0").scope == f"{FC1}/MatMul-op1"
    path.write_text(NEW.replace("train.py:15", "train.py:14"))
    graphs = [read_ir(graph), read_ir(path)]
    assert CodeMap(graphs).only_kernel_like(f"{FC1}/MatMul-op0") is None


def test_another_number_is_told(tmp_path, graph, capsys):
    flat = GRADIENT.replace("/", "_")
    data = tmp_path / "data"
    save(data, f"MatMul.{flat}-op0.0.0.1.input.0.DefaultFormat.Float32")
    done = map_code(graph, data, tmp_path, now=NOW)
    assert rows_of(done.written[0])[1][2] == f"{GRADIENT}-op2"
    assert done.renumbered == {f"MatMul.{flat}-op0": f"{GRADIENT}-op2"}
    assert (done.mapped, done.unmapped) == (1, [])
    command = ["code_mapping", "--ir", str(graph), "--dump_data", str(data)]
    assert main([*command, "--output", str(tmp_path)]) == 0
    assert f"under another number, as the only one of their scope and type: MatMul.{flat}-op0" in (
        capsys.readouterr().out
    )


def test_several_in_the_dump_are_not_all_the_one_of_the_graph(tmp_path, graph):
    flat = GRADIENT.replace("/", "_")
    save(tmp_path / "data", f"MatMul.{flat}-op0.0.0.1.input.0.DefaultFormat.Float32")
    (tmp_path / "data" / "statistic.csv").write_text(f"Op Type,Op Name\nMatMul,{GRADIENT}-op2\n")
    done = map_code(graph, tmp_path / "data", tmp_path, now=NOW)
    assert (done.unmapped, done.renumbered) == ([f"MatMul.{flat}-op0"], {})


# -- the tables --------------------------------------------------------------------------------


def test_every_value_becomes_a_row(tmp_path, graph):
    folder = tmp_path / "rank_0" / "Net" / "0" / "0"
    flat = f"{FC1}/MatMul-op1".replace("/", "_")
    first = save(folder, f"MatMul.{flat}.0.0.1.input.0.DefaultFormat.Float32")
    other = save(folder, f"MatMul.{flat}2.0.0.1.output.0.DefaultFormat.Float32")
    weight = save(folder, "Parameter.net_fc1_weight.0.0.1.output.0.DefaultFormat")
    done = map_code(graph, tmp_path, tmp_path / "out", now=NOW)
    (path,) = done.written
    assert path == tmp_path / "out" / f"code_mapping_{STAMP}.csv"
    header, *rows = rows_of(path)
    assert header == ["File Path", "Code Stack", "Scope Name"]
    assert [row[0] for row in rows] == [str(first), str(other), str(weight)]
    assert [row[2] for row in rows] == [f"{FC1}/MatMul-op1", "", FC1]
    assert rows[0][1].startswith("File /lib/nn/basic.py, line 807, in construct, ")
    assert (done.values, done.mapped) == (3, 2)
    assert done.unmapped == [f"MatMul.{flat}2"]


def test_names_of_digits_go_through_the_mapping(tmp_path, graph):
    digits = "12345678901234567890123456789012"
    path = save(tmp_path / "data", digits)
    name = f"MatMul.{FC1.replace('/', '_')}_MatMul-op1.0.0.1.output.0.DefaultFormat.Float32.npy"
    (tmp_path / "data" / "mapping.csv").write_text(f"{digits}.npy,{name}\n")
    done = map_code(graph, path, tmp_path, now=NOW)
    assert rows_of(done.written[0])[1][2] == f"{FC1}/MatMul-op1"


def test_binary_files_are_values_and_overflows_are_none(tmp_path, graph):
    folder = tmp_path / "data"
    folder.mkdir()
    name = f"MatMul.{FC1.replace('/', '_')}_MatMul-op1.3.1.1795182233644492"
    (folder / name).write_bytes(b"")
    (folder / "Opdebug.Node_OpDebug.3.1.1795182233644492").write_bytes(b"")
    done = map_code(graph, folder, tmp_path, now=NOW)
    assert [row[0] for row in rows_of(done.written[0])[1:]] == [str(folder / name)]


def test_statistics_get_a_copy_and_stay_as_they_are(tmp_path, graph):
    folder = tmp_path / "rank_0" / "Net" / "0" / "0"
    folder.mkdir(parents=True)
    table = folder / "statistic.csv"
    text = (
        "Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape,Max Value\n"
        f'MatMul,{FC1}/MatMul-op1,0,0,1,input,0,32,Float32,"(2,4)",1.5,\n'
        "Parameter,net.fc1.weight,0,0,1,output,0,32,Float32\n"
    )
    table.write_text(text)
    done = map_code(graph, tmp_path, tmp_path / "out", now=NOW)
    assert done.written == [folder / f"statistic_code_mapping_{STAMP}.csv"]
    header, *rows = rows_of(done.written[0])
    assert header[-3:] == ["Max Value", "Code Stack", "Scope Name"]
    assert [row[9] for row in rows] == ["(2,4)", ""]
    assert [row[-1] for row in rows] == [f"{FC1}/MatMul-op1", FC1]
    assert {len(row) for row in rows} == {13}
    assert table.read_text() == text
    assert not (tmp_path / "out").exists()


def test_the_command_says_what_it_wrote_and_missed(tmp_path, graph, capsys):
    save(tmp_path / "data", "MatMul.x-op1.0.0.1.input.0.DefaultFormat.Float32")
    command = ["code_mapping", "--ir", str(graph), "--dump_data", str(tmp_path / "data")]
    assert main(["-f", "mindspore", *command, "--output", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "0 of 1 values have a place" in said
    assert "not found in the graph: MatMul.x-op1" in said


@pytest.mark.parametrize(
    ("ir", "data", "problem"),
    [
        ("nothing.ir", "data", "nothing.ir: cannot be read"),
        ("empty", "data", "holds no graph in text form"),
        ("graph.ir", "nothing", "nothing: does not exist"),
        ("graph.ir", "empty", "holds no values of kernels and no statistic.csv"),
        ("graph.ir", "broken", "statistic.csv: its header has no column Op Name"),
    ],
)
def test_what_cannot_be_mapped_is_refused(tmp_path, graph, capsys, ir, data, problem):
    save(tmp_path / "data", "MatMul.x-op1.0.0.1.input.0")
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "statistic.csv").write_text("a,b\n1,2\n")
    command = ["code_mapping", "--ir", str(tmp_path / ir), "--dump_data", str(tmp_path / data)]
    assert main(command) == 2
    assert problem in capsys.readouterr().err


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_damaged_graphs_raise_nothing_else(tmp_path_factory, data):
    text = NEW + OLD
    for _ in range(data.draw(st.integers(1, 5))):
        place = data.draw(st.integers(0, len(text) - 1))
        text = text[:place] + data.draw(st.text(max_size=5)) + text[place + 3 :]
    path = tmp_path_factory.mktemp("fuzz") / "graph.ir"
    path.write_text(text, encoding="utf-8", errors="replace")
    try:
        code = CodeMap([read_ir(path)])
    except DumpFormatError:
        return
    code.kernel(f"{FC1}/MatMul-op1")
    code.parameter("net.fc1.weight")


@pytest.mark.timeout(60)
def test_hostile_lines_take_no_time(tmp_path):
    path = tmp_path / "graph.ir"
    lines = ["%0" + "(" * 50_000, "      # In file " + "a:1" * 50_000, "%1(" + "x) = " * 50_000]
    path.write_text("\n".join(lines) + NEW)
    CodeMap([read_ir(path)])
    assert parse_kernel_file_name("a" + ".1" * 60_000) is None
    parse_kernel_file_name("a" + ".1.2.3.input.0" * 280)
