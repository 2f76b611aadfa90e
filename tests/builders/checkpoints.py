# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of every format, written by the libraries that own the formats where they exist."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from .protobuf import block, number

State = Mapping[str, torch.Tensor]


def state(seed: int = 0) -> dict[str, torch.Tensor]:
    """Return a small model's parameters in several types."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "embed.weight": torch.randn(11, 4, generator=generator),
        "layers.0.weight": torch.randn(4, 6, generator=generator),
        "layers.0.bias": torch.randn(6, generator=generator).half(),
        "layers.1.weight": torch.randn(3, 4, 2, generator=generator).double(),
        "layers.1.steps": torch.tensor(7),
        "layers.1.mask": torch.tensor([True, False, True]),
    }


def bits(tensor: torch.Tensor) -> bytes:
    """Return a tensor's bytes in row-major order."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def write_safetensors(path: Path, tensors: State) -> Path:
    # The library refuses tensors that share memory.
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, path)
    return path


def write_torch(path: Path, tensors: State) -> Path:
    torch.save(dict(tensors), path)
    return path


def write_old_torch(path: Path, tensors: State) -> Path:
    torch.save(dict(tensors), path, _use_new_zipfile_serialization=False)
    return path


def write_npz(path: Path, tensors: State) -> Path:
    np.savez(path, **{name: tensor.numpy() for name, tensor in tensors.items()})
    return path


def write_compressed_npz(path: Path, tensors: State) -> Path:
    np.savez_compressed(path, **{name: tensor.numpy() for name, tensor in tensors.items()})
    return path


def write_mindspore(path: Path, tensors: State, slice_bytes: int = 1 << 30) -> Path:
    with path.open("wb") as file:
        for name, tensor in tensors.items():
            content = bits(tensor)
            for start in range(0, max(len(content), 1), slice_bytes):
                file.write(mindspore_entry(name, tensor, content[start : start + slice_bytes]))
    return path


def mindspore_entry(name: str, tensor: torch.Tensor, content: bytes) -> bytes:
    kind = {torch.float32: "Float32", torch.float16: "Float16", torch.float64: "Float64"}
    kind |= {torch.int64: "Int64", torch.bool: "Bool", torch.bfloat16: "BFloat16"}
    dims = list(tensor.shape) or [0]
    body = b"".join(number(1, size) for size in dims)
    body += block(2, kind[tensor.dtype].encode()) + block(3, content)
    return block(1, block(1, name.encode()) + block(2, body))


def write_shards(folder: Path, tensors: State) -> Path:
    """Write two shards and their index, as model hubs have them."""
    folder.mkdir()
    places = {}
    names = list(tensors)
    for count, part in enumerate((names[::2], names[1::2]), 1):
        file = f"model-{count:05d}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, folder / file)
        places |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": 1}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def write_torch_shards(folder: Path, tensors: State) -> Path:
    folder.mkdir()
    names = list(tensors)
    places = {}
    for count, part in enumerate((names[:2], names[2:]), 1):
        file = f"pytorch_model-{count:05d}-of-00002.bin"
        torch.save({name: tensors[name] for name in part}, folder / file)
        places |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": places}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    return folder


def write_folder(folder: Path, tensors: State) -> Path:
    folder.mkdir()
    names = list(tensors)
    save_file({name: tensors[name] for name in names[:3]}, folder / "a.safetensors")
    torch.save({name: tensors[name] for name in names[3:]}, folder / "b.pt")
    (folder / "config.json").write_text("{}")
    return folder


WRITERS: dict[str, tuple[str, Callable[[Path, State], Path]]] = {
    "safetensors": ("model.safetensors", write_safetensors),
    "torch": ("model.pt", write_torch),
    "old torch": ("model.bin", write_old_torch),
    "npz": ("model.npz", write_npz),
    "compressed npz": ("model.npz", write_compressed_npz),
    "mindspore": ("model.ckpt", write_mindspore),
    "shards": ("shards", write_shards),
    "torch shards": ("torch_shards", write_torch_shards),
    "folder": ("folder", write_folder),
}
"""Name of a format → file name, and a function that writes it."""
