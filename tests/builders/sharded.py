# SPDX-License-Identifier: Apache-2.0
"""Sharded checkpoints: written by torch where it can, else by the documented layout."""

from __future__ import annotations

import enum
import io
import itertools
import math
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import metadata as dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo

State = Mapping[str, torch.Tensor]


def cut_sizes(size: int, parts: int) -> list[tuple[int, int]]:
    """Return begin and length of each part of a dimension, the last ones shorter."""
    step = max(-(-size // parts), 1)
    found = [(begin, min(step, size - begin)) for begin in range(0, size, step)]
    return found or [(0, 0)]


class ZeroStageEnum(int, enum.Enum):
    """As DeepSpeed saves the stage of its own configuration."""

    OPTIMIZER_STATES = 1
    GRADIENTS = 2
    WEIGHTS = 3


def write_distributed(
    folder: Path, tensors: State, values: Mapping[str, Any] | None = None, *, cuts: Any = (1,)
) -> Path:
    """Write a distributed checkpoint whose tensors are cut into this many parts per dimension."""
    folder.mkdir(parents=True)
    entries: dict[str, Any] = {}
    storage: dict[Any, Any] = {}
    files: dict[str, io.BytesIO] = {}

    def store(index: Any, content: Any, rank: int) -> None:
        buffer = io.BytesIO()
        torch.save(content, buffer)
        name = f"__{rank}_0.distcp"
        file = files.setdefault(name, io.BytesIO())
        storage[index] = _StorageInfo(name, file.tell(), len(buffer.getvalue()))
        file.write(buffer.getvalue())

    for name, tensor in tensors.items():
        parts = [*cuts, *([1] * tensor.ndim)][: tensor.ndim]
        axes = [cut_sizes(size, count) for size, count in zip(tensor.shape, parts, strict=True)]
        chunks = []
        for rank, block in enumerate(itertools.product(*axes)):
            offset = torch.Size([begin for begin, _ in block])
            sizes = torch.Size([length for _, length in block])
            part = tensor[tuple(slice(begin, begin + length) for begin, length in block)]
            chunks.append(dcp.ChunkStorageMetadata(offset, sizes))
            store(dcp.MetadataIndex(name, offset, rank), part.clone(), rank)
        properties = dcp.TensorProperties(dtype=tensor.dtype)
        entries[name] = dcp.TensorStorageMetadata(properties, tensor.shape, chunks)
    for name, value in (values or {}).items():
        entries[name] = dcp.BytesStorageMetadata()
        store(dcp.MetadataIndex(name), value, 0)
    for name, file in files.items():
        (folder / name).write_bytes(file.getvalue())
    (folder / ".metadata").write_bytes(
        pickle.dumps(dcp.Metadata(state_dict_metadata=entries, storage_data=storage))
    )
    return folder


def write_deepspeed(
    folder: Path,
    tensors: State,
    *,
    ranks: int = 2,
    stage: int = 2,
    groups: int = 1,
    moments: State | None = None,
    buffers: State | None = None,
    lr: float = 1e-3,
    steps: int = 5,
) -> Path:
    """Write a ZeRO checkpoint of float32 parameters as DeepSpeed lays it out."""
    step = folder / "global_step100"
    step.mkdir(parents=True)
    (folder / "latest").write_text("global_step100")
    names = list(tensors)
    size = -(-len(names) // groups)
    members = [names[begin : begin + size] for begin in range(0, len(names), size)]
    moments = moments or {name: tensor * 0.1 for name, tensor in tensors.items()}
    shapes = [{name: tensors[name].shape for name in group} for group in members]
    module = {name: tensor.bfloat16() for name, tensor in tensors.items()} | dict(buffers or {})
    common = {"dp_world_size": ranks, "global_steps": 100, "lr_scheduler": {"last_epoch": steps}}
    cut = _cut_each if stage == 3 else _cut_all
    for rank in range(ranks):
        masters = [cut([tensors[name] for name in group], rank, ranks) for group in members]
        average = [cut([moments[name] for name in group], rank, ranks) for group in members]
        state = {
            number: {"exp_avg": part, "step": torch.tensor(float(steps))}
            for number, part in enumerate(average)
        }
        param_groups = [{"lr": lr, "params": [number]} for number in range(len(members))]
        inner = {"state": state, "param_groups": param_groups}
        states: dict[str, Any] = {"zero_stage": ZeroStageEnum(stage), "partition_count": ranks}
        if stage == 3:
            states |= {"fp32_flat_groups": masters, "optimizer_state_dict": inner}
        else:
            states |= {
                "single_partition_of_fp32_groups": masters,
                "base_optimizer_state": inner,
                "partition_count": [ranks] * len(members),
            }
        torch.save(
            {"optimizer_state_dict": states, "ds_config": {"train_batch_size": ranks}},
            step / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt",
        )
        if stage == 3:
            empty = {name: torch.zeros(0) for name in tensors} | dict(buffers or {})
            torch.save(
                {"module": empty, "param_shapes": shapes, **common},
                step / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt",
            )
    if stage < 3:
        torch.save(
            {"module": module, "optimizer": None, "param_shapes": shapes, **common},
            step / "mp_rank_00_model_states.pt",
        )
    return folder


def _cut_all(tensors: list[torch.Tensor], rank: int, ranks: int) -> torch.Tensor:
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    padded = torch.nn.functional.pad(flat, (0, -len(flat) % (2 * ranks)))
    return padded.chunk(ranks)[rank].clone()


def _cut_each(tensors: list[torch.Tensor], rank: int, ranks: int) -> torch.Tensor:
    parts = []
    for tensor in tensors:
        share = math.ceil(tensor.numel() / ranks)
        padded = torch.nn.functional.pad(tensor.flatten(), (0, share * ranks - tensor.numel()))
        parts.append(padded[rank * share : (rank + 1) * share])
    return torch.cat(parts).clone()
