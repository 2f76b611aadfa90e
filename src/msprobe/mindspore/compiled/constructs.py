# SPDX-License-Identifier: Apache-2.0
"""Cells that hand over their inputs, outputs and gradients, by code compiled into the graph.

A `construct` set on the cell object replaces the original. (Hooks of the cell would not do:
MindSpore drops them where a cell is reached through a list, as in `SequentialCell`.) Values are not
changed. The result waits for the delivery of values, the arguments as a rule do not: MindSpore
might add up their gradients in another order.
"""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from types import MethodType
from typing import Any

from mindspore import nn
from msprobe.errors import UsageError
from msprobe.mindspore.cell_hooks import own_parameters
from msprobe.mindspore.compiled.cells import living_cells, plain_construct
from msprobe.mindspore.compiled.forwards import CellCode
from msprobe.mindspore.compiled.gradients import ARGUMENTS, RESULT, handing_over
from msprobe.mindspore.compiled.structure import compiled, tuple_item


def handing_construct(name: str, cell: nn.Cell, *, backward: bool) -> MethodType:
    """Return a `construct` that hands over the cell's inputs and outputs.

    Args:
        name: the cell's.
        cell: the cell.
        backward: whether gradients are handed over.
    """
    original = plain_construct(cell)
    parameters = tuple(own_parameters(cell).values())
    # The call itself may update those that are not trained (moving averages).
    updates = any(not parameter.requires_grad for parameter in parameters)
    written = CellCode(name, updates=updates, backward=backward)
    at_begin, at_end = written.at_begin, written.at_end

    @compiled
    def construct(self, *args, **kwargs):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN002, ANN003, ANN202
        given = ((args, kwargs), parameters)
        enter = at_begin(given)
        entered = enter(given)
        passed = tuple_item(entered, 0)
        result = original(*tuple_item(passed, 0), **tuple_item(passed, 1))
        leave = at_end(tuple_item(entered, 1), result)
        return leave(result, *tuple_item(entered, 2))

    return MethodType(construct, cell)


def handing_bprop(name: str, cell: nn.Cell) -> Any:
    """Return a `bprop` that hands over its inputs and outputs.

    A cell that has one is not differentiated, so nothing inside it sees the gradients.
    """
    original = cell.bprop
    of_result, of_arguments = handing_over(name, RESULT), handing_over(name, ARGUMENTS)

    @compiled
    def run(args):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        received = args[-1]
        receive = of_result(received)
        gradients = original(*args[:-1], receive(received))
        hand_on = of_arguments(gradients)
        return hand_on(gradients)

    # MindSpore counts the parameters that are written down.
    @compiled
    def of_one(self, a, out, dout):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        return run((a, out, dout))

    @compiled
    def of_two(self, a, b, out, dout):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        return run((a, b, out, dout))

    @compiled
    def of_three(self, a, b, c, out, dout):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        return run((a, b, c, out, dout))

    @compiled
    def of_four(self, a, b, c, d, out, dout):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        return run((a, b, c, d, out, dout))

    known = {3: of_one, 4: of_two, 5: of_three, 6: of_four}
    bprop = known.get(len(signature(original).parameters))
    return original if bprop is None else MethodType(bprop, cell)


def refuse_compiled(models: Sequence[nn.Cell], call: str = "start(model)") -> None:
    """Refuse models that a graph was compiled for already: no hook would get into it.

    Args:
        models: the models.
        call: of the user, that comes too late.

    Raises:
        UsageError: one of them, or a cell around it, has been compiled.
    """
    inside = {id(cell) for model in models for _, cell in model.cells_and_names()}
    for cell in living_cells():
        if cell.compile_cache and any(id(part) in inside for _, part in cell.cells_and_names()):
            raise UsageError(
                f"{call.partition('(')[0]}(): {type(cell).__name__} has been compiled already, so "
                f"that nothing in its graph can be recorded; call {call} before the first training "
                "step"
            )
