# SPDX-License-Identifier: Apache-2.0
"""Divert the calls of a function in such a way that compiled code still reaches the original.

As `code_swap`, for functions that stay diverted after `stop`: code that `torch.compile` traces then
may call them. Dynamo cannot trace a diversion of `code_swap`, and would raise in the user's call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache, partial
from types import CodeType, FunctionType
from typing import Any, Final

from msprobe.pytorch.interception.code_swap import Handler, copy_function

ORIGINALS: Final[dict[str, Callable[..., Any]]] = {}
"""The originals of the diverted functions, by qualified name; the diverted code reads this."""
_HANDLERS: Final[dict[str, list[Handler]]] = {}
"""Their handlers, of several that observe at once the last one first."""
_CODES: Final[dict[str, tuple[CodeType, CodeType]]] = {}
"""Their code before and after."""

_TEMPLATE: Final = """
def diverted{signature}:
    import torch
    from msprobe.pytorch.interception import traceable_swap
    original = traceable_swap.ORIGINALS[{key!r}]
    if torch.compiler.is_compiling():
        return original({call})
    return traceable_swap.handled({key!r}, ({arguments}))
"""


def handled(key: str, args: tuple[Any, ...]) -> Any:
    """Run a call of a diverted function through its handlers; the diverted code calls this."""
    call = ORIGINALS[key]
    for handler in tuple(_HANDLERS[key]):
        call = partial(_handled_by, handler, call)
    return call(*args)


def _handled_by(handler: Handler, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return handler(call, args, kwargs)


def divert_traceably(function: Any, handler: Handler) -> Callable[[], None]:
    """Let calls of `function` run ``handler(original, args, {})`` until the undo is called.

    Args:
        function: a Python function without closure; of a decorated one the innermost is diverted.
        handler: as in `code_swap.divert`; gets every argument by position.

    Returns: the undo; it does nothing when other code has exchanged the code since.

    Raises:
        TypeError: `function` is another kind of callable.
    """
    inner = inspect.unwrap(function)
    if not isinstance(inner, FunctionType) or inner.__code__.co_freevars:
        raise TypeError(f"{function!r} is not a plain Python function")
    key = f"{inner.__module__}.{inner.__qualname__}"
    before, after = _CODES.get(key, (None, None))
    if inner.__code__ is not after:
        before = inner.__code__
        after = _code_for(inner, before, key)
        ORIGINALS[key], _HANDLERS[key] = copy_function(inner), []
        _CODES[key] = before, after
        inner.__code__ = after
    handlers = _HANDLERS[key]
    handlers.append(handler)

    def undo() -> None:
        if handler in handlers:
            handlers.remove(handler)
        if not handlers and inner.__code__ is after and before is not None:
            inner.__code__ = before

    return undo


@cache  # functions are diverted again in each step
def _code_for(function: FunctionType, _before: CodeType, key: str) -> CodeType:
    """Return code with the parameters of `function`, so that its signature stays as it is.

    Args:
        function: to be diverted.
        _before: its code now, on which the signature depends.
        key: its qualified name.
    """
    plain = [
        one.replace(default=inspect.Parameter.empty, annotation=inspect.Parameter.empty)
        for one in inspect.signature(function).parameters.values()
    ]
    names = [one.name for one in plain if one.kind is one.POSITIONAL_OR_KEYWORD]
    if len(names) != len(plain):
        raise TypeError(f"{function!r} has parameters that cannot be given by position")
    arguments = "".join(f"{name}, " for name in names)
    text = _TEMPLATE.format(
        signature=inspect.Signature(plain), key=key, call=arguments, arguments=arguments
    )
    made: dict[str, FunctionType] = {}
    exec(compile(text, __file__, "exec"), made)
    return made["diverted"].__code__.replace(
        co_name=function.__name__, co_qualname=function.__qualname__
    )
