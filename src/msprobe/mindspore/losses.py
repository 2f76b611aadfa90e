# SPDX-License-Identifier: Apache-2.0
"""Read the losses of the dynamic graph: the results of which gradients are taken.

``value_and_grad``, ``grad`` and ``GradOperation`` run the function first, then the backward pass.
MindSpore has no hook there, so the two functions of its module that do this are exchanged.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Final

import numpy as np

from mindspore import Tensor
from msprobe.capture.ending import Work
from msprobe.capture.session import Session
from msprobe.dump.facts import Loss
from msprobe.mindspore.adapter import on_host, values_of
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


class Losses:
    """Takes the roots of the backward passes that the training starts.

    Those inside of such a pass are no losses: a recomputed cell takes gradients of its own.
    """

    def __init__(self, session: Session, trained: Iterable[Any] = ()) -> None:
        """Create it; nothing is exchanged.

        Args:
            session: gets the values, and learns of exceptions.
            trained: parameters; passes that only take gradients of others are left out. All count
                if there is none.
        """
        self._session = session
        self._trained = frozenset(map(id, trained))
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
        found = run(*args, **kwargs)
        self._result = found[1] if isinstance(found, tuple) and len(found) > 1 else None
        return found

    def _backward(self, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result, self._result = self._result, None
        session = self._session
        is_own = not self._is_running and self._is_of_model(args[_WEIGHTS : _WEIGHTS + 1])
        if not is_own or is_compiling() or threading.get_ident() != session.thread:
            return run(*args, **kwargs)
        has_aux = len(args) > _HAS_AUX and bool(args[_HAS_AUX])
        quietly(session, "loss", self._take, result, has_aux)
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

    def _is_of_model(self, given: Sequence[Any]) -> bool:
        weights = given[0] if given else None
        if not self._trained or not isinstance(weights, tuple | list) or not weights:
            return True
        return not self._trained.isdisjoint(map(id, weights))

    def _take(self, result: Any, has_aux: bool) -> None:
        micro = self._count
        self._count += 1
        facts = self._session.facts
        if not facts.is_open:
            return
        roots: Sequence[Any] = result if isinstance(result, tuple | list) else (result,)
        for root in (roots[:1] if has_aux else roots)[: _MOST_ENTRIES - self._entries]:
            if isinstance(root, Tensor):
                self._entries += 1
                values = values_of(root) if on_host() else None
                facts.append(
                    "loss",
                    Loss(
                        micro=micro,
                        value=None if values is None else float(np.sum(values, dtype=np.float64)),
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
