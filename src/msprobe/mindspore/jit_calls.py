# SPDX-License-Identifier: Apache-2.0
"""Calls of compiled code: recorded from outside, and left alone inside.

While a function or cell under `mindspore.jit` is compiled, MindSpore parses the Python source. It
must then find the original operators, not our wrappers, and no hook of ours. So what is installed
steps aside for the whole call, and the call itself becomes a ``Jit.{name}`` record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Final

from mindspore import nn

_HOMES: Final = ("mindspore.graph.api", "mindspore.common.api")
_NAMES: Final = ("_JitExecutor", "_MindsporeFunctionExecutor")


class _Depth:
    """How many calls of compiled code are running now."""

    __slots__ = ("running",)

    def __init__(self) -> None:
        self.running = 0


_depth = _Depth()


def is_compiling() -> bool:
    """Return whether compiled code runs, or is being compiled."""
    return _depth.running > 0


def executor_class() -> type | None:
    """Return the class that runs jitted code; it has moved between MindSpore's versions."""
    for home in _HOMES:
        try:
            module = import_module(home)
        except ImportError:
            continue
        for name in _NAMES:
            found = getattr(module, name, None)
            if isinstance(found, type):
                return found
    return None


def cells_in_graphs(models: Sequence[nn.Cell]) -> list[nn.Cell]:
    """Return the cells inside cells whose `construct` is compiled."""
    found = []
    for model in models:
        for _, cell in model.cells_and_names():
            if hasattr(cell.construct, "__wrapped_by_jit__"):
                found += [inner for path, inner in cell.cells_and_names() if path]
    return found


def name_of(executor: Any) -> str:
    """Return the name under which a jitted call is recorded: its cell's class or its function."""
    cell = getattr(executor, "obj", None)
    if cell is not None:
        return type(cell).__name__
    return str(getattr(getattr(executor, "fn", None), "__name__", "function"))


def watch_jit(
    around: Callable[[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any],
) -> Callable[[], None] | None:
    """Let `around` run every call of jitted code; return what undoes it.

    Args:
        around: called with name, function, arguments and keywords; returns the function's result.
    """
    owner: Any = executor_class()
    if owner is None:
        return None
    original = owner.__call__

    def call(executor: Any, *args: Any, **kwargs: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            _depth.running += 1
            try:
                return original(executor, *args, **kwargs)
            finally:
                _depth.running -= 1

        return around(name_of(executor), run, args, kwargs)

    owner.__call__ = call

    def undo() -> None:
        if owner.__dict__.get("__call__") is call:
            owner.__call__ = original

    return undo
