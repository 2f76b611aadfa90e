# SPDX-License-Identifier: Apache-2.0
"""Calls whose result does not depend on the order of some elements, with these in reverse.

Sums and products over elements, and functions that normalise them, differ in the order of their
roundings only (`Operator.unordered`). All others are left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from msprobe.operators.operator import Operator, Unordered

Arguments = tuple[Sequence[Any], Mapping[str, Any]]
Reordered = tuple[Arguments, Callable[[Any], Any]]


def reordered(
    operator: Operator, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Reordered | None:
    """Return the arguments in another order, and how the result comes back into its own.

    None where the order matters, or is not known not to.
    """
    values = list(args)
    if operator.unordered is None or not values or not isinstance(values[0], Tensor):
        return None
    return _CHANGES[operator.unordered](operator, values, dict(kwargs))


def _same(result: Any) -> Any:
    return result


def _reduction(operator: Operator, args: list[Any], kwargs: dict[str, Any]) -> Reordered | None:
    place = operator.arguments.index("dim") if operator.arguments else 1
    dim = kwargs.get("dim", kwargs.get("axis", args[place] if len(args) > place else None))
    own = args[0]
    if isinstance(dim, bool) or not isinstance(dim, int | list | tuple | None):
        return None
    if isinstance(dim, int):
        dim = [dim]
    dims = range(own.dim()) if dim is None or not len(dim) else dim
    args[0] = torch.flip(own, list(dims))
    return (args, kwargs), _same


def _normalising(_: Operator, args: list[Any], kwargs: dict[str, Any]) -> Reordered | None:
    dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
    if not isinstance(dim, int):
        return None
    args[0] = torch.flip(args[0], [dim])
    return (args, kwargs), lambda result: torch.flip(result, [dim])


def _product(operator: Operator, args: list[Any], kwargs: dict[str, Any]) -> Reordered | None:
    if len(args) < 2 or not isinstance(args[1], Tensor):
        return None
    second = args[1]
    args[0] = torch.flip(args[0], [-1])
    args[1] = torch.flip(second, [-2 if second.dim() > 1 and operator.name != "inner" else -1])
    return (args, kwargs), _same


def _linear(_: Operator, args: list[Any], kwargs: dict[str, Any]) -> Reordered | None:
    weight = args[1] if len(args) > 1 else kwargs.get("weight")
    if not isinstance(weight, Tensor):
        return None
    turned = torch.flip(weight, [-1])
    if len(args) > 1:
        args[1] = turned
    else:
        kwargs["weight"] = turned
    args[0] = torch.flip(args[0], [-1])
    return (args, kwargs), _same


def _layer_norm(_: Operator, args: list[Any], kwargs: dict[str, Any]) -> Reordered:
    for place, value in enumerate(args):
        if isinstance(value, Tensor):
            args[place] = torch.flip(value, [-1])
    for key, value in kwargs.items():
        if isinstance(value, Tensor):
            kwargs[key] = torch.flip(value, [-1])
    return (args, kwargs), lambda result: torch.flip(result, [-1])


_CHANGES: Final[
    Mapping[Unordered, Callable[[Operator, list[Any], dict[str, Any]], Reordered | None]]
] = {
    Unordered.REDUCED: _reduction,
    Unordered.ALONG: _normalising,
    Unordered.CONTRACTED: _product,
    Unordered.FEATURES: _linear,
    Unordered.NORMALISED: _layer_norm,
}
