# SPDX-License-Identifier: Apache-2.0
"""Follow the calls that the training makes of its model: their data, and whether they succeed."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal

import torch
from torch import nn

from msprobe.capture.ending import Work
from msprobe.capture.facts import FactCollector
from msprobe.capture.model_data import MOST_ENTRIES, argument_place
from msprobe.capture.session import Session
from msprobe.capture.values import Found
from msprobe.dump.facts import Data
from msprobe.pytorch.values.fingerprint import Fingerprint, shape_of
from msprobe.pytorch.values.tensor_search import tensors_in

_CALL_CODE: Final = nn.Module._call_impl.__code__
_graph_task: Final = torch._C._current_graph_task_id


class ModelCalls:
    """The outermost calls of a model and its modules, one at a time.

    Usually they are calls of the model itself. Where a trainer calls parts of the model (Lightning
    does), they are calls of these parts.

    Attributes:
        opened: the module whose call is open; None between calls.
    """

    __slots__ = (
        "_batch_index", "_count", "_depth", "_entries", "_look_at_flags", "_modules", "_name_input",
        "_session", "opened",
    )  # fmt: skip

    def __init__(
        self,
        session: Session,
        batch_index: Callable[[], int | None],
        look_at_flags: Callable[[int], None] | None = None,
        name_input: Callable[[torch.Tensor, str], None] | None = None,
    ) -> None:
        """Create it without a model.

        Args:
            session: gets the data, and learns of exceptions.
            batch_index: returns the number of the current batch in the data loader, if known.
            look_at_flags: is told the number of each micro batch whose call begins.
            name_input: is told the tensors that are data, and their places.
        """
        self._session = session
        self._batch_index = batch_index
        self._look_at_flags, self._name_input = look_at_flags, name_input
        self._modules: frozenset[int] = frozenset()
        self.opened: nn.Module | None = None
        self._depth = 0
        self._count = 0
        self._entries = 0

    def watch(self, models: Sequence[nn.Module]) -> None:
        """Follow the calls of these models from now on."""
        found: dict[int, nn.Module] = {}
        waiting = list(models)
        while waiting:
            module = waiting.pop()
            if id(module) not in found:
                found[id(module)] = module
                waiting += [inner for inner in module._modules.values() if inner is not None]
        self._modules = frozenset(found)

    def next_step(self) -> None:
        """Begin to count anew."""
        self._count = self._entries = 0
        self.close()

    def close(self) -> None:
        """Forget the open call."""
        self.opened = None
        self._depth = 0

    def is_outermost(self, module: nn.Module) -> bool:
        """Return whether a call of `module` that begins now is an outermost one.

        A backward pass makes none: it repeats calls whose activations were not kept.
        """
        if self.opened is None:
            return id(module) in self._modules and _graph_task() == -1
        if self.opened is module:
            if not _is_running(module):  # a KeyboardInterrupt left the last one, unknown to hooks
                self.close()
                return True
            self._depth += 1
        return False

    def begin(
        self,
        module: nn.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        record: str | None,
    ) -> None:
        """Take the data of an outermost call.

        Args:
            module: the module that is called.
            args: the positional arguments.
            kwargs: the keyword arguments.
            record: name of the call's record.
        """
        self.opened = module
        facts = self._session.facts
        micro, index = self._count, self._batch_index()
        self._count += 1
        if not facts.is_open:
            return
        if self._look_at_flags is not None:
            self._look_at_flags(micro)
        found: Found = []
        tensors_in(args, kwargs, found)
        for tensor, position in found[: MOST_ENTRIES - self._entries]:
            if tensor.grad_fn is not None:  # a result of recorded calls, no data
                continue
            self._entries += 1
            where = argument_place(position)
            if self._name_input is not None:
                self._name_input(tensor, where)
            append_data(facts, "data", tensor, micro=micro, record=record, where=where, index=index)

    def end(self, finished: bool) -> None:
        """Note that the open call, or one of the same module inside, returned or raised."""
        if self._depth:
            self._depth -= 1
            return
        self.opened = None
        ending = self._session.current.ending
        if finished:
            ending.succeeded(Work.FORWARD)
        else:
            ending.left(Work.FORWARD)

    def is_open_here(self, module: nn.Module) -> bool:
        """Return whether the open call is one of `module` in this thread."""
        return self.opened is module and threading.get_ident() == self._session.thread


def append_data(
    facts: FactCollector, part: Literal["data", "labels"], tensor: torch.Tensor, **place: Any
) -> None:
    """Add a tensor to the facts as soon as its numbers are there.

    Args:
        facts: of the step.
        part: where it belongs.
        tensor: is read now.
        place: attributes of the entry that do not come from the tensor.
    """
    entry = partial(Data, shape=shape_of(tensor), dtype=str(tensor.dtype), **place)
    print_ = Fingerprint(tensor)
    deferred = partial(_filled, entry, print_)
    facts.append(part, deferred() if print_.is_ready else deferred)


def _filled(entry: Callable[..., Data], print_: Fingerprint) -> Data:
    print_.wait()
    summary = print_.summary
    return entry(
        checksum=print_.checksum,
        max=summary.max,
        min=summary.min,
        mean=summary.mean,
        norm=summary.norm,
        projections=summary.projections if print_.is_row_major else None,
    )


def _is_running(module: nn.Module) -> bool:
    """Return whether the call of `module` that begins now is made inside another call of it."""
    calls, frame = 0, sys._getframe(1)
    while frame is not None and calls < 2:
        if frame.f_code is _CALL_CODE and frame.f_locals.get("self") is module:
            calls += 1
        frame = frame.f_back  # type: ignore[assignment]
    return calls == 2
