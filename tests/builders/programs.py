# SPDX-License-Identifier: Apache-2.0
"""Records of made-up programs: a transformer of any depth, with calls inserted here and there."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from .records import backward, forward, tensor


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
