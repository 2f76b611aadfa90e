# SPDX-License-Identifier: Apache-2.0
"""Damaged and hostile dumps: a clear error that names the file, and nothing is ever executed."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import msprobe
from msprobe.dump.tensor_files import read_tensor
from msprobe.errors import DumpFormatError, MsprobeError, UnsupportedError

DATA = Path(__file__).parent / "data"
SAMPLE = DATA / "peer_mix_tensor" / "step0" / "proc4711"
GOOD_PT = SAMPLE / "dump_tensor_data" / "Functional.linear.0.forward.input.0.pt"
TENSOR = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2]}
HEAD = '{"task":"statistics","level":"L1","framework":"pytorch","dump_data_dir":null,"data":'


def dump_of(folder: Path, text: str | bytes, file: str = "dump.json") -> Path:
    directory = folder / "rank"
    directory.mkdir(exist_ok=True)
    (directory / file).write_bytes(text.encode() if isinstance(text, str) else text)
    return directory


def read_all(path: Path) -> int:
    """Touch everything that a dump offers; return the number of tensors."""
    count = 0
    for view in msprobe.open_dump(path).rank_views():
        assert view.head
        assert view.call_tree
        assert view.incomplete_reason is None
        for name in view.records:
            view.ancestors(name), view.frames(name)
            for _, tensor in view.records[name].tensors():
                count += 1
                if tensor.data_name is not None:
                    view.tensor(tensor)
    return count


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[]",
        "3",
        '"data"',
        "{}",
        '{"data":[]}',
        '{"data":{"a":{"output":[}}}',
        HEAD + '{\n"a": {"output":[]},\n"b": {"out',
        HEAD + '{\n"a": {"output":[]},\n',
        HEAD + '{\n"a" {"output":[]}\n}}',
        HEAD + '{\n"a": {"output":[}\n}}',
        HEAD + '{\n"a": 1}}\n}}',
        HEAD + '{\n"Torch.relu.0.forward": 5\n}}',
        HEAD + '{\n"Module.fc.Linear.forward.0": ["x", 2]\n}}',
        '{"task":3,"data":{}}',
        '{"level":[],"data":{}}',
        '{"data":{"a":' + "[" * 100_000,
        HEAD + '{\n"a": ' + "[" * 100_000 + "]" * 100_000 + "\n}}",
        HEAD + '{\n"a": ' + "9" * 10_000 + "\n}}",
        '{"data":{"a":' + "9" * 10_000 + "}}",
        b'{"data":{"\xff\xfe":{}}}',
        HEAD.encode() + b'{\n"\xff": {}\n}}',
        HEAD + '{\n"\\ud8zz": {}\n}}',
        b"\x00" * 1000,
        "\ufeff{}",
    ],
)
def test_text_that_is_no_dump(tmp_path, text):
    dump_of(tmp_path, text)
    with pytest.raises(DumpFormatError, match=r"dump\.json: ") as caught:
        read_all(tmp_path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("shape", "abc"),
        ("shape", [1.5]),
        ("shape", [-1]),
        ("shape", [True]),
        ("shape", [10**30]),
        ("shape", None),
        ("shape", {"a": 1}),
        ("Max", "high"),
        ("Max", [1]),
        ("Min", 10**400),
        ("Norm", {}),
        ("dtype", 3),
        ("requires_grad", "yes"),
        ("data_name", 7),
        ("md5", ["a"]),
    ],
)
@pytest.mark.parametrize("one_line", [True, False])
def test_values_of_a_wrong_type_name_record_and_part(tmp_path, key, value, one_line):
    line_break = "\n" if one_line else " "
    record = json.dumps({"input_args": [None, {**TENSOR, key: value}]})
    dump_of(tmp_path, f'{HEAD}{{{line_break}"a.b": {record}{line_break}}}}}')
    with pytest.raises(
        DumpFormatError, match=rf'dump\.json: a\.b: input\.1: "{key}" is '
    ) as caught:
        read_all(tmp_path)
    assert len(str(caught.value)) < 600


def test_nesting_beyond_any_capture(tmp_path):
    tree = "[" * 800 + "null" + "]" * 800  # written by hand: it is too deep for some encoders
    dump_of(tmp_path, f'{{"data": {{"a": {{"output": {tree}}}}}}}')
    with pytest.raises(DumpFormatError, match="deep"):
        read_all(tmp_path)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("construct.json", "[]"),
        ("construct.json", '{"a":'),
        ("construct.json", '{"a": 3}'),
        ("construct.json", '{"a": [1, 2]}'),
        ("construct.json", '{"a": ["b"]}'),
        ("stack.json", "null"),
        ("stack.json", '{"0": 1}'),
        ("stack.json", '{"0": [["a"], [3]]}'),
        ("stack.json", '{"0": [[["a"]], ["f"]]}'),
        ("account.json", "[1]"),
        ("account.json", "{"),
    ],
)
def test_other_files_of_a_wrong_form(tmp_path, file, text):
    dump_of(tmp_path, json.dumps({"data": {"a": {}}}))
    dump_of(tmp_path, text, file)
    with pytest.raises(DumpFormatError, match=file):
        read_all(tmp_path)


def test_calls_that_enclose_each_other_end(tmp_path):
    dump_of(tmp_path, json.dumps({"data": {"a": {}}}))
    dump_of(tmp_path, json.dumps({"a": "b", "b": "c", "c": "b", "d": "d"}), "construct.json")
    rank = msprobe.open_dump(tmp_path).step().rank()
    assert rank.parents == {"a": "b", "b": "c", "c": None, "d": None}
    assert rank.ancestors("a") == ["b", "c"]


@pytest.mark.parametrize(
    "name",
    [
        "../secret.pt",
        "a/../../secret.pt",
        "/etc/passwd.pt",
        "..",
        ".",
        "",
        "nul\0.pt",
        "x" * 5000 + ".pt",
        "secret.py",
        "secret",
        "link.pt",
        "linked/secret.pt",
        "loop.pt",
        "folder.pt",
        "pipe.pt",
    ],
)
def test_no_name_leads_out_of_the_folder_or_hangs(tmp_path, name):
    directory = dump_of(
        tmp_path, json.dumps({"data": {"a": {"output": [{**TENSOR, "data_name": name}]}}})
    )
    folder = directory / "dump_tensor_data"
    (folder / "a").mkdir(parents=True)
    for place in (directory, tmp_path):
        (place / "secret.pt").write_bytes(GOOD_PT.read_bytes())
    (folder / "link.pt").symlink_to(directory / "secret.pt")
    (folder / "linked").symlink_to(directory)
    (folder / "loop.pt").symlink_to(folder / "loop.pt")
    (folder / "folder.pt").mkdir()
    os.mkfifo(folder / "pipe.pt")
    with pytest.raises(DumpFormatError):
        read_all(tmp_path)


def test_a_folder_moved_to_another_disk_may_be_a_link(tmp_path):
    directory = dump_of(
        tmp_path, json.dumps({"data": {"a": {"output": [{**TENSOR, "data_name": "sub/t.pt"}]}}})
    )
    (tmp_path / "disk" / "sub").mkdir(parents=True)
    (tmp_path / "disk" / "sub" / "t.pt").write_bytes(GOOD_PT.read_bytes())
    (directory / "dump_tensor_data").symlink_to(tmp_path / "disk")
    assert read_all(tmp_path) == 1


class Trap:
    """Unpickling this would make a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


def archive(path: Path, pickled: bytes, storage: bytes = b"\0" * 8, **how: int) -> None:
    with zipfile.ZipFile(path, "w", **how) as file:
        file.writestr("archive/data.pkl", pickled)
        file.writestr("archive/data/0", storage)


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_a_pickle_that_would_execute_is_never_run(tmp_path, protocol):
    trap = tmp_path / "executed"
    archive(tmp_path / "t.pt", pickle.dumps(Trap(trap), protocol))
    (tmp_path / "bare.pt").write_bytes(pickle.dumps(Trap(trap), max(protocol, 2)))
    np.save(tmp_path / "t.npy", np.array([Trap(trap)], dtype=object), allow_pickle=True)
    for name in ("t.pt", "bare.pt", "t.npy"):
        with pytest.raises(MsprobeError):
            read_tensor(tmp_path, name)
    assert not trap.exists()


def tensor_pickle(
    *, kind: bytes = b"FloatStorage", offset: int = 0, shape: tuple = (2,), stride: tuple = (1,)
) -> bytes:
    """Return data.pkl of a tensor, assembled opcode by opcode."""

    def number(value: int) -> bytes:
        return b"\x8a" + bytes([len(b := pickle.encode_long(value))]) + b if value else b"K\0"

    def numbers(values: tuple) -> bytes:
        return b"(" + b"".join(map(number, values)) + b"t"

    storage = b"(X\x07\0\0\0storagectorch\n" + kind + b"\nX\x01\0\0\x000X\x03\0\0\0cpuK\x02tQ"
    hooks = b"ccollections\nOrderedDict\n)R"
    call = b"ctorch._utils\n_rebuild_tensor_v2\n("
    return (
        b"\x80\x02" + call + storage + number(offset) + numbers(shape) + numbers(stride)
        + b"\x89" + hooks + b"tR."
    )  # fmt: skip


def test_the_assembled_pickle_is_a_good_one(tmp_path):
    archive(tmp_path / "t.pt", tensor_pickle(), struct.pack("<2f", 1.5, -2.0))
    assert read_tensor(tmp_path, "t.pt").array.tolist() == [1.5, -2.0]


@pytest.mark.parametrize(
    "lie",
    [
        {"shape": (3,)},
        {"shape": (1 << 40,)},
        {"shape": (1 << 40,), "stride": (0,)},
        {"shape": (1 << 62, 1 << 62), "stride": (0, 0)},
        {"shape": (1,) * 70, "stride": (1,) * 70},
        {"shape": (-1,)},
        {"shape": (2,), "stride": (-1,)},
        {"shape": (2,), "stride": (1 << 62,)},
        {"shape": (2, 1)},
        {"offset": 1},
        {"offset": -1},
        {"offset": 1 << 62},
        {"kind": b"DoubleStorage"},
    ],
)
def test_sizes_that_lie_are_found_before_anything_is_allocated(tmp_path, lie):
    archive(tmp_path / "t.pt", tensor_pickle(**lie))
    with pytest.raises(DumpFormatError, match=r"t\.pt"):
        read_tensor(tmp_path, "t.pt")


def test_an_unknown_storage_is_refused(tmp_path):
    archive(tmp_path / "t.pt", tensor_pickle(kind=b"os\nsystem"))
    with pytest.raises(MsprobeError):
        read_tensor(tmp_path, "t.pt")


def test_a_decompression_bomb_is_not_unpacked(tmp_path):
    how = {"compression": zipfile.ZIP_DEFLATED}
    archive(tmp_path / "t.pt", tensor_pickle(), b"\0" * 50_000_000, **how)
    assert (tmp_path / "t.pt").stat().st_size < 100_000
    with pytest.raises(DumpFormatError, match="compressed"):
        read_tensor(tmp_path, "t.pt")


def test_archives_without_what_is_needed(tmp_path):
    for entries in ([], ["archive/data/0"], ["a/data.pkl", "b/data.pkl"], ["archive/data.pkl"]):
        with zipfile.ZipFile(tmp_path / "t.pt", "w") as file:
            for entry in entries:
                file.writestr(entry, tensor_pickle())
        with pytest.raises(DumpFormatError):
            read_tensor(tmp_path, "t.pt")


def npy(shape: str, descr: str = "<f4", body: bytes = b"\0" * 8) -> bytes:
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}}}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + body


@pytest.mark.parametrize(
    "text",
    [
        npy("(3,)"),
        npy("(1,)"),
        npy(f"({1 << 60},)"),
        npy("(-2,)"),
        npy("(2,)", "|O"),
        npy("(2,)", "xyz"),
        npy("__import__('os').system('true')"),
        npy("(" * 1000),
        npy("'a'"),
        npy("(2.5,)"),
        b"\x93NUMPY\x09\x00" + npy("(2,)")[8:],
        b"",
        b"\x93NUMPY",
        b"no array",
    ],
)
def test_npy_headers_that_lie(tmp_path, text):
    (tmp_path / "t.npy").write_bytes(text)
    with pytest.raises(DumpFormatError, match=r"t\.npy"):
        read_tensor(tmp_path, "t.npy")


def mutated(draw: st.DrawFn, good: bytes) -> bytes:
    text = bytearray(good)
    for _ in range(draw(st.integers(1, 8))):
        position = draw(st.integers(0, len(text) - 1))
        match draw(st.sampled_from(["change", "cut", "insert", "double"])):
            case "change":
                text[position] = draw(st.integers(0, 255))
            case "cut":
                del text[position : position + draw(st.integers(1, 100))]
            case "insert":
                text[position:position] = draw(st.binary(min_size=1, max_size=20))
            case "double":
                text[position:position] = text[position : position + 200]
        if not text:
            return b""
    return bytes(text)


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_no_damage_to_a_tensor_file_gives_another_error(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("fuzz")
    good_npy = io.BytesIO()
    np.save(good_npy, np.arange(6.0).reshape(2, 3))
    name = data.draw(st.sampled_from(["t.pt", "t.npy"]))
    good = GOOD_PT.read_bytes() if name == "t.pt" else good_npy.getvalue()
    (folder / name).write_bytes(mutated(data.draw, good))
    with contextlib.suppress(DumpFormatError, UnsupportedError):
        read_tensor(folder, name).values()


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_no_damage_to_the_pickle_gives_another_error(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("fuzz")
    archive(folder / "t.pt", mutated(data.draw, tensor_pickle()))
    with contextlib.suppress(DumpFormatError, UnsupportedError):
        read_tensor(folder, "t.pt").values()


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_no_damage_to_a_json_file_gives_another_error(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("fuzz")
    for file in ("dump.json", "construct.json", "stack.json"):
        text = (SAMPLE / file).read_bytes()
        if file == "dump.json" and data.draw(st.booleans()):
            tree = json.loads(text)
            lines = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in tree["data"].items())
            text = f"{HEAD}{{\n{lines}\n}}}}".encode()
        dump_of(folder, mutated(data.draw, text), file)
    with contextlib.suppress(DumpFormatError):
        read_all(folder)
