# SPDX-License-Identifier: Apache-2.0
"""A training state, saved in every format, and changes planted in it."""

from __future__ import annotations

import argparse
import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from .checkpoints import write_mindspore, write_shards, write_torch_shards
from .sharded import write_deepspeed, write_distributed

LAYERS = 4
WIDTH = 16


@dataclass
class Training:
    """What a training saves."""

    model: dict[str, torch.Tensor]
    optimizer: dict[str, Any] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)

    def moment(self, name: str, key: str = "exp_avg") -> torch.Tensor:
        """Return a state of the optimizer by the parameter's name."""
        tensor: torch.Tensor = self.optimizer["state"][list(self.model).index(name)][key]
        return tensor

    def tree(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, **self.values}


def training() -> Training:
    """Return the state of a small transformer in the spelling of megatron.core."""
    generator = torch.Generator().manual_seed(0)
    shapes: dict[str, tuple[int, ...]] = {"embedding.word_embeddings.weight": (32, WIDTH)}
    for layer in range(LAYERS):
        begin = f"decoder.layers.{layer}."
        shapes |= {
            begin + "self_attention.linear_qkv.weight": (3 * WIDTH, WIDTH),
            begin + "self_attention.linear_qkv.bias": (3 * WIDTH,),
            begin + "self_attention.linear_proj.weight": (WIDTH, WIDTH),
            begin + "mlp.linear_fc1.weight": (2 * WIDTH, WIDTH),
            begin + "mlp.linear_fc2.weight": (WIDTH, 2 * WIDTH),
            begin + "input_layernorm.weight": (WIDTH,),
        }
    shapes |= {"decoder.final_layernorm.weight": (WIDTH,), "output_layer.weight": (32, WIDTH)}
    model = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    state = {
        number: {
            "step": torch.tensor(10.0),
            "exp_avg": torch.randn(tensor.shape, generator=generator),
            "exp_avg_sq": torch.rand(tensor.shape, generator=generator),
        }
        for number, tensor in enumerate(model.values())
    }
    group = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.1}
    optimizer = {"state": state, "param_groups": [{**group, "params": list(range(len(model)))}]}
    values = {
        "epoch": 3,
        "scheduler": {"last_epoch": 10, "_last_lr": [1e-3]},
        "scaler": {"scale": 65536.0, "growth_tracker": 7},
        "rng": {
            "numpy": np.arange(6, dtype=np.uint32),
            "torch": torch.arange(9, dtype=torch.uint8),
        },
        "args": argparse.Namespace(dropout=0.1, activation="gelu"),
    }
    return Training(model, optimizer, values)


# ---- formats: only the model, or everything


def as_safetensors(folder: Path, state: Training) -> Path:
    folder.mkdir()
    save_file({k: v.clone() for k, v in state.model.items()}, folder / "model.safetensors")
    return folder / "model.safetensors"


def as_shards(folder: Path, state: Training) -> Path:
    return write_shards(folder, state.model)


def as_torch_shards(folder: Path, state: Training) -> Path:
    return write_torch_shards(folder, state.model)


def as_npz(folder: Path, state: Training) -> Path:
    folder.mkdir()
    np.savez(folder / "x.npz", **{k: v.float().numpy() for k, v in state.model.items()})
    return folder / "x.npz"


def as_mindspore(folder: Path, state: Training) -> Path:
    folder.mkdir()
    return write_mindspore(folder / "x.ckpt", state.model, slice_bytes=512)


def as_torch(folder: Path, state: Training) -> Path:
    folder.mkdir()
    torch.save(state.tree(), folder / "x.pt")
    return folder / "x.pt"


def as_old_torch(folder: Path, state: Training) -> Path:
    folder.mkdir()
    torch.save(state.tree(), folder / "x.bin", _use_new_zipfile_serialization=False)
    return folder / "x.bin"


def as_trainer(folder: Path, state: Training) -> Path:
    """Save files side by side, as trainers do."""
    folder.mkdir()
    save_file({k: v.clone() for k, v in state.model.items()}, folder / "model.safetensors")
    torch.save(state.optimizer, folder / "optimizer.pt")
    torch.save(state.values["scheduler"], folder / "scheduler.pt")
    torch.save(state.values["rng"], folder / "rng_state.pth")
    return folder


def as_dcp(folder: Path, state: Training) -> Path:
    import torch.distributed.checkpoint as dcp

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state.tree(), checkpoint_id=folder)
    return folder


def distributed(cuts: tuple[int, ...]) -> Callable[[Path, Training], Path]:
    """Return a writer of distributed checkpoints in blocks."""

    def write(folder: Path, state: Training) -> Path:
        values = {"epoch": state.values["epoch"], "scheduler": state.values["scheduler"]}
        return write_distributed(folder, state.model, values, cuts=cuts)

    return write


def deepspeed(**options: Any) -> Callable[[Path, Training], Path]:
    """Return a writer of ZeRO partitions."""

    def write(folder: Path, state: Training) -> Path:
        moments = {name: state.moment(name) for name in state.model}
        lr = state.optimizer["param_groups"][0]["lr"]
        steps = state.values["scheduler"]["last_epoch"]
        return write_deepspeed(folder, state.model, moments=moments, lr=lr, steps=steps, **options)

    return write


def megatron(tp: int = 1, pp: int = 1) -> Callable[[Path, Training], Path]:
    """Return a writer of Megatron's own format."""

    def write(folder: Path, state: Training) -> Path:
        share = LAYERS // pp
        for t in range(tp):
            for p in range(pp):
                model = {}
                for name, tensor in state.model.items():
                    parts = name.split(".")
                    stage = 0 if parts[0] == "embedding" else pp - 1
                    if "layers" in parts:
                        stage, parts[2] = int(parts[2]) // share, str(int(parts[2]) % share)
                    if stage == p:
                        model[".".join(parts)] = _tensor_part(name, tensor, t, tp)
                arguments = argparse.Namespace(
                    tensor_model_parallel_size=tp,
                    pipeline_model_parallel_size=pp,
                    num_layers=LAYERS,
                    dropout=state.values["args"].dropout,
                )
                rank = f"mp_rank_{t:02d}" + (f"_{p:03d}" if pp > 1 else "")
                place = folder / "iter_0000003" / rank
                place.mkdir(parents=True)
                tree = {"model": model, "args": arguments, "iteration": state.values["epoch"]}
                torch.save(tree, place / "model_optim_rng.pt")
        (folder / "latest_checkpointed_iteration.txt").write_text("3")
        return folder

    return write


def _tensor_part(name: str, tensor: torch.Tensor, t: int, tp: int) -> torch.Tensor:
    if "linear_proj" in name or "linear_fc2" in name:
        return tensor.chunk(tp, dim=1)[t].contiguous()
    if "layernorm" in name:
        return tensor
    return tensor.chunk(tp)[t].contiguous()


MODEL_ONLY: dict[str, Callable[[Path, Training], Path]] = {
    "safetensors": as_safetensors,
    "shards": as_shards,
    "torch shards": as_torch_shards,
    "npz": as_npz,
    "mindspore": as_mindspore,
}
FORMATS: dict[str, Callable[[Path, Training], Path]] = MODEL_ONLY | {
    "torch": as_torch,
    "old torch": as_old_torch,
    "trainer": as_trainer,
    "dcp": as_dcp,
    "blocks": distributed((2, 2)),
    "zero 2": deepspeed(ranks=2),
    "zero 3": deepspeed(ranks=3, stage=3),
    "megatron tp2": megatron(tp=2),
    "megatron pp2": megatron(pp=2),
}

QKV = "decoder.layers.2.self_attention.linear_qkv.weight"
FC2 = "decoder.layers.1.mlp.linear_fc2.weight"
NORM = "decoder.layers.3.input_layernorm.weight"


@dataclass(frozen=True)
class Planted:
    """A change, and where and as what it has to come first.

    Attributes:
        format: the format that both sides have.
        change: changes the target.
        kind: the kind of difference.
        place: end of the name of the entry.
    """

    format: str
    change: Callable[[Training], None]
    kind: str
    place: str


def element(name: str, value: float = 1e-4) -> Callable[[Training], None]:
    """Add to one element."""

    def change(state: Training) -> None:
        state.model[name].view(-1)[7] += value

    return change


def put(name: str, value: float) -> Callable[[Training], None]:
    """Set one element."""

    def change(state: Training) -> None:
        state.model[name].view(-1)[5] = value
        for tensor in state.model.values():  # smaller changes everywhere must not come first
            tensor.view(-1)[0] += 1e-3

    return change


def drop(name: str) -> Callable[[Training], None]:
    """Leave a parameter out."""
    return lambda state: void(state.model.pop(name))


def add(name: str) -> Callable[[Training], None]:
    """Add a parameter."""
    return lambda state: state.model.update({name: torch.full((3, 5), 7.0)})


def void(_: object) -> None:
    """Return None."""


def value(*keys: Any, to: Any) -> Callable[[Training], None]:
    """Set a value."""

    def change(state: Training) -> None:
        node: Any = {"optimizer": state.optimizer, **state.values}
        for key in keys[:-1]:
            node = node[key]
        if isinstance(node, argparse.Namespace):
            setattr(node, keys[-1], to)
        elif node is not None and keys[0] in state.values and len(keys) == 1:
            state.values[keys[0]] = to
        else:
            node[keys[-1]] = to

    return change


def moment(name: str, key: str) -> Callable[[Training], None]:
    """Change a state of the optimizer."""

    def change(state: Training) -> None:
        state.moment(name, key).add_(0.5)

    return change


def changed(plant: Planted) -> Training:
    """Return the training with a planted change."""
    state = copy.deepcopy(training())
    plant.change(state)
    return state
