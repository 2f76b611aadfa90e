# SPDX-License-Identifier: Apache-2.0
"""Hooks on cells that MindSpore compiles into the graph, forward and backward.

They work on every backend that can call Python from a graph, the CPU among them. A forward hook has
to return what it orders the graph by: the output itself, made to depend on the hand-over. Values are
not changed. The hooks stay until the run ends, because taking them away would compile again.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Final

from mindspore import nn, ops

from msprobe.errors import UsageError
from msprobe.mindspore import graph_sink
from msprobe.mindspore.cell_hooks import CellNames

_IGNORE: Final = "MS_JIT_IGNORE_MODULES"
_OURS: Final = "msprobe"


def leave_sink_uncompiled() -> None:
    """Have MindSpore run `graph_sink` as plain Python; it looks at every compilation."""
    named = [name for name in os.environ.get(_IGNORE, "").split(",") if name]
    if _OURS not in named:
        os.environ[_IGNORE] = ",".join([*named, _OURS])


def install_graph_hooks(
    names: CellNames, undo: ExitStack, *, wants: Callable[[str], bool], backward: bool
) -> None:
    """Put the hooks on the cells.

    Args:
        names: the cells.
        undo: takes the hooks away again.
        wants: says of a cell's name whether it is recorded.
        backward: whether gradients are handed over.
    """
    for cell, name in names.items():
        if not wants(name):
            continue
        undo.callback(cell.register_forward_hook(_forward_hook(name)).remove)
        if backward:
            undo.callback(cell.register_backward_pre_hook(_before_backward_hook(name)).remove)
            undo.callback(cell.register_backward_hook(_backward_hook(name)).remove)


def refuse_compiled(models: Sequence[nn.Cell]) -> None:
    """Refuse models that a graph was compiled for already: no hook would get into it.

    Raises:
        UsageError: one of them, or a cell around it, has been compiled.
    """
    inside = {id(cell) for model in models for _, cell in model.cells_and_names()}
    for cell in gc.get_objects():
        if not issubclass(type(cell), nn.Cell) or not cell.compile_cache:  # a dead proxy raises
            continue
        if any(id(part) in inside for _, part in cell.cells_and_names()):
            raise UsageError(
                f"start(): {type(cell).__name__} has been compiled already, so that nothing in "
                "its graph can be recorded; call start(model) before the first training step"
            )


# The names must be constants of the graph, and the functions compiled although they stand in
# a module that is not: MindSpore looks for this attribute.


def _forward_hook(name: str) -> Callable[..., Any]:
    def hook(cell, inputs, output):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        return ops.depend(output, graph_sink.forward(name, inputs, output))

    hook.__jit_function__ = True  # type: ignore[attr-defined]
    return hook


def _before_backward_hook(name: str) -> Callable[..., Any]:
    def hook(cell, grad_outputs):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        graph_sink.before_backward(name, grad_outputs)

    hook.__jit_function__ = True  # type: ignore[attr-defined]
    return hook


def _backward_hook(name: str) -> Callable[..., Any]:
    def hook(cell, grad_inputs, grad_outputs):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        graph_sink.backward(name, grad_inputs, grad_outputs)

    hook.__jit_function__ = True  # type: ignore[attr-defined]
    return hook
