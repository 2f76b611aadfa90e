# SPDX-License-Identifier: Apache-2.0
"""Makes the facts of a training step: those of a small model, with parts replaced."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from msprobe.dump.facts import Facts
from msprobe.json_text import strict_json

Json = dict[str, Any]
Arrays = dict[str, NDArray[np.float64]]
SIGNS = np.random.default_rng(5).choice([-1.0, 1.0], (2, 64))
OPTIONS = {"lr": 0.01, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}


def arrays(seed: int = 0) -> Arrays:
    """Return the parameters (or gradients) of a small model."""
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(6) for name in ("a.weight", "a.bias", "b.weight")}


def columns(values: Arrays) -> Json:
    """Return checksum, norm and projections of arrays, by column."""
    return {
        "checksum": [str(hash(each.tobytes())) for each in values.values()],
        "norm": [float(np.linalg.norm(each)) for each in values.values()],
        "projections": [(SIGNS[:, : each.size] @ each).tolist() for each in values.values()],
    }


def start_state(values: Arrays, **more: Any) -> Json:
    """Return the parameters when a step starts."""
    count = len(values)
    return {
        "name": list(values),
        "kind": ["parameter"] * count,
        "shape": [[6]] * count,
        "dtype": ["torch.float32"] * count,
        "requires_grad": [True] * count,
        **columns(values),
        "same_as": [None] * count,
    } | more


def batch(seed: int, micro: int = 0, **more: Any) -> Json:
    """Return a tensor that enters the model."""
    x = np.random.default_rng(seed).standard_normal(8)
    return {
        "micro": micro,
        "record": f"Module.Net.forward.{micro}",
        "where": "input.0",
        "shape": [4, 2],
        "dtype": "torch.float32",
        "checksum": str(hash(x.tobytes())),
        "max": float(x.max()),
        "min": float(x.min()),
        "mean": float(x.mean()),
        "norm": float(np.linalg.norm(x)),
        "projections": (SIGNS[:, :8] @ x).tolist(),
    } | more


def optimizer_step(
    before: Arrays,
    gradient: Arrays,
    after: Arrays,
    *,
    options: Json | None = None,
    name: str = "torch.optim.adamw.AdamW",
    steps: float | None = 0,
    state: dict[str, Arrays] | None = None,
    **more: Any,
) -> Json:
    """Return the record of an optimizer step."""
    count = len(before)
    kept = state or {}
    sampled = {"before": before, "gradient": gradient, "after": after, **kept}
    return {
        "kind": "optimizer",
        "class": name,
        "number": 0,
        "call": 0,
        "groups": [{"options": OPTIONS | (options or {}), "parameters": list(range(count))}],
        "parameters": {
            "name": list(before),
            "shape": [[6]] * count,
            "dtype": ["torch.float32"] * count,
            "has_gradient": [True] * count,
            "steps": [steps] * count,
            "gradient": columns(gradient),
            "state": {key: columns(each) for key, each in kept.items()},
            "before": columns(before),
            "after": columns(after),
            "samples": {"index": [list(range(6))] * count}
            | {key: [each.tolist() for each in values.values()] for key, values in sampled.items()},
        },
    } | more


def adamw(before: Arrays, gradient: Arrays, lr: float = 0.01) -> Arrays:
    """Return the parameters after the first step of AdamW without weight decay."""
    return {
        name: np.float32(p - lr * gradient[name] / (np.abs(gradient[name]) + 1e-8)).astype(float)
        for name, p in before.items()
    }


def facts(**parts: Any) -> Facts:
    """Return facts as the reader gives them."""
    return msgspec.json.decode(strict_json({"version": 1, **parts}), type=Facts, strict=False)
