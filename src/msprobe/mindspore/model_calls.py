# SPDX-License-Identifier: Apache-2.0
"""Follow the calls that the training makes of its model: their data, and whether they succeed."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from mindspore import nn
from msprobe.api_prefixes import COMPILED
from msprobe.capture.array_statistics import summarise_array
from msprobe.capture.ending import Work
from msprobe.capture.model_data import MOST_ENTRIES, argument_place
from msprobe.capture.session import Session
from msprobe.capture.statistics import Summary
from msprobe.capture.values import Found
from msprobe.dump.facts import Data
from msprobe.mindspore.adapter import host_values
from msprobe.mindspore.cell_hooks import call_at_begin, call_at_end
from msprobe.mindspore.describing import dtype_name
from msprobe.mindspore.guard import quietly
from msprobe.mindspore.jit_calls import is_compiling
from msprobe.mindspore.tensor_payload import crc32_hex
from msprobe.mindspore.tensor_search import tensors_in


class ModelCalls:
    """The calls of the models in the dynamic graph, of which one is outermost at a time."""

    def __init__(self, session: Session) -> None:
        """Create it; nothing is hooked.

        Args:
            session: gets the data, and learns of exceptions.
        """
        self._session = session
        self._models: Sequence[nn.Cell] = ()
        self._handles: list[Any] = []
        self._opened: nn.Cell | None = None
        # The error that the user's code is handling while it calls the model.
        self._handled: BaseException | None = None
        self._count = 0
        self._entries = 0

    def install(self, models: Sequence[nn.Cell]) -> None:
        """Watch the calls of models; the session's undo ends that."""
        self._models = models
        self.resume()
        self._session.undo.callback(self._end)
        self._session.step_undo.callback(self._next_step)

    def resume(self) -> None:
        """Put the hooks on the models."""
        for model in self._models:
            self._handles.append(call_at_begin(model, self._before))
            self._handles.append(call_at_end(model, self._after))

    def suspend(self) -> None:
        """Take the hooks off the models: code compiled meanwhile must not find them."""
        while self._handles:
            self._handles.pop().remove()

    def _end(self) -> None:
        self.suspend()
        self._models, self._opened = (), None

    def _next_step(self) -> None:
        self._count = self._entries = 0

    def _is_watched(self) -> bool:
        session = self._session
        in_own_thread = threading.get_ident() == session.thread
        return session.observing and in_own_thread and not is_compiling()

    def _before(self, cell: nn.Cell, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if self._opened is None and self._is_watched():
            self._opened, self._handled = cell, sys.exc_info()[1]
            modules = self._session.calls.modules
            record = modules[-1].forward_name if modules else None
            quietly(self._session, "data", self._take, args, kwargs, record)

    def compiled(
        self, name: str, cells: Sequence[nn.Cell], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """Take what compiled code is given, if it calls a model and is not called by one.

        Args:
            name: its name.
            cells: those that it refers to.
            args: its arguments.
            kwargs: its keywords.
        """
        if self._opened is None and self._is_watched():
            inside = {id(part) for cell in cells for _, part in cell.cells_and_names()}
            if any(id(model) in inside for model in self._models):
                record = f"{COMPILED}.{name}.{self._count}.forward"
                quietly(self._session, "data", self._take, args, kwargs, record)

    def _after(
        self,
        cell: nn.Cell,
        _args: tuple[Any, ...],
        _kwargs: Mapping[str, Any],
        _output: Any = None,
    ) -> None:
        if self._opened is not cell or not self._is_watched():
            return
        self._opened = None
        ending = self._session.current.ending
        if sys.exc_info()[1] is self._handled:
            ending.succeeded(Work.FORWARD)
        else:
            ending.left(Work.FORWARD)
        self._handled = None

    def _take(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], record: str | None) -> None:
        facts = self._session.facts
        micro = self._count
        self._count += 1
        if not facts.is_open:
            return
        found: Found = []
        tensors_in(args, kwargs, found)
        for tensor, position in found[: MOST_ENTRIES - self._entries]:
            self._entries += 1
            entry = partial(
                Data,
                micro=micro,
                record=record,
                where=argument_place(position),
                shape=list(tensor.shape),
                dtype=dtype_name(tensor),
            )
            values = host_values(tensor)
            summary = Summary() if values is None else summarise_array(values)
            facts.append(
                "data",
                entry(
                    checksum=None if values is None else crc32_hex(values),
                    max=summary.max,
                    min=summary.min,
                    mean=summary.mean,
                    norm=summary.norm,
                    projections=summary.projections,
                ),
            )
