# SPDX-License-Identifier: Apache-2.0
"""Operators by the names of records: ``Tensor.__iadd__``, ``NPU.npu_swiglu``, ``Primitive.MatMul``.

One operator has many names. The prefix of a record's name says whose function it is, and
MindSpore's ``gather`` is not PyTorch's.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Final, NamedTuple

from msprobe.operators.mindspore_arguments import (
    MINDSPORE_ARGUMENTS,
    MINDSPORE_DEFAULTS,
    MINDSPORE_KEYWORDS,
)
from msprobe.operators.operator import Hint, Operator
from msprobe.operators.table import FURTHER, HINTS, TABLE

# Prefixes of functions that are the same operators under the same names.
_SHARED_PREFIXES: Final = frozenset(
    (
        *("Aten", "Functional", "Jit", "Mint", "MintFunctional"),
        *("NPU", "Primitive", "Tensor", "Torch", "VF"),
    )
)
_DISTRIBUTED: Final = "Distributed"
FUNCTIONAL: Final = "functional_"
"""Collectives that return their result are recorded as ``Distributed.functional_all_reduce``."""
# MindSpore's functions with this in front are named as PyTorch's.
_MINT: Final = "Mint"

_IN_PLACE: Final = frozenset(
    f"i{name}"
    for name in (
        *("add", "sub", "mul", "div", "truediv", "floordiv", "mod", "pow", "matmul"),
        *("and", "or", "xor", "lshift", "rshift"),
    )
)
_ITEMS: Final = ("setitem", "delitem")
_POWERS: Final = {"mul": 1, "div": -1}
# What is smaller, or its inverse, is a mask or an infinity and no scale.
_LEAST_SCALE: Final = 1e-100
# a + b and b + a; for the others the order of the arguments matters.
_COMMUTING_REFLECTED: Final = frozenset(f"r{name}" for name in ("add", "mul", "and", "or", "xor"))
# Additions to the names of MindSpore's primitives; those with ``Ext`` take PyTorch's arguments.
_EXTENSION: Final = re.compile(r"ext(view)?$")
_DECORATION: Final = re.compile(r"^inplace|(view|prim|v\d)$")
_BACKWARD: Final = re.compile(r"_?(native|cudnn|miopen|mkldnn)?(?P<forward>\w+?)backward(data)?")
_JOINT: Final = re.compile(r"\s+(?=[=:])")
_PARAMETERS: Final = {
    "gamma": "weight",
    "beta": "bias",
    "embedding_table": "weight",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}


@cache
def operator_of(prefix: str, api: str, *, is_mindspore: bool = False) -> Operator:
    """Return the operator that a function computes.

    Args:
        prefix: of the record's name: ``Functional``, ``Tensor``, ``Primitive`` …
        api: the rest of it: ``linear``, ``add_``, ``__rsub__``; a primitive may have the attribute
            that holds it in front: ``matmul.MatMul``.
        is_mindspore: whether the framework is MindSpore, which calls some operators otherwise.
    """
    if prefix == "Primitive":
        api = api.rpartition(".")[2]
    elif prefix == "NPU":
        api = api.removeprefix("npu_")
    elif prefix in (_DISTRIBUTED, f"{_MINT}{_DISTRIBUTED}"):
        prefix = _DISTRIBUTED
        if api.startswith(FUNCTIONAL):
            return operator_of(prefix, api.removeprefix(FUNCTIONAL)).without_buffers()
    name = _plain(api)
    own = f"{prefix}.{name}"
    # Methods that change a tensor came to MindSpore with PyTorch's names.
    if is_mindspore and not (prefix == "Tensor" and is_in_place(api)):
        word = _word_of_mindspore(prefix, name)
        if word is not None:
            places = _places_in_mindspore()
            return word.operator(places.get(own) or places.get(name))
    word = _words().get(own if prefix == _DISTRIBUTED else name)
    operator = Operator(name=_unknown(api)) if word is None else word.operator()
    if prefix in _SHARED_PREFIXES or (prefix == _DISTRIBUTED and word is not None):
        return operator
    # A function of another package is probably the same, but not to be paired with PyTorch's.
    return operator.of_another_package(own)


@cache
def operator_named(name: str) -> Operator:
    """Return the operator with a name that has no prefix: that of a module's class."""
    plain = _plain(name)
    word = _words().get(plain) or _words_of_mindspore().get(plain)
    return Operator(name=plain) if word is None else word.operator()


@cache
def differentiated(operator: Operator) -> Operator | None:
    """Return the operator whose gradient another one computes; None for all others.

    Below autograd gradients are operators of their own: ``convolution_backward``,
    ``_log_softmax_backward_data``.
    """
    found = _BACKWARD.fullmatch(operator.name)
    word = None if found is None else _words().get(found["forward"])
    return None if word is None else word.operator()


def suggests(name: str, hint: Hint) -> bool:
    """Return whether a word in the name of a record, a class or an operator suggests something."""
    plain = name.replace("_", "").lower()
    return any(word in plain for word in HINTS[hint].split())


def operators() -> Iterator[Operator]:
    """Yield all operators of the table."""
    for word in _parsed():
        yield word.operator()


def scale_of(operator: Operator, numbers: Iterable[float]) -> float:
    """Return by what a call multiplies its tensor, and so its gradient; 1 where it does not.

    Args:
        operator: of the call.
        numbers: what the call is given besides tensors. Zeros and what is as large as infinity are
            no scales.
    """
    power = _POWERS.get(operator.name)
    usual = [float(each) for each in numbers if _LEAST_SCALE < abs(each) < 1 / _LEAST_SCALE]
    return 1.0 if power is None or len(usual) != 1 else usual[0] ** power


def is_in_place(api: str) -> bool:
    """Return whether a function's name says that it changes its first argument."""
    if api.endswith("__"):  # of ``shape.__get__``, too
        return api.strip("_") in (*_IN_PLACE, *_ITEMS)
    return api.endswith("_")


def parameter_name(name: str) -> str:
    """Return PyTorch's name of a layer's parameter: ``weight`` for MindSpore's ``gamma``."""
    return _PARAMETERS.get(name, name)


def keyword_name(operator: Operator, name: str) -> str:
    """Return PyTorch's name of a keyword argument: ``dim`` for MindSpore's ``axis``."""
    own = f"{operator.name}.{name}"
    return MINDSPORE_KEYWORDS.get(own) or MINDSPORE_KEYWORDS.get(name, name)


def default_in_mindspore(operator: Operator, keyword: str) -> float | None:
    """Return what a function of MindSpore takes for an argument that a call leaves out.

    Args:
        operator: that it computes.
        keyword: PyTorch's name of the argument.

    Returns: None where it is the same as in PyTorch, or not known.
    """
    return MINDSPORE_DEFAULTS.get(f"{operator.name}.{keyword}")


def _plain(api: str) -> str:
    """Return a function's name as it is looked up.

    ``__iadd__``, ``__radd__`` and ``add_`` are all ``add``; ``__rsub__`` stays apart from ``sub``,
    whose arguments are in the other order.
    """
    name = api.strip("_")
    if api.startswith("__") and (name in _IN_PLACE or name in _COMMUTING_REFLECTED):
        name = name[1:]
    return name.replace("_", "").lower()


def _unknown(api: str) -> str:
    """Return the name of an operator that the table does not know; private ones stay apart."""
    is_private = api.startswith("_") and not api.startswith("__")
    return "_" * is_private + _plain(api)


class _Word(NamedTuple):
    """One operator in the table."""

    names: list[str]
    mindspore: list[str]
    facts: Mapping[str, Any]

    @property
    def space(self) -> str:
        """Communications have names in common with other operators: gather, scatter."""
        return f"{_DISTRIBUTED}." if self.facts.get("communication") else ""

    def operator(self, arguments: tuple[str, ...] | None = None) -> Operator:
        """Return the operator; `arguments` are those of a function that has them elsewhere."""
        name, *aliases = self.names
        facts = self.facts
        return Operator(
            name=self.space + name,
            aliases=tuple(aliases),
            mindspore=tuple(self.mindspore),
            **(facts if arguments is None else {**facts, "arguments": arguments}),
        )


def _key(name: str, space: str = "") -> str:
    """Return the key for one of an operator's names."""
    prefix, dot, rest = name.rpartition(".")
    return f"{prefix}{dot}{_plain(rest)}" if dot else space + _plain(rest)


def _word_of_mindspore(prefix: str, name: str) -> _Word | None:
    """Return the operator that MindSpore has another name for, or writes with additions."""
    own, shared = _words_of_mindspore(), _words()
    if prefix == _DISTRIBUTED or prefix.startswith(_MINT):
        return own.get(f"{prefix}.{name}")
    for one in (name, _DECORATION.sub("", name)):
        for key in (f"{prefix}.{one}", one):
            if key in own:
                return own[key]
        for key in (one, f"{_DISTRIBUTED}.{one}"):
            if key in shared:
                return shared[key]
    plain = _EXTENSION.sub("", name)
    return shared.get(plain) or own.get(plain)


@cache
def _words() -> Mapping[str, _Word]:
    return {_key(name, word.space): word for word in _parsed() for name in word.names}


@cache
def _words_of_mindspore() -> Mapping[str, _Word]:
    return {_key(name, word.space): word for word in _parsed() for name in word.mindspore}


@cache
def _places_in_mindspore() -> Mapping[str, tuple[str, ...]]:
    return {_key(name): tuple(text.split()) for name, text in MINDSPORE_ARGUMENTS.items()}


@cache
def _parsed() -> tuple[_Word, ...]:
    further: dict[str, dict[str, Any]] = defaultdict(dict)
    for words, facts in FURTHER:
        for name in words.split():
            further[name].update(facts)
    found = []
    for entry in TABLE:
        for text in _JOINT.sub("", entry.words).split():
            names, *mindspore = text.split(":")
            first, *others = names.split("=")
            facts = entry.facts
            if first in further and not facts.get("communication"):
                facts = {**facts, **further.pop(first)}
            found.append(_Word([first, *others], mindspore, facts))
    assert not further, f"not the first name of an operator: {', '.join(further)}"
    return tuple(found)
