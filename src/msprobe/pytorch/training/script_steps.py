# SPDX-License-Identifier: Apache-2.0
"""Steps and models of a program that calls no method of the debugger (`msprobe run`).

A model is what the program calls outermost, if it has parameters. A step begins with such a call.
It ends for the observers when `optimizer.step()` returns, and altogether when the next one begins:
schedulers and scalers come behind the optimizer. Where nothing is optimized, each call of a model
is a step.
"""

from __future__ import annotations

import gc
import logging
import sys
import weakref
from collections.abc import Callable, Sequence
from functools import wraps
from types import FrameType
from typing import Any, Final, Protocol

import torch
from torch import nn
from torch.nn.modules import module as module_code
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from msprobe.capture.followed_steps import FOLLOWING, FollowedSteps, Steps
from msprobe.pytorch.interception.code_swap import divert
from msprobe.pytorch.interception.module_hooks import only_evaluates
from msprobe.pytorch.interception.tracing import is_tracing

logger = logging.getLogger(__name__)

_CALL_CODE: Final = nn.Module._call_impl.__code__
_graph_task: Final = torch._C._current_graph_task_id


class ModuleSteps(Steps, Protocol):
    """The part of PyTorch's run that a program controls."""

    @property
    def models(self) -> Sequence[nn.Module]:
        """Return the models known so far."""

    def discover(self, models: Sequence[nn.Module]) -> None:
        """Take the models known now."""

    def extend(self) -> None:
        """Record the models that were discovered since the step began."""

    def begin(self, token_range: tuple[int, int] | None, rank: int | None) -> None:
        """Begin to observe, if the step is wanted."""

    def enter(self, module: nn.Module, args: tuple[Any, ...], frame: FrameType) -> None:
        """Note that a module call begins whose hooks torch had collected before `begin`."""


class ScriptFollower(FollowedSteps[ModuleSteps]):
    """Begins and ends the steps of a run by the calls of models and optimizers.

    Attributes:
        is_paused: whether nothing is recorded until it is false again.
    """

    def __init__(self, run: ModuleSteps, *, has_step_function: bool = False) -> None:
        """Follow the program until the session of `run` is closed.

        Args:
            run: is controlled.
            has_step_function: whether steps are the calls of a function, see `step_function`.
        """
        super().__init__(run)
        self._has_step_function = has_step_function
        # The models known, and all modules in them, by identity.
        self._roots: frozenset[int] = frozenset()
        self._known: dict[int, weakref.ref[nn.Module]] = {}
        # Behind the last wanted step: whether a module was called in it, and steps since.
        self._is_called = False
        self._unrecorded = 0
        self.is_paused = False
        self._optimizers = _Optimizers()
        self._after_step: RemovableHandle | None = None
        undo = run.session.run_undo
        hook = module_code.register_module_forward_pre_hook(self._before_module)
        undo.callback(hook.remove)
        if not has_step_function:
            # One that finds an infinity skips the optimizer.
            undo.callback(divert(torch.amp.GradScaler.step, self._scaled_step))

    @property
    def next_step(self) -> int:
        """Return the number of the first step whose optimizers have not stepped yet."""
        has_stepped = self._is_open and not self._is_observed
        return self._run.session.step_number + has_stepped + self._unrecorded

    # -- what the program calls ----------------------------------------------------------------

    def _before_module(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        session = self._run.session
        self._is_called = True
        if (
            self.is_paused
            or session.finished
            or session.is_off
            or torch.compiler.is_compiling()
            or is_tracing()
        ):
            return
        if self._is_observed and id(module) not in self._roots and self._is_known(module):
            return
        if _graph_task() == -1 and self._is_own_thread():
            session.attempt(FOLLOWING, self._called, module, args, sys._getframe(1))

    def _called(self, module: nn.Module, args: tuple[Any, ...], frame: FrameType) -> None:
        if _is_inner(module, frame) or not _has_parameters(module):
            return
        if self._is_observed:
            if not self._is_known(module):
                self._discover(module)
                self._run.extend()
                return
            if self._has_step_function or self._optimizers.exist():
                return  # another part of the batch
            self._stop()
        elif self._has_step_function or self._is_evaluation(module):
            return
        self._end_step()
        if not self._is_known(module):
            self._discover(module)
        self._begin()
        self._run.enter(module, args, frame)

    def _is_evaluation(self, module: nn.Module) -> bool:
        """Return whether this call only evaluates what is trained elsewhere in the program."""
        if not only_evaluates(module, with_grad=torch.is_grad_enabled()):
            return False
        is_trained = any(parameter.requires_grad for parameter in module.parameters())
        return is_trained and self._optimizers.exist()

    def _optimized(self, *_: Any) -> None:
        self._optimizers.are_known = True
        if self._is_observed and self._is_own_thread():
            self._run.session.attempt(FOLLOWING, self._stop)
        elif self._is_called and self._run.session.finished:
            self._unrecorded += 1
        self._is_called = False

    def _scaled_step(self, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        self._optimized()
        return result

    # -- models --------------------------------------------------------------------------------

    def _is_known(self, module: nn.Module) -> bool:
        known = self._known.get(id(module))
        return known is not None and known() is module

    def _discover(self, module: nn.Module) -> None:
        """Add a model. One whose parts were called before takes their place."""
        parts = {id(part): weakref.ref(part) for part in module.modules()}
        models = [one for one in self._run.models if id(one) not in parts]
        if len(models) < len(self._run.models):
            logger.info(
                "%s contains a model that was recorded before: names change from step %d on",
                type(module).__name__,
                self._run.session.step_number,
            )
        self._known |= parts
        self._roots = frozenset(map(id, [*models, module]))
        self._run.discover([*models, module])

    # -- steps ---------------------------------------------------------------------------------

    def explicit_start(self, _: Sequence[nn.Module]) -> None:
        """Take a start of the program's, which has no effect."""
        self.skipped("start()")

    def step_function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function`, each call of which becomes a step."""

        @wraps(function)
        def step(*args: Any, **kwargs: Any) -> Any:
            session = self._run.session
            if self._is_open or not self._is_own_thread():
                return function(*args, **kwargs)
            session.attempt(FOLLOWING, self._begin)
            try:
                return function(*args, **kwargs)
            finally:
                session.attempt(FOLLOWING, self._end_step)

        return step

    def pause(self) -> None:
        """End the open step, and begin none until `is_paused` is false again."""
        self.finish()
        self.is_paused = True

    def _begin(self) -> None:
        self._open()
        self._run.begin(None, None)
        if not self._has_step_function:
            # Behind the hooks that `begin` has registered: they take the optimizer's step first.
            self._after_step = register_optimizer_step_post_hook(self._optimized)

    def _end_step(self) -> None:
        if self._is_open and self._after_step is not None:
            self._after_step.remove()
        super()._end_step()


class _Optimizers:
    """Knows whether the program has optimizers.

    Attributes:
        are_known: whether one was seen.
    """

    def __init__(self) -> None:
        self.are_known = False
        self._asked = 0

    def exist(self) -> bool:
        """Return whether there is an optimizer now.

        All objects are looked through, which takes a while: in the first calls, and then less and
        less often.
        """
        self._asked += 1
        if not self.are_known and self._asked & (self._asked - 1) == 0:
            kinds = {type(one) for one in gc.get_objects()}  # runs no code of the program's
            self.are_known = any(Optimizer in kind.__mro__ for kind in kinds)
        return self.are_known


def _has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _is_inner(module: nn.Module, frame: FrameType | None) -> bool:
    """Return whether a call of `module` is made inside a call of another with parameters.

    Args:
        module: what is called.
        frame: torch's, which calls the hooks of the module.
    """
    while frame is not None:
        if frame.f_code is _CALL_CODE:
            caller: Any = frame.f_locals.get("self")
            if caller is not module and _has_parameters(caller):
                return True
        frame = frame.f_back
    return False
