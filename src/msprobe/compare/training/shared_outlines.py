# SPDX-License-Identifier: Apache-2.0
"""Outlines of a step of MindSpore and of one of PyTorch: the calls that both write down alike.

Layers call other functions in each framework, and elements are moved, made and cast by other ones.
What is left is what the program's own lines compute, with PyTorch's names of the arguments.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from msprobe.compare.matching.signatures import Signature, signature_of
from msprobe.dump.facts import OUTLINED_TENSOR, Facts, Outline, OutlinedCall
from msprobe.operators.lookup import default_in_mindspore, keyword_name, operator_of
from msprobe.operators.operator import Family, Operator

# They make tensors, change types, or choose what gets a gradient.
_LEFT_OUT: Final = frozenset(
    (
        *("arange", "as_tensor", "empty", "eye", "full", "linspace", "ones", "tensor", "zeros"),
        *("astype", "bfloat16", "bool", "cast", "double", "float", "half", "int", "long", "to"),
        *("type", "type_as", "clone", "contiguous", "detach", "requires_grad", "_setgradenabled"),
        *("flatten", "reshape", "squeeze", "unflatten", "unsqueeze", "view", "view_as"),
    )
)
# Both frameworks move elements alike by these.
_SHARED: Final = frozenset(("cat", "flip", "roll", "stack", "tril", "triu"))
_FIRST: Final = "input"  # the name under which a call's tensors are kept


def with_shared_outline(facts: Facts, *, is_mindspore: bool) -> Facts:
    """Return the facts of a step with such an outline; it does not tell what calls are fed with.

    Args:
        facts: of the step.
        is_mindspore: whether it ran in MindSpore.
    """
    outline = facts.outline
    return facts if outline is None else replace(facts, outline=_shared(outline, is_mindspore))


def _shared(outline: Outline, is_mindspore: bool) -> Outline:
    calls = [_in_shared_terms(call, is_mindspore) for call in outline.calls]
    kept = [place for place, call in enumerate(calls) if call is not None]
    places = {place: number for number, place in enumerate(kept)}
    return Outline(
        calls=[call for call in calls if call is not None],
        bodies=[[places[n] for n in body if n in places] for body in outline.bodies],
        runs=outline.runs,
        is_whole=outline.is_whole,
    )


def _in_shared_terms(call: OutlinedCall, is_mindspore: bool) -> OutlinedCall | None:
    """Return a call without its tensors and what it takes anyway; None for one that is left out."""
    prefix, _, api = call.name.partition(".")
    operator = operator_of(prefix, api, is_mindspore=is_mindspore)
    is_moved = operator.family is Family.MOVING and operator.name not in _SHARED
    if call.source is None or is_moved or operator.name in _LEFT_OUT:
        return None
    signature = signature_of(f"Functional.{operator.name}")
    given = dict(_given(call, operator, signature))
    if is_mindspore:
        given = dict(_own_defaults(operator, signature)) | given
    named = {
        name: word
        for name, word in sorted(given.items())
        if word != OUTLINED_TENSOR and not name.startswith("_")
        if not _is_default(signature, name, word)
    }
    if OUTLINED_TENSOR in given.values():
        named |= {_FIRST: OUTLINED_TENSOR}
    return replace(call, arguments=(), named=named)


def _given(
    call: OutlinedCall, operator: Operator, signature: Signature
) -> Iterator[tuple[str, str]]:
    """Yield PyTorch's names of the arguments of a call, and what they are."""
    for place, word in enumerate(call.arguments):
        yield signature.name_of(str(place)), word
    for name, word in call.named.items():
        yield keyword_name(operator, name), word


def _own_defaults(operator: Operator, signature: Signature) -> Iterator[tuple[str, str]]:
    """Yield what a function of MindSpore takes where PyTorch's takes something else."""
    for name in signature.defaults:
        default = default_in_mindspore(operator, name)
        if default is not None:
            yield name, repr(default)


def _is_default(signature: Signature, name: str, word: str) -> bool:
    try:
        return word == "None" or signature.is_default(name, ast.literal_eval(word))
    except (SyntaxError, ValueError):  # a type, say
        return False
