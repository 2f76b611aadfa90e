# SPDX-License-Identifier: Apache-2.0
"""A block of rows: the statistics of all tensors of one stream in one step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]


class Stream(StrEnum):
    """Where values come from; also the beginning of the names of csv files."""

    ACTV = "actv"
    ACTV_GRAD = "actv_grad"
    GRAD_UNREDUCED = "grad_unreduced"
    GRAD_REDUCED = "grad_reduced"
    EXP_AVG = "exp_avg"
    EXP_AVG_SQ = "exp_avg_sq"
    STATE = "state"
    """Other states of optimizers, named ``weight:momentum_buffer``."""
    PARAM_ORIGIN = "param_origin"
    PARAM_UPDATED = "param_updated"
    UPDATE = "update"
    OTHER = "other"
    """Communication, and agreement of gradient and first moment."""
    ATTENTION = "attention_hook"
    LINEAR = "linear_hook"
    ROUTER_WEIGHT = "moe_router_weight_hook"
    ROUTER_LOGIT = "moe_router_logit_hook"
    RUN = "run"
    """Numbers of the run: loss, learning rates, global norms, loss scale."""


VALUE: Final = "value"
"""The one operation of `Stream.RUN`."""

_MISSING_BITS: Final = np.uint64(0x7FF8_6D73_7072_6F62)
MISSING: Final = _MISSING_BITS.view(np.float64)
"""The NaN of a row that has no value of an operation, told from others by its payload."""


def is_missing(values: Values) -> NDArray[np.bool_]:
    """Return where `values` are `MISSING`."""
    found: NDArray[np.bool_] = values.view(np.uint64) == _MISSING_BITS
    return found


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Layout:
    """The rows and columns of a block; the same object for all blocks that have the same.

    Attributes:
        stream: the stream, a value of `Stream`.
        ops: the operations: ``min``, ``norm`` …
        names: of each row, ``layers.0.weight`` or ``layers.0.output``.
        chunks: of each row: the model among several (stage of a virtual pipeline).
        calls: of each row: which call of its module in the micro step.
        shapes: of each row's tensor, ``[4, 16]``.
        dtypes: of each row's tensor, ``torch.float32``.
    """

    stream: str
    ops: tuple[str, ...]
    names: tuple[str, ...]
    chunks: tuple[int, ...]
    calls: tuple[int, ...]
    shapes: tuple[str, ...]
    dtypes: tuple[str, ...]

    @property
    def keys(self) -> Iterator[tuple[str, int, int]]:
        """Name, chunk and call of each row."""
        return zip(self.names, self.chunks, self.calls, strict=True)

    @property
    def names_of_calls(self) -> list[str]:
        """The names for formats without calls; further ones of a module end with ``:call1`` …"""
        return [
            f"{name}:call{call}" if call else name
            for name, call in zip(self.names, self.calls, strict=True)
        ]


@dataclass(frozen=True, eq=False, slots=True)
class Rows:
    """All rows of one stream in one micro step.

    Attributes:
        layout: the meaning of the values.
        rank: of the process.
        step: calls of the optimizer before this one.
        micro_step: forward and backward pass within the step; 0 for streams with one value a step.
        time: seconds since 1970 UTC.
        values: shape (operations, rows).
    """

    layout: Layout
    rank: int
    step: int
    micro_step: int
    time: float
    values: Values
