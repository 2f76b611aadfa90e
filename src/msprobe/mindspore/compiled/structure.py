# SPDX-License-Identifier: Apache-2.0
"""How a value in a graph is built, and functions that are written for values of one structure.

While a graph is compiled MindSpore knows of every value how it is nested, and dtype and shape of
its tensors. A function that goes through a value by itself would be compiled anew at each level of
each value. So `Look` has Python look at a value once, and write a function of one line for it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

from mindspore._c_expression import typing as _types
from mindspore.common import dtype as mstype
from mindspore.ops import Primitive, PrimitiveWithInfer

from mindspore import Parameter, Tensor

# Beyond the last line of this file: MindSpore then takes the text that the function brings along.
_NO_LINE: Final = 1_000_000
tuple_item: Final = Primitive("TupleGetItem")
"""Item of a tuple in compiled code: of brackets MindSpore makes a graph at each place."""
_ITEM: Final = "item"
_numbers: Final = itertools.count()
# MindSpore knows functions by their address: no other must get it.
_alive: Final[list[Callable[..., Any]]] = []


class Kind(StrEnum):
    """Kind of a value that is not nested."""

    TENSOR = "tensor"
    EMPTY = "empty tensor"
    CONSTANT = "constant"
    OTHER = "other"


class Nesting(StrEnum):
    """Kind of a container of values."""

    TUPLE = "tuple"
    LIST = "list"
    DICT = "dict"


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value that is not nested.

    Attributes:
        kind: its kind. A tensor whose shape is not known before it runs is `OTHER`.
        dtype: of a tensor, as MindSpore's type.
        shape: of a tensor.
        value: of a constant: None, or a bool, number or text.
        is_parameter: whether a tensor is a parameter, which has to be passed on as it is.
    """

    kind: Kind
    dtype: Any = None
    shape: tuple[int, ...] = ()
    value: Any = None
    is_parameter: bool = False


@dataclass(frozen=True, slots=True)
class Branch:
    """A value that holds others.

    Attributes:
        nesting: the kind of container.
        parts: the values in it.
        keys: under which a dict has them.
    """

    nesting: Nesting
    parts: tuple[Structure, ...]
    keys: tuple[Any, ...] = ()


Structure = Leaf | Branch


def leaves(structure: Structure) -> Iterator[Leaf]:
    """Yield the leaves in order; their numbers in this order tell their places."""
    if isinstance(structure, Leaf):
        yield structure
        return
    for part in structure.parts:
        yield from leaves(part)


class Place(NamedTuple):
    """A tensor in a value.

    Attributes:
        number: of the leaf.
        leaf: its kind, dtype and shape.
        code: gives the tensor.
    """

    number: int
    leaf: Leaf
    code: str


def tensors(structure: Structure, code: str) -> list[Place]:
    """Return the tensors of a value.

    Args:
        structure: how the value is built.
        code: gives the whole value.
    """
    found: list[Place] = []

    def note(place: Place) -> str:
        found.append(place)
        return place.code

    rewritten(structure, code, note)
    return found


def rewritten(
    structure: Structure, code: str, change: Callable[[Place], str], *, brackets: bool = False
) -> str:
    """Return code that builds a value again, with other tensors in it.

    Args:
        structure: how the value is built.
        code: gives the value.
        change: returns the code that gives a tensor's successor.
        brackets: whether tensors are taken out of tuples as a user would: it costs a graph each,
            but MindSpore 2.10 drops some `DumpGradient` of the operator's results.
    """
    numbers = itertools.count()

    def write(part: Structure, code: str) -> str:
        if isinstance(part, Leaf):
            place = Place(next(numbers), part, code)
            return change(place) if part.kind is Kind.TENSOR else code
        keys = part.keys or range(len(part.parts))
        inside = list(zip(part.parts, keys, strict=True))
        quick = part.nesting is Nesting.TUPLE and not brackets
        old = [
            f"{_ITEM}({code}, {key})" if quick and _has_tensors(one) else f"{code}[{key!r}]"
            for one, key in inside
        ]
        new = [write(one, item) for (one, _), item in zip(inside, old, strict=True)]
        # MindSpore cannot unpack a dict that is built of constants.
        if new == old:
            return code
        if part.nesting is Nesting.DICT:
            entries = zip(keys, new, strict=True)
            return "{" + ", ".join(f"{key!r}: {item}" for key, item in entries) + "}"
        items = "".join(f"{item}, " for item in new)
        return f"[{items}]" if part.nesting is Nesting.LIST else f"({items})"

    return write(structure, code)


def _has_tensors(part: Structure) -> bool:
    # What the operator returns is a value of the running graph: an empty dict cannot be one.
    return any(leaf.kind is Kind.TENSOR for leaf in leaves(part))


def rebuilt(structure: Structure, values: Iterator[Any], empty: Callable[[Leaf], Any]) -> Any:
    """Return a value as it was in the graph, with None for unknown parts.

    Args:
        structure: how it was built.
        values: its tensors in order.
        empty: makes an empty tensor.
    """
    if isinstance(structure, Branch):
        parts = [rebuilt(part, values, empty) for part in structure.parts]
        if structure.nesting is Nesting.DICT:
            return dict(zip(structure.keys, parts, strict=True))
        return parts if structure.nesting is Nesting.LIST else tuple(parts)
    match structure.kind:
        case Kind.TENSOR:
            return next(values)
        case Kind.EMPTY:
            return empty(structure)
        case _:
            return structure.value


# -- functions that a graph calls --------------------------------------------------------------


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Have MindSpore compile a function even where it leaves the functions of a module alone."""
    function.__jit_function__ = True  # type: ignore[attr-defined]
    return function


class Written:
    """A function in the making: it is compiled into a graph from the code that is written here."""

    def __init__(self, *arguments: str) -> None:
        """Begin a function with these arguments."""
        self._arguments = arguments
        self._names = {id(tuple_item): _ITEM}
        self._constants: list[Any] = [tuple_item]
        self._lines: list[str] = []

    def constant(self, value: Any) -> str:
        """Return the name under which the code has a value."""
        if id(value) not in self._names:
            self._names[id(value)] = f"c{len(self._constants)}"
            self._constants.append(value)
        return self._names[id(value)]

    def call(self, function: Any, *arguments: str) -> str:
        """Return the code that calls a constant."""
        return f"{self.constant(function)}({', '.join(arguments)})"

    def let(self, name: str, code: str) -> str:
        """Assign the value of `code` to a new name; return the name."""
        self._lines.append(f"{name} = {code}")
        return name

    def returning(self, code: str) -> Callable[..., Any]:
        """Return the function, which ends with this."""
        lines = [f"def written({', '.join(self._arguments)}):"]
        lines += [f"    {line}" for line in (*self._lines, f"return {code}")]
        names = ", ".join(self._names.values())
        outer = "\n    ".join((f"def make({names}):", *lines, "return written"))
        scope: dict[str, Any] = {}
        exec(outer, scope)
        function = scope["make"](*self._constants)
        function.__code__ = function.__code__.replace(co_filename=__file__, co_firstlineno=_NO_LINE)
        function.__module__ = __name__
        function.source = ([f"{line}\n" for line in lines], 1)
        _alive.append(function)
        return compiled(function)


class Look(PrimitiveWithInfer):  # type: ignore[misc]  # MindSpore is untyped
    """Lets a Python function look at values while a graph is compiled; its result is a constant.

    function = look(value)  # compiled: a function that is written for this value
    result = function(value)
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        """Create it for a function of `Structure`s."""
        # To MindSpore two operators of one name and with the same attributes are the same.
        super().__init__(f"MsprobeLook{next(_numbers)}")
        self._function = function
        self.set_const_prim(True)
        self.add_prim_attr("constexpr_prim", True)

    def __infer__(self, *values: dict[str, Any]) -> dict[str, Any]:
        """Return the function's result for the compile-time knowledge of the values."""
        seen = [_seen(one["shape"], one["dtype"], one["value"]) for one in values]
        return {"shape": None, "dtype": None, "value": self._function(*seen)}

    def __call__(self, *values: Any) -> Any:
        """Do the same outside of a graph."""
        return self._function(*map(_seen_outside, values))


def _seen(shape: Any, dtype: Any, value: Any) -> Structure:
    if isinstance(dtype, tuple | list):
        if isinstance(value, dict):
            nesting, keys, values = Nesting.DICT, tuple(value), list(value.values())
        else:
            nesting = Nesting.LIST if isinstance(value, list) else Nesting.TUPLE
            keys, values = (), list(value)
        parts = tuple(itertools.starmap(_seen, zip(shape, dtype, values, strict=True)))
        return Leaf(Kind.OTHER) if _is_sparse(parts) else Branch(nesting, parts, keys)
    if isinstance(dtype, mstype.TensorType):
        if any(size < 0 for size in shape):
            return Leaf(Kind.OTHER)
        kind = Kind.EMPTY if 0 in shape else Kind.TENSOR
        is_parameter = isinstance(dtype, _types.RefType)
        return Leaf(kind, dtype.element_type(), tuple(shape), is_parameter=is_parameter)
    return _constant(value)


def _seen_outside(value: Any) -> Structure:
    if isinstance(value, dict):
        parts = tuple(map(_seen_outside, value.values()))
        return Branch(Nesting.DICT, parts, tuple(value))
    if isinstance(value, tuple | list):
        nesting = Nesting.LIST if isinstance(value, list) else Nesting.TUPLE
        return Branch(nesting, tuple(map(_seen_outside, value)))
    if isinstance(value, Tensor):
        kind = Kind.EMPTY if 0 in value.shape else Kind.TENSOR
        return Leaf(kind, value.dtype, value.shape, is_parameter=isinstance(value, Parameter))
    return _constant(value)


def _constant(value: Any) -> Leaf:
    if value is None or isinstance(value, bool | int | float | str):
        return Leaf(Kind.CONSTANT, value=value)
    return Leaf(Kind.OTHER)


def _is_sparse(parts: Sequence[Structure]) -> bool:
    """Return whether this is a sparse tensor, which looks like a tuple of tensors and a shape."""
    *stored, shape = parts or (None,)
    return (
        len(stored) > 1
        and all(isinstance(one, Leaf) and one.kind is Kind.TENSOR for one in stored)
        and isinstance(shape, Branch)
        and len(shape.parts) > 1
        and all(isinstance(size, Leaf) and type(size.value) is int for size in shape.parts)
    )
