# SPDX-License-Identifier: Apache-2.0
"""`operator_facts`: facts about an operator from its schema, and whether it can be judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import torch
from torch import Tag
from torch._ops import OpOverload

from msprobe.checks.live_check import LeftOut
from msprobe.operators.lookup import operator_of
from msprobe.pytorch.apis.api_rules import describe_function, written_arguments
from msprobe.pytorch.interception.kernels import UNFINISHED

_TENSOR: Final = torch._C.TensorType.get()


@dataclass(frozen=True, slots=True)
class OperatorFacts:
    """Facts about one overload of an operator.

    Attributes:
        prefix: of its records: ``Aten``, ``NPU``, a namespace.
        api: its name without the overload.
        overload: ``aten.add_.Tensor``.
        left_out: why it is never judged; None if it can be.
        is_seeded: it may draw random numbers.
        written: positions and names of the arguments that it writes.
        returns_written: it returns the arguments that it writes.
    """

    prefix: str
    api: str
    overload: str
    left_out: LeftOut | None
    is_seeded: bool
    written: tuple[tuple[int, str], ...]
    returns_written: bool

    def written_in(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        """Return the arguments that a call writes."""
        return [
            args[index] if index < len(args) else kwargs.get(name) for index, name in self.written
        ]

    def results(self, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> tuple[Any, ...]:
        """Return all results of a call: what it returned, and the arguments that it wrote."""
        returned = () if result is None else result if isinstance(result, tuple) else (result,)
        if not self.written or self.returns_written:
            return tuple(returned)
        return (*returned, *self.written_in(args, kwargs))


@cache
def operator_facts(func: OpOverload[Any, Any]) -> OperatorFacts:
    """Return the facts about an operator, all from its schema and its tags."""
    entry = describe_function(func)
    schema = func._schema
    aliases = [one.alias_info for one in schema.returns if one.alias_info is not None]
    return OperatorFacts(
        prefix=entry.prefix,
        api=entry.api,
        overload=str(func),
        left_out=_left_out(func, entry.prefix, entry.api),
        is_seeded=Tag.nondeterministic_seeded in func.tags,
        written=written_arguments([func]),
        returns_written=bool(aliases) and all(alias.is_write for alias in aliases),
    )


def _left_out(func: OpOverload[Any, Any], prefix: str, api: str) -> LeftOut | None:
    """Return why an operator is never judged."""
    schema = func._schema
    operator = operator_of(prefix, api)
    if func.namespace in UNFINISHED or operator.communication is not None:
        return LeftOut.COMMUNICATION
    aliases = [one.alias_info for one in schema.returns if one.alias_info is not None]
    if Tag.inplace_view in func.tags or any(not alias.is_write for alias in aliases):
        return LeftOut.VIEW
    if not any(_holds_tensors(one.type) for one in schema.arguments):
        return LeftOut.FACTORY
    if operator.allocates or operator.reads_shape_only:
        return LeftOut.FACTORY
    if not schema.is_mutable and not any(_holds_tensors(one.type) for one in schema.returns):
        return LeftOut.NO_RESULT
    return None


def _holds_tensors(kind: Any) -> bool:
    """Return whether values of a type of the schema are or hold tensors."""
    if kind.isSubtypeOf(_TENSOR):
        return True
    inner = getattr(kind, "getElementType", None)
    return inner is not None and _holds_tensors(inner())


def tensors_of(tree: Any) -> list[torch.Tensor]:
    """Return the tensors in nested arguments or results."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    if type(tree) is dict:
        tree = tree.values()
    elif type(tree) is not list and type(tree) is not tuple:
        return []
    return [tensor for item in tree for tensor in tensors_of(item)]
