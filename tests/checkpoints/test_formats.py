# SPDX-License-Identifier: Apache-2.0
"""Every format yields the parameters that were saved, byte for byte."""

from __future__ import annotations

import collections
import json
import math
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from builders.checkpoints import WRITERS, bits, state, write_mindspore  # noqa: E402
from msprobe.checkpoints.opening import open_checkpoint  # noqa: E402
from msprobe.errors import CheckpointFormatError, UnsupportedError  # noqa: E402

pytestmark = pytest.mark.torch


def names(checkpoint) -> set[str]:
    return set(checkpoint.parameters)


@pytest.mark.parametrize("kind", WRITERS)
def test_a_format_gives_back_what_was_saved(tmp_path: Path, kind: str) -> None:
    file, write = WRITERS[kind]
    expected = state()
    checkpoint = open_checkpoint(write(tmp_path / file, expected))
    assert names(checkpoint) == set(expected)
    for name, tensor in expected.items():
        found = checkpoint.parameters[name]
        assert found.dtype == str(tensor.dtype).removeprefix("torch.")
        assert found.shape == tuple(tensor.shape)
        assert found.array().tobytes() == bits(tensor)
        # In pieces of a size that fits nothing.
        pieces = list(found.pieces(elements=5))
        assert b"".join(piece.tobytes() for piece in pieces) == bits(tensor)
        assert all(len(piece) == 5 for piece in pieces[:-1])


@pytest.mark.parametrize("length", [0x0280, 0x0A0A])
def test_a_header_whose_length_begins_like_another_format(tmp_path: Path, length: int) -> None:
    header = b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'.ljust(length)
    values = np.array([1.5, -2.0], np.float32)
    path = tmp_path / "model.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + header + values.tobytes())
    assert open_checkpoint(path).parameters["w"].array().tobytes() == values.tobytes()


@pytest.mark.parametrize("kind", ["safetensors", "torch", "mindspore", "shards"])
def test_bfloat16_comes_as_its_bits(tmp_path: Path, kind: str) -> None:
    file, write = WRITERS[kind]
    tensors = {"a": torch.randn(5, 3).bfloat16(), "b": torch.randn(2).bfloat16()}
    checkpoint = open_checkpoint(write(tmp_path / file, tensors))
    assert checkpoint.parameters["a"].dtype == "bfloat16"
    assert checkpoint.parameters["a"].array().dtype == np.uint16
    assert checkpoint.parameters["a"].array().tobytes() == bits(tensors["a"])


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("kind", ["safetensors", "torch"])
def test_float8_is_read(tmp_path: Path, kind: str, dtype: str) -> None:
    file, write = WRITERS[kind]
    tensors = {"a": torch.randn(5, 3).to(getattr(torch, dtype))}
    found = open_checkpoint(write(tmp_path / file, tensors)).parameters["a"]
    assert (found.dtype, found.array().tobytes()) == (dtype, bits(tensors["a"]))


def test_extensions_do_not_matter(tmp_path: Path) -> None:
    for kind in ("safetensors", "torch", "npz", "mindspore"):
        _, write = WRITERS[kind]
        path = write(tmp_path / "model.npz", state())
        path = path.rename(tmp_path / f"{kind}.weights")
        assert names(open_checkpoint(path)) == set(state())


def test_a_torch_file_is_read_with_all_its_oddities(tmp_path: Path) -> None:
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    shared = torch.randn(3)
    tree = {
        "model": collections.OrderedDict(
            transposed=base.t(),
            slice=base[1:3, 2:5],
            strided=base[:, ::2],
            flipped=torch.randn(2, 3, 4).permute(2, 0, 1),
            expanded=torch.tensor([1.0, 2.0]).expand(3, 2),
            parameter=torch.nn.Parameter(base.clone()),
            empty=torch.zeros(0, 4),
        ),
        "tied": [shared, {"again": shared}],
        "optimizer": {"state": {0: {"step": torch.tensor(3.0)}}, "param_groups": [{"lr": 0.1}]},
        "epoch": 4,
        "name": "run",
        "nothing": None,
        "sizes": (1, 2.5, True, b"x" * 300, 1 << 70, -1 << 70, {1, 2}, frozenset((3,))),
    }
    path = tmp_path / "x.pt"
    torch.save(tree, path)
    checkpoint = open_checkpoint(path)
    expected = {f"model.{name}": tensor for name, tensor in tree["model"].items()}
    expected |= {"tied.0": shared, "tied.1.again": shared}
    expected["optimizer.state.0.step"] = torch.tensor(3.0)
    assert names(checkpoint) == set(expected)
    for name, tensor in expected.items():
        found = checkpoint.parameters[name]
        assert found.shape == tuple(tensor.shape), name
        assert b"".join(p.tobytes() for p in found.pieces(elements=7)) == bits(tensor), name


def test_a_whole_module_is_read_as_its_state_dict(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    torch.save(model, tmp_path / "m.pt")
    assert names(open_checkpoint(tmp_path / "m.pt")) == set(model.state_dict())


def test_parts_of_a_sparse_tensor_have_their_own_names(tmp_path: Path) -> None:
    torch.save({"sparse": torch.eye(3).to_sparse(), "plain": torch.randn(2)}, tmp_path / "x.pt")
    checkpoint = open_checkpoint(tmp_path / "x.pt")
    assert names(checkpoint) == {"plain", "sparse.indices", "sparse.values"}
    assert np.array_equal(checkpoint.parameters["sparse.values"].array(), np.ones(3))


def test_tensors_of_a_subclass_that_adds_attributes_are_read(tmp_path: Path) -> None:
    parameter = torch.nn.Parameter(torch.randn(3))
    parameter.tensor_model_parallel = True
    torch.save({"w": parameter}, tmp_path / "x.pt")
    found = open_checkpoint(tmp_path / "x.pt").parameters["w"]
    assert found.array().tobytes() == bits(parameter)


def test_the_old_format_of_torch_is_read(tmp_path: Path) -> None:
    base = torch.randn(4, 6)
    tensors = state() | {"half": base[1:3], "transposed": base.t(), "bf": base.bfloat16()}
    torch.save(tensors, tmp_path / "x.bin", _use_new_zipfile_serialization=False)
    checkpoint = open_checkpoint(tmp_path / "x.bin")
    assert names(checkpoint) == set(tensors)
    for name, tensor in tensors.items():
        found = checkpoint.parameters[name]
        assert b"".join(p.tobytes() for p in found.pieces(elements=7)) == bits(tensor), name


def test_numpy_files_in_column_order_and_other_byte_order(tmp_path: Path) -> None:
    array = np.arange(24.0).reshape(2, 3, 4)
    np.save(tmp_path / "f.npy", np.asfortranarray(array))
    np.save(tmp_path / "b.npy", array.astype(">f4"))
    checkpoint = open_checkpoint(tmp_path)
    assert names(checkpoint) == {"f", "b"}
    assert np.array_equal(checkpoint.parameters["f"].array(), array)
    assert np.array_equal(checkpoint.parameters["b"].array(), array)
    assert checkpoint.parameters["b"].dtype == "float32"


def test_a_mindspore_parameter_in_slices_is_joined(tmp_path: Path) -> None:
    expected = state()
    path = write_mindspore(tmp_path / "x.ckpt", expected, slice_bytes=16)
    with path.open("ab") as file:
        file.write(b"crc_num" + b"\x12\x34\x56\x78")
    checkpoint = open_checkpoint(path)
    for name, tensor in expected.items():
        found = checkpoint.parameters[name]
        assert b"".join(p.tobytes() for p in found.pieces(elements=3)) == bits(tensor)


def test_names_that_several_files_share_begin_with_their_file(tmp_path: Path) -> None:
    for folder in ("unet", "text"):
        (tmp_path / folder).mkdir()
        WRITERS["safetensors"][1](tmp_path / folder / "model.safetensors", {"w": torch.ones(2)})
    assert names(open_checkpoint(tmp_path)) == {"unet/model.w", "text/model.w"}


def test_files_beside_shards_are_read(tmp_path: Path) -> None:
    folder = WRITERS["shards"][1](tmp_path / "hub", {"a": torch.ones(2), "b": torch.ones(1)})
    torch.save({"last_epoch": 3}, folder / "scheduler.pt")
    torch.save({"a": torch.zeros(2)}, folder / "old.pt")
    checkpoint = open_checkpoint(folder)
    assert names(checkpoint) == {"a", "b", "old.pt.a"}
    assert checkpoint.values["scheduler.last_epoch"].content == 3
    only = open_checkpoint(folder / "model.safetensors.index.json")
    assert names(only) == {"a", "b"}


def test_values_of_several_shards_stay_apart(tmp_path: Path) -> None:
    places = {}
    for number in (1, 2):
        file = f"x-{number:05d}-of-00002.bin"
        torch.save({f"w{number}": torch.ones(2), "part": number}, tmp_path / file)
        places[f"w{number}"] = file
    (tmp_path / "x.bin.index.json").write_text(json.dumps({"weight_map": places}))
    found = open_checkpoint(tmp_path).values
    assert [value.content for value in found.values()] == [1, 2]


def test_a_tensor_that_no_index_lists_is_read(tmp_path: Path) -> None:
    folder = WRITERS["shards"][1](tmp_path / "hub", {"a": torch.ones(2), "b": torch.ones(1)})
    index = folder / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "model-00001-of-00002.safetensors"}}')
    assert names(open_checkpoint(index)) == {"a"}
    WRITERS["safetensors"][1](
        folder / "model-00001-of-00002.safetensors", {"a": torch.ones(2), "c": torch.ones(1)}
    )
    checkpoint = open_checkpoint(index)
    assert names(checkpoint) == {"a", "model-00001-of-00002.safetensors.c"}
    assert "not in the index" in checkpoint.notes[0]


def test_a_folder_prefers_safetensors_to_pickles(tmp_path: Path) -> None:
    folder = WRITERS["shards"][1](tmp_path / "hub", {"a": torch.ones(2), "b": torch.ones(1)})
    (folder / "pytorch_model.bin.index.json").write_text('{"weight_map": {"x": "gone.bin"}}')
    opened = open_checkpoint(folder)
    assert names(opened) == {"a", "b"}
    (other,) = opened.unread
    assert other.problem == "weights in another format, not read; name its index to compare it"


@pytest.mark.parametrize(
    "name", ["distributed", "empty file", "empty folder", "missing", "lfs", "text"]
)
def test_what_is_no_checkpoint_is_refused_with_a_reason(tmp_path: Path, name: str) -> None:
    path = tmp_path / "x.safetensors"
    if name == "distributed":
        path.mkdir()
        (path / ".metadata").write_bytes(b"x")
    elif name == "empty folder":
        path.mkdir()
    elif name == "lfs":
        path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\n")
    elif name != "missing":
        path.write_text("" if name == "empty file" else "hello, world, this is text")
    with pytest.raises((CheckpointFormatError, UnsupportedError)) as caught:
        open_checkpoint(path)
    words = {
        "distributed": ".metadata: cannot be read",
        "empty file": "empty",
        "empty folder": "holds no checkpoint",
        "missing": "missing",
        "lfs": "git-lfs",
        "text": "no checkpoint that is known",
    }
    assert words[name] in str(caught.value)


def test_large_files_are_not_read_to_be_opened(tmp_path: Path) -> None:
    path = tmp_path / "big.safetensors"
    header = b'{"w":{"dtype":"F32","shape":[4,1073741824],"data_offsets":[0,17179869184]}}'
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + 17179869184)  # a hole, no blocks on disk
    parameter = open_checkpoint(path).parameters["w"]
    assert parameter.size_bytes == 1 << 34
    assert math.prod(parameter.shape) == parameter.count
    assert not parameter.span.read(parameter.count - 3, parameter.count).any()
