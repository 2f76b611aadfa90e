# SPDX-License-Identifier: Apache-2.0
"""Go through a cell's arguments or result while a graph is compiled.

Every leaf is counted, tensor or not, so that a number tells its place. What stands here is
compiled by MindSpore, which has no recursion: each level of nesting has a function of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, ParamSpec, TypeVar

from mindspore.ops import constexpr
from mindspore.ops import functional as F  # noqa: N812 - MindSpore's own name for it

from mindspore import Tensor

P = ParamSpec("P")
T = TypeVar("T")

LEAF_DEPTH: Final = 4
"""How deep tensors are looked for: 0 is the value itself."""

# The marks of a described value, see `describe`.
TENSOR, EMPTY, CONSTANT, OTHER = "tensor", "empty", "constant", "other"
SEQUENCE, LIST, MAPPING = "tuple", "list", "dict"


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Have MindSpore compile a function even where it leaves the functions of a module alone."""
    function.__jit_function__ = True  # type: ignore[attr-defined]
    return function


def at_compile_time(function: Callable[P, T]) -> Callable[P, T]:
    """Have a function of constants run in Python while a graph is compiled; it gives a constant."""
    made: Callable[P, T] = constexpr(check=False)(function)
    return made


def make_walk(visit: Callable[..., Any], depth: int = LEAF_DEPTH) -> Callable[..., Any]:
    """Return a compiled function that lets `visit` replace the tensors of a value.

    Args:
        visit: compiled too; called with context, tensor and leaf number, returns a tensor.
        depth: levels of nesting.

    Returns:
        A function of context, value and the number of the first leaf; it returns the new value and
        the number after the last leaf.
    """
    inside = make_walk(visit, depth - 1) if depth else None

    @compiled
    def walk(context, value, leaf):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        if isinstance(value, Tensor):
            return visit(context, value, leaf), leaf + 1
        if inside is None:
            return value, leaf + 1
        if isinstance(value, tuple):
            made = ()
            for one in value:
                new, leaf = inside(context, one, leaf)
                made = made + (new,)  # type: ignore[assignment]  # noqa: RUF005 - compiled
            return made, leaf
        if isinstance(value, list):
            items = []  # type: ignore[var-annotated]
            for one in value:
                new, leaf = inside(context, one, leaf)
                items = items + [new]  # noqa: RUF005
            return items, leaf
        if isinstance(value, dict):
            if not _holds_tensors(value):  # MindSpore cannot unpack what is built of constants
                return value, leaf + len(value)
            keys, entries = (), ()
            for key in value.keys():  # noqa: SIM118
                new, leaf = inside(context, value[key], leaf)
                keys = keys + (key,)  # type: ignore[assignment]  # noqa: RUF005
                entries = entries + (new,)  # type: ignore[assignment]  # noqa: RUF005
            return F.make_dict(keys, entries), leaf
        return value, leaf + 1

    return walk


@compiled
def _holds_tensors(entries):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    found = False
    for key in entries.keys():  # noqa: SIM118
        if isinstance(entries[key], (Tensor, tuple, list, dict)):
            found = True
    return found


def make_fold(visit: Callable[..., Any], depth: int = LEAF_DEPTH) -> Callable[..., Any]:
    """Return a compiled function that collects what `visit` makes of the tensors of a value.

    Args:
        visit: compiled too; called with context, tensor and leaf number, returns a tuple.
        depth: levels of nesting.

    Returns:
        A function of context, value and the number of the first leaf; it returns the tuples one
        after the other, and the number after the last leaf.
    """
    inside = make_fold(visit, depth - 1) if depth else None

    @compiled
    def fold(context, value, leaf):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        if isinstance(value, Tensor):
            return visit(context, value, leaf), leaf + 1
        found = ()
        if inside is None:
            return found, leaf + 1
        if isinstance(value, (tuple, list)):
            for one in value:
                new, leaf = inside(context, one, leaf)
                found = found + new
            return found, leaf
        if isinstance(value, dict):
            for key in value.keys():  # noqa: SIM118
                new, leaf = inside(context, value[key], leaf)
                found = found + new
            return found, leaf
        return found, leaf + 1

    return fold


@compiled
def _describe_leaf(value):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    if isinstance(value, Tensor):
        if not F.isconstant(value.shape):
            return (OTHER,)
        if 0 in value.shape:
            return (EMPTY, value.shape, value.dtype)
        return (TENSOR,)
    if value is None or isinstance(value, (bool, int, float, str)):  # noqa: SIM102 - compiled
        if F.isconstant(value):
            return (CONSTANT, value)
    return (OTHER,)


def _make_description(depth: int) -> Callable[..., Any]:
    inside = _make_description(depth - 1) if depth else None

    @compiled
    def describe(value):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        if inside is None or not isinstance(value, (tuple, list, dict)):
            return _describe_leaf(value)
        parts = ()
        if isinstance(value, (tuple, list)):
            for one in value:
                parts = parts + (inside(one),)  # type: ignore[assignment]  # noqa: RUF005
            if isinstance(value, list):
                return (LIST, parts)
            return (SEQUENCE, parts)
        keys = ()
        for key in value.keys():  # noqa: SIM118
            keys = keys + (key,)  # type: ignore[assignment]  # noqa: RUF005
            parts = parts + (inside(value[key]),)  # type: ignore[assignment]  # noqa: RUF005
        return (MAPPING, parts, keys)

    return describe


describe: Final = _make_description(LEAF_DEPTH)
"""``describe(value)``, compiled: what stands where, as nested tuples of constants."""
