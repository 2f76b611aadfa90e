# SPDX-License-Identifier: Apache-2.0
"""Tell losses of one monitored model from those of others in the same program."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from torch import Tensor, nn

_MOST_NODES: Final = 5000
_all: Final[set[OwnLosses]] = set()
"""Of all monitors that are open: only where there are several, a loss may be another's."""


class OwnLosses:
    """Knows the parameters of the models of one monitor, from `open` to `close`."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        """Create it.

        Args:
            models: which the monitor watches.
        """
        self._own = frozenset(id(one) for model in models for one in model.parameters())

    def open(self) -> None:
        """Let other monitors know these parameters."""
        _all.add(self)

    def close(self) -> None:
        """Undo `open`."""
        _all.discard(self)

    def has(self, root: Tensor) -> bool:
        """Return whether a loss is of these models: unless all that it trains is of others'.

        Parameters that no monitor knows, as those that FSDP gathers, leave it here.
        """
        others = [one._own for one in _all if one is not self]
        if not others or root.grad_fn is None:
            return True
        waiting, seen = deque([root.grad_fn]), {root.grad_fn}
        trains_others = False
        while waiting:
            node = waiting.popleft()
            leaf = getattr(node, "variable", None)
            if leaf is not None:
                if not any(id(leaf) in known for known in others):
                    return True
                trains_others = True
            new = {one for one, _ in node.next_functions if one is not None} - seen
            seen |= new
            waiting += new
            if len(seen) > _MOST_NODES:
                return True
        return not trains_others
