# SPDX-License-Identifier: Apache-2.0
"""Observe API calls: while capturing, each name of the table is bound to a recording wrapper.

MindSpore announces no calls, so the functions are replaced where they are looked up, also where a
module imported one by name, and put back by `stop`. Calls inside a recorded call make no records
of their own.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from msprobe.capture.call import Call
from msprobe.capture.recomputation import Recomputations
from msprobe.capture.session import Session
from msprobe.capture.stacks import calling_frame
from msprobe.capture.values import Found
from msprobe.mindspore.api_choice import ApiChoice
from msprobe.mindspore.api_table import Api, ApiTable
from msprobe.mindspore.describing import describe_attributes
from msprobe.mindspore.early_bound import EarlyBound
from msprobe.mindspore.gradient_limits import GradientLimits
from msprobe.mindspore.graph_taps import InputEdges, Tapping
from msprobe.mindspore.guard import quietly
from msprobe.mindspore.jit_calls import is_compiling
from msprobe.mindspore.stack_traits import is_of_user_or_layer
from msprobe.mindspore.tensor_search import output_slots, tensors_in

_clock: Final = time.perf_counter
_ABSENT: Final = object()


class _Open:
    """An API call between its begin and its end."""

    __slots__ = ("call", "edges", "found")

    def __init__(self, call: Call) -> None:
        self.call = call
        self.found: Found = []
        self.edges: InputEdges | None = None


class ApiObserver:
    """Turns API calls into events of the session.

    Attributes:
        rerunner: runs calls again that have returned: call, function, arguments, keyword arguments
            and result; None for the tasks that only read.
        only_compiled: whether only calls of compiled code are recorded, which `record` is given.
    """

    def __init__(
        self,
        session: Session,
        table: ApiTable,
        recomputations: Recomputations,
        limits: GradientLimits | None = None,
    ) -> None:
        """Create it, not yet installed.

        Args:
            session: receives the events.
            table: the APIs to record.
            recomputations: recognises repeated calls.
            limits: takes the calls that limit gradients.
        """
        self._limits = limits
        self._recomputations = recomputations
        self._session = session
        self._table = table
        self._inside = False
        self.rerunner: Callable[..., None] | None = None
        self.only_compiled = False
        refuses = session.calls.selection.refuses_api
        self._choice = ApiChoice(session.config.risk_level, refuses, self._left_out)
        self._wrappers: dict[tuple[int, str], Any] = {}
        self._apis: tuple[Api, ...] = ()
        self._originals: dict[int, tuple[Any, str]] = {}
        self._early = EarlyBound()
        self._early_wrappers: dict[int, Any] = {}
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    def install(self) -> None:
        """Put the wrappers in place; the session's undo takes them away."""
        if self._replaced:
            return
        if not self._apis:
            self._apis = tuple(self._table.apis())
        for api in self._apis:
            self._replace(api)
        for module, name in self._early.find(self._originals):
            self._replace_with(module, name, self._early_wrapper(vars(module)[name]))
        self._session.undo.callback(self.remove)

    def remove(self) -> None:
        """Restore the originals, except names that other code has replaced since."""
        while self._replaced:
            owner, attribute, wrapper, before = self._replaced.pop()
            if owner.__dict__.get(attribute) is not wrapper:
                continue
            if before is _ABSENT:
                delattr(owner, attribute)
            else:
                setattr(owner, attribute, before)

    def _replace(self, api: Api) -> None:
        original = getattr(api.owner, api.attribute)
        # A function that several groups share is recorded under the name it was called by.
        key = (id(original), api.name.partition(".")[0])
        wrapper = self._wrappers.get(key)
        if wrapper is None:
            wrapper = self._wrappers[key] = self._wrap(api.name, original)
            self._originals.setdefault(id(original), (original, api.name))
        self._replace_with(api.owner, api.attribute, wrapper)

    def _replace_with(self, owner: Any, attribute: str, wrapper: Any) -> None:
        before = owner.__dict__.get(attribute, _ABSENT)
        setattr(owner, attribute, wrapper)
        self._replaced.append((owner, attribute, wrapper, before))

    def _early_wrapper(self, original: Callable[..., Any]) -> Any:
        known = self._early_wrappers.get(id(original))
        if known is None:
            wrapper = self._wrap_early(self._originals[id(original)][1], original)
            known = self._early_wrappers[id(original)] = wrapper
        return known

    def _wrap_early(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function for modules that imported it; MindSpore's own code is not recorded."""

        def call(*args: Any, **kwargs: Any) -> Any:
            if not self.is_on() or not is_of_user_or_layer(sys._getframe(1).f_code):
                return original(*args, **kwargs)
            return self._observe(name, original, args, kwargs)

        functools.update_wrapper(call, original)
        return call

    def _wrap(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not self.is_on():
                return original(*args, **kwargs)
            return self._observe(name, original, args, kwargs)

        functools.update_wrapper(call, original)
        return call

    # -- calls ---------------------------------------------------------------------------------

    def is_on(self, *, compiled: bool = False) -> bool:
        """Return whether a call made here and now, in this thread, is to be recorded.

        Args:
            compiled: whether it is a call of compiled code.
        """
        session = self._session
        return (
            session.observing
            and not self._inside
            and (compiled or not self.only_compiled)
            and not session.muted
            and threading.get_ident() == session.thread
            and not is_compiling()
        )

    def _observe(
        self, name: str, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        limits = self._limits
        if limits is None or not limits.takes(name, args, kwargs):
            return self.record(name, run, args, kwargs)
        if limits.are_recorded:
            result = self.record(name, run, args, kwargs)
        else:
            self._inside = True
            try:
                result = run(*args, **kwargs)
            finally:
                self._inside = False
        started = _clock()
        limits.put(name, args, kwargs)
        self._session.account.spent_s += _clock() - started
        return result

    def record(
        self,
        name: str,
        run: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        attributes: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return ``run(*args, **kwargs)``, recorded as one call; its exceptions pass.

        Args:
            name: the record's name without its number.
            run: the user's or MindSpore's function.
            args: passed on.
            kwargs: passed on.
            attributes: of an operator object, what it was made with.
        """
        session = self._session
        if self._choice.leaves_out(name):
            return run(*args, **kwargs)
        started = _clock()
        opened = quietly(session, "api begin", self._begin, name, args, kwargs)
        if opened is not None and attributes:
            quietly(session, "attributes", self._tell_attributes, opened.call, attributes)
        session.account.spent_s += _clock() - started
        self._inside = True
        try:
            result = run(*args, **kwargs)
        except BaseException as error:
            # Only to note it: the user's exception goes on unchanged.
            if opened is not None:
                kind = type(error).__name__
                quietly(session, "api error", session.calls.raised, opened.call, kind)
            raise
        finally:
            self._inside = False
        started = _clock()
        rerunner = self.rerunner
        if opened is not None and rerunner is not None:
            self._inside = True
            quietly(session, "rerun", rerunner, opened.call, run, args, kwargs, result)
            self._inside = False
        if opened is not None:
            quietly(session, "api end", self._end, opened, len(args), result)
        session.account.spent_s += _clock() - started
        return result

    def _left_out(self, why: str) -> None:
        self._session.account.skipped[why] += 1

    def _begin(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _Open | None:
        session = self._session
        frame = calling_frame()
        stack = session.stacks.at(frame)
        if stack.traits.internal:
            session.account.skipped["calls inside a backward pass"] += 1
            return None
        call = self._recomputations.begin(name, stack, frame, is_module=False)
        if call is None:
            return None
        opened = _Open(call)
        session.calls.inputs(call, args, kwargs, opened.found)
        if call.keeps_gradients:
            if not opened.found:
                tensors_in(args, kwargs, opened.found)
            opened.edges = InputEdges(opened.found)
        return opened

    def _tell_attributes(self, call: Call, attributes: Mapping[str, Any]) -> None:
        self._session.calls.fact(call, "attributes", describe_attributes(attributes))

    def _end(self, opened: _Open, arguments: int, result: Any) -> None:
        session = self._session
        session.calls.outputs(opened.call, result)
        if opened.edges is not None:
            Tapping(session, opened.call, opened.edges, opened.found, arguments).attach(
                output_slots(result)
            )
        session.calls.end(opened.call)
