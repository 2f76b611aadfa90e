# SPDX-License-Identifier: Apache-2.0
"""The update rules of optimizers that mix all elements of a parameter: Adafactor and Muon.

Both are those of ``torch.optim``: Shazeer and Stern, "Adafactor: Adaptive Learning Rates with
Sublinear Memory Cost" (2018), with the relative step size of its section 8; Jordan et al., "Muon:
An optimizer for hidden layers in neural networks" (2024), and Liu et al., "Muon is Scalable for LLM
Training" (2025), for ``match_rms_adamw``.

A few recorded elements do not determine their update, so most results are ranges:

- Adafactor of a vector divides by max(1, rms(u) / d), where u is the update before clipping. That
  is between 1 and what the largest possible element of u allows. It is 1 in the first step, where
  every element of u is at most 1, so the first step is replayed exactly.
- Adafactor of a matrix divides each element by factors of its row and column, which are not known.
  Its update has the sign of the gradient, and its root mean square is at most ``alpha d``.
- Muon orthogonalises the matrix: no element is larger than its largest singular value, which the
  polynomial of its Newton-Schulz iteration bounds. Signs and sizes within that are not judged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import numpy as np

from msprobe.compare.training.elements import (
    Array,
    Elements,
    Options,
    Updated,
    given,
    moved,
)

# Muon iterates in bfloat16: its products may leave the range of the polynomial by so much.
_COARSE: Final = 1.1
_GRID: Final = 1 << 14
_MATRIX: Final = 2


def adafactor(options: Options, elements: Elements) -> Updated:
    """Return the range of the new parameter by Adafactor."""
    rate, least = options["lr"], options["eps"][0]
    least = elements.epsilon if least is None else least
    gradient, size = given({**options, "weight_decay": 0.0}, elements)
    counts = np.array([math.prod(shape) for shape in elements.shapes], dtype=float)
    weight = elements.steps ** options["beta2_decay"]
    alpha = np.maximum(options["eps"][1], elements.norms / np.sqrt(counts))
    alpha = alpha * np.minimum(rate, elements.steps**-0.5)
    kept = elements.before * (1 - rate * (options.get("weight_decay") or 0.0))
    square = elements.of("variance") * (1 - weight) + weight * gradient * gradient
    root = np.sqrt(np.maximum(square, least * least))
    largest = alpha * gradient / root
    largest_size = alpha * size / root
    smallest = largest / np.maximum(1.0, 1 / (np.sqrt(weight) * options["d"]))
    is_matrix = np.array([len(shape) >= _MATRIX for shape in elements.shapes])
    ends = np.minimum(alpha * options["d"] * np.sqrt(counts), alpha * np.abs(gradient) / least)
    largest = np.where(is_matrix, np.sign(gradient) * ends, largest)
    smallest = np.where(is_matrix, 0.0, smallest)
    largest_size = np.where(is_matrix, np.abs(largest), largest_size)
    updated = moved(
        kept, (smallest + largest) / 2, largest_size + np.abs(largest), np.abs(elements.before)
    )
    slack = np.abs(largest - smallest) / 2
    # The bound of a matrix leaves out roundings of sums over all of its elements.
    slack = slack * np.where(is_matrix, 1 + 16 * elements.epsilon, 1.0)
    return Updated(updated.value, updated.terms, slack, is_bound=slack > 0)


def muon(options: Options, elements: Elements) -> Updated:
    """Return the range of the new parameter by Muon."""
    rate = options["lr"]
    kept = elements.before * (1 - rate * options["weight_decay"])
    scales = np.array([_adjustment(options.get("adjust_lr_fn"), s) for s in elements.shapes])
    largest = (
        rate * scales * _largest_singular(tuple(options["ns_coefficients"]), options["ns_steps"])
    )
    updated = moved(kept, np.zeros_like(kept), largest, np.abs(elements.before))
    return Updated(updated.value, updated.terms, largest, is_bound=np.ones(kept.shape, bool))


def _adjustment(function: Any, shape: Sequence[int]) -> float:
    """Return by what Muon multiplies the learning rate of a matrix."""
    rows, columns = shape[:2]
    if function in (None, "original"):
        return math.sqrt(max(1, rows / columns))
    return 0.2 * math.sqrt(max(rows, columns)) if function == "match_rms_adamw" else 1.0


@cache
def _largest_singular(coefficients: tuple[float, float, float], steps: int) -> float:
    """Return the largest singular value that the iteration makes of one between 0 and 1."""
    a, b, c = coefficients
    values: Array = np.linspace(0.0, 1.0, _GRID)
    for _ in range(steps):
        values = a * values + b * values**3 + c * values**5
    return float(np.abs(values).max()) * _COARSE
