# SPDX-License-Identifier: Apache-2.0
"""Note which calls modules are made of, where calls have no records: at level L0.

No tensor is read. A call is its name, its line and those of its arguments that are no tensors, so a
call that was made before, at the same place with the same arguments, is one number more in a list.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import CodeType, FrameType, MethodType
from typing import Any, Final

import torch
from msgspec import Raw
from torch import Tensor
from torch.overrides import TorchFunctionMode

from msprobe.capture.call import Call
from msprobe.capture.session import Session
from msprobe.dump.facts import (
    OUTLINED_TENSOR,
    Outline,
    OutlinedCall,
    OutlineRun,
    encode_fact,
)
from msprobe.pytorch.apis.api_rules import ApiEntry
from msprobe.pytorch.apis.api_table import ApiTable
from msprobe.pytorch.apis.operator_names import operator_path
from msprobe.pytorch.interception import mode_stack
from msprobe.pytorch.interception.function_mode import HANDLE_CODE, calling_frame
from msprobe.pytorch.interception.guard import quietly
from msprobe.pytorch.interception.left_modes import LeftMode
from msprobe.pytorch.interception.tracing import COMPILER, JIT_STATE, is_tracing
from msprobe.pytorch.training.model_calls import append_data
from msprobe.pytorch.values.adapter import TENSOR_TYPES
from msprobe.pytorch.values.memo import TENSORS

_functorch_active: Final = torch._C._are_functorch_transforms_active
_graph_task: Final = torch._C._current_graph_task_id
_TORCH: Final = f"{Path(torch.__file__).parent}"
_NUMBERS: Final = frozenset({int, float, bool, complex, type(None)})
_WORDS: Final = (torch.dtype, torch.device, torch.layout, torch.memory_format)
_CALL_S: Final = 2e-6  # what noting a call costs, with the way from torch to us
_MOST_CALLS: Final = 100_000  # in a step, so that a loop without end does not fill the memory
_MOST_KINDS: Final = 10_000
_MOST_LABELS: Final = 100  # in a step
_UNKNOWN: Final = -1  # number of a call beyond these
_MOST_ELEMENTS: Final = 64  # of a list that is an argument
_MOST_LETTERS: Final = 80


Run = tuple[str | None, str | None, tuple[int, ...]]
"""The record of a module, that of the one that ended before, and numbers of calls."""


class CallOutlines(TorchFunctionMode):
    """Puts the outline of each step into its facts.

    Attributes:
        left: takes the mode away.
    """

    def __init__(self, session: Session, table: ApiTable) -> None:
        """Create it, not yet installed.

        Args:
            session: tells which modules are open, and takes the facts.
            table: the treatment of each function.
        """
        super().__init__()
        self.left = LeftMode(
            partial(mode_stack.is_installed, self), partial(mode_stack.remove, self)
        )
        self._session = session
        self._table = table
        self._path: Any = None
        if TENSORS is not None:
            self._path = TENSORS.OutlinePath(
                self.__torch_function__,
                self._add,
                self._begin_run,
                self._meet,
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
        # What is known of calls serves later steps as well.
        self._known: dict[tuple[object, ...], int] = {}
        self._codes: set[CodeType] = set()  # the keys of `OutlinePath` are made of their addresses
        self._calls: list[OutlinedCall] = []
        self._last: list[Run] = []
        self._encoded = Raw(encode_fact(Outline()))
        self._begin_step()

    def _begin_step(self) -> None:
        if len(self._calls) > _MOST_KINDS // 2:  # of a program that passes new numbers in each step
            for table in (self._known, self._codes, self._calls, self._last):
                table.clear()
            if self._path is not None:
                self._path.forget()
        self._runs: list[tuple[Call | None, str | None, list[int]]] = []
        self._labels = 0
        if self._path is not None:
            self._path.begin_step(_MOST_CALLS)

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
        if not (left.threads and left.is_left_here()) and session.observing and not is_tracing():
            entry = self._table.lookup(func)
            if entry.is_outlined and not session.muted:
                frame = calling_frame(sys._getframe(1))
                quietly(session, "outline", self._note, entry, frame, args, kwargs)
        return func(*args, **kwargs)

    def _note(
        self, entry: ApiEntry, frame: FrameType, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        calls = self._session.calls
        module = calls.modules[-1] if calls.modules else None
        last = self._runs[-1] if self._runs else None
        if last is None or last[0] is not module or last[1] != calls.last_record:
            self._begin_run(module, calls.last_record)
        words = tuple(map(_word, args)), tuple((name, _word(kwargs[name])) for name in kwargs)
        key = (frame.f_code, frame.f_lasti, entry.name, words)
        if key not in self._known:
            self._known[key] = self._add(entry, frame, args, kwargs)
        self._runs[-1][-1].append(self._known[key])
        if module is None and calls.last_record is not None:
            needs = {each.requires_grad for each in args if type(each) is Tensor}
            if len(needs) == 2:
                self._meet(entry, args)

    def _begin_run(self, module: Call | None, after: str | None) -> list[int]:
        """Return the list for the calls of a module after another one ended."""
        run: list[int] = []
        self._runs.append((module, after, run))
        return run

    def _add(
        self, entry: ApiEntry, frame: FrameType, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> int:
        """Return the number of a call that was not made before, at this place and of these."""
        if len(self._calls) >= _MOST_KINDS:
            return _UNKNOWN
        self._codes.add(frame.f_code)
        name = entry.name if entry.operator_name is None else operator_path(entry, frame)
        arguments = tuple(map(_word, args))
        named = {key: _word(value) for key, value in kwargs.items()}
        call = OutlinedCall(name=name, source=_source(frame), arguments=arguments, named=named)
        self._calls.append(call)
        return len(self._calls) - 1

    def _meet(self, entry: ApiEntry, args: Sequence[Any]) -> None:
        """Take the tensors without a gradient that meet a model's results: labels, weights."""
        quietly(self._session, "labels", self._take_labels, entry, args)

    def _take_labels(self, entry: ApiEntry, args: Sequence[Any]) -> None:
        facts = self._session.facts
        if _functorch_active():  # these have no values of their own
            return
        for place, each in enumerate(args):
            if type(each) is not Tensor or each.requires_grad or self._labels >= _MOST_LABELS:
                continue
            self._labels += 1
            append_data(facts, "labels", each, micro=0, record=None, where=f"{entry.name}.{place}")

    def _put(self) -> None:
        runs = [
            (None if module is None else module.forward_name, after, tuple(run))
            for module, after, run in self._runs
        ]
        if runs != self._last:  # most steps are like the one before
            self._last, self._encoded = runs, Raw(encode_fact(self._outline(runs)))
        self._session.account.spent_s += sum(len(run) for *_, run in runs) * _CALL_S
        self._session.facts.put("outline", self._encoded)

    def _outline(self, runs: Sequence[Run]) -> Outline:
        used = sorted({number for *_, run in runs for number in run} - {_UNKNOWN})
        places = {number: place for place, number in enumerate(used)}
        bodies: dict[tuple[int, ...], int] = {}
        for *_, run in runs:
            bodies.setdefault(run, len(bodies))
        total = sum(len(run) for *_, run in runs)
        return Outline(
            calls=[self._calls[number] for number in used],
            bodies=[[places[n] for n in body if n != _UNKNOWN] for body in bodies],
            runs=[
                OutlineRun(parent=parent, after=after, body=bodies[run])
                for parent, after, run in runs
            ],
            is_whole=total < _MOST_CALLS and not any(_UNKNOWN in body for body in bodies),
        )


def _word(value: Any) -> str:
    """Return an argument as text; of a tensor no more than that it is one."""
    kind = type(value)
    if kind in TENSOR_TYPES:
        return OUTLINED_TENSOR
    if kind in _NUMBERS:
        return repr(value)
    if kind is str:
        return repr(value[:_MOST_LETTERS])
    if isinstance(value, _WORDS):
        return str(value)
    if isinstance(value, Tensor):
        return OUTLINED_TENSOR
    if isinstance(value, tuple | list):
        words = ", ".join(map(_word, value[:_MOST_ELEMENTS]))
        return f"[{words}, …]" if len(value) > _MOST_ELEMENTS else f"[{words}]"
    if kind is slice:
        return f"{_word(value.start)}:{_word(value.stop)}:{_word(value.step)}"
    return kind.__name__


def _source(frame: FrameType) -> str | None:
    """Return the line of a call; None for one inside of torch, which a module of torch makes."""
    file = frame.f_code.co_filename
    return None if file.startswith(_TORCH) else f"{file}:{frame.f_lineno}"
