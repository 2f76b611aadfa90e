# SPDX-License-Identifier: Apache-2.0
"""Records as ``dump.json`` has them, written by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Entry = dict[str, Any]
Records = Mapping[str, Any]


def tensor(shape: Sequence[int] = (2, 3), number: float = 1.0, **fields: Any) -> Entry:
    """Return the entry of a tensor; its statistics follow from `number` unless given."""
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


def scalar(kind: str, value: Any) -> Entry:
    return {"type": kind, "value": value}


def group(ranks: Sequence[int]) -> Entry:
    return {"type": "torch.ProcessGroup", "group_ranks": list(ranks), "group_id": "77849d8c"}


def forward(inputs: Sequence[Any] = (), outputs: Sequence[Any] = (), **kwargs: Any) -> Entry:
    return {"input_args": list(inputs), "input_kwargs": kwargs, "output": list(outputs)}


def backward(inputs: Sequence[Any] = (), outputs: Sequence[Any] = ()) -> Entry:
    return {"input": list(inputs), "output": list(outputs)}
