# SPDX-License-Identifier: Apache-2.0
"""Divert the calls of a function without replacing the function.

Torch compares some of its functions by identity (``op.op is isend`` decides in
``batch_isend_irecv`` which argument names the peer), user code imports them by name, and both keep
them in tables. So the function object stays, with its name, signature and identity, and only its
code is exchanged: every reference to it reaches the diversion, and all still compare equal.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from types import CodeType, FunctionType
from typing import Any, Final
from weakref import WeakKeyDictionary

Handler = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]

_MARK: Final = "msprobe diverts this call"
_FREE_VARIABLES: Final = ((), ("__class__",))


def _template(*args: Any, **kwargs: Any) -> Any:
    diversion: Any = "msprobe diverts this call"  # the constant is exchanged for a `_Diversion`
    return diversion.run(args, kwargs)


class _Method:
    def template(*args: Any, **kwargs: Any) -> Any:
        # Makes room for the closure of a method that calls `super()`.
        __class__  # type: ignore[name-defined]  # noqa: B018
        diversion: Any = "msprobe diverts this call"
        return diversion.run(args, kwargs)


class _Diversion:
    """The code of a function while it is diverted, and the handler that it runs.

    A function has the same one each time: call stacks are recognised by the code in them, and each
    new code object would make every stack through it a new one.

    Attributes:
        code: the code.
        run: called with the arguments of each call.
    """

    __slots__ = ("_signature", "_signature_of", "code", "run")

    def __init__(self, function: FunctionType) -> None:
        source = _Method.template if function.__code__.co_freevars else _template
        template = source.__code__
        self.run: Callable[[tuple[Any, ...], dict[str, Any]], Any]
        self.code: CodeType = template.replace(
            co_consts=tuple(self if value == _MARK else value for value in template.co_consts),
            co_name=function.__name__,
            co_qualname=function.__qualname__,
        )
        self._signature_of: tuple[object, ...] = ()

    def signature_of(self, function: FunctionType) -> inspect.Signature:
        """Return the signature of the function as it is while nothing diverts it."""
        parts = (function.__code__, function.__defaults__, function.__kwdefaults__)
        if self._signature_of != parts:
            self._signature, self._signature_of = inspect.signature(function), parts
        return self._signature


_diversions: Final[WeakKeyDictionary[FunctionType, _Diversion]] = WeakKeyDictionary()
"""The diversion of each function that was ever diverted."""


def divert(function: Any, handler: Handler) -> Callable[[], None]:
    """Let calls of `function` run ``handler(original, args, kwargs)`` until the undo is called.

    Args:
        function: a Python function; of a decorated one (``functools.wraps``) the innermost is
            diverted, so that its decorators see the stack they expect.
        handler: gets the original as a callable of its own, and returns the result for the caller.

    Returns: the undo; it does nothing when other code has exchanged the code since.

    Raises:
        TypeError: `function` is no Python function, or one with a closure (other than that of
            ``super()``).
    """
    inner = inspect.unwrap(function)
    if not isinstance(inner, FunctionType) or inner.__code__.co_freevars not in _FREE_VARIABLES:
        raise TypeError(f"{function!r} is not a plain Python function")
    original = copy_function(inner)
    before = inner.__code__
    diversion = _diversions.get(inner)
    if diversion is None or diversion.code is before:  # diverted already: once more
        diversion = _diversions[inner] = _Diversion(inner)
    after = diversion.code
    # No frame of its own: users' functions that are diverted call each other deeply.
    diversion.run = partial(handler, original)
    has_signature = "__signature__" in inner.__dict__
    if not has_signature:
        inner.__signature__ = diversion.signature_of(inner)  # type: ignore[attr-defined]  # PEP 362
    inner.__code__ = after

    def undo() -> None:
        # A call that has begun in another thread goes on to the original.
        diversion.run = lambda args, kwargs: original(*args, **kwargs)
        if inner.__code__ is after:
            inner.__code__ = before
            if not has_signature:
                inner.__dict__.pop("__signature__", None)

    return undo


def copy_function(function: FunctionType) -> FunctionType:
    """Return another function object with the same code, globals, defaults and closure."""
    copy = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy
