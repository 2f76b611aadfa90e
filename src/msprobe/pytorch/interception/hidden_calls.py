# SPDX-License-Identifier: Apache-2.0
"""Record calls that do not reach a function mode.

Registered APIs of the user's and custom autograd functions are such calls. They are recorded by
the mode's own means; only how one learns of them differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

import torch

from msprobe.capture.call import Call
from msprobe.capture.session import Session
from msprobe.capture.stacks import calling_frame
from msprobe.pytorch.interception.call_recorder import QuickCall
from msprobe.pytorch.interception.function_mode import ApiObserver, OpenCall
from msprobe.pytorch.interception.guard import quietly

_is_grad_enabled: Final = torch.is_grad_enabled


def record_call(
    apis: ApiObserver,
    name: str,
    run: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    hides_inner: bool,
) -> Any:
    """Return ``run(*args, **kwargs)``, recorded as one call; its exceptions pass.

    Args:
        apis: the function mode; it must be on here (`ApiObserver.is_on`).
        name: the record's name without its number.
        run: the user's code.
        args: passed on.
        kwargs: passed on.
        hides_inner: calls inside make no records; otherwise this call is their parent.
    """
    session = apis.session
    if session.calls.selection.refuses_api(name.rpartition(".")[2], name):
        return run(*args, **kwargs)
    with_grad = _is_grad_enabled()
    frame = calling_frame()
    opened = quietly(session, "api begin", _begin, apis, name, frame, with_grad, args, kwargs)
    around = _muted(session) if hides_inner else _enclosing(apis, opened)
    try:
        with around:
            result = run(*args, **kwargs)
    except BaseException as error:
        # Only to note it: the user's exception goes on unchanged.
        if opened is not None:
            apis.note_raised(opened, error)
        raise
    quietly(session, "api end", _end, apis, opened, args, kwargs, result)
    return result


class HiddenApis:
    """Records the functions that the user registered; see `msprobe.capture.custom_api`."""

    __slots__ = ("_apis",)

    def __init__(self, apis: ApiObserver) -> None:
        """Record by the means of the function mode."""
        self._apis = apis

    def is_on(self) -> bool:
        """Return whether a call made here and now would reach the function mode."""
        return self._apis.is_on()

    def record(
        self, name: str, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Return ``run(*args, **kwargs)``, recorded as one call."""
        return record_call(self._apis, name, run, args, kwargs, hides_inner=True)


def _begin(
    apis: ApiObserver,
    name: str,
    frame: FrameType,
    with_grad: bool,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> OpenCall | QuickCall | None:
    session = apis.session
    if session.muted:
        return None
    stack = session.stacks.at(frame)
    if stack.traits.internal:
        return None
    return apis.open_call(name, stack, frame, with_grad, args, kwargs)


def _end(
    apis: ApiObserver,
    opened: OpenCall | QuickCall | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    result: Any,
) -> None:
    # Kernels that torch does not know, called inside, may have written to any of these.
    apis.memory.distrust((args, result), kwargs)
    if opened is not None:
        apis.close_call(opened, result, result)


@contextmanager
def _muted(session: Session) -> Iterator[None]:
    session.muted += 1
    try:
        yield
    finally:
        session.muted -= 1


@contextmanager
def _enclosing(apis: ApiObserver, opened: OpenCall | QuickCall | None) -> Iterator[None]:
    """Make the call the parent of the calls inside it."""
    open_calls = apis.session.calls.modules
    call: Call | None = opened.call if opened is not None else None
    if call is not None:
        call.expands = open_calls[-1].expands if open_calls else (False, False)
        open_calls.append(call)
    try:
        yield
    finally:
        if call is not None and call in open_calls:
            del open_calls[open_calls.index(call) :]
