# SPDX-License-Identifier: Apache-2.0
"""Record where a program clears gradients: ``zero_grad()`` of optimizers and of modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from msprobe.capture.session import Session
from msprobe.dump.facts import Cleared
from msprobe.pytorch.interception.guard import quietly
from msprobe.pytorch.interception.traceable_swap import divert_traceably
from msprobe.pytorch.interception.tracing import is_tracing
from msprobe.pytorch.training.optimizer_steps import OptimizerSteps

_WHERE = "cleared gradients"


class ClearedGradients:
    """Takes such calls from `install` until the step of the run ends."""

    def __init__(
        self, session: Session, optimizers: OptimizerSteps, passes: Callable[[], int]
    ) -> None:
        """Create it.

        Args:
            session: its facts get the records.
            optimizers: number optimizers, and count their steps.
            passes: returns how many backward passes the step has begun.
        """
        self._session = session
        self._optimizers = optimizers
        self._passes = passes
        self._installed = False

    def install(self) -> None:
        """Watch ``zero_grad`` until `Session.lasting_undo` is closed."""
        if self._installed:
            return
        self._installed = True
        undo = self._session.lasting_undo
        undo.callback(self._removed)
        for function in (Optimizer.zero_grad, torch.nn.Module.zero_grad):
            undo.callback(divert_traceably(function, self._clear))

    def _removed(self) -> None:
        self._installed = False

    def _clear(self, original: Callable[..., Any], args: tuple[Any, ...], _kwargs: Any) -> Any:
        if not is_tracing():
            quietly(self._session, _WHERE, self._take, args[0])
        return original(*args)

    def _take(self, owner: Any) -> None:
        is_optimizer = isinstance(owner, Optimizer)
        cleared = (
            sum(len(group["params"]) for group in owner.param_groups)
            if is_optimizer
            else sum(1 for _ in owner.parameters())
        )
        kind = type(owner)
        fact = Cleared(
            class_name=f"{kind.__module__}.{kind.__qualname__}",
            number=self._optimizers.number_of(owner) if is_optimizer else None,
            parameters=cleared,
            passes=self._passes(),
            updates=self._optimizers.ended,
        )
        self._session.facts.append("cleared", fact)
