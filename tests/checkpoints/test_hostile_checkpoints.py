# SPDX-License-Identifier: Apache-2.0
"""Files that lie or attack: one error that names the file, nothing executed, no memory filled."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from builders.checkpoint_corpus import FORMATS, training  # noqa: E402
from builders.checkpoints import WRITERS, mindspore_entry, state, write_shards  # noqa: E402
from builders.protobuf import block, varint  # noqa: E402
from msprobe.checkpoints.opening import open_checkpoint  # noqa: E402
from msprobe.checkpoints.torch_file import read_torch_file  # noqa: E402
from msprobe.errors import CheckpointFormatError, MsprobeError, UnsupportedError  # noqa: E402

pytestmark = pytest.mark.torch


class Attack:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (os.system, (f"touch {self.path}",))


def read_all(path: Path) -> None:
    for parameter in open_checkpoint(path).parameters.values():
        if parameter.size_bytes < 1 << 20:
            for _ in parameter.pieces():
                pass


def refused(path: Path) -> str:
    """Return the message with which a checkpoint is refused, when opened or when read."""
    with pytest.raises((CheckpointFormatError, UnsupportedError)) as caught:
        read_all(path)
    assert path.name in str(caught.value)
    return str(caught.value)


def safetensors(path: Path, header: object, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def torch_zip(path: Path, pickled: bytes, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/data.pkl", pickled)
        for name, content in members.items():
            archive.writestr(f"x/data/{name.removeprefix('_')}", content)
    return path


def test_a_pickle_bomb_is_read_as_data_and_never_run(tmp_path: Path) -> None:
    proof = tmp_path / "executed"
    torch.save(
        {"w": torch.ones(2), "evil": Attack(proof), "in": [Attack(proof)]}, tmp_path / "x.pt"
    )
    found = open_checkpoint(tmp_path / "x.pt")
    assert set(found.parameters) == {"w"}
    assert not proof.exists()


def test_a_call_with_a_tensor_name_is_not_run_either(tmp_path: Path) -> None:
    proof = tmp_path / "executed"
    buffer = io.BytesIO()
    pickle.dump({"w": Attack(proof)}, buffer, protocol=2)
    text = buffer.getvalue().replace(b"cposix\nsystem", b"ctorch._utils\n_rebuild_tensor_v2")
    assert b"_rebuild_tensor_v2" in text
    assert "damaged" in refused(torch_zip(tmp_path / "x.pt", text))
    assert not proof.exists()


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"dtype": "F32", "shape": [4], "data_offsets": [0, 12]}, "takes 16 bytes"),
        ({"dtype": "F32", "shape": [4], "data_offsets": [8, 24]}, "outside the file"),
        ({"dtype": "F32", "shape": [4], "data_offsets": [-16, 0]}, "outside the file"),
        ({"dtype": "F32", "shape": [4], "data_offsets": [16, 0]}, "outside the file"),
        ({"dtype": "F32", "shape": [-4], "data_offsets": [0, 16]}, "unknown form"),
        ({"dtype": "F32", "shape": [1 << 62, 1 << 62], "data_offsets": [0, 16]}, "takes"),
        ({"dtype": "F32", "shape": "4", "data_offsets": [0, 16]}, "unknown form"),
        ({"dtype": "XX", "shape": [4], "data_offsets": [0, 16]}, "XX"),
        ({"dtype": "F32"}, "unknown form"),
        ("F32", "unknown form"),
        ({"dtype": "F32", "shape": [0] * 70, "data_offsets": [0, 0]}, "70 dimensions"),
    ],
)
def test_safetensors_that_contradict_themselves(tmp_path: Path, entry, reason: str) -> None:
    path = safetensors(tmp_path / "x.safetensors", {"w": entry}, bytes(16))
    with pytest.raises(MsprobeError, match=reason):
        open_checkpoint(path)


def test_safetensors_with_overlapping_tensors(tmp_path: Path) -> None:
    entry = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}
    other = {"dtype": "U8", "shape": [4], "data_offsets": [2, 6]}
    path = safetensors(tmp_path / "x.safetensors", {"a": entry, "b": other}, bytes(8))
    assert "overlap" in refused(path)


_F32 = '{"dtype":"F32","shape":[2],"data_offsets":[%d,%d]}'


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (f'{{"a":{_F32 % (0, 8)},"a":{_F32 % (8, 16)}}}', "bytes 0 to 8"),
        (f'{{"a":{_F32 % (0, 8)}}}', "bytes 8 to 16"),
    ],
)
def test_safetensors_with_bytes_of_no_tensor(tmp_path: Path, header: str, reason: str) -> None:
    path = safetensors(tmp_path / "a.safetensors", header.encode(), b"\0" * 16)
    assert reason in refused(path)


def test_a_type_of_safetensors_that_is_not_known(tmp_path: Path) -> None:
    entry = {"a": {"dtype": "Q3", "shape": [2], "data_offsets": [0, 8]}}
    assert "'a' is of type 'Q3'" in refused(safetensors(tmp_path / "a.st", entry, b"\0" * 8))


def test_a_meta_tensor_is_not_compared(tmp_path: Path) -> None:
    torch.save({"w": torch.empty(3, device="meta"), "v": torch.ones(2)}, tmp_path / "a.pt")
    found = open_checkpoint(tmp_path / "a.pt")
    assert [(one.name, "meta device" in one.problem) for one in found.unread] == [("w", True)]


def test_weights_that_the_index_does_not_list_are_no_part_of_the_model(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    one = {"a": np.ones(2, "f4")}
    save_file(one, tmp_path / "one.safetensors")
    save_file({"b": np.ones(2, "f4")}, tmp_path / "two.safetensors")
    index = {"weight_map": {"a": "one.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert list(open_checkpoint(tmp_path).parameters) == ["a", "two.safetensors.b"]


@pytest.mark.parametrize("header", [b"{", b"{]", b'{"a":' + b"[" * 100_000, b"{\xff}"])
def test_safetensors_with_a_broken_header(tmp_path: Path, header: bytes) -> None:
    refused(safetensors(tmp_path / "x.safetensors", header))


def test_a_header_longer_than_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes((1 << 40).to_bytes(8, "little") + b"{}")
    assert "x.safetensors" in refused(path)


def test_a_pickle_that_unfolds_without_end(tmp_path: Path) -> None:
    tree: list = []
    for _ in range(3):
        tree = [tree] * 1000
    torch.save({"w": tree}, tmp_path / "x.pt")
    assert "unfolds" in refused(tmp_path / "x.pt")


def test_a_tree_that_is_nested_too_deeply(tmp_path: Path) -> None:
    tree: list = []
    for _ in range(300):
        tree = [tree, {}]
    torch.save({"w": tree}, tmp_path / "x.pt")
    assert "nested deeper" in refused(tmp_path / "x.pt")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b"K\x04K\x06\x86", b"K\x7fK\x7f\x86", "stored elements"),
        (b"X\x0c\x00\x00\x00FloatStorage", b"", ""),
    ],
)
def test_a_tensor_that_reaches_beyond_its_storage(tmp_path: Path, old, new, reason) -> None:
    torch.save({"w": torch.zeros(4, 6)}, tmp_path / "ok.pt")
    with zipfile.ZipFile(tmp_path / "ok.pt") as archive:
        prefix = archive.namelist()[0].partition("/")[0]
        pickled = archive.read(f"{prefix}/data.pkl")
        storage = archive.read(f"{prefix}/data/0")
    if old not in pickled:
        old, new = b"FloatStorage", b"QuirkStorage"
    path = torch_zip(tmp_path / "x.pt", pickled.replace(old, new), _0=storage)
    if reason:
        assert reason in refused(path)
    else:
        (unread,) = open_checkpoint(path).unread
        assert (unread.name, "Quirk" in unread.problem) == ("w", True)


def test_a_tensor_without_its_storage(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(4, 6)}, tmp_path / "ok.pt")
    with zipfile.ZipFile(tmp_path / "ok.pt") as archive:
        pickled = archive.read(f"{archive.namelist()[0].partition('/')[0]}/data.pkl")
    assert "w: damaged" in refused(torch_zip(tmp_path / "x.pt", pickled))


@pytest.mark.parametrize(
    "pickled", [b"", b".", b"\x80\x02", b"(.", b"\x80\x02}q\x00(K\x01u.", b"i."]
)
def test_damaged_pickles(tmp_path: Path, pickled: bytes) -> None:
    refused(torch_zip(tmp_path / "x.pt", pickled))


def test_a_compressed_storage_is_refused(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(4, 6)}, tmp_path / "ok.pt")
    with zipfile.ZipFile(tmp_path / "ok.pt") as archive:
        contents = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(tmp_path / "x.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    assert "compressed" in refused(tmp_path / "x.pt")


def test_arrays_of_objects_are_read_as_data_and_never_run(tmp_path: Path) -> None:
    proof = tmp_path / "executed"
    evil = np.array([Attack(proof), 1], dtype=object)
    np.save(tmp_path / "x.npy", evil, allow_pickle=True)
    assert open_checkpoint(tmp_path / "x.npy").values["x.items.1"].content == 1
    np.savez(tmp_path / "x.npz", evil=evil, w=np.ones(2))
    checkpoint = open_checkpoint(tmp_path / "x.npz")
    assert list(checkpoint.parameters) == ["w"]
    assert f"touch {proof}" in checkpoint.values["evil.items.0.0"].content
    assert not proof.exists()


def test_an_npz_whose_header_promises_more_than_it_holds(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.zeros((4, 1)))
    lie = buffer.getvalue().replace(b"(4, 1)", b"(9, 9)")
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        with zipfile.ZipFile(tmp_path / "x.npz", "w", method) as archive:
            archive.writestr("w.npy", lie)
        assert "takes 648 bytes" in refused(tmp_path / "x.npz")


@pytest.mark.parametrize(
    "content",
    [
        block(1, b"")[:1],
        block(1, b"x" * 50)[:20],
        block(1, block(2, b"")),
        block(1, b"\x0b"),
        b"\x0a" + b"\xff" * 12,
        b"\x0a" + varint(1 << 62),
        block(1, block(1, b"\xff\xfe")),
        mindspore_entry("w", torch.zeros(3), bytes(11)),
        mindspore_entry("w", torch.zeros(3), bytes(8)),
        mindspore_entry("w", torch.zeros(3), bytes(4)) + mindspore_entry("w", torch.zeros(2), b""),
    ],
)
def test_damaged_mindspore_files(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.ckpt").write_bytes(content)
    refused(tmp_path / "x.ckpt")


@pytest.mark.parametrize(
    "name", ["../secret.safetensors", "/etc/passwd", "sub/x.safetensors", "..", "gone.safetensors"]
)
def test_an_index_that_leaves_its_folder(tmp_path: Path, name: str) -> None:
    folder = write_shards(tmp_path / "hub", {"a": torch.ones(2), "b": torch.ones(1)})
    index = folder / "model.safetensors.index.json"
    tree = json.loads(index.read_text())
    tree["weight_map"]["a"] = name
    index.write_text(json.dumps(tree))
    with pytest.raises(CheckpointFormatError, match=r"not beside it|is missing"):
        open_checkpoint(folder)


@pytest.mark.parametrize("text", ["[]", "{", '{"weight_map": []}', '{"weight_map": {"a": 1}}'])
def test_an_index_of_another_form(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(CheckpointFormatError, match="index"):
        open_checkpoint(tmp_path)


def test_a_shard_that_lacks_a_listed_tensor(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "hub", {"a": torch.ones(2), "b": torch.ones(1)})
    index = folder / "model.safetensors.index.json"
    tree = json.loads(index.read_text())
    tree["weight_map"]["a"] = tree["weight_map"]["b"]
    index.write_text(json.dumps(tree))
    with pytest.raises(CheckpointFormatError, match="does not hold 'a'"):
        open_checkpoint(folder)


@pytest.mark.parametrize("kind", ["safetensors", "torch", "old torch", "npz", "mindspore"])
def test_a_file_that_is_cut_short_while_it_is_open(tmp_path: Path, kind: str) -> None:
    file, write = WRITERS[kind]
    path = write(tmp_path / file, {"w": torch.zeros(100_000)})
    parameter = open_checkpoint(path).parameters["w"]
    with path.open("r+b") as open_file:
        open_file.truncate(1000)
    with pytest.raises(CheckpointFormatError, match="shorter"):
        parameter.array()


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("originals")
    kinds = ("safetensors", "torch", "old torch", "npz", "compressed npz", "mindspore")
    found = {}
    for kind in kinds:
        file, write = WRITERS[kind]
        found[kind] = write(folder / file, state()).read_bytes()
    found["pickle"] = pickle.dumps({"w": np.arange(9.0), "n": {"a": [1, 2.5, "x"], "s": {3}}})
    return found


def test_a_plain_pickle_runs_nothing(tmp_path: Path) -> None:
    target, reference = tmp_path / "t.pkl", tmp_path / "r.pkl"
    target.write_bytes(pickle.dumps({"w": np.ones(3), "e": Attack(tmp_path / "ran")}))
    reference.write_bytes(pickle.dumps({"w": np.ones(3)}))
    open_checkpoint(target)
    assert not (tmp_path / "ran").exists()
    assert not open_checkpoint(reference).values


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_damage_anywhere_gives_values_or_one_of_our_errors(
    tmp_path_factory: pytest.TempPathFactory, originals: dict[str, bytes], data: st.DataObject
) -> None:
    kind = data.draw(st.sampled_from(sorted(originals)))
    content = bytearray(originals[kind])
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(1, len(content))) :]
    path = tmp_path_factory.getbasetemp() / "fuzzed.bin"
    path.write_bytes(content)
    # Anything but our own errors fails the test.
    with contextlib.suppress(MsprobeError):
        read_all(path)


def test_reading_keeps_no_executable_object(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2), "f": torch.nn.functional.relu}, tmp_path / "x.pt")
    tree = read_torch_file(tmp_path / "x.pt").tree
    assert not callable(tree["f"])


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("folders")
    return {name: FORMATS[name](folder / name, training()) for name in SHARDED}


SHARDED = ("blocks", "zero 2", "zero 3", "megatron pp2")


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_damage_of_a_part_gives_values_or_one_of_our_errors(
    folders: dict[str, Path], data: st.DataObject
) -> None:
    folder = folders[data.draw(st.sampled_from(SHARDED))]
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    file = data.draw(st.sampled_from(files))
    original = file.read_bytes()
    content = bytearray(original)
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, min(len(content), 3000) - 1))] = data.draw(
            st.integers(0, 255)
        )
    file.write_bytes(content)
    try:
        with contextlib.suppress(MsprobeError):
            read_all(folder)
    finally:
        file.write_bytes(original)
