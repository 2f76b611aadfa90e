# SPDX-License-Identifier: Apache-2.0
"""Kernel dumps are read like every other dump: ranks, steps, records, order, damaged files."""

from __future__ import annotations

import numpy as np
import pytest

from builders.kernel_trees import (
    FC1,
    GRAD,
    RELU,
    flat,
    iteration,
    save,
    write_network,
    write_statistics,
)
from msprobe import open_dump
from msprobe.cli import main
from msprobe.dump.kernel_files import find_kernel_folders, read_kernel_values
from msprobe.dump.kernel_views import open_kernel_dump
from msprobe.errors import DumpFormatError

ONE = np.ones((2, 3), np.float32)


def view_of(path, step=0, rank=0):
    return open_kernel_dump(path).step(step).rank(rank)


def test_one_execution_is_one_record(tmp_path):
    write_network(tmp_path)
    view = view_of(tmp_path)
    assert list(view.records) == [
        f"MatMul.{flat(FC1)}.0.forward",
        f"ReLU.{flat(RELU)}.0.forward",
        f"MatMul.{flat(GRAD)}.0.backward",
        "Parameter.fc1_weight.0.forward",
        "Parameter.inputs0.0.forward",
    ]
    head = view.head
    assert (head.task, head.level, head.framework) == ("tensor", "L2", "mindspore")
    record = view.records[f"MatMul.{flat(FC1)}.0.forward"]
    assert [path for path, _ in record.tensors()] == [
        ("input_args", "0"),
        ("input_args", "1"),
        ("output", "0"),
    ]


def test_values_types_and_statistics(tmp_path):
    folder = write_network(tmp_path)
    view = view_of(tmp_path)
    ((_, output),) = view.records[f"ReLU.{flat(RELU)}.0.forward"].tensors("output")
    stored = np.load(next(folder.glob("ReLU.*.output.*.npy")))
    assert np.array_equal(view.tensor(output).array, stored)
    assert (output.dtype, output.shape) == ("float32", (2, 4))
    assert (output.max, output.min) == (stored.max(), stored.min())
    assert output.mean == pytest.approx(stored.astype(float).mean())
    assert output.norm == pytest.approx(np.linalg.norm(stored.astype(float)))


def test_cells_around_kernels(tmp_path):
    write_network(tmp_path)
    parents = view_of(tmp_path).parents
    assert parents[f"MatMul.{flat(FC1)}.0.forward"] == (
        "Cell.network._backbone.fc1.Dense.forward.0"
    )
    assert parents[f"MatMul.{flat(GRAD)}.0.backward"] == (
        "Cell.network._backbone.fc1.Dense.backward.0"
    )
    assert "Parameter.fc1_weight.0.forward" not in parents


def test_what_a_graph_is_fed_with_is_an_input(tmp_path):
    write_network(tmp_path)
    records = view_of(tmp_path).records
    assert list(records["Parameter.inputs0.0.forward"].parts) == ["input_args"]
    assert list(records["Parameter.fc1_weight.0.forward"].parts) == ["output"]


def test_without_an_execution_order_times_decide(tmp_path):
    folder = iteration(tmp_path)
    for number, name in enumerate(("c", "a", "b")):
        save(folder, "Add", name, ONE, time=number)
    assert list(view_of(tmp_path).records) == [f"Add.{name}.0.forward" for name in "cab"]


def test_repeated_kernels_are_numbered_by_task_then_time(tmp_path):
    folder = iteration(tmp_path)
    for time, task in ((10, 7), (20, 3), (30, 3)):
        for offset, io in enumerate(("input", "output")):
            save(folder, "Add", "x-op0", ONE * time, time=time + offset, io=io, task=task)
    records = view_of(tmp_path).records
    found = {name: [value.max for _, value in records[name].tensors()] for name in records}
    assert found == {
        "Add.x-op0.2.forward": [10, 10],
        "Add.x-op0.0.forward": [20, 20],
        "Add.x-op0.1.forward": [30, 30],
    }
    assert list(found) == ["Add.x-op0.2.forward", "Add.x-op0.0.forward", "Add.x-op0.1.forward"]


@pytest.mark.parametrize(
    ("index", "ending", "slot"),
    [
        ("0", ".DefaultFormat", "0"),
        ("1", ".DefaultFormat.Float32", "1"),
        ("1.2", ".NCHW", "1.2"),
        ("1.2", ".ND.FLOAT", "1.2"),
        ("0", ".32x256x13x13", "0"),
        ("0", "", "0"),
    ],
)
def test_all_forms_of_file_names(tmp_path, index, ending, slot):
    folder = iteration(tmp_path)
    save(folder, "Conv2D", "Conv2D-op12", ONE, time=5, index=index, ending=ending)
    (value,) = read_kernel_values(find_kernel_folders(tmp_path)[0])
    assert (value.op_type, value.op_name, value.io, value.index) == (
        "Conv2D",
        "Conv2D-op12",
        "output",
        slot,
    )


@pytest.mark.parametrize(
    ("place", "rank", "step"),
    [
        ("rank_3/Net/0/7", 3, 7),
        ("20260101120000/2/Net/1/5", 2, 5),
        ("rank_1/20260101120000/step_4", 1, 4),
        ("3/20260101120000/6/2", 6, 3),
        ("3/20260101120000/6", 6, 3),
        ("3/20260101120000/6/net/1/0", 6, 3),
        ("step7/20260101120000/1", 1, 7),
        ("rank_2/20260101120000/step_4", 2, 4),
    ],
)
def test_rank_and_step_from_the_path(tmp_path, place, rank, step):
    folder = tmp_path / place
    folder.mkdir(parents=True)
    save(folder, "Add", "a", ONE, time=1)
    (found,) = find_kernel_folders(tmp_path)
    assert (found.rank, found.step) == (rank, step)
    # The same from whichever folder it is opened.
    assert [each.directory for each in find_kernel_folders(folder)] == [folder.resolve()]
    assert find_kernel_folders(folder)[0].rank == rank


def test_constants_and_other_files_are_no_iterations(tmp_path):
    folder = write_network(tmp_path)
    constants = folder.parent / "constants"
    constants.mkdir()
    save(constants, "Parameter", "data-1", ONE, time=1)
    (folder / "notes.txt").write_text("")
    (folder / "Opdebug.Node_OpDebug.1.2.3").write_bytes(b"\0")
    np.save(folder / "other.npy", ONE)
    assert [found.directory for found in find_kernel_folders(tmp_path)] == [folder.resolve()]
    assert len(read_kernel_values(find_kernel_folders(tmp_path)[0])) == 9


def test_long_names_come_from_the_mapping(tmp_path):
    folder = iteration(tmp_path)
    path = save(folder, "Add", "x" * 100, ONE, time=1)
    path.rename(folder / "12345678901234567890123456789012.npy")
    (folder / "mapping.csv").write_text(f"12345678901234567890123456789012.npy,{path.name}\n")
    view = view_of(tmp_path)
    (name,) = view.records
    assert name == f"Add.{'x' * 100}.0.forward"
    ((_, value),) = view.records[name].tensors()
    assert np.array_equal(view.tensor(value).array, ONE)


def test_statistics_alone(tmp_path):
    write_statistics(
        iteration(tmp_path),
        [
            f'MatMul,{FC1},5,0,100,input,0,64,Float32,"(2,8)",1.5,-2,0.25,0,0,0,3.5',
            f'MatMul,{FC1},5,0,101,output,0,64,Float32,"(2,4)",nan,nan,nan,2,0,1,nan,',
            f'ReLU,{RELU},6,0,102,output,0,4,Bool,"()",True,False,null,0,0,0,null',
        ],
    )
    view = view_of(tmp_path)
    assert view.head.task == "statistics"
    assert view.records_path.name == "statistic.csv"
    (_, x), (_, y) = view.records[f"MatMul.{flat(FC1)}.0.forward"].tensors()
    assert (x.dtype, x.shape, x.max, x.min, x.mean, x.norm) == (
        "float32",
        (2, 8),
        1.5,
        -2,
        0.25,
        3.5,
    )
    assert x.data_name is None
    assert y.has_nan
    assert (y.nan_count, y.pos_inf_count) == (2, 1)
    ((_, z),) = view.records[f"ReLU.{flat(RELU)}.0.forward"].tensors()
    assert (z.shape, z.max, z.min, z.mean) == ((), True, False, None)


def test_older_statistics_and_checksums(tmp_path):
    header = "OpType,OpName,TaskId,StreamId,TimeStamp,IO,Slot,DataSize,DataType,Shape,MD5"
    write_statistics(iteration(tmp_path), ['Add,a,1,0,1,output,0,4,Float32,"(1,)",abc'], header)
    ((_, value),) = view_of(tmp_path).records["Add.a.0.forward"].tensors()
    assert (value.md5, value.max, value.shape) == ("abc", None, (1,))


def test_tensors_take_the_recorded_statistics(tmp_path):
    folder = iteration(tmp_path)
    save(folder, "Add", "a", ONE, time=1)
    write_statistics(folder, ['Add,a,0,0,1,output,0,24,Float32,"(2,3)",9,8,7,0,0,0,6'])
    ((_, value),) = view_of(tmp_path).records["Add.a.0.forward"].tensors()
    assert (value.max, value.min, value.mean, value.norm) == (9, 8, 7, 6)
    assert value.data_name is not None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("Op Name,Task ID\na,1\n", "no column io, slot"),
        ("", "no column opname"),
        ("Op Name,IO,Slot,Shape\na,sideways,0,()\n", "line 2: IO is 'sideways'"),
        ("Op Name,IO,Slot,Shape\na,input,x,()\n", "line 2: slot is 'x'"),
        ('Op Name,IO,Slot,Shape\na,input,0,"(1,-2)"\n', "line 2: Shape"),
        ("Op Name,IO,Slot,Timestamp\na,input,0,late\n", "line 2: timestamp"),
    ],
)
def test_damaged_statistics_are_named_by_line(tmp_path, text, problem):
    folder = iteration(tmp_path)
    (folder / "statistic.csv").write_text(text)
    with pytest.raises(DumpFormatError, match=r"statistic\.csv") as refusal:
        list(view_of(tmp_path).records)
    assert problem in str(refusal.value)


def test_a_damaged_mapping_is_named_by_line(tmp_path):
    folder = iteration(tmp_path)
    (folder / "mapping.csv").write_text("1.npy,Add.a.0.0.1.output.0.npy\n2.npy\n")
    with pytest.raises(DumpFormatError, match=r"mapping.csv: line 2"):
        list(view_of(tmp_path).records)


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\x93NUMPY\x01\0\xff\xff"])
def test_a_file_that_is_no_array_keeps_no_other_from_being_read(tmp_path, content):
    folder = iteration(tmp_path)
    path = save(folder, "Add", "a", ONE, time=1)
    save(folder, "Add", "a", ONE, time=2, io="input")
    path.write_bytes(content)
    values = {v.path: v for v in view_of(tmp_path).records["Add.a.0.forward"].values()}
    assert values["output", "0"].type == "unreadable"
    assert path.name in values["output", "0"].value
    assert values["input_args", "0"].shape == (2, 3)


def test_other_folders_hold_no_kernel_dump(tmp_path):
    (tmp_path / "empty").mkdir()
    np.save(tmp_path / "empty" / "array.npy", ONE)
    assert open_kernel_dump(tmp_path / "empty") is None
    assert open_kernel_dump(tmp_path / "nothing") is None


def test_unload_reads_anew(tmp_path):
    folder = write_network(tmp_path)
    view = view_of(tmp_path)
    before = len(view.records)
    save(folder, "Add", "late", ONE, time=500)
    assert len(view.records) == before
    view.unload()
    assert len(view.records) == before + 1


# -- dumps made without msprobe, opened like any other -------------------------------------------


def test_open_dump_and_show_open_them(tmp_path, capsys):
    folder = write_network(tmp_path, step=2)
    for path in (tmp_path, tmp_path / "rank_0", folder):
        assert list(open_dump(path).steps) == [2]
    assert main(["show", str(tmp_path)]) == 0
    assert "level L2" in capsys.readouterr().out
    write_statistics(folder, ['Add,a,0,0,1,output,0,24,Float32,"(2,3)",9,8,7,0,0,0,6'])
    assert list(open_dump(folder / "statistic.csv").steps) == [2]


def test_steps_of_the_asynchronous_dump_stay_apart(tmp_path):
    for step in (0, 1):
        folder = tmp_path / str(step) / "20260101120000" / "5" / "net" / "1" / "0"
        folder.mkdir(parents=True)
        save(folder, "Add", "a", ONE * step, time=step)
    dump = open_dump(tmp_path)
    assert list(dump.steps) == [0, 1]
    ((_, value),) = dump.step(1).rank(5).records["Add.a.0.forward"].tensors()
    assert value.max == 1


def test_numbers_above_the_opened_folder_are_no_steps(tmp_path):
    folder = tmp_path / "8" / "20260101120000" / "5" / "net" / "1" / "3"
    folder.mkdir(parents=True)
    save(folder, "Add", "a", ONE, time=1)
    assert list(open_dump(tmp_path / "8").steps) == [3]


def test_constants_belong_to_every_iteration(tmp_path):
    for step in (0, 1):
        folder = write_network(tmp_path, step=step)
    constants = folder.parent / "constants"
    constants.mkdir()
    save(constants, "Parameter", "data-1", ONE * 5, time=1, ending=".DefaultFormat")
    for step in (0, 1):
        view = view_of(tmp_path, step)
        assert next(iter(view.records)) == "Parameter.data-1.0.forward"
        ((_, value),) = view.records["Parameter.data-1.0.forward"].tensors()
        assert np.array_equal(view.tensor(value).array, ONE * 5)
        assert len(view.records) == 6


def test_values_that_npy_cannot_hold_are_named(tmp_path):
    folder = iteration(tmp_path)
    save(folder, "Add", "a", ONE, time=1, io="input")
    raw = folder / "Add.a.0.0.2.output.0.ND.DT_BF16"
    raw.write_bytes(b"\0\0")
    values = {v.path: v for v in view_of(tmp_path).records["Add.a.0.forward"].values()}
    assert values["output", "0"].type == "unreadable"
    assert "holds DT_BF16, a type that .npy files cannot hold" in values["output", "0"].value


def test_binary_files_are_to_be_converted_first(tmp_path, capsys):
    folder = tmp_path / "20260101120000" / "0" / "net" / "1" / "0"
    folder.mkdir(parents=True)
    (folder / "MatMul.fc1.3.1.1795182233644492").write_bytes(b"")
    assert main(["show", str(tmp_path)]) == 2
    assert "holds binary files; convert them first: msprobe parse -d" in capsys.readouterr().err


def test_call_stacks_come_from_the_graph(tmp_path):
    write_network(tmp_path)
    graphs = tmp_path / "rank_0" / "graphs"
    graphs.mkdir()
    (graphs / "ms_output_trace_code_graph_0.ir").write_text(
        '  %0(x) = PrimFunc_MatMul(%1) cnode_primal_attrs: {unique_id: "7"}\n'
        f"      # Fullname with scope: ({FC1})\n"
        "      # In file net.py:3~9, 4~19/    def construct(self, x):/\n"
        "      # In file net.py:5, 4~19/        y = self.fc1(x)/\n"
        '  %2(y) = PrimFunc_MatMul(%0) cnode_primal_attrs: {forward_unique_id: "7"}\n'
        f"      # Fullname with scope: ({GRAD})\n"
    )
    view = view_of(tmp_path)
    frames = ["File net.py, line 5, in construct, \n y = self.fc1(x)"]
    assert view.frames(f"MatMul.{flat(FC1)}.0.forward") == frames
    assert view.frames(f"MatMul.{flat(GRAD)}.0.backward") == frames
    assert view.frames(f"ReLU.{flat(RELU)}.0.forward") == []


def test_infinities_are_counted(tmp_path):
    save(iteration(tmp_path), "Add", "a", np.array([np.inf, -np.inf, np.nan, 1.0]), time=1)
    ((_, value),) = view_of(tmp_path).records["Add.a.0.forward"].tensors()
    assert value.has_nan
    counts = [value.nan_count, value.pos_inf_count, value.neg_inf_count]
    assert counts == [1, 1, 1]
