# SPDX-License-Identifier: Apache-2.0
"""Disks that refuse: one clear error, an incomplete dump, and a training that goes on."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from msprobe.dump.journal import read_journal
from msprobe.dump.writer import DumpHead, DumpWriter, RankDump, WriteAccount

HEAD = DumpHead("tensor", "mix", "pytorch")


class Payload:
    def __init__(self, size_bytes: int = 1000) -> None:
        self.size_bytes = size_bytes

    def write(self, path: Path) -> None:
        path.write_bytes(b"x" * self.size_bytes)


class TorchLikePayload(Payload):
    """torch reports every disk problem as RuntimeError."""

    def write(self, path: Path) -> None:
        try:
            super().write(path)
        except OSError as exc:
            raise RuntimeError("PytorchStreamWriter failed writing file") from exc


@pytest.fixture
def writer():
    writer = DumpWriter(flush_interval_s=0.05)
    yield writer
    writer.close()


@pytest.fixture
def mount(tmp_path: Path):
    """Mount a tmpfs of 1 MiB, which needs root."""
    folder = tmp_path / "mount"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if sys.platform != "linux" or subprocess.run(command, capture_output=True).returncode:  # noqa: PLW1510
        pytest.skip("needs the right to mount a file system")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def errors_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [entry.getMessage() for entry in caplog.records if entry.levelno >= logging.ERROR]


def put_everything(dump: RankDump, count: int, payload: Payload | None = None) -> None:
    for number in range(count):
        name = f"Functional.relu.{number}.forward"
        dump.put_record(name, number, {"output": [number, "x" * 100]})
        dump.put_call(name, number, None, 0)
        dump.put_frames(0, ["File x.py, line 1, in f"])
        if payload is not None:
            dump.put_tensor(f"{name}.pt", payload)
            dump.link_tensor(f"{name}.2.pt", f"{name}.pt")


def finish(dump: RankDump) -> WriteAccount:
    dump.build_json()
    account = dump.close()
    dump.log_error("kind", "text")
    dump.write_account({"complete": account.complete})
    return account


def test_a_disk_full_of_tensors_keeps_the_records_it_has_room_for(writer, mount, caplog):
    dump = writer.open(mount / "step0" / "rank", HEAD)
    put_everything(dump, 200, Payload(20_000))
    account = finish(dump)
    assert not account.complete
    errors = errors_in(caplog)
    assert len(errors) == 1
    assert "No space left on device" in errors[0]
    assert "free some space" in errors[0]
    assert 0 < account.tensors < 200
    tensors = mount / "step0" / "rank" / "dump_tensor_data"
    assert {path.stat().st_size for path in tensors.iterdir()} == {20_000}
    assert not list((mount / "step0").rglob(".msprobe*"))


@pytest.mark.parametrize("payload", [Payload, TorchLikePayload])
def test_no_room_for_one_large_tensor_leaves_a_full_set_of_records(writer, mount, caplog, payload):
    dump = writer.open(mount / "step0" / "rank", HEAD)
    put_everything(dump, 10, payload(2 << 20))
    account = finish(dump)
    assert (account.records, account.tensors, account.complete) == (10, 0, False)
    assert len(errors_in(caplog)) == 1
    assert "the disk is full" in errors_in(caplog)[0]
    data = json.loads((mount / "step0" / "rank" / "dump.json").read_text())["data"]
    assert len(data) == 10
    account_file = json.loads((mount / "step0" / "rank" / "account.json").read_text())
    assert account_file == {"complete": False}


def test_a_journal_that_fills_the_disk_can_still_be_read(writer, mount, caplog):
    dump = writer.open(mount / "step0" / "rank", HEAD)
    put_everything(dump, 20_000)
    time.sleep(0.3)
    journal = mount / "step0" / "rank" / "journal.jsonl"
    size_bytes = journal.stat().st_size
    put_everything(dump, 20_000)  # does nothing any more
    assert journal.stat().st_size == size_bytes
    assert not finish(dump).complete
    assert len(errors_in(caplog)) == 1
    contents = read_journal(mount / "step0" / "rank" / "journal.jsonl")
    assert contents.damaged_lines == 0
    assert len(contents.index.records) > 1000
    assert list(contents.index.records) == [
        f"Functional.relu.{number}.forward" for number in range(len(contents.index.records))
    ]


def test_steps_after_a_full_one_report_once_and_recover_with_the_disk(writer, mount, caplog):
    for step in range(3):
        dump = writer.open(mount / f"step{step}" / "rank", HEAD)
        put_everything(dump, 20_000)
        assert not dump.close().complete
    assert len(errors_in(caplog)) == 1
    for step in range(3):
        shutil.rmtree(mount / f"step{step}")
    dump = writer.open(mount / "step3" / "rank", HEAD)
    put_everything(dump, 10, Payload())
    assert finish(dump).complete


def test_a_read_only_file_system(writer, mount, caplog):
    subprocess.run(["mount", "-o", "remount,ro", mount], check=True)
    dump = writer.open(mount / "step0" / "rank", HEAD)
    put_everything(dump, 10, Payload())
    account = finish(dump)
    assert (account.records, account.tensors, account.complete) == (0, 0, False)
    assert len(errors_in(caplog)) == 1
    assert "the file system is read-only" in errors_in(caplog)[0]


def test_a_file_system_that_becomes_read_only_while_capturing(writer, tmp_path, caplog):
    """A file in place of the tensor folder: later files are refused, records go on."""
    dump = writer.open(tmp_path / "step0" / "rank", HEAD)
    (tmp_path / "step0" / "rank" / "dump_tensor_data").write_text("the user's")
    put_everything(dump, 10, Payload())
    account = finish(dump)
    assert (account.records, account.tensors, account.complete) == (10, 0, False)
    assert len(errors_in(caplog)) == 1
    assert "a file is in the place of the folder" in errors_in(caplog)[0]


def test_a_file_in_place_of_the_dump_path(writer, tmp_path, caplog):
    (tmp_path / "dump").write_text("the user's")
    for step in range(3):
        dump = writer.open(tmp_path / "dump" / f"step{step}" / "rank", HEAD)
        put_everything(dump, 10, Payload())
        assert not finish(dump).complete
    assert len(errors_in(caplog)) == 1
    assert (tmp_path / "dump").read_text() == "the user's"


def test_a_folder_that_can_never_be_made(writer, caplog):
    dump = writer.open(Path("/proc/msprobe/dump/step0/rank"), HEAD)
    assert not finish(dump).complete
    (error,) = errors_in(caplog)
    assert "the folder cannot be made; choose another dump_path" in error


def test_a_folder_without_permission(tmp_path):
    """As another user where the tests run as root, whom no permission stops."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    code = """
        import os, sys
        from pathlib import Path
        from msprobe.dump.writer import DumpHead, DumpWriter
        if os.getuid() == 0:
            os.setuid(65534)
        dump = DumpWriter().open(Path(sys.argv[1]), DumpHead("tensor", "mix", "pytorch"))
        dump.put_record("a", 0, {})
        print(dump.close().complete)
    """
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(folder.stat().st_mode | 0o011)
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), closed / "step0" / "rank"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout == "False\n", result.stderr
    assert result.stderr.count("no permission to write here") == 1


@pytest.mark.parametrize("payload", [Payload, TorchLikePayload])
def test_a_vanished_folder_is_reported_and_not_made_again(writer, tmp_path, caplog, payload):
    dump = writer.open(tmp_path / "run" / "step0" / "rank", HEAD)
    put_everything(dump, 10, payload())
    dump.build_json()
    shutil.rmtree(tmp_path / "run")
    put_everything(dump, 10, payload())
    account = finish(dump)
    assert not account.complete
    assert len(errors_in(caplog)) == 1
    assert "vanished" in errors_in(caplog)[0]
    assert not (tmp_path / "run").exists()


def test_a_vanished_folder_is_noticed_without_any_tensor(writer, tmp_path, caplog):
    dump = writer.open(tmp_path / "run" / "step0" / "rank", HEAD)
    shutil.rmtree(tmp_path / "run")
    dump.put_record("a", 0, {})
    deadline = time.monotonic() + 5
    while not errors_in(caplog) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert "vanished" in errors_in(caplog)[0]
    assert not dump.close().complete


def test_a_limit_on_file_sizes(tmp_path):
    """RLIMIT_FSIZE, as batch systems set it: the journal stops there, the program does not."""
    code = """
        import resource, signal, sys
        from pathlib import Path
        from msprobe.dump.writer import DumpHead, DumpWriter
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        dump = DumpWriter().open(Path(sys.argv[1]), DumpHead("tensor", "mix", "pytorch"))
        for number in range(10_000):
            dump.put_record(f"r{number}", number, {"output": [number]})
        print(dump.close().complete)
    """
    directory = tmp_path / "step0" / "rank"
    result = subprocess.run(
        # -B: the limit would cut compiled modules short, for every other test too.
        [sys.executable, "-B", "-c", textwrap.dedent(code), directory],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout == "False\n", result.stderr
    assert result.stderr.count("cannot be written") == 1
    if (directory / "journal.jsonl").exists():
        names = list(read_journal(directory / "journal.jsonl").index.records)
    else:
        names = list(json.loads((directory / "dump.json").read_text())["data"])
    assert len(names) > 1000
    assert names == [f"r{number}" for number in range(len(names))]


def test_what_was_full_never_leaves_half_a_json_file(writer, mount):
    """The dump of the first build stays whole when the next one finds no room."""
    directory = mount / "step0" / "rank"
    dump = writer.open(directory, HEAD)
    put_everything(dump, 500)
    dump.build_json()
    filler = mount / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                os.write(file.fileno(), b"x" * 4096)
        except OSError:
            pass
    dump.put_record("late", 10**6, {"output": ["y" * 300_000]})
    account = dump.close()
    assert not account.complete
    assert len(json.loads((directory / "dump.json").read_text())["data"]) == 500
    assert (directory / "journal.jsonl").exists()
