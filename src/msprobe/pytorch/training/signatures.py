# SPDX-License-Identifier: Apache-2.0
"""Observe what a signature holds of a step: data, losses, gradients, parameters; no calls."""

from __future__ import annotations

import sys
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from types import FrameType
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_code
from torch.optim.optimizer import Optimizer
from torch.utils.hooks import RemovableHandle

from msprobe.capture.session import Session
from msprobe.capture.signature import Prints, StepSignatures, no_prints
from msprobe.dump.signature_file import AUTOCAST, CLIPPING, OPTIMIZER_STEPS
from msprobe.pytorch.interception.backward_entry import BackwardEntry
from msprobe.pytorch.interception.guard import quietly
from msprobe.pytorch.interception.module_hooks import keyword_arguments
from msprobe.pytorch.interception.tracing import is_tracing
from msprobe.pytorch.training.losses import Losses
from msprobe.pytorch.training.model_calls import ModelCalls
from msprobe.pytorch.training.model_contents import HeldTensors, NamedModels, Prefixed
from msprobe.pytorch.training.optimizer_steps import OptimizerSteps, described, options_of
from msprobe.pytorch.training.start_state import autocast_types, random_states
from msprobe.pytorch.training.training_calls import TrainingCalls
from msprobe.pytorch.values.prints import KnownPrints, TensorPrints
from msprobe.pytorch.values.tensor_columns import Ask

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
        self._hooks = _DataHooks(self)
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
        session.undo.callback(self._hooks.remove)
        session.attempt("hooking models", self._hooks.arm)
        if not self._losses.is_installed:
            session.attempt("hooking backward", self._losses.install, self._backward)
        session.attempt("hooking optimizers", self._optimizers.install)
        self._clipping.install_clipping()

    def see_next_call(self) -> None:
        """Note that no call of a model runs: a KeyboardInterrupt may have left the last one."""
        self._session.attempt("hooking models", self._hooks.arm)

    def next_step(self) -> None:
        """Forget the state of the step that is over."""
        self._data.next_step()
        self._losses.next_step()
        self._optimizers.next_step()

    # -- the step ------------------------------------------------------------------------------

    def _begin_step(self) -> None:
        session = self._session
        if not session.facts.is_open or session.account is self._begun:
            return
        self._begun = session.account
        session.facts.put("random", random_states())
        self._sink.put_settings(CLIPPING, [])
        self._parameters.begin(self._models)
        self._gradients.clear()
        self._taken.clear()
        session.step_undo.callback(quietly, session, _WHERE, self._end_step)

    def _end_step(self) -> None:
        names, types, prints = self._parameters.end()
        gradient = prints[1]
        for places, reading in self._gradients:
            found = reading.wait()
            if len(self._gradients) == 1 and places == list(range(len(names))):
                gradient[:] = found
                break
            earlier = gradient["checksum"][places]
            gradient[places] = found
            # An optimizer may step several times.
            gradient["checksum"][places] = earlier * np.uint64(31) + found["checksum"]
        self._sink.put_parameters(names, types, prints)

    # -- data ----------------------------------------------------------------------------------

    def is_model(self, module: nn.Module) -> bool:
        """Return whether this is one of the models."""
        return id(module) in self._roots

    @property
    def has_one_model(self) -> bool:
        """Whether there is one model, which has no other inside."""
        return len(self._roots) == 1

    def enter(self, module: nn.Module, args: tuple[Any, ...], frame: FrameType) -> bool:
        """Take the data of a call that begins, if it is one of a model.

        Args:
            module: what is called.
            args: the positional arguments.
            frame: torch's, which calls the hooks of the module.

        Returns: whether it is a call of a model that is followed.
        """
        session = self._session
        if not self.is_model(module) or torch.compiler.is_compiling() or is_tracing():
            return False
        # Accelerate enters autocast within the call of a model.
        self._hooks.look_inside()
        self.look_at_autocast()
        if threading.get_ident() == session.thread and torch._C._current_graph_task_id() == -1:
            kwargs = keyword_arguments(frame)
            quietly(session, "data", self._data.begin, module, args, kwargs, None)
        return True

    def look_at_autocast(self) -> None:
        """Take the types in which the model computes now."""
        quietly(self._session, "autocast", self._put_autocast)

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
        groups = [group["params"] for group in optimizer.param_groups]
        parameters = [one for group in groups for one in group]
        places = self._parameters.places_of(parameters, map(len, groups), number)
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


class _DataHooks:
    """The hooks that see calls of the models begin.

    They are torch's global ones: a hook of a module would be copied and saved with it. While torch
    has one, each call of any module takes a longer way. So it is away during a call of the model,
    until a hook of the model's own, which is there as long, sees its end or an exception.
    """

    def __init__(self, observer: SignatureObserver) -> None:
        self._observer = observer
        self._begin = self._inside = self._end = _no_handle()

    def arm(self) -> None:
        """See the next call of a model, until `remove`."""
        self._begin.remove()
        self._begin = module_code.register_module_forward_pre_hook(self._see)

    def look_inside(self) -> None:
        """Have a look at autocast when the next module is called that is no model."""
        self._inside.remove()
        self._inside = module_code.register_module_forward_pre_hook(self._see_inside)

    def remove(self) -> None:
        """See nothing any more."""
        for handle in (self._begin, self._inside, self._end):
            handle.remove()

    def _see(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        observer = self._observer
        if observer.enter(module, args, sys._getframe(1)) and observer.has_one_model:
            self._end.remove()
            self._end = nn.Module.register_forward_hook(module, _EndHook(self), always_call=True)
            self._begin.remove()

    def _see_inside(self, module: nn.Module, _args: tuple[Any, ...]) -> None:
        if not self._observer.is_model(module):
            self._inside.remove()
            self._observer.look_at_autocast()

    def see_end(self, has_result: bool) -> None:
        """Note that a call of the model is over.

        Args:
            has_result: whether it returned something; torch's loop over the hooks of a call that
                raised must find them as they were.
        """
        self._inside.remove()
        if has_result:
            self._end.remove()
        self.arm()


class _EndHook:
    """The hook of a model's own; copies of the model have it, too, if they are made meanwhile."""

    __slots__ = ("_hooks",)

    def __init__(self, hooks: _DataHooks | None = None) -> None:
        self._hooks = hooks

    def __call__(self, module: nn.Module, _args: tuple[Any, ...], result: Any) -> None:
        if self._hooks is not None:
            self._hooks.see_end(result is not None)

    def __reduce__(self) -> tuple[type[_EndHook], tuple[()]]:
        return _EndHook, ()


def _no_handle() -> RemovableHandle:
    return RemovableHandle(OrderedDict())


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
    """The parameters and buffers of a step, and what was read of them at the end of the last.

    Behind those of the models stand parameters that optimizers have, and no model.
    """

    def __init__(self) -> None:
        self._held = HeldTensors()
        self._known = KnownPrints(0)
        self._dtypes: list[torch.dtype] = []
        self._types: list[str] = []
        self._orders: dict[int, tuple[list[int], list[int]]] = {}
        # Of the step.
        self._tensors: list[Tensor] = []
        self._before: TensorPrints | None = None
        self._further: list[Tensor] = []
        self._further_names: list[str] = []
        self._further_before: list[TensorPrints] = []

    def begin(self, models: NamedModels) -> None:
        """Read the parameters with which a step begins, unless they are as the last one left them.

        Args:
            models: are asked for their parameters and buffers.
        """
        self._tensors, are_same = self._held.find(models)
        if not are_same:
            self._known = KnownPrints(len(self._tensors))
            self._orders.clear()
        self._before = TensorPrints(self._tensors, self._known)

    def places_of(
        self, parameters: Sequence[Tensor], sizes: Iterable[int], number: int
    ) -> list[int]:
        """Return the places of the parameters of an optimizer; new ones are read, and named.

        Args:
            parameters: of all groups.
            sizes: of the groups.
            number: of the optimizer; new ones are named by it, and by their places in it.
        """
        order = list(map(id, parameters))
        known = self._orders.get(number)
        if known is not None and known[0] == order:
            return known[1]
        count = len(self._tensors)
        places = dict(self._held.places)
        places |= {id(one): count + place for place, one in enumerate(self._further)}
        new: list[Tensor] = []
        names = (f"{index}.{place}" for index, size in enumerate(sizes) for place in range(size))
        for one, name in zip(parameters, names, strict=True):
            if id(one) not in places:
                places[id(one)] = len(places)
                new.append(one)
                self._further_names.append(f"optimizer.{number}.group.{name}")
        if new:
            self._further += new
            self._further_before.append(TensorPrints(new))
        found = [places[one] for one in order]
        if max(found, default=0) < count:
            self._orders[number] = order, found
        return found

    def end(self) -> tuple[list[str], list[str], Prints]:
        """Return names, types, and prints, shape (3, number of names); forget the tensors.

        The first row has the parameters as they were, the last as they are; the other is empty.
        """
        tensors, further = self._tensors, self._further
        names = [*self._held.names, *self._further_names]
        prints = no_prints(3, len(names))
        count = len(tensors)
        if self._before is not None:
            prints[0, :count] = self._before.wait()
            # What is not trained is read again only if it seems to have changed.
            prints[2, :count] = TensorPrints(tensors, self._known, Ask.FROZEN).wait()
        if further:
            found = [reading.wait() for reading in self._further_before]
            prints[0, count:] = np.concatenate(found)
            prints[2, count:] = TensorPrints(further).wait()
        dtypes = [one.dtype for one in tensors]
        if dtypes != self._dtypes:
            self._dtypes, self._types = dtypes, [_name_of(one) for one in dtypes]
        types = [*self._types, *(_name_of(one.dtype) for one in further)]
        self._tensors, self._before = [], None
        self._further, self._further_names, self._further_before = [], [], []
        return names, types, prints


@cache
def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
