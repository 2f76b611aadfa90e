# SPDX-License-Identifier: Apache-2.0
"""Read the roots of each backward pass: the losses of the step."""

from __future__ import annotations

import math
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any, Final

import torch

from msprobe.capture.ending import Work
from msprobe.capture.session import Session
from msprobe.dump.facts import Loss
from msprobe.pytorch.interception.backward_entry import BackwardEntry
from msprobe.pytorch.interception.guard import quietly
from msprobe.pytorch.interception.tracing import is_tracing
from msprobe.pytorch.values.fingerprint import Fingerprint, shape_of

_MOST_OPERATIONS: Final = 8
_WITH_NUMBERS: Final = 3  # operations told with their numbers, which are slower to read
_SAVED: Final = "_saved_"
_UNSIGNED: Final = 1 << 64  # nodes show negative integers modulo this
_BACKWARD: Final = re.compile(r"Backward\d*$")
_WORDS: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_MOST_ENTRIES: Final = 1000  # of one step: a Jacobian takes a backward pass for each row
_graph_task: Final = torch._C._current_graph_task_id


class Losses:
    """Takes the roots of the backward passes that the training starts.

    Attributes:
        is_asleep: whether backward passes are left out for a while.
        is_installed: whether backward passes are watched.
        count: backward passes of the step that have begun.
    """

    __slots__ = (
        "_entries",
        "_fact_of",
        "_scale_of",
        "_session",
        "_tells_operations",
        "count",
        "is_asleep",
        "is_installed",
    )

    def __init__(
        self,
        session: Session,
        scale_of: Callable[[torch.Tensor], torch.Tensor | None] | None = None,
        fact_of: Callable[[torch.Tensor], Callable[..., Loss] | None] = lambda _: Loss,
        *,
        tells_operations: bool = True,
    ) -> None:
        """Create it.

        Args:
            session: gets the values, and learns of exceptions.
            scale_of: returns what a root was multiplied by; its value is then told without that.
            fact_of: returns what makes the fact of a root; None to leave it out.
            tells_operations: whether the facts name the operations that made the roots.
        """
        self._session = session
        self._fact_of = fact_of
        self._scale_of = scale_of
        self._tells_operations = tells_operations
        self.is_installed = self.is_asleep = False
        self.count = 0
        self._entries = 0

    def install(self, entry: BackwardEntry) -> None:
        """Watch backward passes until `Session.lasting_undo` is closed."""
        undo = self._session.lasting_undo
        self.is_installed = entry.open(undo, self._around)
        undo.callback(self._removed)

    def next_step(self) -> None:
        """Begin to count anew."""
        self.count = self._entries = 0

    def _removed(self) -> None:
        self.is_installed = False
        self.next_step()

    @contextmanager
    def _around(self, roots: Sequence[Any], _gradients: Sequence[Any]) -> Iterator[None]:
        session = self._session
        in_own_thread = threading.get_ident() == session.thread
        if self.is_asleep or is_tracing() or _graph_task() != -1 or not in_own_thread:
            yield
            return
        quietly(session, "loss", self._take, roots)
        ending = session.current.ending
        try:
            yield
        except BaseException:
            ending.left(Work.BACKWARD)
            raise
        ending.succeeded(Work.BACKWARD)

    def _take(self, roots: Sequence[Any]) -> None:
        # torch can begin at an edge of the graph, which is no tensor
        tensors = [one for one in roots if isinstance(one, torch.Tensor)]
        found = [(one, fact) for one in tensors if (fact := self._fact_of(one)) is not None]
        if tensors and not found:
            return
        micro = self.count
        self.count += 1
        facts = self._session.facts
        if not facts.is_open:
            return
        for root, fact in found[: _MOST_ENTRIES - self._entries]:
            self._entries += 1
            entry = partial(
                fact,
                micro=micro,
                shape=shape_of(root),
                dtype=str(root.dtype),
                made_by=_made_by(root) if self._tells_operations else [],
            )
            scale = None if self._scale_of is None else self._scale_of(root)
            if scale is None and (value := _number_in(root)) is not None:
                facts.append("loss", entry(value=value))
                continue
            print_ = Fingerprint(root.detach())
            prints = [print_] if scale is None else [print_, Fingerprint(scale.detach())]
            deferred = partial(_loss, entry, prints, root.numel())
            facts.append("loss", deferred() if all(one.is_ready for one in prints) else deferred)


def _number_in(root: torch.Tensor) -> float | None:
    """Return the finite number that a plain tensor on the CPU holds alone; None for any other."""
    if type(root) is not torch.Tensor or not root.is_cpu or root.numel() != 1:
        return None
    try:
        value = root.item() if root.is_floating_point() else math.nan
    except RuntimeError:  # inside of `vmap` it stands for several
        return None
    return value if math.isfinite(value) else None


def _loss(entry: Callable[..., Loss], prints: Sequence[Fingerprint], elements: int) -> Loss:
    for one in prints:
        one.wait()
    mean, *scales = (one.summary.mean for one in prints)
    if mean is not None and scales and scales[0]:
        mean /= scales[0]
    return entry(value=None if mean is None else mean * elements)


def _made_by(root: torch.Tensor) -> list[str]:
    """Return the names of the nodes behind a loss, the nearest first."""
    found: list[str] = []
    waiting = deque([root.grad_fn])
    while waiting and len(found) < _MOST_OPERATIONS:
        node = waiting.popleft()
        if node is not None:
            name = _WORDS.sub("_", _BACKWARD.sub("", node.name())).lower()
            found.append(name if len(found) >= _WITH_NUMBERS else name + _numbers(node))
            waiting += (inner for inner, _ in node.next_functions)
    return found


def _numbers(node: Any) -> str:
    """Return the numbers that a node keeps for its backward: ``(delta=0.5, reduction=1)``.

    Tensors, which have a raw form as well, are not touched: that may call a user's hook.
    """
    # Nodes of a user's function have attributes of their own, those of torch have none.
    names = _names(node) if hasattr(node, "__dict__") else _names_of_kind(type(node))
    values = ((name.removeprefix(_SAVED), getattr(node, name)) for name in names)
    told = [
        f"{name}={value - _UNSIGNED if value >= _UNSIGNED // 2 else value}"
        for name, value in values
        if isinstance(value, int | float)
    ]
    return f"({', '.join(told)})" if told else ""


def _names(node: object) -> list[str]:
    """Return the names of what a node, or a kind of them, keeps besides tensors."""
    kept = dir(node)
    return [name for name in kept if name.startswith(_SAVED) and f"_raw{name}" not in kept]


_names_of_kind: Final[Callable[[object], list[str]]] = lru_cache(maxsize=256)(_names)
