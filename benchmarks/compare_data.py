# SPDX-License-Identifier: Apache-2.0
"""Pairs of dumps to compare, made of nothing but files: as many and as large as a case asks for."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from msprobe.dump.tensor_archive_writer import write_archive

Record = tuple[str, dict[str, object]]


def rank_folder(side: Path, rank: int = 0) -> Path:
    return side / "step0" / f"rank{rank}"


def write_dump(
    side: Path,
    records: Iterable[Record],
    *,
    task: str,
    parents: dict[str, str | None],
    rank: int = 0,
) -> None:
    """Write one rank's dump of one step, in the format of mindstudio-probe."""
    folder = rank_folder(side, rank)
    folder.mkdir(parents=True, exist_ok=True)
    head = {
        "task": task,
        "level": "L1",
        "framework": "pytorch",
        "dump_data_dir": str(folder / "dump_tensor_data") if task == "tensor" else None,
    }
    with (folder / "dump.json").open("w", encoding="utf-8") as file:
        file.write(json.dumps(head)[:-1] + ', "data": {')
        for number, (name, record) in enumerate(records):
            file.write(",\n" if number else "\n")
            file.write(f"{json.dumps(name)}: {json.dumps(record)}")
        file.write("\n}}")
    (folder / "construct.json").write_text(json.dumps(parents))
    frames = ["File model.py, line 12, in forward, \n y = self.fc(x)"]
    (folder / "stack.json").write_text(json.dumps({"0": [list(parents), frames]}))


def described(
    shape: tuple[int, ...], noise: float, seed: int, file: str | None = None
) -> dict[str, object]:
    """Return what a record says of a float32 tensor."""
    found: dict[str, object] = {
        "type": "torch.Tensor",
        "dtype": "torch.float32",
        "shape": list(shape),
        "Max": 3.1 + seed % 7 + noise,
        "Min": -3.2 - seed % 5,
        "Mean": 0.01 * (seed % 11) + noise,
        "Norm": math.sqrt(math.prod(shape)) * (1 + noise),
        "requires_grad": True,
    }
    if file is not None:
        found["data_name"] = file
    return found


def make_tensors(
    folder: Path, *, operations: int, shape: tuple[int, ...], is_equal: bool = False
) -> int:
    """Write two dumps with an input and an output an operation; return the bytes of elements."""
    size = 0
    for side in ("target", "reference"):
        data = rank_folder(folder / side) / "dump_tensor_data"
        data.mkdir(parents=True, exist_ok=True)
        records: list[Record] = []
        for number in range(operations):
            name = f"Functional.linear.{number}.forward"
            files = [f"{name}.{part}.0.pt" for part in ("input", "output")]
            for place, file in enumerate(files):
                values = np.random.default_rng(2 * number + place).standard_normal(
                    math.prod(shape), dtype=np.float32
                )
                if side == "target" and not is_equal:
                    values *= np.float32(1 + 1e-4)
                memory = memoryview(values.view(np.uint8))
                write_archive(str(data / file), "float32", shape, memory)
                size += len(memory)
            noise = 0.0 if is_equal or side == "reference" else 1e-4
            records.append(
                (
                    name,
                    {
                        "input_args": [described(shape, noise, number, files[0])],
                        "input_kwargs": {},
                        "output": [described(shape, noise, number + 1, files[1])],
                    },
                )
            )
        parents: dict[str, str | None] = dict.fromkeys(name for name, _ in records)
        write_dump(folder / side, records, task="tensor", parents=parents)
    return size


APIS = ("linear", "layer_norm", "gelu", "dropout", "softmax", "embedding")


def make_statistics(
    folder: Path, *, rows: int, inserted: int = 0, with_modules: bool = False, ranks: int = 1
) -> None:
    """Write two dumps of statistics with so many rows a rank, two an operation.

    Args:
        folder: gets ``target`` and ``reference``.
        rows: rows of the reference.
        inserted: extra calls in the target, spread evenly.
        with_modules: several APIs with shapes that differ from layer to layer, as in a model.
        ranks: that all record the same.
    """
    operations = rows // 2
    every = operations // inserted if inserted else 0
    for side in ("target", "reference"):
        counts = dict.fromkeys(APIS, 0)
        records: list[Record] = []
        for number in range(operations):
            kinds = [APIS[number % len(APIS)] if with_modules or inserted else "linear"]
            if side == "target" and every and number % every == every // 2:
                kinds.insert(0, APIS[(number // every) % len(APIS)])
            for extra, api in enumerate(reversed(kinds)):
                name = f"Functional.{api}.{counts[api]}.forward"
                counts[api] += 1
                shape = (8, 16 * (1 + number // 60 % 9), 64) if extra == 0 else (3, 5)
                noise = 1e-5 if side == "target" else 0.0
                records.append(
                    (
                        name,
                        {
                            "input_args": [described(shape, noise, number)],
                            "input_kwargs": {},
                            "output": [described(shape, noise, number + 1)],
                        },
                    )
                )
        parents: dict[str, str | None] = dict.fromkeys(name for name, _ in records)
        for rank in range(ranks):
            write_dump(folder / side, records, task="statistics", parents=parents, rank=rank)
