# SPDX-License-Identifier: Apache-2.0
"""Tell losses of one monitored model from those of others in the same program."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from torch import Tensor, nn

from msprobe.dump.facts import Loss
from msprobe.monitor.collecting.run_numbers import ModelLoss, Trained
from msprobe.pytorch.monitoring.unsharded import flat_parameters

_MOST_NODES: Final = 5000
_all: Final[set[OwnLosses]] = set()
"""Of all monitors that are open."""


class OwnLosses:
    """Knows the parameters of the models of one monitor, from `open` to `close`."""

    def __init__(self, models: Sequence[nn.Module], groups: Sequence[Mapping[str, Any]]) -> None:
        """Create it.

        Args:
            models: which the monitor watches.
            groups: of its optimizer. Of a single model only parameters that it updates count: a
                generator and its judge may be parts of one.
        """
        self._updated = {id(one) for group in groups for one in group.get("params", ())}
        self._own = {
            id(parameter): number
            for number, model in enumerate(models)
            for parameter in (*model.parameters(), *flat_parameters([model]))
        }
        if len(models) == 1 and not self._updated.isdisjoint(self._own):
            self._own = {one: n for one, n in self._own.items() if one in self._updated}

    def open(self) -> None:
        """Let other monitors know these parameters."""
        _all.add(self)

    def close(self) -> None:
        """Undo `open`."""
        _all.discard(self)

    def has_any(self, parameters: Iterable[int]) -> bool:
        """Return whether the models have one of these parameters, given by ``id``, or update it."""
        return any(one in self._own or one in self._updated for one in parameters)

    def fact_of(self, root: Tensor) -> Callable[..., Loss] | None:
        """Return what makes the fact of a loss; None if all that it trains is of other monitors."""
        models: set[int] = set()
        theirs = unknown = False
        for leaf in _leaves(root):
            number = self._own.get(id(leaf))
            if number is not None:
                models.add(number)
            elif any(id(leaf) in one._own for one in _all):
                theirs = True
            else:
                unknown = True
        if theirs and not models and not unknown:
            return None
        return partial(ModelLoss, trained=Trained(frozenset(models), theirs or unknown))


def _leaves(root: Tensor) -> list[Any]:
    """Return what a loss trains, of the nearest operations."""
    found = []
    waiting = deque([root.grad_fn])
    seen = {root.grad_fn}
    while waiting and len(seen) <= _MOST_NODES:
        node = waiting.popleft()
        if node is None:
            continue
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            found.append(leaf)
        new = {one for one, _ in node.next_functions} - seen
        seen |= new
        waiting += new
    return found
