# SPDX-License-Identifier: Apache-2.0
"""Names of records and the counters behind them.

    API        Functional.linear.3.forward        Functional.linear.3.backward
    module     Module.blk.0.Linear.forward.1      Module.blk.0.Linear.backward.1
    gradients  Module.blk.0.Linear.parameters_grad (first arrival in a step), ….parameters_grad.1

A number counts the calls of one API or one module within a step, from 0. A backward record has
the number of its forward. A second backward pass over the same call (a retained graph, a double
backward) is a record of its own, ``….backward.pass1``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import count
from typing import Final

FORWARD: Final = "forward"
BACKWARD: Final = "backward"
PARAMETERS_GRAD: Final = "parameters_grad"
PARAMETERS_GRAD_REDUCED: Final = "parameters_grad_reduced"
RECOMPUTE: Final = "recompute"


class CallCounters:
    """Counts calls per base name within one step.

    Attributes:
        next: the number of the next call of each base.
    """

    __slots__ = ("next",)

    def __init__(self) -> None:
        """Create it; nothing is counted."""
        self.next: dict[str, int] = {}

    def take(self, base: str) -> int:
        """Return the number of this call of `base` and count it."""
        number = self.next.get(base, 0)
        self.next[base] = number + 1
        return number

    def __contains__(self, base: str) -> bool:
        """Return whether `base` was called in this step."""
        return base in self.next

    @property
    def has_counted(self) -> bool:
        """Whether a call was counted in this step."""
        return bool(self.next)

    def reset(self) -> None:
        """Begin again at 0, as every step does."""
        self.next.clear()


def api_names(base: str, number: int) -> tuple[str, str]:
    """Return the forward and the backward name of an API call; `base` is ``Functional.relu``."""
    return f"{base}.{number}.forward", f"{base}.{number}.backward"


def module_names(base: str, number: int) -> tuple[str, str]:
    """Return the forward and the backward name of a module call; `base` is ``Module.fc.Linear``."""
    return f"{base}.forward.{number}", f"{base}.backward.{number}"


def later_pass(backward_name: str, number: int) -> str:
    """Return the record name of the `number`-th backward pass over one call (0 is the first)."""
    return f"{backward_name}.pass{number}" if number else backward_name


def parameters_grad_name(module_base: str, arrival: int, kind: str = PARAMETERS_GRAD) -> str:
    """Return the name for the `arrival`-th gradient that a module's parameters got in a step."""
    return f"{module_base}.{kind}.{arrival}" if arrival else f"{module_base}.{kind}"


def found_prefixes(parts: Collection[str]) -> Iterator[str]:
    """Yield what names begin with in models that were found one after the other.

    Those of the first have no prefix, so that they stay when another model is found. The others
    are numbered, without the numbers that are names in the first, as in a ``Sequential``.

    Args:
        parts: names of the children and parameters of the first model.
    """
    yield ""
    yield from (f"{index}." for index in count(1) if str(index) not in parts)
