# SPDX-License-Identifier: Apache-2.0
"""Replace methods of cells before MindSpore compiles them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from types import MethodType
from typing import Any, Final

import mindspore
from mindspore import nn
from msprobe.config import Level
from msprobe.errors import UnsupportedError

_ABSENT: Final = object()


class CompiledCells:
    """Cells with one method replaced for a while."""

    def __init__(
        self,
        cells: Iterable[tuple[nn.Cell, str]],
        make: Callable[[str, nn.Cell], Any],
        method: str = "construct",
    ) -> None:
        """Create it; nothing is made or replaced yet.

        Args:
            cells: the cells with their names; gone through when they are first replaced.
            make: returns the other method for a name and a cell.
            method: its name.
        """
        self._cells = cells
        self._make = make
        self._method = method
        self._made: list[tuple[nn.Cell, Any]] | None = None
        self._before: list[Any] = []

    def put_in(self) -> None:
        """Put the other method on the cells."""
        if self._made is None:
            self._made = [(cell, self._make(name, cell)) for cell, name in self._cells]
        for cell, method in self._made:
            attributes = cell.__dict__
            self._before.append(attributes.get(self._method, _ABSENT))
            attributes[self._method] = method

    def take_out(self) -> None:
        """Restore the methods of the cells."""
        for (cell, _), before in zip(self._made or (), self._before, strict=True):
            if before is _ABSENT:
                del cell.__dict__[self._method]
            else:
                cell.__dict__[self._method] = before
        self._before.clear()


def is_static_graph() -> bool:
    """Return whether MindSpore compiles all cells (graph mode)."""
    return bool(mindspore.get_context("mode") == mindspore.GRAPH_MODE)


def refuse_static_graph(method: str, level: Level) -> None:
    """Refuse a level that needs the dynamic graph.

    Args:
        method: the method that the user called.
        level: the configured one.

    Raises:
        UnsupportedError: MindSpore is in graph mode.
    """
    if is_static_graph():
        raise UnsupportedError(
            f"{method}: MindSpore runs in graph mode, which level {level} cannot record; use level "
            "L0, or set_context(mode=PYNATIVE_MODE)"
        )


def living_cells() -> Iterator[nn.Cell]:
    """Yield all cells of this process."""
    for found in gc.get_objects():
        if issubclass(type(found), nn.Cell):  # asking a dead proxy for its class raises
            yield found


def plain_construct(cell: nn.Cell) -> Callable[..., Any]:
    """Return the `construct` of a cell as it was written, without `mindspore.jit` around it."""
    construct: Callable[..., Any] = cell.construct
    if hasattr(construct, "__wrapped_by_jit__"):
        return MethodType(construct.__wrapped__, cell)  # type: ignore[attr-defined]
    return construct


def is_compiled_by_user(cell: nn.Cell) -> bool:
    """Return whether the `construct` of a cell is under `mindspore.jit` and becomes a graph.

    Bytecode that MindSpore compiles piece by piece runs as Python while recording.
    """
    construct = cell.construct
    code = getattr(construct, "__code__", None)
    is_bytecode = code is not None and "pijit" in code.co_filename
    return hasattr(construct, "__wrapped_by_jit__") and not is_bytecode
