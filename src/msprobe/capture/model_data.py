# SPDX-License-Identifier: Apache-2.0
"""Names of the data that enter a model."""

from __future__ import annotations

from typing import Final

from msprobe.capture.values import Position

MOST_ENTRIES: Final = 1000
"""Tensors noted in one step."""


def argument_place(position: Position) -> str:
    """Return the place of a tensor among the arguments of a call, as in names of tensor files."""
    parts = position if isinstance(position, tuple) else (position,)
    side = "input" if isinstance(parts[0], int) else "kwargs"
    return ".".join((side, *map(str, parts)))
