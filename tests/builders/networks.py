# SPDX-License-Identifier: Apache-2.0
"""Dumps of a small network computed with NumPy, in every task, for tests of whole comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .dumps import DumpBuilder, Value


def write_dump(
    path: Path,
    task: str = "statistics",
    *,
    steps: Sequence[int] = (0,),
    ranks: Sequence[str] = ("rank0",),
    level: str = "mix",
    framework: str = "pytorch",
    **choices: Any,
) -> Path:
    """Write a dump in which all steps and ranks record the same; `choices` are of the network."""
    for step in steps:
        for rank in ranks:
            builder = DumpBuilder(path, task, level, framework, step, rank)
            add_network(builder, **choices)
            builder.write()
    return path


def add_network(
    builder: DumpBuilder,
    *,
    scale: float = 1.0,
    data: int = 1,
    weights: int = 0,
    drift: float = 0.0,
    reduced: float = 0.0,
    apart: float = 0.0,
    gradients: int = 1,
    layers: int = 3,
) -> None:
    """Add the records of linear layers.

    Args:
        builder: what gets them.
        scale: what the output of layer 1 is multiplied with: other than 1, it is the fault.
        data: seed of the input.
        weights: seed of the weights.
        drift: what is added to the weight of layer 2.
        reduced: what is added to the reduced gradient of layer 0.
        apart: what all weights and the gradients are multiplied with, less 1.
        gradients: how many layers have a reduced gradient.
        layers: how many layers there are.
    """
    chance = np.random.default_rng(weights)
    x = start = Value(np.random.default_rng(data).standard_normal((4, 8)).astype(np.float32))
    model = "Module.Net.forward.0"
    for layer in range(layers):
        weight = chance.standard_normal((8, 8)).astype(np.float32) / 4
        if layer == 2:
            weight = weight + np.float32(drift)
        weight = weight * np.float32(1 + apart)
        module = f"Module.fc{layer}.Linear.forward.0"
        y = Value((x.array @ weight.T) * np.float32(scale if layer == 1 else 1.0))
        function = f"Functional.linear.{layer}.forward"
        builder.call(function, [x, Value(weight)], [y], parent=module, line=12)
        parameter = Value(weight, about={"requires_grad": True})
        parameters = {"weight": parameter}
        builder.call(module, [x], [y], parameters=parameters, parent=model, line=12)
        x = y
    builder.call(model, [start], [x], line=12)
    for layer in range(gradients):
        gradient = chance.standard_normal((8, 8)).astype(np.float32) + np.float32(reduced)
        gradient = gradient * np.float32(1 + apart)
        name = f"Module.fc{layer}.Linear.parameters_grad_reduced"
        builder.gradients(name, weight=Value(gradient))


def write_debug_dump(path: Path, values: dict[str, NDArray[np.float32]]) -> Path:
    """Write what `save()` records."""
    builder = DumpBuilder(path, level="debug", rank="rank0")
    for name, array in values.items():
        builder.saved(f"{name}.0.debug", Value(array))
    return builder.write()
