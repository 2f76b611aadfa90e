# SPDX-License-Identifier: Apache-2.0
"""Which `construct` MindSpore finds on a cell when it compiles it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from mindspore import nn
from msprobe.mindspore.cell_hooks import CellNames

_ABSENT: Final = object()


class CompiledCells:
    """Cells whose `construct` is, for a while, another."""

    def __init__(self, names: CellNames, make: Callable[[str, nn.Cell], Any]) -> None:
        """Create it; nothing is made or replaced yet.

        Args:
            names: the cells.
            make: returns the other `construct` for a name and a cell.
        """
        self._names = names
        self._make = make
        self._made: list[tuple[nn.Cell, Any]] | None = None
        self._before: list[Any] = []

    def put_in(self) -> None:
        """Put the other `construct` on the cells."""
        if self._made is None:
            self._made = [
                (cell, self._make(name, cell))
                for cell, name in self._names.items()
                if _is_of_the_user(name)
            ]
        for cell, construct in self._made:
            attributes = cell.__dict__
            self._before.append(attributes.get("construct", _ABSENT))
            attributes["construct"] = construct

    def take_out(self) -> None:
        """Give the cells back what they had."""
        for (cell, _), before in zip(self._made or (), self._before, strict=True):
            if before is _ABSENT:
                del cell.__dict__["construct"]
            else:
                cell.__dict__["construct"] = before
        self._before.clear()


def _is_of_the_user(cell: str) -> bool:
    """Return whether a cell is no machinery of MindSpore's own wrappers."""
    path, _, kind = cell.rpartition(".")
    return not kind.startswith("_") and not path.endswith("grad_reducer")
