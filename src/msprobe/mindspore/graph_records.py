# SPDX-License-Identifier: Apache-2.0
"""From what a compiled graph hands over to records, as the dynamic graph makes them.

A graph gives no begin of a call, no order that can be relied on (a backward may come before the
forward) and no call stack. So a record's parent is the cell that encloses it by name, and when the
step is over the n-th backward of a cell that was called k times is given to call k-1-n: a backward
pass goes the other way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msprobe.capture.call import Call, Draft
from msprobe.capture.names import module_names
from msprobe.capture.session import Session
from msprobe.capture.values import Found
from msprobe.config import Task
from msprobe.mindspore.adapter import values_of
from msprobe.mindspore.cell_hooks import CellNames, own_parameters
from msprobe.mindspore.quiet import quietly
from msprobe.mindspore.tensor_payload import crc32_hex
from msprobe.mindspore.tensor_search import tensors_in


class GraphRecords:
    """Makes the records of cells inside compiled graphs; see `graph_sink.GraphEvents`."""

    def __init__(self, session: Session, names: CellNames, *, after_stop: bool = False) -> None:
        """Create it for the cells that `names` knows.

        Args:
            session: makes the records.
            names: the cells.
            after_stop: whether a step's calls are handed over when recording has stopped already.
        """
        self._session = session
        self._after_stop = after_stop
        self._cells = {name: cell for cell, name in names.items()}
        self._enclosing = _enclosing_names(list(self._cells))
        self._calls: dict[str, list[Call]] = {}
        self._backwards: dict[str, list[Draft]] = {}
        self._seen: set[tuple[str, ...]] = set()

    def next_step(self) -> None:
        """Begin to count again."""
        self._calls.clear()
        self._backwards.clear()
        self._seen.clear()

    def forward(self, cell: str, inputs: Sequence[Any], output: Any) -> None:
        """Make the forward record of a cell's call."""
        session = self._session
        if session.observing or (self._after_stop and session.dump is not None):
            quietly(self._session, "graph forward", self._forward, cell, inputs, output)

    def before_backward(self, cell: str, gradients: Sequence[Any]) -> None:
        """Begin the backward record of a cell's call."""
        if self._session.dump is not None:
            quietly(self._session, "graph backward", self._before, cell, gradients)

    def backward(self, cell: str, grad_inputs: Sequence[Any], grad_outputs: Sequence[Any]) -> None:
        """Complete the backward record of a cell's call."""
        if self._session.dump is not None:
            quietly(self._session, "graph backward", self._after, cell, grad_inputs)

    def close(self) -> None:
        """Write the backward records: the step is over, and every call is known."""
        for cell, drafts in self._backwards.items():
            calls = self._calls.get(cell, [])
            for number, draft in enumerate(drafts):
                if number < len(calls):
                    self._write(draft, calls[len(calls) - 1 - number])
                else:
                    self._session.account.skipped["backward of an unknown call"] += 1

    # -- inside --------------------------------------------------------------------------------

    def _forward(self, cell: str, inputs: Sequence[Any], output: Any) -> None:
        if self._is_repeated(cell, inputs, output):
            return
        recorder = self._session.recorder
        call = recorder.begin(cell, self._session.stacks.here(0), is_module=True)
        found: Found = []
        args, kwargs = _arguments(inputs)
        recorder.inputs(call, args, kwargs, found)
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
        draft = Draft(cell, 0)
        if self._session.config.task is Task.TENSOR:
            draft.held = []  # which call they belong to is known when the step is over
        self._backwards.setdefault(cell, []).append(draft)
        draft.parts["input"] = self._described(draft, "input", gradients)
        draft.parts["output"] = []

    def _after(self, cell: str, grad_inputs: Sequence[Any]) -> None:
        drafts = self._backwards.get(cell)
        if drafts and not drafts[-1].parts["output"]:
            drafts[-1].parts["output"] = self._described(drafts[-1], "output", grad_inputs)

    def _write(self, described: Draft, call: Call) -> None:
        if not call.keeps_gradients:
            return
        recorder = self._session.recorder
        recorder.say_backward(call.backward_name, call.backward_parent)
        draft = recorder.draft(call.backward_name, recorder.next_order())
        draft.parts = described.parts
        draft.nonfinite, draft.overflow = described.nonfinite, described.overflow
        mode = recorder.selection.data_mode
        for side, wanted in (("input", mode.input), ("output", mode.output)):
            if not wanted:
                del draft.parts[side]
        for payload, record, path in described.held or ():
            if path.partition(".")[0] in draft.parts:
                draft.save(payload, record, path)
        recorder.finish(draft)

    def _described(self, draft: Draft, side: str, gradients: Sequence[Any]) -> list[Any]:
        adapter = self._session.adapter
        return [
            adapter.record_tensor(gradient, draft, f"{side}.{index}", is_gradient=True)
            if adapter.is_tensor(gradient)
            else None
            for index, gradient in enumerate(_flat(gradients))
        ]


def _flat(gradients: Any) -> Iterator[Any]:
    """Yield gradients from however deep a graph has put them."""
    if isinstance(gradients, dict):
        gradients = tuple(gradients.values())
    if isinstance(gradients, tuple | list):
        for one in gradients:
            yield from _flat(one)
    else:
        yield gradients


def _arguments(inputs: Sequence[Any]) -> tuple[Sequence[Any], Mapping[str, Any] | None]:
    """Return positional and keyword arguments, which a graph hands over as a pair."""
    args, kwargs = inputs
    return args, kwargs if isinstance(kwargs, dict) and kwargs else None


def _enclosing_names(names: Sequence[str]) -> dict[str, str]:
    """Return for each cell the innermost cell around it, by path."""
    by_path = {name.rpartition(".")[0]: name for name in names}
    found = {}
    for name in names:
        path = name.rpartition(".")[0].rpartition(".")[0]
        while path:
            if path in by_path:
                found[name] = by_path[path]
                break
            path = path.rpartition(".")[0]
    return found
