# SPDX-License-Identifier: Apache-2.0
"""Observe what a signature holds of a step: data, losses, gradients, parameters; no calls."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from types import FrameType
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_code
from torch.optim.optimizer import Optimizer

from msprobe.capture.session import Session
from msprobe.capture.signature import Prints, StepSignatures, no_prints
from msprobe.dump.signature_file import AUTOCAST, CLIPPING, OPTIMIZER_STEPS
from msprobe.pytorch.interception.backward_entry import BackwardEntry
from msprobe.pytorch.interception.guard import quietly
from msprobe.pytorch.interception.module_hooks import keyword_arguments
from msprobe.pytorch.interception.tracing import is_tracing
from msprobe.pytorch.training.losses import Losses
from msprobe.pytorch.training.model_calls import ModelCalls
from msprobe.pytorch.training.model_contents import ModelContents, NamedModels, Prefixed
from msprobe.pytorch.training.optimizer_steps import OptimizerSteps, described, options_of
from msprobe.pytorch.training.start_state import autocast_types, random_states
from msprobe.pytorch.training.training_calls import TrainingCalls
from msprobe.pytorch.values.prints import TensorPrints
from msprobe.pytorch.values.tensor_columns import Ask, KnownTensors

_WHERE: Final = "signature"


class SignatureObserver:
    """Watches a run for the task `signature`, in place of the observer of calls."""

    def __init__(
        self, session: Session, sink: StepSignatures, batch_index: Callable[[], int | None]
    ) -> None:
        """Create it; nothing is installed.

        Args:
            session: of the run.
            sink: gets the arrays; the rest goes through the facts of the session.
            batch_index: see `ModelCalls`.
        """
        self._session = session
        self._sink = sink
        self._models = NamedModels()
        self._roots: frozenset[int] = frozenset()
        self._begun: object = None
        self._data = ModelCalls(session, batch_index)
        self._losses = Losses(session, tells_operations=False)
        self._backward = BackwardEntry()
        self._optimizers = OptimizerSteps(session, lambda _: lambda: None, self._draft_of)
        self._clipping = TrainingCalls(session, lambda _: lambda: None)
        self._parameters = _Parameters()
        self._sees_inside = False
        self._gradients: list[tuple[list[int], TensorPrints]] = []
        self._taken: Counter[int] = Counter()

    def watch(self, models: Sequence[Prefixed]) -> None:
        """Follow these models from now on."""
        self._models = NamedModels(models)
        self._roots = frozenset(id(model) for _, model in models)

    def install(self) -> None:
        """Begin to watch; the session's undo stacks get every way back."""
        session = self._session
        quietly(session, _WHERE, self._begin_step)
        session.attempt("hooking models", self._install_data)
        if session.facts.is_open and not self._losses.is_installed:
            session.attempt("hooking backward", self._losses.install, self._backward)
        session.attempt("hooking optimizers", self._optimizers.install)
        self._clipping.install_clipping()

    def next_step(self) -> None:
        """Forget the state of the step that is over."""
        self._data.next_step()

    # -- the step ------------------------------------------------------------------------------

    def _begin_step(self) -> None:
        session = self._session
        if not session.facts.is_open or session.account is self._begun:
            return
        self._begun = session.account
        session.facts.put("random", random_states())
        self._sink.put_settings(CLIPPING, [])
        found = ModelContents.of(self._models)
        firsts = [
            (name, tensor)
            for (name, tensor, _), same in zip(found.tensors, found.same_as, strict=True)
            if same is None
        ]
        self._parameters.begin([name for name, _ in firsts], [tensor for _, tensor in firsts])
        self._gradients.clear()
        self._taken.clear()
        session.step_undo.callback(quietly, session, _WHERE, self._end_step)

    def _end_step(self) -> None:
        names, types, before, after = self._parameters.end()
        gradient = no_prints(len(names))
        for places, prints in self._gradients:
            found = prints.wait()
            if len(self._gradients) == 1 and places == list(range(len(names))):
                gradient = found
                break
            earlier = gradient["checksum"][places]
            gradient[places] = found
            # An optimizer may step several times.
            gradient["checksum"][places] = earlier * np.uint64(31) + found["checksum"]
        self._sink.put_parameters(names, types, before, gradient, after)

    # -- data ----------------------------------------------------------------------------------

    def _install_data(self) -> None:
        hook = module_code.register_module_forward_pre_hook(self._before)
        self._session.undo.callback(hook.remove)

    def _before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if self._sees_inside or id(module) in self._roots:
            self.enter(module, args, sys._getframe(1))

    def enter(self, module: nn.Module, args: tuple[Any, ...], frame: FrameType) -> None:
        """Take the data of a call of a model that begins.

        Args:
            module: what is called.
            args: the positional arguments.
            frame: torch's, which calls the hooks of the module.
        """
        session = self._session
        if id(module) not in self._roots:
            if self._sees_inside:
                self._sees_inside = False
                quietly(session, "autocast", self._put_autocast)
            return
        if torch.compiler.is_compiling() or is_tracing():
            return
        # Accelerate enters autocast within the call of a model.
        self._sees_inside = True
        quietly(session, "autocast", self._put_autocast)
        if threading.get_ident() == session.thread and torch._C._current_graph_task_id() == -1:
            kwargs = keyword_arguments(frame)
            quietly(session, "data", self._data.begin, module, args, kwargs, None)

    def _put_autocast(self) -> None:
        types = [dtype.removeprefix("torch.") for _, dtype in autocast_types()]
        self._sink.put_settings(AUTOCAST, types)

    # -- optimizers ----------------------------------------------------------------------------

    def _draft_of(
        self, optimizer: Optimizer, place: tuple[int, int], has_closure: bool
    ) -> _GradientDraft:
        return _GradientDraft(self, optimizer, place[0], has_closure)

    def take_gradients(self, optimizer: Optimizer, number: int) -> None:
        """Read the gradients of an optimizer, and its parameters if no model has them."""
        parameters: list[Tensor] = []
        places: list[int] = []
        for index, group in enumerate(optimizer.param_groups):
            parameters += group["params"]
            prefix = f"optimizer.{number}.group.{index}."
            places += self._parameters.places_of(group["params"], prefix)
        self._gradients.append((places, TensorPrints([one.grad for one in parameters])))

    def put_settings(self, optimizer: Optimizer, number: int) -> None:
        """Take the settings of an optimizer."""
        groups = [
            {key: described(value) for key, value in options_of(group).items()}
            for group in optimizer.param_groups
        ]
        self._taken[number] += 1
        if groups and self._taken[number] > 1:
            groups[0][OPTIMIZER_STEPS] = self._taken[number]
        self._sink.put_settings(f"{number}.{type(optimizer).__name__}", groups)


class _GradientDraft:
    """Numbers taken of an optimizer's step while it runs."""

    def __init__(
        self, observer: SignatureObserver, optimizer: Optimizer, number: int, has_closure: bool
    ) -> None:
        self._observer = observer
        self._optimizer = optimizer
        self._number = number
        # A closure computes the gradients while the step runs.
        self._waits = has_closure

    def read_before(self) -> None:
        self._observer.put_settings(self._optimizer, self._number)
        if not self._waits:
            self._observer.take_gradients(self._optimizer, self._number)

    def read_after(self) -> None:
        if self._waits:
            self._waits = False
            self._observer.take_gradients(self._optimizer, self._number)

    def put(self, session: Session) -> None:
        """Do nothing: all is handed on."""


class _Parameters:
    """The parameters and buffers of a step, and what was read of them at the end of the last."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._tensors: list[Tensor] = []
        self._places: dict[int, int] = {}
        self._before: list[TensorPrints] = []
        self._known = KnownTensors()

    def begin(self, names: list[str], tensors: list[Tensor]) -> None:
        """Read the parameters with which a step begins, unless they are as the last one left them.

        Args:
            names: of the tensors.
            tensors: the parameters and buffers.
        """
        self._names, self._tensors = names, tensors
        self._places = dict(zip(map(id, tensors), range(len(tensors)), strict=True))
        self._known.next_step()
        self._before = [TensorPrints(tensors, self._known)]

    def places_of(self, tensors: Sequence[Tensor], prefix: str) -> list[int]:
        """Return the places of parameters; new ones are read, and named by their places here."""
        known = self._places
        new = [place for place, one in enumerate(tensors) if id(one) not in known]
        for place in new:
            known[id(tensors[place])] = len(self._tensors)
            self._names.append(prefix + str(place))
            self._tensors.append(tensors[place])
        if new:
            self._before.append(TensorPrints([tensors[place] for place in new], self._known))
        return [known[id(one)] for one in tensors]

    def end(self) -> tuple[list[str], list[str], Prints, Prints]:
        """Return names, types, and the prints before and now; forget the parameters."""
        before = np.concatenate([reading.wait() for reading in self._before])
        # What is not trained is read again only if it seems to have changed.
        after = TensorPrints(self._tensors, self._known, Ask.FROZEN).wait()
        types = [_name_of(tensor.dtype) for tensor in self._tensors]
        self._tensors, self._before = [], []
        return self._names, types, before, after


@cache
def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
