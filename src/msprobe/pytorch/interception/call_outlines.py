# SPDX-License-Identifier: Apache-2.0
"""Note which calls modules are made of, where calls have no records: at level L0.

Calls are those that a function mode is told of. Of all tensors the labels alone are read.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType, MethodType
from typing import Any, Final

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from msprobe.capture.outlines import MOST_CALLS, Outlines
from msprobe.capture.session import Session
from msprobe.pytorch.apis.api_rules import ApiEntry
from msprobe.pytorch.apis.api_table import ApiTable
from msprobe.pytorch.apis.operator_names import operator_path
from msprobe.pytorch.interception import mode_stack
from msprobe.pytorch.interception.function_mode import HANDLE_CODE, calling_frame
from msprobe.pytorch.interception.guard import quietly
from msprobe.pytorch.interception.left_modes import LeftMode
from msprobe.pytorch.interception.tracing import COMPILER, JIT_STATE, is_tracing
from msprobe.pytorch.training.model_calls import append_data
from msprobe.pytorch.values.memo import TENSORS
from msprobe.pytorch.values.tensor_columns import KnownTensors

_functorch_active: Final = torch._C._are_functorch_transforms_active
_graph_task: Final = torch._C._current_graph_task_id
_TORCH: Final = f"{Path(torch.__file__).parent}"
_WORDS: Final = (torch.dtype, torch.device, torch.layout, torch.memory_format)
_CALL_S: Final = 2e-6  # what noting a call costs, with the way from torch to us
_MOST_LABELS: Final = 100  # in a step, and their elements: labels are small
_MOST_ELEMENTS: Final = 1 << 22


class CallOutlines(TorchFunctionMode):
    """Puts the outline of each step into its facts.

    Attributes:
        left: takes the mode away.
    """

    def __init__(self, session: Session, table: ApiTable, known: KnownTensors) -> None:
        """Create it, not yet installed.

        Args:
            session: tells which modules are open, and takes the facts.
            table: the treatment of each function.
            known: the names of parameters and buffers.
        """
        super().__init__()
        self.left = LeftMode(
            partial(mode_stack.is_installed, self), partial(mode_stack.remove, self)
        )
        self._session = session
        self._table = table
        self._outlines = Outlines(session, (Tensor,), _WORDS, _TORCH, self._name_of)
        self._known = known
        self._inputs: dict[int, tuple[weakref.ref[Tensor], str]] = {}
        self._path: Any = None
        if TENSORS is not None:
            self._path = TENSORS.OutlinePath(
                self.__torch_function__,
                self._add,
                self._outlines.begin_run,
                self._meet,
                self._outlines.outside,
                self._outlines.turned,
                session,
                self.left.threads,
                table.entries,
                table.lookup,
                is_tracing,
                COMPILER,
                JIT_STATE,
                HANDLE_CODE,
                _WORDS,
            )
            # torch asks the mode for its handler, and that this is a method of the mode.
            self.__dict__["__torch_function__"] = MethodType(self._path.handle, self)
        self._begin_step()

    @property
    def count(self) -> int:
        """How many calls the step has made so far."""
        return self._outlines.count

    def _begin_step(self) -> None:
        self._labels = self._elements = 0
        self._inputs.clear()
        is_new = self._outlines.begin_step()
        if self._path is not None:
            self._path.begin_step(MOST_CALLS, is_new, self._outlines.fed)

    def name_input(self, tensor: Tensor, where: str) -> None:
        """Take the name of a tensor that a model is given."""
        self._inputs[id(tensor)] = weakref.ref(tensor), where

    def _name_of(self, tensor: Tensor) -> str | None:
        given = self._inputs.get(id(tensor))
        if given is not None and given[0]() is tensor:
            return given[1]
        return self._known.names.get(id(tensor))

    def install(self) -> None:
        """Begin to note calls; the session's undo ends it."""
        # The engine restores the mode stack after each node: inside it only the flag changes.
        if _graph_task() != -1:
            return
        undo = self._session.undo
        self.left.keep()
        mode_stack.install_lowest(self)
        undo.callback(quietly, self._session, "outline", self._put)
        undo.callback(self.left.remove_from, self._session.thread)

    def next_step(self) -> None:
        """Forget the calls of the step that is over."""
        self._begin_step()
        if _graph_task() == -1:
            mode_stack.remove(self)  # left behind by a stop inside a backward pass

    def go_to_sleep(self) -> Callable[[], None]:
        """Note no calls from now on, until the result is called; a second call does nothing."""
        if not mode_stack.is_installed(self):
            return lambda: None
        mode_stack.remove(self)
        return self._wake

    def _wake(self) -> None:
        if self._session.capturing:
            mode_stack.install_lowest(self)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Note one call; the result is always that of the user's call."""
        if kwargs is None:
            kwargs = {}
        session, left = self._session, self.left
        entry, noted = None, None
        if not (left.threads and left.is_left_here()) and session.observing and not is_tracing():
            entry = self._table.lookup(func)
            if entry.is_outlined and not session.muted:
                frame = calling_frame(sys._getframe(1))
                noted = quietly(session, "outline", self._note, entry, frame, args, kwargs)
        result = func(*args, **kwargs)
        if noted is not None:
            quietly(session, "outline", self._outlines.note_result, noted, result)
        elif entry is not None and entry.is_view:
            note_view, is_turned = self._outlines.note_view, entry.is_turned
            quietly(session, "outline", note_view, args[0], result, is_turned)
        return result

    def _note(
        self, entry: ApiEntry, frame: FrameType, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> int | None:
        noted = self._outlines.note(_name(entry, frame), frame, args, kwargs)
        if self._path is not None:  # which does not know of this call
            self._outlines.lose_track()
        calls = self._session.calls
        if not calls.modules and calls.last_record is not None:
            given = (*args, *kwargs.values())
            needs = {each.requires_grad for each in given if type(each) is Tensor}
            if len(needs) == 2:
                self._meet(entry, args, kwargs)
        return noted

    def _add(
        self, entry: ApiEntry, frame: FrameType, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> int:
        return self._outlines.add(_name(entry, frame), frame, args, kwargs)

    def _meet(self, entry: ApiEntry, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Take the tensors without a gradient that meet a model's results: labels, weights."""
        quietly(self._session, "labels", self._take_labels, entry, args, kwargs)

    def _take_labels(self, entry: ApiEntry, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        facts = self._session.facts
        if _functorch_active():  # these have no values of their own
            return
        for place, each in (*enumerate(args), *kwargs.items()):
            if type(each) is not Tensor or each.requires_grad:
                continue
            elements = self._elements + each.numel()
            if self._labels >= _MOST_LABELS or elements > _MOST_ELEMENTS:
                continue
            self._labels, self._elements = self._labels + 1, elements
            append_data(facts, "labels", each, micro=0, record=None, where=f"{entry.name}.{place}")

    def _put(self) -> None:
        self._session.account.spent_s += self._outlines.put() * _CALL_S


def _name(entry: ApiEntry, frame: FrameType) -> str:
    return entry.name if entry.operator_name is None else operator_path(entry, frame)
