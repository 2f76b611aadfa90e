# SPDX-License-Identifier: Apache-2.0
"""Observe the cells of the user's models, through the public forward hooks of each cell.

The hooks are there between `start` and `stop` only.
"""

from __future__ import annotations

import inspect
import re
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final

from mindspore import nn
from msprobe.capture.call import Call
from msprobe.capture.names import found_prefixes
from msprobe.capture.recomputation import Recomputations
from msprobe.capture.session import Session
from msprobe.capture.stacks import calling_frame
from msprobe.capture.token_range import TokenGate
from msprobe.capture.values import Found
from msprobe.mindspore.graph_taps import InputEdges, Tapping
from msprobe.mindspore.guard import quietly
from msprobe.mindspore.jit_calls import is_compiling
from msprobe.mindspore.recorded_passes import RecordedPasses
from msprobe.mindspore.tensor_search import output_slots, tensors_in

_clock: Final = time.perf_counter


class FoundModels(tuple[nn.Cell, ...]):
    """Models that were found one after the other: see `msprobe.capture.names.found_prefixes`."""

    __slots__ = ()


# The module of a class that MindSpore derives, NetOpt_1_140565048404864.
_REWRITTEN: Final = re.compile(r"Opt(?:_\d+)+$")


def prefixed(models: Sequence[nn.Cell]) -> list[tuple[str, nn.Cell]]:
    """Return models with what the names in them begin with: of several the index, ``1.``."""
    if len(models) < 2 or isinstance(models, FoundModels):
        parts = {*models[0]._cells, *models[0]._params} if models else set()
        return list(zip(found_prefixes(parts), models, strict=False))
    return [(f"{index}.", model) for index, model in enumerate(models)]


def class_of(cell: nn.Cell) -> str:
    """Return the name of a cell's class, as the program writes it.

    Mixed precision makes ``DenseOpt_2`` of ``Dense``, numbered as it comes.
    """
    kind = type(cell)
    is_rewritten = _REWRITTEN.search(kind.__module__) is not None
    return kind.__mro__[is_rewritten].__name__


class CellNames:
    """Record names of the cells of the user's models."""

    def __init__(self, models: Sequence[nn.Cell]) -> None:
        """Name every cell of the models: several models get their index in front."""
        self._named: list[tuple[weakref.ref[nn.Cell], str]] = []
        seen: set[int] = set()
        for prefix, model in prefixed(models):
            for path, cell in model.cells_and_names():
                if id(cell) not in seen:
                    seen.add(id(cell))
                    inside = f"{path}." if path else ""
                    name = f"Cell.{prefix}{inside}{class_of(cell)}"
                    self._named.append((weakref.ref(cell), name))

    def items(self) -> Iterator[tuple[nn.Cell, str]]:
        """Yield the cells that are alive with their names."""
        for reference, name in self._named:
            cell = reference()
            if cell is not None:
                yield cell, name


class _Open:
    """A cell's call between its begin and its end."""

    __slots__ = ("arguments", "call", "cell", "edges", "found", "handled")

    def __init__(self, cell: nn.Cell, call: Call, arguments: int) -> None:
        self.cell = cell
        self.call = call
        self.arguments = arguments
        # The error that the user's code is handling while it calls the cell.
        self.handled = sys.exc_info()[1]
        self.found: Found = []
        self.edges: InputEdges | None = None


class CellObserver:
    """Turns the calls of cells into events of the session."""

    def __init__(
        self,
        session: Session,
        names: CellNames,
        recomputations: Recomputations,
        roots: Sequence[nn.Cell],
        gate: TokenGate | None,
        passes: RecordedPasses | None = None,
    ) -> None:
        """Create it, not yet installed.

        Args:
            session: receives the events.
            names: the cells to record.
            recomputations: recognises repeated calls.
            roots: the models themselves, for the gate.
            gate: limits observation to some calls of the first model.
            passes: receives the outputs of recorded calls.
        """
        self._session = session
        self._names = names
        self._recomputations = recomputations
        self._roots = roots
        self._gate = gate
        self._passes = passes
        self._open: list[_Open] = []
        self._handles: list[Any] = []

    def install(self) -> None:
        """Register the hooks; the session's undo removes them."""
        self.resume()
        self._session.undo.callback(self.suspend)
        self._session.undo.callback(self._open.clear)

    def resume(self) -> None:
        """Put the hooks on the cells."""
        handles = self._handles
        if self._gate is not None:
            gate = self._gate
            for root in self._roots[:1]:
                handles.append(root.register_forward_pre_hook(lambda cell, _: gate.before(cell)))
        for cell, name in self._names.items():
            hooks = _CellHooks(self, name)
            handles.append(call_at_begin(cell, hooks.before))
            handles.append(call_at_end(cell, hooks.after))

    def suspend(self) -> None:
        """Take the hooks off the cells: code compiled meanwhile must not find them."""
        while self._handles:
            self._handles.pop().remove()

    def begin(
        self, cell: nn.Cell, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """Note that a cell is called."""
        session = self._session
        if not session.observing or is_compiling():
            return
        if threading.get_ident() != session.thread:
            session.account.skipped["cell calls in other threads"] += 1
            session.account.expected = "the model in another thread"
            return
        started = _clock()
        quietly(session, "cell begin", self._begin, cell, name, args, kwargs)
        session.account.spent_s += _clock() - started

    def _begin(
        self, cell: nn.Cell, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        session = self._session
        if session.muted:
            return
        frame = calling_frame()
        stack = session.stacks.at(frame)
        if stack.traits.internal:
            session.account.skipped["calls inside a backward pass"] += 1
            return
        call = self._recomputations.begin(name, stack, frame, is_module=True)
        if call is None:
            return
        opened = _Open(cell, call, len(args))
        self._open.append(opened)
        session.calls.inputs(call, args, kwargs, opened.found)
        session.calls.part(call, "parameters", own_parameters(cell))
        if call.keeps_gradients:
            if not opened.found:
                tensors_in(args, kwargs, opened.found)
            opened.edges = InputEdges(opened.found)

    def end(self, cell: nn.Cell, output: Any) -> None:
        """Note that a cell returned, or raised: then `output` is None and an error is handled."""
        # Another thread may run a cell whose call is open in this one.
        if threading.get_ident() != self._session.thread:
            return
        if not any(one.cell is cell for one in self._open):
            return
        started = _clock()
        quietly(self._session, "cell end", self._end, cell, output)
        self._session.account.spent_s += _clock() - started

    def _end(self, cell: nn.Cell, output: Any) -> None:
        error = sys.exc_info()[1]
        while self._open:
            opened = self._open.pop()
            if error is opened.handled:
                error = None
            if opened.cell is cell and error is None:
                self._close(opened, output)
            else:
                kind = type(error).__name__ if error is not None else "exception"
                self._session.calls.raised(opened.call, kind)
            if opened.cell is cell:
                return

    def _close(self, opened: _Open, output: Any) -> None:
        calls = self._session.calls
        calls.outputs(opened.call, output)
        slots = output_slots(output)
        if self._passes is not None:
            self._passes.follow(slots)
        if opened.edges is not None:
            tapping = Tapping(
                self._session, opened.call, opened.edges, opened.found, opened.arguments
            )
            tapping.attach(slots)
        calls.end(opened.call)


class _CellHooks:
    """The two hooks of one cell."""

    __slots__ = ("_name", "_observer")

    def __init__(self, observer: CellObserver, name: str) -> None:
        self._observer = observer
        self._name = name

    def before(self, cell: nn.Cell, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._observer.begin(cell, self._name, args, kwargs)

    def after(
        self,
        cell: nn.Cell,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        output: Any = None,
    ) -> None:
        self._observer.end(cell, output)


def call_at_begin(cell: nn.Cell, hook: Callable[..., None]) -> Any:
    """Have a cell call ``hook(cell, args, kwargs)`` when it begins; return the handle."""
    if _is_of_msadapter(cell):
        return cell.register_forward_pre_hook(lambda cell, args: hook(cell, args, {}))
    return cell.register_forward_pre_hook(hook, with_kwargs=True)


def _is_of_msadapter(cell: nn.Cell) -> bool:
    """Return whether this is a module of MSAdapter (`mindtorch`).

    It is a cell that keeps and calls its hooks itself, as those of older PyTorch: without keywords,
    and none at the end of a call that raises.
    """
    return not _takes_keywords(type(cell).register_forward_pre_hook)


@cache
def _takes_keywords(register: Callable[..., Any]) -> bool:
    """Return whether hooks may ask for keywords; looked up once, not for each cell and step."""
    return "with_kwargs" in inspect.signature(register).parameters


def call_at_end(cell: nn.Cell, hook: Callable[..., None]) -> Any:
    """Have a cell call ``hook(cell, args, kwargs, output)`` when it returns or raises.

    Returns the handle. After an exception there is no output.

    A cell with a `bprop` of its own calls the forward hooks that it has, but registers none
    (MindSpore 2.10): its backward hooks would see nothing.
    """
    if _is_of_msadapter(cell):
        return cell.register_forward_hook(lambda cell, args, output: hook(cell, args, {}, output))
    has_bprop = cell.has_bprop
    cell.has_bprop = False
    try:
        return cell.register_forward_hook(hook, with_kwargs=True, always_call=True)
    finally:
        cell.has_bprop = has_bprop


def own_parameters(cell: nn.Cell) -> dict[str, Any]:
    """Return the parameters of a cell without those of the cells inside it, by attribute.

    A cell that mixed precision rewrites holds those of its parts, too, under their paths.
    """
    return {n: value for n, value in cell._params.items() if value is not None and "." not in n}
