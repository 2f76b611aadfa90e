# SPDX-License-Identifier: Apache-2.0
"""Divert the calls of a function in such a way that compiled code still reaches the original.

As `code_swap`, for functions that stay diverted after `stop`: code that `torch.compile` traces then
may call them. Dynamo cannot trace a diversion of `code_swap`, and would raise in the user's call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from types import CodeType, FunctionType
from typing import Any, Final

from msprobe.pytorch.interception.code_swap import Handler, copy_function

ORIGINALS: Final[dict[str, Callable[..., Any]]] = {}
"""The originals of the diverted functions, by qualified name; the diverted code reads this."""
HANDLERS: Final[dict[str, Handler]] = {}
"""Their handlers, likewise."""

_TEMPLATE: Final = """
def diverted{signature}:
    import torch
    from msprobe.pytorch.interception import traceable_swap
    original = traceable_swap.ORIGINALS[{key!r}]
    if torch.compiler.is_compiling():
        return original({call})
    return traceable_swap.HANDLERS[{key!r}](original, ({arguments}), {{}})
"""


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
    before = inner.__code__
    after = _code_for(inner, before, key)
    ORIGINALS[key], HANDLERS[key] = copy_function(inner), handler
    inner.__code__ = after

    def undo() -> None:
        if inner.__code__ is after:
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
