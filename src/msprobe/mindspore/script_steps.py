# SPDX-License-Identifier: Apache-2.0
"""Steps and models of a program that calls no method of the debugger (`msprobe run`).

A model is what the program calls outermost, if it has parameters: inside wrappers of MindSpore that
hold a model with its loss and optimizer, the model. Compiled code, which calls its cells unseen, is
searched for them. A step begins with such a call. It ends for the observers when an optimizer was
called, or when the compiled call that holds one returns, and altogether when the next one begins.
Where nothing is optimized, each call of a model is a step.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any, Final, Protocol

from mindspore.common import api
from mindspore.ops.composite.base import GradOperation, _Grad

from mindspore import nn
from msprobe.capture.followed_steps import FOLLOWING, FollowedSteps, Steps
from msprobe.config import Level
from msprobe.mindspore.compiled.cells import is_static_graph, living_cells
from msprobe.mindspore.compiled.optimizers import is_optimizer
from msprobe.mindspore.jit_calls import executor_class, used_by

logger = logging.getLogger(__name__)

_GRADIENTS: Final = (GradOperation, _Grad)
_WRAPPERS: Final = (nn.WithLossCell, nn.WithEvalCell, nn.ForwardValueAndGrad)


class CellSteps(Steps, Protocol):
    """The part of MindSpore's run that a program controls."""

    def begin(
        self, models: Sequence[nn.Cell], token_range: tuple[int, int] | None, rank: int | None
    ) -> None:
        """Begin to observe these models, if the step is wanted."""


class ScriptFollower(FollowedSteps[CellSteps]):
    """Begins and ends the steps of a run by the calls of cells, compiled code and optimizers."""

    def __init__(
        self,
        run: CellSteps,
        at_level: Callable[[Level], CellSteps],
        *,
        has_step_function: bool = False,
    ) -> None:
        """Follow the program until the session of `run` is closed.

        Args:
            run: is controlled.
            at_level: returns another one in its place, which records at that level.
            has_step_function: whether steps are the calls of a function, see `step_function`.
        """
        super().__init__(run)
        self._at_level = at_level
        self._has_step_function = has_step_function
        self._models: list[weakref.ref[nn.Cell]] = []
        # Whether a call of the step function is running.
        self._is_in_function = False
        # Whether a call of a model, or of what holds one, is running.
        self._is_running = False
        self._optimizers = 0
        self._evaluations = 0
        self._has_optimizers = False
        for kind in (nn.Cell, executor_class()):
            if kind is not None:
                self._follow(kind)

    def _follow(self, kind: Any) -> None:
        original = kind.__call__

        @wraps(original)
        def call(called: Any, *args: Any, **kwargs: Any) -> Any:
            if self._run.session.finished or self._run.session.is_off:
                return original(called, *args, **kwargs)
            return self._around(kind, original, called, args, kwargs)

        def undo() -> None:
            if vars(kind).get("__call__") is call:
                kind.__call__ = original

        kind.__call__ = call
        self._run.session.run_undo.callback(undo)

    # -- what the program calls ----------------------------------------------------------------

    def _around(
        self, kind: Any, original: Callable[..., Any], called: Any, args: Any, kwargs: Any
    ) -> Any:
        if not self._is_own_thread():
            return original(called, *args, **kwargs)
        if is_optimizer(called):
            self._has_optimizers = True
            self._optimizers += 1
            try:
                return original(called, *args, **kwargs)
            finally:
                self._optimizers -= 1
                if not self._optimizers:  # one may wrap another
                    self._run.session.attempt(FOLLOWING, self._optimized)
        if self._is_running or self._optimizers:
            return original(called, *args, **kwargs)
        session = self._run.session
        holds_optimizer = session.attempt(FOLLOWING, self._called, called)
        if holds_optimizer is None:
            return original(called, *args, **kwargs)
        self._is_running = True
        try:
            # What has begun to observe may have taken our place.
            return kind.__call__(called, *args, **kwargs)
        finally:
            self._is_running = False
            if holds_optimizer:
                session.attempt(FOLLOWING, self._optimized)

    def _called(self, called: Any) -> bool | None:
        """Begin a step if this call makes one; return whether it holds an optimizer.

        None if it is of no model.
        """
        used = (
            [called]
            if isinstance(called, nn.Cell)
            else list(used_by(called.fn, (nn.Cell, *_GRADIENTS)))
        )
        models = list(_models_in(used))
        if not models:
            return None
        holds_optimizer = any(_holds_optimizer(one) for one in used)
        if self._is_observed:
            if self._has_step_function or holds_optimizer or self._optimizers_exist():
                # Another part of the batch.
                if not all(map(self._is_known, models)):
                    self._run.end()
                    self._discover(models)
                    self._run.begin(self._living(), None, None)
                return holds_optimizer
            self._stop()
        elif self._has_step_function:
            if not self._is_in_function:
                return None
        elif not (holds_optimizer or self._trains(used, models)):
            return None
        self._end_step()
        self._discover(models)
        self._begin()
        return holds_optimizer

    def _trains(self, used: Sequence[Any], models: Sequence[nn.Cell]) -> bool:
        """Return whether a call does not only evaluate what is trained elsewhere in the program."""
        if api._pynative_executor.requires_grad() or any(one.training for one in models):
            return True
        return any(isinstance(one, _GRADIENTS) for one in used) or not self._optimizers_exist()

    def _optimizers_exist(self) -> bool:
        """Return whether the program has an optimizer now.

        All objects are looked through, which takes a while: in the first calls, and then less and
        less often.
        """
        self._evaluations += 1
        if not self._has_optimizers and self._evaluations & (self._evaluations - 1) == 0:
            self._has_optimizers = any(map(is_optimizer, living_cells()))
        return self._has_optimizers

    def _optimized(self) -> None:
        if self._is_observed and not self._has_step_function:
            self._stop()

    # -- models --------------------------------------------------------------------------------

    def _living(self) -> list[nn.Cell]:
        return [one for reference in self._models if (one := reference()) is not None]

    def _is_known(self, model: nn.Cell) -> bool:
        return any(part is model for known in self._living() for _, part in known.cells_and_names())

    def _discover(self, models: Sequence[nn.Cell]) -> None:
        """Add models. One whose parts were called before takes their place."""
        for model in models:
            if self._is_known(model):
                continue
            parts = {id(part) for _, part in model.cells_and_names()}
            kept = [one for one in self._living() if id(one) not in parts]
            if len(kept) < len(self._models):
                logger.info(
                    "%s contains a model that was recorded before: names change from step %d on",
                    type(model).__name__,
                    self._run.session.step_number,
                )
            self._models = [weakref.ref(one) for one in [*kept, model]]

    # -- steps ---------------------------------------------------------------------------------

    def step_function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function`; each call of it that calls a model becomes a step."""

        @wraps(function)
        def step(*args: Any, **kwargs: Any) -> Any:
            if self._is_in_function or not self._is_own_thread():
                return function(*args, **kwargs)
            self._is_in_function = True
            try:
                return function(*args, **kwargs)
            finally:
                self._is_in_function = False
                self._run.session.attempt(FOLLOWING, self._end_step)

        return step

    def _begin(self) -> None:
        self._open()
        if is_static_graph() and self._run.session.config.level is Level.MIX:
            logger.info("MindSpore is in graph mode: level mix records cells, as L0 does")
            self._run = self._at_level(Level.L0)
        self._run.begin(self._living(), None, None)


def _holds_optimizer(value: Any) -> bool:
    return isinstance(value, nn.Cell) and any(
        is_optimizer(part) for _, part in value.cells_and_names()
    )


def _models_in(values: Sequence[Any]) -> Iterator[nn.Cell]:
    """Yield the models among cells, and inside wrappers that hold one with loss or optimizer."""
    for value in values:
        if not isinstance(value, nn.Cell) or is_optimizer(value):
            continue
        if next(iter(value.get_parameters()), None) is None:
            continue
        if isinstance(value, _WRAPPERS) or _holds_optimizer(value):
            yield from _models_in(list(value.cells()))
        else:
            yield value
