# SPDX-License-Identifier: Apache-2.0
"""Pairs of small dumps with one of everything; mindstudio-probe has compared the same ones.

The tables beside the tests are what its releases made of these dumps, without the texts of
messages. To make them anew, write the dumps with `write_pair` and run its ``compare`` on the
``rank0`` folders.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .dumps import DumpBuilder, Value, statistics, write_rank
from .records import Entry, forward, group, scalar
from .records import tensor as plain_entry

GRID = [((7 * k) % 11 - 5) / 4 for k in range(12)]
TOP = "Module.Net.forward.0"


def write_pair(directory: Path, task: str) -> tuple[Path, Path]:
    """Write target and reference for statistics, md5 or tensor; return their dump paths."""
    return (
        write_one(directory / "target", task, is_target=True),
        write_one(directory / "golden", task, is_target=False),
    )


def write_one(folder: Path, task: str, *, is_target: bool) -> Path:
    """Write one side of a pair."""
    frames = [
        "File model.py, line 12, in forward, \n x = F.linear(x, self.weight)",
        "File train.py, line 90, in <module>, \n main()",
    ]
    others = ["File model.py, line 31, in forward, \n y = torch.add(x, 1)"]
    summary = "statistics+md5" if task == "md5" else task
    builder = DumpBuilder(folder, summary, rank="rank0", suffix=".pt")
    for order, (name, parts) in enumerate(records(is_target=is_target).items()):
        stack = (frames if order < 2 else others) if "input_args" in parts else ()
        builder.add(name, parts, None if name == TOP else TOP, stack)
    return builder.write()


def records(*, is_target: bool) -> dict[str, Any]:
    """Return the records; the target's values differ from the reference's here and there."""
    t = is_target
    x = tensor(GRID, (3, 4))
    weight = tensor(GRID, (4, 3), scale=1.5 if t else 1.0, requires_grad=True)
    y = tensor(GRID, (3, 3), count=9, scale=2.0 if t else 1.0)
    records: dict[str, Any] = {
        "Functional.linear.0.forward": forward([x, weight], [y], bias=None),
        "Torch.add.0.forward": forward(
            [y, scalar("int", 1)],
            [tensor(GRID, (12,), shift=1e-05 if t else 0.0)],
            alpha=scalar("float", 0.5 if t else 0.25),
            out=None,
        ),
        "Tensor.__getitem__.0.forward": forward(
            [x, [scalar("slice", [0, 2, None]), scalar("ellipsis", "...")]],
            [tensor(GRID, (2, 4), count=8)],
        ),
        "Tensor.reshape.0.forward": forward(
            [x, scalar("torch.Size", [4, 3])],
            [tensor(GRID, (4, 3) if t else (3, 4))],
            name=scalar("str", "left" if t else "right"),
            flag=scalar("bool", True),
        ),
        "Torch.mul.0.forward": forward(
            [tensor(GRID, (12,), dtype="float16" if t else "float32")],
            [tensor(GRID, (12,), dtype="int64" if t else "float32")],
        ),
        "Torch.div.0.forward": forward([x], [tensor([*GRID[:-1], math.nan if t else 1.0], (12,))]),
        "Torch.sub.0.forward": forward(
            [tensor([*GRID[:-1], math.inf], (12,))],
            [tensor([*GRID[:-1], math.inf if t else -math.inf], (12,))],
        ),
        "Torch.rsub.0.forward": forward(
            [tensor([*GRID[:-1], math.nan], (12,))],
            [tensor([*GRID[:-1], 2.0 if t else math.inf], (12,))],
        ),
        "Torch.sum.0.forward": forward(
            [tensor([0.0] * 12, (12,))],
            [tensor([1.5 if t else 1.0], ())],
            dim=[scalar("int", 0), scalar("int", 1)],
        ),
        "Torch.mean.0.forward": forward(
            [tensor(GRID, (12,), requires_grad=t)],
            [tensor([0.25], (1,)), [tensor(GRID, (1, 12) if t else (12,))]],
            nested={"a": scalar("int", 3), "b": [None, x], "c": []},
        ),
        "Torch.ne.0.forward": forward(
            [x, y],
            [
                tensor([True, False, True], (3,), dtype="bool"),
                tensor([1, 2, 3 + t], (3,), dtype="int64"),
                tensor([0.0] * 3, (3,), shift=1.0 if t else 0.0),
                tensor([0.0] * 3, (3,), shift=0.0 if t else 1.0),
            ],
        ),
        "Torch.empty.0.forward": forward(
            [scalar("int", 4)], [tensor(GRID, (12,), scale=7.0 if t else 1.0)]
        ),
        "Torch.zeros.0.forward": forward([], [tensor([], (0, 4))]),
        "Distributed.all_reduce.0.forward": forward(
            [x], [y], group=group([0, 1]), async_op=scalar("bool", False)
        ),
        "Distributed.broadcast.0.forward": forward(
            [x], [x], src=scalar("int", 0), group=group([0, 1])
        ),
    }
    records["Torch.full.0.forward"] = forward(
        [scalar("torch.Size", [12]), scalar("float", math.inf)],
        [tensor(GRID, (12,))],
        dtype=scalar("torch.dtype", "torch.float32"),
        device=scalar("torch.device", "npu:0" if t else "cuda:0"),
        memory_format={"type": "torch.memory_format", "format": "channels_last"},
        extra=scalar("float32", 1.5 if t else 1.25),
        empty={},
    )
    records["Distributed.batch_isend_irecv.0.forward"] = forward(
        [
            [
                {
                    "class_type": "torch.distributed.P2POp",
                    "tensor": x,
                    "op": "isend",
                    "peer": 1,
                    "tag": 0,
                    "group_id": "77849d8c",
                }
            ]
        ],
        [y],
    )
    records["Distributed.reduce.0.forward"] = forward(
        [x], [x], dst=scalar("int", 1), op=scalar("torch.distributed.ReduceOp", "SUM")
    )
    if t:
        records["Torch.exp.0.forward"] = forward([x], [y])
    else:
        records["Torch.log.0.forward"] = forward([x], [y])
    parameters = {"weight": weight, "bias": tensor(GRID, (3,), count=3)}
    records["Module.fc.Linear.forward.0"] = forward([x], [y]) | {
        "parameters": parameters,
        "is_recompute": False,
    }
    records["Module.Net.forward.0"] = forward([x], [y])
    records["Functional.linear.0.backward"] = {
        "input": [y],
        "output": [x, None, tensor(GRID, (3,), count=3, scale=-1.0 if t else 1.0)],
    }
    records["Module.fc.Linear.backward.0"] = {"input": [y], "output": [x]}
    records["Module.fc.Linear.parameters_grad"] = {
        "weight": [weight],
        "bias": [tensor(GRID, (3,), count=3)],
    }
    return records


def tensor(
    values: Sequence[Any],
    shape: tuple[int, ...],
    *,
    count: int | None = None,
    dtype: str = "float32",
    scale: float = 1.0,
    shift: float = 0.0,
    requires_grad: bool = False,
) -> Value:
    array = np.asarray(values[:count], dtype="float64")
    array = (array * scale + shift).astype(dtype).reshape(shape)
    found = statistics(array)
    rounded = {key: float(np.float32(found[key])) for key in ("Mean", "Norm") if found[key]}
    return Value(array, about=rounded | {"requires_grad": requires_grad})


SPECIAL_VALUES = (None, True, False, 0, 1, 2, -1.5, 0.0, 1e-12, 1e30, math.nan, math.inf, -math.inf)
SPECIAL_ARGUMENTS = (0, 3, True, False, 1.5, "abc", "abd", "cpu:0", "npu:0", math.nan, math.inf)


def write_special_pair(directory: Path) -> tuple[Path, Path]:
    """Write two dumps of statistics in which every special value meets every other one."""
    tensors = [(a, b) for a in SPECIAL_VALUES for b in SPECIAL_VALUES]
    arguments = [(a, b) for a in SPECIAL_ARGUMENTS for b in SPECIAL_ARGUMENTS]
    folders = []
    for place, side in enumerate(("target", "golden")):
        args = [plain_tensor(pair[place]) for pair in tensors]
        args += [scalar(type(pair[place]).__name__, pair[place]) for pair in arguments]
        data = {"Torch.cat.0.forward": forward(args, [plain_tensor(1.0)])}
        folders.append(write_rank(directory / side / "step0" / "rank0", data, level="L1"))
    return folders[0], folders[1]


def plain_tensor(largest: Any) -> Entry:
    return plain_entry((2,), Max=largest, Min=-2.0, Mean=0.5, Norm=2.5)


SPECIAL_ELEMENTS = (1.5, 0.0, -2.0, 1e-9, 3e38, math.nan, math.inf, -math.inf)


def write_special_tensors(directory: Path) -> tuple[Path, Path]:
    """Write two dumps of tensors in which every special element meets every other one."""
    elements = [(a, b) for a in SPECIAL_ELEMENTS for b in SPECIAL_ELEMENTS]
    folders = []
    for place, side in enumerate(("target", "golden")):
        tensors = [np.float32(pair[place]) for pair in elements]
        tensors += [np.float32([pair[place]]) for pair in elements]
        tensors += [np.float32([pair[place], 1.0, -2.0]) for pair in elements]
        scaled = np.float64(GRID) * (1 + place / 64)
        tensors += [np.float32(scaled), scaled, bfloat16(scaled), np.float16(scaled)]
        tensors += [np.arange(6) + place, np.array([True, False, place == 0])]
        tensors += [np.zeros(3, "float32"), np.zeros((0, 3), "float32")]
        folders.append(write_tensors(directory / side, tensors))
    return folders[0], folders[1]


def bfloat16(values: np.ndarray) -> np.ndarray:
    """Return the bits of bfloat16 numbers, rounded to even; bfloat16 is what uint16 means here."""
    bits = np.float32(values).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def write_tensors(folder: Path, tensors: Sequence[np.ndarray]) -> Path:
    """Write one call that takes these tensors; their statistics say nothing about them."""
    about = {key: plain_tensor(1.0)[key] for key in ("Max", "Min", "Mean", "Norm")}
    args = [
        Value(each, about=about | {"dtype": "torch.bfloat16"} if each.dtype == np.uint16 else about)
        for each in map(np.asarray, tensors)
    ]
    builder = DumpBuilder(folder, "tensor", "L1", rank="rank0", suffix=".pt")
    return builder.call("Torch.cat.0.forward", args).write()
