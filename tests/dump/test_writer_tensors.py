# SPDX-License-Identifier: Apache-2.0
"""Tensor files: atomic, shared where equal, and never more of them in memory than allowed."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path, PureWindowsPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msprobe.dump.layout import MAX_NAME_BYTES, is_bare_name, safe_file_name, unmarked_file_name
from msprobe.dump.tensor_store import TensorStore
from msprobe.dump.writer import DumpHead, DumpWriter

HEAD = DumpHead("tensor", "mix", "pytorch")


class Bytes:
    """A payload that writes its bytes, after `gate` opens."""

    def __init__(self, content: bytes, gate: threading.Event | None = None) -> None:
        self.content = content
        self.size_bytes = len(content)
        self.gate = gate

    def write(self, path: Path) -> None:
        if self.gate is not None:
            self.gate.wait(10)
        path.write_bytes(self.content)


class Unwritable:
    size_bytes = 10

    def write(self, path: Path) -> None:
        path.write_bytes(b"half")
        raise ValueError("no storage")


@pytest.fixture
def writer():
    writer = DumpWriter()
    yield writer
    writer.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "step0" / "rank" / "dump_tensor_data"


def inode(path: Path) -> int:
    return path.stat().st_ino


def test_files_and_links_hold_the_values(writer, folder):
    dump = writer.open(folder.parent, HEAD)
    dump.put_tensor("a.pt", Bytes(b"aaa"))
    dump.link_tensor("b.pt", "a.pt")
    dump.link_tensor("c.pt", "b.pt")
    dump.put_tensor("d.npy", Bytes(b"dddd"))
    account = dump.close()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        "a.pt": b"aaa",
        "b.pt": b"aaa",
        "c.pt": b"aaa",
        "d.npy": b"dddd",
    }
    assert inode(folder / "a.pt") == inode(folder / "b.pt") == inode(folder / "c.pt")
    assert (account.tensors, account.linked, account.complete) == (2, 2, True)
    json_bytes = sum(path.stat().st_size for path in folder.parent.glob("*.json"))
    assert account.bytes_written == json_bytes + 7
    head = json.loads((folder.parent / "dump.json").read_text())
    assert head["dump_data_dir"] == str(folder)


def test_build_json_waits_for_the_tensor_files(writer, folder):
    gate = threading.Event()
    dump = writer.open(folder.parent, HEAD)
    dump.put_tensor("a.pt", Bytes(b"aaa", gate))
    dump.put_record("a", 0, {})
    threading.Timer(0.2, gate.set).start()
    dump.build_json()
    assert (folder / "a.pt").read_bytes() == b"aaa"


def test_a_half_written_file_never_has_its_final_name(writer, folder):
    gate = threading.Event()
    dump = writer.open(folder.parent, HEAD)

    class Slow(Bytes):
        def write(self, path: Path) -> None:
            path.write_bytes(b"ha")
            self.gate.wait(10)
            path.write_bytes(b"half")

    dump.put_tensor("a.pt", Slow(b"half", gate))
    deadline = time.monotonic() + 10
    while not list(folder.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.01)
    names = [path.name for path in folder.iterdir()]
    gate.set()
    dump.close()
    assert len(names) == 1
    assert names[0].startswith(".msprobe.tmp.")
    assert names[0].endswith(".pt")
    assert [path.name for path in folder.iterdir()] == ["a.pt"]


def test_a_value_that_cannot_be_written_costs_only_itself(writer, folder, caplog):
    dump = writer.open(folder.parent, HEAD)
    dump.put_tensor("bad.pt", Unwritable())
    dump.link_tensor("also_bad.pt", "bad.pt")
    dump.put_tensor("good.pt", Bytes(b"g"))
    dump.put_record("r", 0, {})
    account = dump.close()
    assert [path.name for path in folder.iterdir()] == ["good.pt"]
    assert not account.complete
    assert len(account.errors) == 1
    assert "no storage" in account.errors[0]
    assert "no storage" in (folder.parent / "dump_error_info.log").read_text()
    assert list(json.loads((folder.parent / "dump.json").read_text())["data"]) == ["r"]


def test_a_link_to_a_file_that_was_never_put_is_reported(writer, folder):
    dump = writer.open(folder.parent, HEAD)
    dump.link_tensor("a.pt", "nothing.pt")
    dump.put_tensor("b.pt", Bytes(b"b"))
    account = dump.close()
    assert [path.name for path in folder.iterdir()] == ["b.pt"]
    assert not account.complete
    assert "nothing.pt" in account.errors[0]


def test_links_replace_existing_files(writer, folder):
    dump = writer.open(folder.parent, HEAD)
    dump.put_tensor("a.pt", Bytes(b"new"))
    dump.put_tensor("b.pt", Bytes(b"old"))
    dump.link_tensor("b.pt", "a.pt")
    dump.link_tensor("b.pt", "a.pt")  # already that file
    dump.link_tensor("a.pt", "a.pt")
    assert dump.close().complete
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        "a.pt": b"new",
        "b.pt": b"new",
    }
    assert inode(folder / "a.pt") == inode(folder / "b.pt")


def test_rewriting_a_file_leaves_its_links_alone(writer, folder):
    dump = writer.open(folder.parent, HEAD)
    dump.put_tensor("a.pt", Bytes(b"first"))
    dump.link_tensor("b.pt", "a.pt")
    dump.put_tensor("a.pt", Bytes(b"second"))
    dump.link_tensor("c.pt", "a.pt")
    dump.close()
    contents = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert contents == {"a.pt": b"second", "b.pt": b"first", "c.pt": b"second"}


def test_beyond_the_link_limit_fresh_copies_take_over(tmp_path):
    writer = DumpWriter(max_links=4)
    folder = tmp_path / "step0" / "rank" / "dump_tensor_data"
    dump = writer.open(folder.parent, HEAD)
    dump.put_tensor("a.pt", Bytes(b"aaa"))
    for number in range(21):
        dump.link_tensor(f"{number}.pt", "a.pt")
    account = dump.close()
    writer.close()
    paths = list(folder.iterdir())
    assert len(paths) == 22
    assert {path.read_bytes() for path in paths} == {b"aaa"}
    assert len({inode(path) for path in paths}) == 6
    assert max(path.stat().st_nlink for path in paths) == 4
    assert (account.tensors, account.linked, account.complete) == (6, 16, True)


def test_a_fresh_copy_is_not_used_once_its_source_was_rewritten(tmp_path):
    store = TensorStore(tmp_path, max_links=2)
    store.write("a.pt", Bytes(b"old"))
    store.link("b.pt", "a.pt")
    store.link("c.pt", "a.pt")  # a fresh copy
    store.write("a.pt", Bytes(b"new"))
    store.link("d.pt", "a.pt")
    assert (tmp_path / "c.pt").read_bytes() == b"old"
    assert (tmp_path / "d.pt").read_bytes() == b"new"


def test_the_real_link_limit_of_the_file_system_is_survived(tmp_path):
    store = TensorStore(tmp_path, max_links=10**9)
    store.write("a.pt", Bytes(b"a"))
    limit = 66_000
    for number in range(limit):
        try:
            (tmp_path / f"{number}.filler").hardlink_to(tmp_path / "a.pt")
        except OSError:
            break
    else:
        pytest.skip("this file system has no limit of 65,000")
    assert store.link("b.pt", "a.pt") == 1
    assert store.link("c.pt", "a.pt") == 0
    assert inode(tmp_path / "b.pt") == inode(tmp_path / "c.pt") != inode(tmp_path / "a.pt")


def test_where_linking_is_refused_the_file_is_copied(tmp_path, monkeypatch):
    """Stands in for a file system without links, which few test machines could mount."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", refuse)
    check_copies(tmp_path)


def check_copies(folder: Path) -> None:
    store = TensorStore(folder)
    store.write("a.pt", Bytes(b"aaa"))
    assert store.link("b.pt", "a.pt") == 3
    assert store.link("c.pt", "b.pt") == 3
    names = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix == ".pt"}
    assert names == {"a.pt": b"aaa", "b.pt": b"aaa", "c.pt": b"aaa"}


def test_a_full_queue_makes_put_tensor_wait(tmp_path):
    writer = DumpWriter(queue_bytes=10_000)
    dump = writer.open(tmp_path / "step0" / "rank", HEAD)
    gate = threading.Event()
    done: list[int] = []

    def put_all() -> None:
        for number in range(10):
            dump.put_tensor(f"{number}.pt", Bytes(b"x" * 4000, gate))
            done.append(number)

    thread = threading.Thread(target=put_all)
    thread.start()
    time.sleep(0.3)
    waiting = len(done)
    gate.set()
    thread.join()
    account = dump.close()
    writer.close()
    assert waiting == 2
    assert account.tensors == 10
    assert writer.peak_queue_bytes <= 10_000


def test_a_tensor_larger_than_the_queue_passes_alone(tmp_path):
    writer = DumpWriter(queue_bytes=1000)
    dump = writer.open(tmp_path / "step0" / "rank", HEAD)
    for number in range(3):
        dump.put_tensor(f"{number}.pt", Bytes(b"x" * 5000))
    assert dump.close().tensors == 3
    writer.close()
    assert writer.peak_queue_bytes == 5000


def test_from_a_submitted_task_nothing_waits_for_the_queue(tmp_path):
    writer = DumpWriter(queue_bytes=1000)
    dump = writer.open(tmp_path / "step0" / "rank", HEAD)

    def task() -> None:
        for number in range(5):
            dump.put_tensor(f"{number}.pt", Bytes(b"x" * 900))
        dump.link_tensor("link.pt", "4.pt")
        dump.build_json()

    writer.submit(task)
    account = dump.close()
    writer.close()
    assert (account.tensors, account.linked) == (5, 1)


def test_payloads_are_let_go_once_written(writer, folder):
    import weakref

    dump = writer.open(folder.parent, HEAD)
    payload = Bytes(b"a")
    alive = weakref.ref(payload)
    dump.put_tensor("a.pt", payload)
    del payload
    dump.put_record("r", 0, {})
    dump.build_json()
    assert alive() is None
    dump.close()


@pytest.mark.parametrize(
    "wanted",
    ["../../evil.pt", "a/b.pt", "..", ".", "", "/abs.pt", "nul\0.pt", ".hidden", "\ud800.pt"],
)
def test_names_cannot_leave_the_folder(writer, folder, wanted):
    dump = writer.open(folder.parent, HEAD)
    dump.put_tensor(wanted, Bytes(b"x"))
    assert dump.close().complete
    assert [path.name for path in folder.iterdir()] == [safe_file_name(wanted)]


def test_usual_names_stay_as_they_are():
    for name in (
        "Functional.linear.0.forward.input.0.pt",
        "Module.blk.0.Linear.forward.0.output.0.pt",
        "my value.0.debug.ключ.pt",
    ):
        assert safe_file_name(name) == name


def test_long_names_keep_start_and_extension():
    wanted = "Module." + "block." * 60 + "Linear.forward.0.output.0.pt"
    name = safe_file_name(wanted)
    assert len(name.encode()) <= MAX_NAME_BYTES
    assert name.startswith("Module.block.block.")
    assert name.endswith(".pt")
    assert name != safe_file_name(wanted.replace("output.0", "output.1"))


@given(st.text(st.characters(codec=None), max_size=300), st.text(max_size=300))
def test_safe_names_are_safe_stable_and_distinct(wanted, other):
    name = safe_file_name(wanted)
    assert name
    assert 0 < len(name.encode()) <= MAX_NAME_BYTES
    assert "/" not in name
    assert "\\" not in name
    assert ".." not in name
    assert not name.startswith(".")
    assert safe_file_name(name) == name
    assert (safe_file_name(other) == name) == (other in (wanted, name))


@pytest.mark.parametrize(
    "wanted",
    [
        "loss:train.0.debug.pt",
        'a<b>"c"|d?e*.0.forward.output.0.pt',
        "C:\\Windows\\x.pt",
        "..\\..\\x.pt",
        "NUL.0.debug.pt",
        "aux.pt",
        "com1.weight.npy",
        "Functional.linear.0.forward.output.0.pt",
    ],
)
def test_names_are_files_of_the_folder_on_windows_too(wanted: str) -> None:
    name = safe_file_name(wanted, windows=True)
    path = PureWindowsPath("D:/dump", name)
    assert (path.parent, path.name) == (PureWindowsPath("D:/dump"), name)
    assert name.partition(".")[0].upper() not in ("NUL", "AUX", "COM1")
    assert not set(name) & set('<>:"|?*')
    assert is_bare_name(name)
    assert safe_file_name(name, windows=True) == name
    assert name != safe_file_name(f"other {wanted}", windows=True)


@pytest.mark.parametrize("ignores_case", [True, False])
def test_names_that_differ_in_case_alone_are_two_files(tmp_path: Path, ignores_case: bool) -> None:
    store = TensorStore(tmp_path, ignores_case=ignores_case)
    wanted = [f"Tensor.{name}.0.forward.output.0.pt" for name in ("T", "t", "T", "mT", "mt")]
    names = [store.file_name(each) for each in wanted]
    assert names[0] == names[2] == wanted[0]
    assert (names == wanted) is not ignores_case
    fold = str.casefold if ignores_case else str
    assert len({fold(name) for name in names}) == 4
    assert [store.file_name(name) for name in names] == names
    assert [safe_file_name(name) for name in names] == names
    assert [unmarked_file_name(name) for name in names] == wanted


def test_a_file_system_that_ignores_case_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "RANK").mkdir()
    (tmp_path / "rank").mkdir(exist_ok=True)  # two folders here, one on such a file system
    store = TensorStore(tmp_path / "rank" / "dump_tensor_data")
    assert store.file_name("T.pt") == "T.pt"
    assert store.file_name("t.pt").casefold() != "t.pt"


@pytest.mark.parametrize(
    "name", ["..\\x.pt", "C:x.pt", "C:\\x.pt", "\\\\host\\share\\x.pt", "/x.pt", "a/../x.pt"]
)
def test_a_path_of_any_system_is_no_bare_name(name: str) -> None:
    assert (
        PureWindowsPath("D:/dump", name) != PureWindowsPath("D:/dump") / PureWindowsPath(name).name
    )
    assert not is_bare_name(name)
