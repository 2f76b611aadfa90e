# SPDX-License-Identifier: Apache-2.0
"""Calls of compiled code: recorded from outside, and left alone inside.

While a function or cell under `mindspore.jit` is compiled, MindSpore parses the Python source. It
must then find the original operators, and no wrappers or hooks of msprobe. So these are removed
for the whole call, and the call itself becomes a ``Jit.{name}`` record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any, Final

from mindspore import nn
from msprobe.mindspore.bytecode_jit import found_in

_HOMES: Final = ("mindspore.graph.api", "mindspore.common.api")
_NAMES: Final = ("_JitExecutor", "_MindsporeFunctionExecutor")
# A method of the executor that is called when there is no graph for the arguments yet.
_BEFORE_COMPILING: Final = "_set_compile_cache_dep_files"
_DEEPEST: Final = 8  # of functions that functions refer to


class _Depth:
    """How many calls of compiled code are running now."""

    __slots__ = ("running",)

    def __init__(self) -> None:
        self.running = 0


_depth = _Depth()


def is_compiling() -> bool:
    """Return whether compiled code runs, or is being compiled."""
    return _depth.running > 0


def in_homes(name: str) -> Any:
    """Return an attribute of MindSpore's module of compilation; None where it has none."""
    return found_in(name, _HOMES)


def executor_class() -> type | None:
    """Return the class that runs jitted code; it has moved between MindSpore's versions."""
    candidates = (in_homes(name) for name in _NAMES)
    return next((found for found in candidates if isinstance(found, type)), None)


def compilations() -> int | None:
    """Return the number of graphs MindSpore holds for jitted code; None where it is unknown."""
    known = in_homes("ms_compile_cache")
    return None if known is None else len(known)


def name_of(executor: Any) -> str:
    """Return the name under which a jitted call is recorded: its cell's class or its function."""
    cell = getattr(executor, "obj", None)
    if cell is not None:
        return type(cell).__name__
    return str(getattr(getattr(executor, "fn", None), "__name__", "function"))


def cells_of(executor: Any) -> list[nn.Cell]:
    """Return the cells that a jitted function or method refers to."""
    return [*used_by(executor.fn, (nn.Cell,), getattr(executor, "obj", None))]


def used_by(function: Any, kinds: tuple[type, ...], owner: Any = None) -> Iterator[Any]:
    """Yield the objects of some classes that a function, or one that it calls, refers to.

    Args:
        function: the function.
        kinds: the classes.
        owner: the object whose method it is, if it is one.
    """
    seen: set[int] = set()
    waiting = [(owner, 0), (function, 0)]
    while waiting:
        value, depth = waiting.pop(0)
        if id(value) in seen or depth > _DEEPEST:
            continue
        seen.add(id(value))
        if isinstance(value, kinds):
            yield value
        elif isinstance(value, MethodType):
            waiting += [(value.__self__, depth + 1), (value.__func__, depth + 1)]
        elif isinstance(value, FunctionType):
            waiting += [(one, depth + 1) for one in _named_in(value)]


def _named_in(function: FunctionType) -> Iterator[Any]:
    """Yield what the names in a function refer to: variables around it and global ones."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        codes += [one for one in code.co_consts if isinstance(one, CodeType)]
        for name in code.co_names:
            if name in function.__globals__:
                yield function.__globals__[name]


class JitCalls:
    """Lets one function run every call of jitted code, while installed."""

    def __init__(
        self,
        around: Callable[[Any, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any],
        compiles: Callable[[], None],
    ) -> None:
        """Create it, not yet installed.

        Args:
            around: called with MindSpore's executor, a function that runs it, its arguments and
                keywords; returns the function's result.
            compiles: called within, when something is going to be compiled; where MindSpore does
                not tell that, always.
        """
        self._around = around
        self._compiles = compiles
        self._undo = ExitStack()
        self._is_installed = False

    def install(self) -> None:
        """Begin, unless it has begun."""
        owner: Any = executor_class()
        if owner is None or self._is_installed:
            return
        self._is_installed = True
        tells = hasattr(owner, _BEFORE_COMPILING)
        if tells:
            self._replace(owner, _BEFORE_COMPILING, self._before_compiling)
        self._replace(owner, "__call__", partial(self._call, tells))

    def remove(self) -> None:
        """End, unless it has ended."""
        self._undo.close()
        self._is_installed = False

    def _call(
        self, tells: bool, original: Callable[..., Any], executor: Any, *args: Any, **kwargs: Any
    ) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            if not tells and not _depth.running:
                self._compiles()
            _depth.running += 1
            try:
                return original(executor, *args, **kwargs)
            finally:
                _depth.running -= 1

        if _depth.running:  # inside of compiled code already
            return run(*args, **kwargs)
        return self._around(executor, run, args, kwargs)

    def _before_compiling(self, original: Callable[..., Any], *args: Any) -> Any:
        self._compiles()
        return original(*args)

    def _replace(self, owner: Any, name: str, function: Callable[..., Any]) -> None:
        original = getattr(owner, name)

        def method(*args: Any, **kwargs: Any) -> Any:
            return function(original, *args, **kwargs)

        def undo() -> None:
            if owner.__dict__.get(name) is method:
                setattr(owner, name, original)

        setattr(owner, name, method)
        self._undo.callback(undo)
