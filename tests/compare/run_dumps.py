# SPDX-License-Identifier: Apache-2.0
"""Dumps of a small network computed with NumPy, in every task, for tests of whole comparisons."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float32]
LAYERS = 3


class RankWriter:
    """Writes what one rank records of one step.

    Args:
        folder: the rank folder.
        task: ``statistics``, ``md5`` or ``tensor``.
        scale: what the output of layer 1 is multiplied with: other than 1, it is the fault.
        data: seed of the input.
        weights: seed of the weights.
        drift: what is added to the weight of layer 2.
        reduced: what is added to the reduced gradient of layer 0.
        apart: what all weights and the gradients are multiplied with, less 1.
        gradients: how many layers have a reduced gradient.
    """

    def __init__(
        self,
        folder: Path,
        task: str = "statistics",
        *,
        scale: float = 1.0,
        data: int = 1,
        weights: int = 0,
        drift: float = 0.0,
        reduced: float = 0.0,
        apart: float = 0.0,
        gradients: int = 1,
        level: str = "mix",
        framework: str = "pytorch",
        layers: int = LAYERS,
    ) -> None:
        self.folder = folder
        self.task = task
        self.level = level
        self.framework = framework
        self.records: dict[str, Any] = {}
        self.parents: dict[str, str | None] = {}
        chance = np.random.default_rng(weights)
        x = np.random.default_rng(data).standard_normal((4, 8)).astype(np.float32)
        model = "Module.Net.forward.0"
        start = x
        for layer in range(layers):
            weight = chance.standard_normal((8, 8)).astype(np.float32) / 4
            if layer == 2:
                weight = weight + np.float32(drift)
            weight = weight * np.float32(1 + apart)
            module = f"Module.fc{layer}.Linear.forward.0"
            name = f"Functional.linear.{layer}.forward"
            y = (x @ weight.T) * np.float32(scale if layer == 1 else 1.0)
            call = {"input_args": {"0": x, "1": weight}, "output": {"0": y}}
            self.put(name, call, parent=module)
            call = {"input_args": {"0": x}, "parameters": {"weight": weight}, "output": {"0": y}}
            self.put(module, call, parent=model)
            x = y
        self.put(model, {"input_args": {"0": start}, "output": {"0": x}}, parent=None)
        for layer in range(gradients):
            gradient = chance.standard_normal((8, 8)).astype(np.float32) + np.float32(reduced)
            gradient = gradient * np.float32(1 + apart)
            name = f"Module.fc{layer}.Linear.parameters_grad_reduced"
            self.put(name, {"weight": {"0": gradient}})
        self.write()

    def put(self, name: str, parts: dict[str, dict[str, Values]], parent: str | None = "") -> None:
        record: dict[str, Any] = {}
        for part, values in parts.items():
            word = {"input_args": "input"}.get(part, part)
            made = {
                key: self.tensor(value, f"{name}.{word}.{key}", part == "parameters")
                for key, value in values.items()
            }
            record[part] = list(made.values()) if "0" in made else made
        self.records[name] = record
        if parent != "":
            self.parents[name] = parent

    def tensor(self, values: Values, name: str, requires_grad: bool) -> dict[str, Any]:
        found: dict[str, Any] = {
            "type": "torch.Tensor",
            "dtype": "torch.float32",
            "shape": list(values.shape),
            "requires_grad": requires_grad,
        }
        if self.task == "md5":
            return found | {"md5": f"{zlib.crc32(values.tobytes()):08x}"}
        found |= {
            "Max": float(values.max()),
            "Min": float(values.min()),
            "Mean": float(values.mean()),
            "Norm": float(np.linalg.norm(values)),
        }
        if self.task == "tensor":
            tensors = self.folder / "dump_tensor_data"
            tensors.mkdir(parents=True, exist_ok=True)
            np.save(tensors / f"{name}.npy", values)
            found["data_name"] = f"{name}.npy"
        return found

    def write(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        data_dir = str(self.folder / "dump_tensor_data") if self.task == "tensor" else None
        head = {
            "task": "tensor" if self.task == "tensor" else "statistics",
            "level": self.level,
            "framework": self.framework,
            "dump_data_dir": data_dir,
            "data": self.records,
        }
        name = "debug.json" if self.level == "debug" else "dump.json"
        (self.folder / name).write_text(json.dumps(head, indent=1))
        (self.folder / "construct.json").write_text(json.dumps(self.parents))
        frames = ["File model.py, line 12, in forward, \n x = F.linear(x, self.weight)"]
        (self.folder / "stack.json").write_text(json.dumps({"0": [list(self.parents), frames]}))


def write_dump(
    path: Path,
    task: str = "statistics",
    *,
    steps: Sequence[int] = (0,),
    ranks: Sequence[str] = ("rank0",),
    **choices: Any,
) -> Path:
    """Write a dump in which all steps and ranks record the same."""
    for step in steps:
        for rank in ranks:
            RankWriter(path / f"step{step}" / rank, task, **choices)
    return path


def write_debug_dump(path: Path, values: dict[str, Values]) -> Path:
    """Write what `save()` records."""
    folder = path / "step0" / "rank0"
    folder.mkdir(parents=True)
    writer = RankWriter(folder, layers=0, level="debug")
    writer.records = {
        f"{name}.0.debug": writer.tensor(value, name, False) for name, value in values.items()
    }
    writer.write()
    return path
