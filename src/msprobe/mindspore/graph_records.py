# SPDX-License-Identifier: Apache-2.0
"""From what a compiled graph hands over to records, as the dynamic graph makes them.

A graph gives no begin of a call, no order that can be relied on and no call stack. So a record's
parent is the cell that encloses it by name, and the n-th backward of a cell that was called k times
belongs to call k-1-n: a backward pass goes the other way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msprobe.capture.call import Call, Draft
from msprobe.capture.names import module_names
from msprobe.capture.session import Session
from msprobe.capture.values import Found
from msprobe.mindspore.adapter import values_of
from msprobe.mindspore.cell_hooks import CellNames, own_parameters
from msprobe.mindspore.quiet import quietly
from msprobe.mindspore.tensor_payload import crc32_hex
from msprobe.mindspore.tensor_search import tensors_in


class GraphRecords:
    """Makes the records of cells inside compiled graphs; see `graph_sink.GraphEvents`."""

    def __init__(self, session: Session, names: CellNames) -> None:
        """Create it for the cells that `names` knows."""
        self._session = session
        self._cells = {name: cell for cell, name in names.items()}
        self._enclosing = _enclosing_names(list(self._cells))
        self._calls: dict[str, list[Call]] = {}
        self._backwards: dict[str, int] = {}
        self._open: dict[str, tuple[Draft, Call]] = {}
        self._seen: set[tuple[str, ...]] = set()

    def next_step(self) -> None:
        """Begin to count again."""
        self._calls.clear()
        self._backwards.clear()
        self._open.clear()
        self._seen.clear()

    def forward(self, cell: str, inputs: Sequence[Any], output: Any) -> None:
        """Make the forward record of a cell's call."""
        if self._session.observing:
            quietly(self._session, "graph forward", self._forward, cell, inputs, output)

    def before_backward(self, cell: str, gradients: Sequence[Any]) -> None:
        """Begin the backward record of a cell's call."""
        if self._session.dump is not None:
            quietly(self._session, "graph backward", self._before, cell, gradients)

    def backward(self, cell: str, grad_inputs: Sequence[Any], grad_outputs: Sequence[Any]) -> None:
        """Complete the backward record of a cell's call."""
        if self._session.dump is not None:
            quietly(self._session, "graph backward", self._after, cell, grad_inputs, grad_outputs)

    def close(self) -> None:
        """Write what got no gradient with respect to its inputs: the backward pass is over."""
        for cell in list(self._open):
            self._finish(cell)

    # -- inside --------------------------------------------------------------------------------

    def _forward(self, cell: str, inputs: Sequence[Any], output: Any) -> None:
        if self._is_repeated(cell, inputs, output):
            return
        recorder = self._session.recorder
        call = recorder.begin(cell, self._session.stacks.here(0), is_module=True)
        found: Found = []
        recorder.inputs(call, inputs, None, found)
        recorder.part(call, "parameters", own_parameters(self._cells[cell]))
        recorder.outputs(call, output)
        recorder.end(call)
        self._calls.setdefault(cell, []).append(call)
        outer = self._enclosing.get(cell)
        if outer is not None:
            number = len(self._calls.get(outer, ()))
            parent, backward_parent = module_names(outer, number)
            recorder.correct_parent(call.forward_name, call.call_order, parent)
            call.backward_parent = backward_parent

    def _is_repeated(self, cell: str, inputs: Sequence[Any], output: Any) -> bool:
        """Return whether this very call was handed over before.

        A graph that computes gradients may hand a call of a shared cell over twice. What differs in
        no bit of inputs and outputs is taken for one call.
        """
        found: Found = []
        tensors_in((inputs, output), None, found)
        values = [values_of(tensor) for tensor, _ in found]
        marks = [crc32_hex(array) for array in values if array is not None]
        key = (cell, *marks)
        if key in self._seen:
            return True
        self._seen.add(key)
        return False

    def _before(self, cell: str, gradients: Sequence[Any]) -> None:
        self._finish(cell)
        calls = self._calls.get(cell, [])
        number = self._backwards.get(cell, 0)
        self._backwards[cell] = number + 1
        if number >= len(calls):
            return
        call = calls[len(calls) - 1 - number]
        if not call.keeps_gradients:
            return
        recorder = self._session.recorder
        order = recorder.say_backward(call.backward_name, call.backward_parent)
        draft = recorder.draft(call.backward_name, order)
        self._open[cell] = (draft, call)
        if recorder.selection.data_mode.input:
            draft.parts["input"] = self._described(draft, "input", gradients)

    def _after(self, cell: str, grad_inputs: Sequence[Any], grad_outputs: Sequence[Any]) -> None:
        if cell not in self._open:
            self._before(cell, grad_outputs)
        opened = self._open.get(cell)
        if opened is not None and self._session.recorder.selection.data_mode.output:
            draft = opened[0]
            draft.parts["output"] = self._described(draft, "output", grad_inputs)
        self._finish(cell)

    def _finish(self, cell: str) -> None:
        opened = self._open.pop(cell, None)
        if opened is None:
            return
        draft, _ = opened
        if self._session.recorder.selection.data_mode.output:
            draft.parts.setdefault("output", [])
        draft.order = self._session.recorder.next_order()
        self._session.recorder.finish(draft)

    def _described(self, draft: Draft, side: str, gradients: Sequence[Any]) -> list[Any]:
        adapter = self._session.adapter
        return [
            adapter.record_tensor(gradient, draft, f"{side}.{index}", is_gradient=True)
            if adapter.is_tensor(gradient)
            else None
            for index, gradient in enumerate(gradients)
        ]


def _enclosing_names(names: Sequence[str]) -> dict[str, str]:
    """Return for each cell the innermost cell around it, by path."""
    by_path = {name.rpartition(".")[0]: name for name in names}
    found = {}
    for name in names:
        path = name.rpartition(".")[0].rpartition(".")[0]
        while path.count("."):
            if path in by_path:
                found[name] = by_path[path]
                break
            path = path.rpartition(".")[0]
    return found
