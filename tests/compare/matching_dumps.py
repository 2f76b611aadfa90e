# SPDX-License-Identifier: Apache-2.0
"""Dumps for the tests of pairing: written by hand from a list of what a model does."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msprobe
from msprobe.compare.matching import pair_operations
from msprobe.compare.model import OperationPair, Row
from msprobe.compare.options import CompareOptions
from msprobe.compare.sides import Side
from msprobe.compare.value_pairs import pair_values

Records = Mapping[str, Any]


def tensor(shape: Sequence[int] = (2, 3), number: float = 1.0, **fields: Any) -> dict[str, Any]:
    return {
        "type": "torch.Tensor",
        "dtype": "torch.float32",
        "shape": list(shape),
        "Max": number + 1,
        "Min": -number,
        "Mean": number / 7,
        "Norm": abs(number) * 13,
        "requires_grad": False,
    } | fields


def forward(
    inputs: Sequence[Any] = (), outputs: Sequence[Any] = (), **kwargs: Any
) -> dict[str, Any]:
    return {"input_args": list(inputs), "input_kwargs": kwargs, "output": list(outputs)}


def backward(inputs: Sequence[Any] = (), outputs: Sequence[Any] = ()) -> dict[str, Any]:
    return {"input": list(inputs), "output": list(outputs)}


def write_side(
    directory: Path,
    records: Records,
    *,
    source: str = "target",
    parents: Mapping[str, str | None] | None = None,
    stacks: Mapping[str, Sequence[str]] | None = None,
    task: str = "statistics",
    level: str = "mix",
    framework: str = "pytorch",
) -> Side:
    """Write one rank's dump and open it."""
    folder = directory / source / "step0" / "rank"
    folder.mkdir(parents=True, exist_ok=True)
    head = {"task": task, "level": level, "framework": framework, "dump_data_dir": None}
    name = "debug.json" if level == "debug" else "dump.json"
    (folder / name).write_text(json.dumps({**head, "data": records}))
    (folder / "construct.json").write_text(json.dumps(parents or {}))
    by_frames = {
        str(n): [[record], list(frames)]
        for n, (record, frames) in enumerate((stacks or {}).items())
    }
    (folder / "stack.json").write_text(json.dumps(by_frames))
    return Side(msprobe.open_dump(folder).step().rank(), source=source)


def both(directory: Path, target: Records, reference: Records, **options: Any) -> tuple[Side, Side]:
    """Write two dumps of one kind and open them."""
    return (
        write_side(directory, target, source="target", **options),
        write_side(directory, reference, source="reference", **options),
    )


def names_of(pairs: Sequence[OperationPair]) -> list[tuple[str | None, str | None]]:
    return [(pair.target, pair.reference) for pair in pairs]


def rows_of(target: Side, reference: Side, options: CompareOptions | None = None) -> list[Row]:
    pairs = pair_operations(target, reference, options or CompareOptions())
    return [row for pair in pairs for row in pair_values(target, reference, pair)]


@dataclass(frozen=True)
class Call:
    """One call of a made-up program.

    Attributes:
        api: ``Functional.linear``.
        module: path of the module that makes it, "" for none.
        shape: of its input and output.
        number: tells apart what it computes.
        is_new: whether it was inserted.
    """

    api: str
    module: str
    shape: tuple[int, ...]
    number: float
    is_new: bool = False


def transformer(layers: int, seed: int = 0) -> list[Call]:
    """Return the calls of a small transformer."""
    chance = random.Random(seed)
    block = (
        ("Functional.layer_norm", "ln", (4, 8)),
        ("Functional.linear", "attention.q", (4, 8)),
        ("Functional.linear", "attention.k", (4, 8)),
        ("Functional.linear", "attention.v", (4, 8)),
        ("Tensor.__matmul__", "attention", (4, 4)),
        ("Functional.softmax", "attention", (4, 4)),
        ("Torch.matmul", "attention", (4, 8)),
        ("Tensor.__add__", "", (4, 8)),
        ("Functional.linear", "mlp.up", (4, 32)),
        ("Functional.gelu", "mlp", (4, 32)),
        ("Functional.linear", "mlp.down", (4, 8)),
        ("Tensor.__add__", "", (4, 8)),
    )
    return [
        Call(api, f"layers.{layer}.{place}".rstrip("."), shape, chance.random())
        for layer in range(layers)
        for api, place, shape in block
    ]


def with_insertions(calls: Sequence[Call], count: int, seed: int) -> list[Call]:
    """Return the calls with further ones between them, copies of other calls."""
    chance = random.Random(seed)
    longer = list(calls)
    for _ in range(count):
        place = chance.randrange(len(longer) + 1)
        copied = chance.choice(calls)
        neighbour = longer[min(place, len(longer) - 1)]
        new = replace(copied, module=neighbour.module, number=chance.random() + 5, is_new=True)
        longer.insert(place, new)
    return longer


@dataclass(frozen=True)
class Program:
    """A made-up run as records.

    Attributes:
        records: what ``dump.json`` holds.
        parents: what ``construct.json`` holds.
        calls: forward record → the call it is of.
    """

    records: dict[str, Any]
    parents: dict[str, str | None]
    calls: dict[str, Call]


def run(calls: Sequence[Call], *, backwards: bool = True) -> Program:
    """Number the calls as a capture does, forward, then backward in reverse."""
    counts: Counter[str] = Counter()
    records: dict[str, Any] = {}
    parents: dict[str, str | None] = {}
    made: dict[str, Call] = {}
    for call in calls:
        name = f"{call.api}.{counts[call.api]}.forward"
        counts[call.api] += 1
        made[name] = call
        records[name] = forward(
            [tensor(call.shape, call.number)], [tensor(call.shape, call.number + 1)]
        )
        parents[name] = f"Module.{call.module}.Layer.forward.0" if call.module else None
    for name, call in reversed(made.items()) if backwards else ():
        gradient = name.removesuffix("forward") + "backward"
        records[gradient] = backward(
            [tensor(call.shape, call.number + 2)], [tensor(call.shape, call.number + 3)]
        )
    return Program(records, parents, made)
