# SPDX-License-Identifier: Apache-2.0
"""Cells that hand over what they see, compiled into the graph, forward and backward.

Each cell's `construct` is replaced, on the object, by one that calls the original inside a cell
with hooks. (Hooks on the cell itself would not do: MindSpore drops them where a cell is reached
through a list, as in `SequentialCell`.) A forward hook has to return what it orders the graph by:
the output itself, made to depend on the hand-over. Values are not changed. All this stays until the
run ends, because taking it away would compile again.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import MethodType
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
    """Have cells hand over what they see.

    Args:
        names: the cells.
        undo: gives the cells their own `construct` back.
        wants: says of a cell's name whether it is recorded.
        backward: whether gradients are handed over.
    """
    for cell, name in names.items():
        if wants(name):
            construct = _recording_construct(name, cell.construct, backward=backward)
            cell.construct = MethodType(construct, cell)
            undo.callback(cell.__dict__.pop, "construct", None)


def _recording_construct(
    name: str, original: Callable[..., Any], *, backward: bool
) -> Callable[..., Any]:
    class Around(nn.Cell):  # type: ignore[misc]  # MindSpore is untyped
        def construct(self, *args, **kwargs):  # type: ignore[no-untyped-def]  # noqa: ANN002, ANN003, ANN202
            return original(*args, **kwargs)

    around = Around()
    around.register_forward_hook(_forward_hook(name))
    if backward:
        around.register_backward_pre_hook(_before_backward_hook(name))
        around.register_backward_hook(_backward_hook(name))

    def construct(self, *args, **kwargs):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN002, ANN003, ANN202
        return around(*args, **kwargs)

    construct.__jit_function__ = True  # type: ignore[attr-defined]
    return construct


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
