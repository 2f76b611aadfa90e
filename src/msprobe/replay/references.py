# SPDX-License-Identifier: Apache-2.0
"""Registry of reference functions: what an operator without a plain implementation computes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Golden:
    """A reference function.

    Attributes:
        name: what it is registered for.
        function: takes the operator's own arguments and returns its result.
    """

    name: str
    function: Callable[..., Any]


_REGISTERED: Final[dict[str, Golden]] = {}


def register(name: str, function: Callable[..., Any]) -> None:
    """Make `function` the reference of an operator; the last one registered wins.

    Args:
        name: ``torch.ops.ns.op``, ``npu_rms_norm``, the name of a class.
        function: takes the operator's arguments.
    """
    _REGISTERED[name] = Golden(name, function)


def find(names: Iterable[str]) -> Golden | None:
    """Return the reference of the first of these names that has one."""
    return next((_REGISTERED[name] for name in names if name in _REGISTERED), None)
