# SPDX-License-Identifier: Apache-2.0
"""`repair_dump` makes the JSON files of captures that died, and touches nothing else."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import msprobe
from msprobe.dump.locking import claim_rank_directory
from msprobe.dump.repair import REPAIRED_NOTE, repair_dump
from msprobe.dump.writer import DumpHead, DumpWriter
from msprobe.errors import DumpFormatError

HEAD = DumpHead("statistics", "mix", "pytorch")
NAN = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], "Max": float("nan")}


def killed_capture(dump_path: Path, rank: str = "rank", level: str = "mix") -> Path:
    """Leave a journal, a torn line and temporary files, as a killed process does."""
    directory = dump_path / "step0" / rank
    code = f"""
import os
from pathlib import Path
from msprobe.dump.writer import DumpHead, DumpWriter
writer = DumpWriter(flush_interval_s=0.01)
dump = writer.open(Path({str(directory)!r}), DumpHead("statistics", {level!r}, "pytorch"))
record = {NAN!r}
for number in range(3):
    name = f"Functional.relu.{{number}}.forward"
    dump.put_record(name, 2 - number, {{"output": [record]}}, nonfinite=True)
    dump.put_call(name, number, None, 0)
dump.put_frames(0, ["File a.py, line 1, in f, \\n x"])
dump.build_json()
os._exit(9)
""".replace("nan}", "float('nan')}")
    subprocess.run([sys.executable, "-c", code], check=False)
    with (directory / "journal.jsonl").open("ab") as file:
        file.write(b'["r",9,"Functional.relu.9.forw')
    (directory / "dump.json").unlink(missing_ok=True)
    (directory / "debug.json").unlink(missing_ok=True)
    (directory / "dump_tensor_data").mkdir()
    (directory / "dump_tensor_data" / ".msprobe.tmp.77.1.pt").write_bytes(b"half")
    (directory / "dump_tensor_data" / "whole.pt").write_bytes(b"whole")
    (directory / ".msprobe.tmp.77.0.json").write_bytes(b"half")
    return directory


def files(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def contents(directory: Path) -> dict:
    view = msprobe.open_dump(directory).step().rank()
    return {
        name: ([repr(value) for value in record.values()], view.frames(name), view.parents[name])
        for name, record in view.records.items()
    }


@pytest.mark.parametrize(("level", "file"), [("mix", "dump.json"), ("debug", "debug.json")])
def test_journal_becomes_json_that_any_program_reads(tmp_path, level, file):
    directory = killed_capture(tmp_path, level=level)
    before = contents(directory)
    assert list(before) == [f"Functional.relu.{number}.forward" for number in (2, 1, 0)]
    (done,) = repair_dump(tmp_path)
    assert (done.directory, done.records, done.is_torn, done.problem) == (directory, 3, True, None)
    assert len(done.temporaries) == 2
    assert set(files(directory)) == {
        "account.json",
        "construct.json",
        file,
        "stack.json",
        "dump_tensor_data/whole.pt",
    }
    assert list(json.loads((directory / file).read_text())["data"]) == list(before)
    assert contents(directory) == before


def test_a_repaired_dump_still_says_that_it_is_incomplete(tmp_path):
    directory = killed_capture(tmp_path)
    (directory / "account.json").write_text('{"complete": true, "records": 1, "notes": ["x"]}')
    repair_dump(tmp_path)
    account = json.loads((directory / "account.json").read_text())
    assert account == {"complete": False, "records": 1, "notes": ["x", REPAIRED_NOTE]}
    assert msprobe.open_dump(tmp_path).step().rank().incomplete_reason is not None


KILLED_WITH_FULL_QUEUE = """
import os, signal, sys, time
from pathlib import Path
from msprobe.dump.records import TensorRecord
from msprobe.dump.writer import DumpHead, DumpWriter

class Payload:
    size_bytes = 1000
    def __init__(self, number):
        self.number = number
    def write(self, path):
        path.write_bytes(b"half")
        if self.number == 2:
            time.sleep(600)

directory = Path(sys.argv[1])
writer = DumpWriter(flush_interval_s=0.01)
dump = writer.open(directory, DumpHead("tensor", "mix", "pytorch"))
for number in range(6):
    name = f"Functional.relu.{number}.forward"
    tensor = TensorRecord("torch.Tensor", "torch.float32", (2,))
    tensor.data_name = f"{name}.output.0.pt"
    dump.put_record(name, number, {"output": [tensor, tensor]})
    if number < 5:
        dump.put_tensor(tensor.data_name, Payload(number))
    else:
        dump.link_tensor(tensor.data_name, "Functional.relu.4.forward.output.0.pt")
tensors = directory / "dump_tensor_data"
while b"relu.5" not in (directory / "journal.jsonl").read_bytes() or len(os.listdir(tensors)) < 3:
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_tensors_that_waited_when_the_process_was_killed_are_counted(tmp_path):
    directory = tmp_path / "step0" / "rank"
    killed = subprocess.run(
        [sys.executable, "-c", KILLED_WITH_FULL_QUEUE, str(directory)], check=False, timeout=60
    )
    assert killed.returncode == -9
    lost = [f"Functional.relu.{number}.forward.output.0.pt" for number in (2, 3, 4, 5)]
    assert msprobe.open_dump(tmp_path).step().rank().missing_tensors == lost
    assert repair_dump(tmp_path, dry_run=True)[0].missing_tensors == tuple(lost)
    (done,) = repair_dump(tmp_path)
    assert (done.records, done.missing_tensors, done.problem) == (6, tuple(lost), None)
    view = msprobe.open_dump(tmp_path).step().rank()
    assert view.missing_tensors == lost
    assert view.account["notes"][-1].endswith("never written: 4")


def test_a_complete_dump_misses_no_tensor(tmp_path):
    writer = DumpWriter()
    dump = writer.open(tmp_path / "step0" / "rank", HEAD)
    dump.put_record("Functional.relu.0.forward", 0, {"output": [NAN]}, nonfinite=True)
    dump.close()
    writer.close()
    assert msprobe.open_dump(tmp_path).step().rank().missing_tensors == []


def test_dry_run_says_the_same_and_changes_nothing(tmp_path):
    directory = killed_capture(tmp_path)
    before = files(directory)
    planned = repair_dump(tmp_path, dry_run=True)
    assert files(directory) == before
    assert repair_dump(tmp_path) == planned


def test_repairing_twice_finds_nothing_the_second_time(tmp_path):
    killed_capture(tmp_path)
    repair_dump(tmp_path)
    assert repair_dump(tmp_path) == []


def test_a_dump_in_good_order_is_not_touched(tmp_path):
    writer = DumpWriter()
    dump = writer.open(tmp_path / "step0" / "rank", HEAD)
    dump.put_record("Functional.relu.0.forward", 0, {"output": [None]})
    dump.close()
    writer.close()
    before = files(tmp_path)
    assert repair_dump(tmp_path) == []
    assert files(tmp_path) == before


def test_a_running_capture_is_left_alone(tmp_path):
    directory = killed_capture(tmp_path)
    before = files(directory)
    claim = claim_rank_directory(tmp_path, None)
    try:
        (done,) = repair_dump(tmp_path)
        assert "still writes" in done.problem
        assert files(directory) == before
    finally:
        claim.release()
    (done,) = repair_dump(tmp_path)
    assert done.problem is None


@pytest.mark.parametrize("text", [b"", b"garbage\n", b'["head",{"version":99}]\n'])
def test_one_hopeless_journal_does_not_stop_the_others(tmp_path, text):
    good, bad = killed_capture(tmp_path, "rank0"), killed_capture(tmp_path, "rank1")
    (bad / "journal.jsonl").write_bytes(text)
    before = files(bad)
    done = {rank.directory: rank for rank in repair_dump(tmp_path)}
    assert done[good].problem is None
    assert "journal.jsonl" in done[bad].problem
    assert files(bad) == before


def test_damaged_lines_are_left_out_and_counted(tmp_path):
    directory = killed_capture(tmp_path)
    journal = directory / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    lines[2:2] = [b"\x00\x01\n", b'["r",1,"x",{]\n', b'["?"]\n']
    journal.write_bytes(b"".join(lines))
    (done,) = repair_dump(tmp_path)
    assert (done.records, done.damaged_lines) == (3, 3)


def test_a_folder_that_cannot_be_written_keeps_its_journal(tmp_path):
    directory = killed_capture(tmp_path)
    # A folder of that name: the new file cannot take its place, whoever runs the test.
    (directory / "dump.json").mkdir()
    (directory / "dump.json" / "x").touch()
    (done,) = repair_dump(tmp_path)
    assert done.problem is not None
    assert (directory / "journal.jsonl").exists()
    assert not [name for name in files(directory) if ".tmp." in name and "77" not in name]


def test_links_to_other_folders_are_not_cleaned(tmp_path):
    directory = tmp_path / "step0" / "rank"
    directory.mkdir(parents=True)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / ".msprobe.tmp.1.1.pt").touch()
    (directory / "dump_tensor_data").symlink_to(elsewhere)
    (directory / ".msprobe.tmp.1.2.json").touch()
    (done,) = repair_dump(directory)
    assert done.temporaries == (directory / ".msprobe.tmp.1.2.json",)
    assert (elsewhere / ".msprobe.tmp.1.1.pt").exists()


def test_nothing_to_repair_there_is_an_error(tmp_path):
    with pytest.raises(DumpFormatError, match="no dump"):
        repair_dump(tmp_path)


def killed_inside_calls(directory: Path, framework: str) -> list[str]:
    """Leave tensor files of calls whose records were not written, and return their names."""
    tensors = directory / "dump_tensor_data"
    tensors.mkdir(parents=True)
    entry = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2]}
    entry["data_name"] = "Torch.tanh.0.forward.output.0.npy"
    lines = [
        ["head", {"version": 1, "task": "tensor", "level": "mix", "framework": framework}],
        ["c", 0, "Module.A.forward.0", None, None],
        ["c", 1, "Module.b.B.forward.0", "Module.A.forward.0", None],
        ["c", 2, "Torch.tanh.0.forward", "Module.b.B.forward.0", None],
        ["r", 2, "Torch.tanh.0.forward", {"output": [entry]}],
    ]
    texts = (json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    (directory / "journal.jsonl").write_text("".join(texts))
    names = [
        "Module.A.forward.0.input.0.npy",
        "Module.b.B.forward.0.input.1.mask.npy",
        "Module.b.B.forward.0.kwargs.scale.npy",
        "Module.b.B.backward.0.input.0.npy",
        "Module.b.B.parameters_grad.weight.npy",
    ]
    for number, name in enumerate((*names, entry["data_name"])):
        np.save(tensors / name, np.array([number, np.nan], np.float32))
    (tensors / "Module.b.B.forward.0.output.0.npy").write_bytes(b"half of a file")
    (tensors / "shortened~0123456789ab.npy").write_bytes(b"")
    (tensors / "Module.b.B.forward.0.input.999999999.npy").write_bytes(b"")
    return names


@pytest.mark.parametrize(
    ("framework", "kind", "dtype"),
    [
        ("pytorch", "torch.Tensor", "torch.float32"),
        ("mindspore", "mindspore.Tensor", "Float32"),
    ],
)
def test_tensors_of_calls_that_had_not_ended_become_records(tmp_path, framework, kind, dtype):
    directory = tmp_path / "step0" / "rank"
    names = killed_inside_calls(directory, framework)
    view = msprobe.open_dump(tmp_path).step().rank()
    assert set(names) < set(view.unrecorded_tensors)
    assert len(view.unrecorded_tensors) == len(names) + 3
    assert repair_dump(tmp_path, dry_run=True)[0].unfinished == 4
    (done,) = repair_dump(tmp_path)
    assert (done.records, done.unfinished, done.problem) == (1, 4, None)
    view = msprobe.open_dump(tmp_path).step().rank()
    assert list(view.records)[:3] == [
        "Module.A.forward.0",
        "Module.b.B.forward.0",
        "Torch.tanh.0.forward",
    ]
    found = {
        f"{name} {value.label}": value
        for name, record in view.records.items()
        for value in record.values()
        if "unfinished" in record.notes and value.is_tensor
    }
    assert [value.data_name for value in found.values()] == names[:5]
    assert list(found)[1:4] == [
        "Module.b.B.forward.0 input.1.mask",
        "Module.b.B.forward.0 kwargs.scale",
        "Module.b.B.backward.0 input.0",
    ]
    value = found["Module.b.B.forward.0 kwargs.scale"]
    assert (value.type, value.raw_dtype, value.shape) == (kind, dtype, (2,))
    assert (value.nan_count, math.isnan(value.max)) == (1, True)
    assert view.tensor(value).array[0] == 2
    assert view.parents["Torch.tanh.0.forward"] == "Module.b.B.forward.0"
