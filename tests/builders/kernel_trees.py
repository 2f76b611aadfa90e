# SPDX-License-Identifier: Apache-2.0
"""Kernel dumps as MindSpore lays them out: files of values, ``statistic.csv``, execution order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

HEADER = (
    "Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape,"
    "Max Value,Min Value,Avg Value,NaN Count,Negative Inf Count,Positive Inf Count,L2Norm Value"
)
FC1 = "Default/network-WithLossCell/_backbone-Net/fc1-Dense/MatMul-op0"
RELU = "Default/network-WithLossCell/_backbone-Net/relu-ReLU/ReLU-op0"
GRAD = "Gradients/Default/network-WithLossCell/_backbone-Net/fc1-Dense/Grad_MatMul/MatMul-op1"


def flat(name: str) -> str:
    return name.replace("/", "_")


def iteration(root: Path, rank: int = 0, step: int = 0, graph: int = 0) -> Path:
    folder = root / f"rank_{rank}" / "Net" / str(graph) / str(step)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def save(
    folder: Path,
    op_type: str,
    name: str,
    values: np.ndarray,
    *,
    time: int,
    io: str = "output",
    index: str = "0",
    task: int = 0,
    ending: str = ".DefaultFormat.Float32",
) -> Path:
    path = folder / f"{op_type}.{flat(name)}.{task}.0.{time}.{io}.{index}{ending}.npy"
    np.save(path, values)
    return path


def write_order(root: Path, names: Sequence[str], rank: int = 0, graph: int = 0) -> None:
    folder = root / f"rank_{rank}" / "execution_order"
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["NodeExecutionOrder-FullNameWithScope", *names]
    (folder / f"ms_execution_order_graph_{graph}.csv").write_text("\n".join(lines) + "\n")


def write_network(root: Path, *, scale: float = 1.0, rank: int = 0, step: int = 0) -> Path:
    """Write a product, its ReLU and a gradient; `scale` is what the ReLU multiplies with."""
    chance = np.random.default_rng(step)
    x, w = (chance.standard_normal(shape).astype(np.float32) for shape in ((2, 8), (4, 8)))
    y = x @ w.T
    z = np.maximum(y, 0) * np.float32(scale)
    folder = iteration(root, rank, step)
    write_order(root, [FC1, RELU, GRAD], rank)
    for index, values in enumerate((x, w)):
        save(folder, "MatMul", FC1, values, time=100 + index, io="input", index=str(index))
    save(folder, "MatMul", FC1, y, time=105)
    save(folder, "ReLU", RELU, y, time=110, io="input")
    save(folder, "ReLU", RELU, z, time=111)
    # The runtime may begin a gradient before the forward kernels.
    save(folder, "MatMul", GRAD, z, time=50, io="input")
    save(folder, "MatMul", GRAD, z * 2, time=51)
    save(folder, "Parameter", "fc1_weight", w, time=200)
    save(folder, "Parameter", "inputs0", x, time=201)
    return folder


def write_statistics(folder: Path, rows: Sequence[str], header: str = HEADER) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "statistic.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    return path
