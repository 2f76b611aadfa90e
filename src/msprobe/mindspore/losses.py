# SPDX-License-Identifier: Apache-2.0
"""Read the losses of the dynamic graph: the results of which gradients are taken.

``value_and_grad``, ``grad`` and ``GradOperation`` run the function first, then the backward pass.
MindSpore has no hook there, so the two functions of its module that do this are exchanged.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Final, Protocol

import numpy as np

from mindspore import Tensor
from msprobe.capture.ending import Work
from msprobe.capture.session import Session
from msprobe.dump.facts import Loss
from msprobe.mindspore.adapter import host_values
from msprobe.mindspore.describing import dtype_name
from msprobe.mindspore.guard import quietly
from msprobe.mindspore.jit_calls import is_compiling

_HOME: Final = "mindspore.ops.composite.base"
_FORWARD: Final = "_pynative_forward_run"
_BACKWARD: Final = "_pynative_func_grad_backward"
# Arguments of the latter: function, operation, weights, position, whether only the first result
# is differentiated, and those of the function.
_WEIGHTS: Final = 2
_HAS_AUX: Final = 4
_MOST_ENTRIES: Final = 1000  # of one step


class Scales(Protocol):
    """Knows what losses were multiplied by."""

    def forward_begins(self) -> None:
        """Note that a function begins of which gradients are taken."""

    def of(self, root: Any) -> float | None:
        """Return the scale of a loss; None for one that has none."""


class Losses:
    """Takes the roots of the backward passes that the training starts.

    Those inside of such a pass are no losses: a recomputed cell takes gradients of its own.
    """

    def __init__(
        self,
        session: Session,
        fact_of: Callable[[Any], Callable[..., Loss] | None] = lambda _: Loss,
        scales: Scales | None = None,
    ) -> None:
        """Create it; nothing is exchanged.

        Args:
            session: gets the values, and learns of exceptions.
            fact_of: returns what makes the fact of a pass, given the parameters of which it takes
                gradients; None to leave it out.
            scales: knows what losses were multiplied by; their values are told without that.
        """
        self._session = session
        self._fact_of = fact_of
        self._scales = scales
        self._is_running = False
        self._result: Any = None
        self._count = 0
        self._entries = 0

    def install(self) -> None:
        """Watch backward passes; the session's undo ends that."""
        home = import_module(_HOME)
        if hasattr(home, _FORWARD) and hasattr(home, _BACKWARD):
            undo = self._session.undo
            undo.callback(_exchange(home, _FORWARD, self._forward))
            undo.callback(_exchange(home, _BACKWARD, self._backward))
            self._session.step_undo.callback(self._next_step)

    def _next_step(self) -> None:
        self._count = self._entries = 0

    def _forward(self, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._scales is not None and not self._is_running:
            quietly(self._session, "loss", self._scales.forward_begins)
        found = run(*args, **kwargs)
        self._result = found[1] if isinstance(found, tuple) and len(found) > 1 else None
        return found

    def _backward(self, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result, self._result = self._result, None
        session = self._session
        weights = args[_WEIGHTS] if len(args) > _WEIGHTS else None
        fact = None if self._is_running else self._fact_of(weights)
        if fact is None or is_compiling() or threading.get_ident() != session.thread:
            return run(*args, **kwargs)
        has_aux = len(args) > _HAS_AUX and bool(args[_HAS_AUX])
        quietly(session, "loss", self._take, fact, result, has_aux)
        ending = session.current.ending
        self._is_running = True
        try:
            found = run(*args, **kwargs)
        except BaseException:
            ending.left(Work.BACKWARD)
            raise
        finally:
            self._is_running = False
        ending.succeeded(Work.BACKWARD)
        return found

    def _take(self, fact: Callable[..., Loss], result: Any, has_aux: bool) -> None:
        micro = self._count
        self._count += 1
        facts = self._session.facts
        if not facts.is_open:
            return
        roots: Sequence[Any] = result if isinstance(result, tuple | list) else (result,)
        for root in (roots[:1] if has_aux else roots)[: _MOST_ENTRIES - self._entries]:
            if isinstance(root, Tensor):
                self._entries += 1
                scale = None if self._scales is None else self._scales.of(root)
                values = host_values(root)
                value = None
                if values is not None:
                    value = float(np.sum(values, dtype=np.float64)) / (scale or 1.0)
                facts.append(
                    "loss",
                    fact(
                        micro=micro,
                        value=value,
                        shape=list(root.shape),
                        dtype=dtype_name(root),
                    ),
                )


def _exchange(home: Any, name: str, around: Callable[..., Any]) -> Callable[[], None]:
    """Run the calls of a function through `around` until the undo is called."""
    original = getattr(home, name)
    exchanged = partial(around, original)
    setattr(home, name, exchanged)

    def undo() -> None:
        if getattr(home, name) is exchanged:
            setattr(home, name, original)

    return undo
