# SPDX-License-Identifier: Apache-2.0
"""Divert the calls of a function without replacing the function.

Torch compares some of its functions by identity (``op.op is isend`` decides in
``batch_isend_irecv`` which argument names the peer), user code imports them by name, and both keep
them in tables. So the function object stays, with its name, signature and identity, and only its
code is exchanged: everybody who holds it reaches the diversion, and everybody still compares equal.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, Final

Handler = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]

_MARK: Final = "msprobe diverts this call"
_FREE_VARIABLES: Final = ((), ("__class__",))


def _template(*args: Any, **kwargs: Any) -> Any:
    handler: Any = "msprobe diverts this call"  # the constant is exchanged for the handler
    return handler(args, kwargs)


class _Method:
    def template(*args: Any, **kwargs: Any) -> Any:
        # Makes room for the closure of a method that calls `super()`.
        __class__  # type: ignore[name-defined]  # noqa: B018
        handler: Any = "msprobe diverts this call"
        return handler(args, kwargs)


def divert(function: Any, handler: Handler) -> Callable[[], None]:
    """Let calls of `function` run ``handler(original, args, kwargs)`` until the undo is called.

    Args:
        function: a Python function; of a decorated one (``functools.wraps``) the innermost is
            diverted, so that its decorators see the stack they expect.
        handler: gets the original as a callable of its own, and returns what the caller gets.

    Returns: the undo; it does nothing when somebody else has exchanged the code since.

    Raises:
        TypeError: `function` is no Python function, or one with a closure (other than that of
            ``super()``).
    """
    inner = inspect.unwrap(function)
    if not isinstance(inner, FunctionType) or inner.__code__.co_freevars not in _FREE_VARIABLES:
        raise TypeError(f"{function!r} is not a plain Python function")
    original = _copy(inner)
    before = inner.__code__
    after = _code_for(inner, lambda args, kwargs: handler(original, args, kwargs))
    has_signature = "__signature__" in inner.__dict__
    if not has_signature:
        inner.__signature__ = inspect.signature(inner)  # type: ignore[attr-defined]  # PEP 362
    inner.__code__ = after

    def undo() -> None:
        if inner.__code__ is after:
            inner.__code__ = before
            if not has_signature:
                inner.__dict__.pop("__signature__", None)

    return undo


def _copy(function: FunctionType) -> FunctionType:
    copy = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _code_for(function: FunctionType, target: Callable[..., Any]) -> CodeType:
    source = _Method.template if function.__code__.co_freevars else _template
    template = source.__code__
    constants = tuple(target if value == _MARK else value for value in template.co_consts)
    return template.replace(
        co_consts=constants, co_name=function.__name__, co_qualname=function.__qualname__
    )
