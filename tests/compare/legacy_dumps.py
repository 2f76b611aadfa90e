# SPDX-License-Identifier: Apache-2.0
"""Pairs of small dumps with one of everything; mindstudio-probe has compared the same ones.

The tables in ``data/`` are what its releases made of these dumps, without the texts of messages. To
make them anew, write the dumps with `write_pair` and run its ``compare`` on the ``rank0`` folders.
"""

from __future__ import annotations

import json
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from msprobe.dump.tensor_archive_writer import write_archive

GRID = [((7 * k) % 11 - 5) / 4 for k in range(12)]


def write_pair(directory: Path, task: str) -> tuple[Path, Path]:
    """Write target and reference for statistics, md5 or tensor; return their rank folders."""
    return (
        Side(directory / "target", task, is_target=True).write(),
        Side(directory / "golden", task, is_target=False).write(),
    )


class Side:
    """One side of a pair; the target's values differ from the reference's here and there."""

    def __init__(self, directory: Path, task: str, *, is_target: bool) -> None:
        self.directory = directory / "step0" / "rank0"
        self.task = task
        self.is_target = is_target
        self.tensors = self.directory / "dump_tensor_data"

    def write(self) -> Path:
        self.tensors.mkdir(parents=True, exist_ok=True)
        keeps = self.task == "tensor"
        data = {name: self.named(name, record) for name, record in self.records().items()}
        head = {
            "task": self.task if keeps else "statistics",
            "level": "mix",
            "framework": "pytorch",
            "dump_data_dir": str(self.tensors) if keeps else None,
            "data": data,
        }
        (self.directory / "dump.json").write_text(json.dumps(head, indent=1))
        frames = [
            "File model.py, line 12, in forward, \n x = F.linear(x, self.weight)",
            "File train.py, line 90, in <module>, \n main()",
        ]
        others = ["File model.py, line 31, in forward, \n y = torch.add(x, 1)"]
        names = [name for name in data if name.endswith("forward") or ".forward." in name]
        stacks = {"0": [names[:2], frames], "1": [names[2:], others]}
        (self.directory / "stack.json").write_text(json.dumps(stacks))
        top = "Module.Net.forward.0"
        parents = {name: (None if name == top else top) for name in data}
        (self.directory / "construct.json").write_text(json.dumps(parents))
        return self.directory

    def records(self) -> dict[str, Any]:
        """Return the records, still without names of tensor files."""
        t = self.is_target
        x = self.tensor(GRID, (3, 4))
        weight = self.tensor(GRID, (4, 3), scale=1.5 if t else 1.0, requires_grad=True)
        y = self.tensor(GRID, (3, 3), count=9, scale=2.0 if t else 1.0)
        records: dict[str, Any] = {
            "Functional.linear.0.forward": forward([x, weight], {"bias": None}, [y]),
            "Torch.add.0.forward": forward(
                [y, scalar("int", 1)],
                {"alpha": scalar("float", 0.5 if t else 0.25), "out": None},
                [self.tensor(GRID, (12,), shift=1e-5 if t else 0.0)],
            ),
            "Tensor.__getitem__.0.forward": forward(
                [
                    x,
                    [scalar("slice", [0, 2, None]), scalar("ellipsis", "...")],
                ],
                {},
                [self.tensor(GRID, (2, 4), count=8)],
            ),
            "Tensor.reshape.0.forward": forward(
                [x, scalar("torch.Size", [4, 3])],
                {"name": scalar("str", "left" if t else "right"), "flag": scalar("bool", True)},
                [self.tensor(GRID, (4, 3) if t else (3, 4))],
            ),
            "Torch.mul.0.forward": forward(
                [self.tensor(GRID, (12,), dtype="float16" if t else "float32")],
                {},
                [self.tensor(GRID, (12,), dtype="int64" if t else "float32")],
            ),
            "Torch.div.0.forward": forward(
                [x],
                {},
                [self.tensor([*GRID[:-1], math.nan if t else 1.0], (12,))],
            ),
            "Torch.sub.0.forward": forward(
                [self.tensor([*GRID[:-1], math.inf], (12,))],
                {},
                [self.tensor([*GRID[:-1], math.inf if t else -math.inf], (12,))],
            ),
            "Torch.rsub.0.forward": forward(
                [self.tensor([*GRID[:-1], math.nan], (12,))],
                {},
                [self.tensor([*GRID[:-1], 2.0 if t else math.inf], (12,))],
            ),
            "Torch.sum.0.forward": forward(
                [self.tensor([0.0] * 12, (12,))],
                {"dim": [scalar("int", 0), scalar("int", 1)]},
                [self.tensor([1.5 if t else 1.0], ())],
            ),
            "Torch.mean.0.forward": forward(
                [self.tensor(GRID, (12,), requires_grad=t)],
                {"nested": {"a": scalar("int", 3), "b": [None, x], "c": []}},
                [self.tensor([0.25], (1,)), [self.tensor(GRID, (1, 12) if t else (12,))]],
            ),
            "Torch.ne.0.forward": forward(
                [x, y],
                {},
                [
                    self.tensor([True, False, True], (3,), dtype="bool"),
                    self.tensor([1, 2, 3 + t], (3,), dtype="int64"),
                    self.tensor([0.0] * 3, (3,), shift=1.0 if t else 0.0),
                    self.tensor([0.0] * 3, (3,), shift=0.0 if t else 1.0),
                ],
            ),
            "Torch.empty.0.forward": forward(
                [scalar("int", 4)], {}, [self.tensor(GRID, (12,), scale=7.0 if t else 1.0)]
            ),
            "Torch.zeros.0.forward": forward([], {}, [self.tensor([], (0, 4))]),
            "Distributed.all_reduce.0.forward": forward(
                [x],
                {"group": group([0, 1]), "async_op": scalar("bool", False)},
                [y],
            ),
            "Distributed.broadcast.0.forward": forward(
                [x], {"src": scalar("int", 0), "group": group([0, 1])}, [x]
            ),
        }
        records["Torch.full.0.forward"] = forward(
            [scalar("torch.Size", [12]), scalar("float", math.inf)],
            {
                "dtype": scalar("torch.dtype", "torch.float32"),
                "device": scalar("torch.device", "npu:0" if t else "cuda:0"),
                "memory_format": {"type": "torch.memory_format", "format": "channels_last"},
                "extra": scalar("float32", 1.5 if t else 1.25),
                "empty": {},
            },
            [self.tensor(GRID, (12,))],
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
            {},
            [y],
        )
        records["Distributed.reduce.0.forward"] = forward(
            [x],
            {"dst": scalar("int", 1), "op": scalar("torch.distributed.ReduceOp", "SUM")},
            [x],
        )
        if t:
            records["Torch.exp.0.forward"] = forward([x], {}, [y])
        else:
            records["Torch.log.0.forward"] = forward([x], {}, [y])
        parts = forward([x], {}, [y])
        parts["parameters"] = {"weight": weight, "bias": self.tensor(GRID, (3,), count=3)}
        parts["is_recompute"] = False
        records["Module.fc.Linear.forward.0"] = parts
        records["Module.Net.forward.0"] = forward([x], {}, [y])
        records["Functional.linear.0.backward"] = {
            "input": [y],
            "output": [x, None, self.tensor(GRID, (3,), count=3, scale=-1.0 if t else 1.0)],
        }
        records["Module.fc.Linear.backward.0"] = {"input": [y], "output": [x]}
        records["Module.fc.Linear.parameters_grad"] = {
            "weight": [weight],
            "bias": [self.tensor(GRID, (3,), count=3)],
        }
        return records

    def tensor(
        self,
        values: list[Any],
        shape: tuple[int, ...],
        *,
        count: int | None = None,
        dtype: str = "float32",
        scale: float = 1.0,
        shift: float = 0.0,
        requires_grad: bool = False,
    ) -> dict[str, Any]:
        array = np.asarray(values[:count], dtype="float64")
        array = (array * scale + shift).astype(dtype).reshape(shape)
        return {"tensor": array, "requires_grad": requires_grad}

    def named(self, name: str, tree: Any, path: tuple[str, ...] = ()) -> Any:
        """Return the JSON of a tree, after its tensors have got statistics and files."""
        if isinstance(tree, dict) and isinstance(tree.get("tensor"), np.ndarray):
            return self.described(".".join((name, *path)), tree)
        if isinstance(tree, list):
            return [self.named(name, item, (*path, str(k))) for k, item in enumerate(tree)]
        if isinstance(tree, dict) and "type" not in tree:
            short = {"input_args": "input", "input_kwargs": "kwargs"}
            return {
                key: self.named(
                    name, item, path if key == "tensor" else (*path, short.get(key, key))
                )
                for key, item in tree.items()
            }
        return tree

    def described(self, label: str, tree: dict[str, Any]) -> dict[str, Any]:
        array = tree["tensor"]
        entry = {
            "type": "torch.Tensor",
            "dtype": f"torch.{array.dtype.name}",
            "shape": list(array.shape),
            **statistics(array),
            "requires_grad": tree["requires_grad"],
        }
        if self.task == "md5":
            entry["md5"] = f"{zlib.crc32(array.tobytes()):08x}"
        if self.task == "tensor":
            entry["data_name"] = f"{label}.pt"
            save(array, array.dtype.name, self.tensors / entry["data_name"])
        return entry


def statistics(array: np.ndarray) -> dict[str, Any]:
    if array.size == 0:
        return {"Max": None, "Min": None, "Mean": None, "Norm": None}
    if array.dtype == np.bool_:
        return {"Max": bool(array.max()), "Min": bool(array.min()), "Mean": None, "Norm": None}
    wide = array.astype("float64")
    return {
        "Max": array.max().item(),
        "Min": array.min().item(),
        "Mean": float(np.float32(wide.mean())),
        "Norm": float(np.float32(math.sqrt(float((wide * wide).sum())))),
    }


def forward(args: list[Any], kwargs: dict[str, Any], output: list[Any]) -> dict[str, Any]:
    return {"input_args": args, "input_kwargs": kwargs, "output": output}


def scalar(kind: str, value: Any) -> dict[str, Any]:
    return {"type": kind, "value": value}


def group(ranks: list[int]) -> dict[str, Any]:
    return {"type": "torch.ProcessGroup", "group_ranks": ranks, "group_id": "77849d8c"}


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
        data = {"Torch.cat.0.forward": forward(args, {}, [plain_tensor(1.0)])}
        head = {"task": "statistics", "level": "L1", "framework": "pytorch", "dump_data_dir": None}
        folder = directory / side / "step0" / "rank0"
        folder.mkdir(parents=True)
        (folder / "dump.json").write_text(json.dumps({**head, "data": data}))
        (folder / "stack.json").write_text("{}")
        (folder / "construct.json").write_text("{}")
        folders.append(folder)
    return folders[0], folders[1]


def plain_tensor(largest: Any) -> dict[str, Any]:
    return {
        "type": "torch.Tensor",
        "dtype": "torch.float32",
        "shape": [2],
        "Max": largest,
        "Min": -2.0,
        "Mean": 0.5,
        "Norm": 2.5,
        "requires_grad": False,
    }


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
        folders.append(write_tensors(directory / side / "step0" / "rank0", tensors))
    return folders[0], folders[1]


def bfloat16(values: np.ndarray) -> np.ndarray:
    """Return the bits of bfloat16 numbers, rounded to even; bfloat16 is what uint16 means here."""
    bits = np.float32(values).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def save(array: np.ndarray, dtype: str, path: Path) -> None:
    memory = memoryview(np.ascontiguousarray(array).tobytes())
    write_archive(str(path), dtype, array.shape, memory)


def write_tensors(folder: Path, tensors: list[np.ndarray]) -> Path:
    """Write one call that takes these tensors."""
    (folder / "dump_tensor_data").mkdir(parents=True)
    args = []
    for number, tensor in enumerate(tensors):
        name = f"Torch.cat.0.forward.input.{number}.pt"
        dtype = "bfloat16" if tensor.dtype == np.uint16 else tensor.dtype.name
        save(tensor, dtype, folder / "dump_tensor_data" / name)
        entry = plain_tensor(1.0) | {"dtype": f"torch.{dtype}", "shape": list(tensor.shape)}
        args.append(entry | {"data_name": name})
    head = {"task": "tensor", "level": "L1", "framework": "pytorch"}
    data = {"Torch.cat.0.forward": forward(args, {}, [])}
    text = json.dumps({**head, "dump_data_dir": "dump_tensor_data", "data": data})
    (folder / "dump.json").write_text(text)
    (folder / "stack.json").write_text("{}")
    (folder / "construct.json").write_text("{}")
    return folder
