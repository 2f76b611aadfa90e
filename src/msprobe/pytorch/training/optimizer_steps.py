# SPDX-License-Identifier: Apache-2.0
"""Record each step of each `torch.optim` optimizer: settings, gradients, state, parameters.

Torch announces the steps by its global optimizer hooks, wherever the optimizer is created and
whatever is wrapped around it (accelerate, DeepSpeed, FSDP, schedulers).
"""

from __future__ import annotations

import itertools
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import update_wrapper
from types import FrameType
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from msprobe.capture.session import Session
from msprobe.dump.facts import (
    Number,
    OptimizedParameters,
    OptimizerGroup,
    OptimizerStep,
    Option,
    sample_index,
)
from msprobe.pytorch.interception.guard import quietly
from msprobe.pytorch.interception.tracing import is_tracing
from msprobe.pytorch.training.model_contents import ModelContents, NamedModels, Prefixed
from msprobe.pytorch.values.tensor_columns import Ask, KnownTensors, Samples, TensorColumns

Wake = Callable[[], None]

# Keys of a group that are no settings.
_NO_OPTIONS: Final = ("params", "param_names")
_STEP: Final = "step"
_MAX_OPTION_ELEMENTS: Final = 16
_WHERE: Final = "optimizer step"


def _nothing() -> None:
    """Do nothing."""


# The code around every step of every optimizer.
_STEP_CODE: Final = Optimizer.profile_hook_step(_nothing).__code__


class Draft(Protocol):
    """The record of an optimizer's step while it runs."""

    def read_before(self) -> None:
        """Read what the optimizer changes next."""

    def read_after(self) -> None:
        """Read what the optimizer leaves; a second call does nothing."""

    def put(self, session: Session) -> None:
        """Hand the record to a session."""


MakeDraft = Callable[[Optimizer, tuple[int, int], bool], Draft]
"""Begins the record of a step: the optimizer, its number and that of the call, has a closure."""


class StepCounts(NamedTuple):
    """What a step of the run has made when an optimizer begins its own.

    Attributes:
        outlined: calls without a record; None where these are not noted.
        passes: backward passes; None where these are not counted.
    """

    outlined: int | None = None
    passes: int | None = None


class FactDrafts:
    """Makes the records of optimizer steps in the facts of a step."""

    def __init__(self, known: KnownTensors, counts: Callable[[], StepCounts] = StepCounts) -> None:
        """Create it.

        Args:
            known: of parameters that have not changed.
            counts: returns what the step has made until now.
        """
        self._known = known
        self._counts = counts
        self._models = NamedModels()

    def watch(self, models: Sequence[Prefixed]) -> None:
        """Name parameters as these models do."""
        self._models = NamedModels(models)

    def __call__(self, optimizer: Optimizer, place: tuple[int, int], has_closure: bool) -> Draft:
        """Return a new record."""
        known = self._known.names
        if any(id(one) not in known for group in optimizer.param_groups for one in group["params"]):
            known = self._known.names = ModelContents.of(self._models).names
        names = names_of(optimizer, place[0], known)
        return _Draft(optimizer, place, names, has_closure, self._known, self._counts())


class OptimizerSteps:
    """Takes the steps of optimizers from `install` until the step of the run ends."""

    def __init__(
        self,
        session: Session,
        go_to_sleep: Callable[[bool], Wake],
        make_draft: MakeDraft,
        in_closure: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Create it.

        Args:
            session: its facts get the records.
            go_to_sleep: makes the calls of an optimizer go unrecorded, given whether a closure
                of the user's runs among them; returns how to end that. May be ended twice.
            make_draft: begins the record of a step.
            in_closure: makes the calls of a closure go recorded meanwhile.
        """
        self._in_closure = in_closure
        self._session = session
        self._go_to_sleep = go_to_sleep
        self._make_draft = make_draft
        self._numbers: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._new_numbers = itertools.count()
        self._calls: Counter[int] = Counter()
        self._running: dict[int, _Running] = {}
        self._installed = False

    @property
    def ended(self) -> int:
        """How many steps of optimizers have ended in this step of the run."""
        running = (each.draft is not None for each in self._running.values())
        return self._calls.total() - sum(running)

    def number_of(self, optimizer: Optimizer) -> int | None:
        """Return the number of an optimizer; None before its first step."""
        return self._numbers.get(optimizer)

    def install(self) -> None:
        """Watch the optimizers until `Session.lasting_undo` is closed."""
        if not self._installed:
            self._installed = True
            undo = self._session.lasting_undo
            undo.callback(self._removed)
            undo.callback(register_optimizer_step_pre_hook(self._before).remove)
            undo.callback(register_optimizer_step_post_hook(self._after).remove)
        for optimizer in _stepping_now():
            running = self._running.get(id(optimizer))
            if running is None:
                self._start(optimizer, has_closure=True)
            elif running.draft is None:  # it began while no step was recorded
                quietly(self._session, _WHERE, self._begin, optimizer, True, running)

    def next_step(self) -> None:
        """Begin to count anew; steps of optimizers that run now belong to the step that is over."""
        self._calls.clear()
        for running in list(self._running.values()):
            running.end()

    def _removed(self) -> None:
        self._installed = False
        self.next_step()

    def _before(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if torch.compiler.is_compiling() or is_tracing():
            return None
        running = self._running.get(id(optimizer))
        if running is not None:  # its step calls that of its base class
            running.depth += 1
            return None
        has_closure = any(map(callable, (*args, *kwargs.values())))
        arguments = _Arguments(kwargs, self._start(optimizer, has_closure=has_closure))
        if has_closure:
            args = tuple(map(self._of_user, args))
            arguments.update({name: self._of_user(value) for name, value in kwargs.items()})
        return args, arguments

    def _of_user(self, argument: Any) -> Any:
        """Return a closure that runs awake; anything else as it is."""
        if not callable(argument):
            return argument

        def awake(*args: Any, **kwargs: Any) -> Any:
            with self._in_closure():
                return argument(*args, **kwargs)

        return update_wrapper(awake, argument)

    def _start(self, optimizer: Optimizer, *, has_closure: bool) -> _Running:
        running = _Running(optimizer, self._running, self._go_to_sleep(has_closure))
        quietly(self._session, _WHERE, self._begin, optimizer, has_closure, running)
        return running

    def _begin(self, optimizer: Optimizer, has_closure: bool, running: _Running) -> None:
        if not self._session.facts.is_open:
            return
        number = self._numbers.get(optimizer)
        if number is None:  # not their count, as some may be gone
            number = self._numbers[optimizer] = next(self._new_numbers)
        draft = self._make_draft(optimizer, (number, self._calls[number]), has_closure)
        self._calls[number] += 1
        running.draft = draft
        self._read_last(optimizer, draft, running.undo)

    def _read_last(self, optimizer: Optimizer, draft: Draft, undo: ExitStack) -> None:
        """Have a draft read behind the optimizer's own hooks, which may change its gradients.

        And in front of those that come after the step.
        """
        after: Any = optimizer._optimizer_step_post_hooks  # an OrderedDict
        if after:
            handle = optimizer.register_step_post_hook(self._hook(draft.read_after))
            after.move_to_end(handle.id, last=False)
            undo.callback(handle.remove)
        if optimizer._optimizer_step_pre_hooks:
            handle = optimizer.register_step_pre_hook(self._hook(draft.read_before))
            undo.callback(handle.remove)
        else:
            draft.read_before()

    def _hook(self, action: Callable[[], None]) -> Callable[..., None]:
        return lambda *_: quietly(self._session, _WHERE, action)

    def _after(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        running = self._running.get(id(optimizer))
        if running is None:
            return
        if running.depth:
            running.depth -= 1
            return
        running.end()
        if running.draft is not None:
            quietly(self._session, _WHERE, self._finish, running.draft)

    def _finish(self, draft: Draft) -> None:
        draft.read_after()
        draft.put(self._session)


def _stepping_now() -> list[Optimizer]:
    """Return the optimizers in whose closure this runs: Lightning trains there."""
    found: dict[int, Optimizer] = {}
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _STEP_CODE:
            optimizer = frame.f_locals.get("self")
            if isinstance(optimizer, Optimizer):
                found[id(optimizer)] = optimizer
        frame = frame.f_back
    return list(found.values())


class _Running:
    """An optimizer's step between its hooks.

    Attributes:
        depth: how many calls of `step` run inside the outermost one.
        draft: its record; None if it gets none.
        undo: takes away what is there only while it runs.
    """

    def __init__(self, optimizer: Optimizer, running: dict[int, _Running], wake: Wake) -> None:
        self.depth = 0
        self.draft: Draft | None = None
        self.undo = ExitStack()
        self.undo.callback(wake)
        self.undo.callback(running.pop, id(optimizer), None)
        running[id(optimizer)] = self

    def end(self) -> None:
        """Note that it is over; a second call does nothing."""
        self.undo.close()


class _Arguments(dict[str, Any]):
    """The keyword arguments of a step, which torch keeps for as long as it runs.

    No hook is called when a step raises: it is over when these go.
    """

    def __init__(self, kwargs: dict[str, Any], running: _Running) -> None:
        super().__init__(kwargs)
        self._running = running

    def __del__(self) -> None:
        self._running.end()


class _Draft:
    """The record of an optimizer's step while it runs."""

    def __init__(
        self,
        optimizer: Optimizer,
        place: tuple[int, int],
        names: list[str],
        has_closure: bool,
        known: KnownTensors,
        counts: StepCounts,
    ) -> None:
        self._known = known
        self._counts = counts
        self._optimizer = optimizer
        self._place = place
        self._names = names
        self._has_closure = has_closure
        self._sizes = [len(group["params"]) for group in optimizer.param_groups]
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._shapes = [list(p.shape) for p in self._parameters]
        self._dtypes = [str(p.dtype) for p in self._parameters]
        self._options: list[dict[str, Option | Tensor]] = []
        self._has_gradient: list[bool] = []
        self._steps: list[Number] | TensorColumns = []
        self._states: dict[str, TensorColumns] = {}
        self._before: TensorColumns | None = None
        self._gradient: TensorColumns | None = None
        self._after: TensorColumns | None = None

    def read_before(self) -> None:
        """Read settings, state, gradients and parameters; the optimizer changes them next."""
        optimizer = self._optimizer
        self._options = [options_of(group) for group in optimizer.param_groups]
        states = [optimizer.state.get(p, {}) for p in self._parameters]
        self._steps = _numbers([state.get(_STEP) for state in states])
        for name in dict.fromkeys(key for state in states for key in state if key != _STEP):
            values = [state.get(name) for state in states]
            tensors = [value if isinstance(value, Tensor) else None for value in values]
            if any(tensor is not None for tensor in tensors):
                self._states[str(name)] = TensorColumns(tensors, samples=Samples.TEXT)
        self._before = TensorColumns(self._parameters, self._known, samples=Samples.TEXT)
        if not self._has_closure:
            self._read_gradients()

    def read_after(self) -> None:
        """Read the parameters as the optimizer leaves them."""
        if self._after is None:
            self._known.told.update(self._names)
            if self._has_closure:  # which has computed the gradients meanwhile
                self._read_gradients()
            self._after = TensorColumns(
                self._parameters, self._known, Ask.NONE, samples=Samples.TEXT
            )

    def _read_gradients(self) -> None:
        gradients = [p.grad for p in self._parameters]
        self._has_gradient = [gradient is not None for gradient in gradients]
        self._gradient = TensorColumns(gradients, samples=Samples.TEXT)

    @property
    def is_ready(self) -> bool:
        """Whether every number is there, none still on a device."""
        options = (value for group in self._options for value in group.values())
        return all(one.is_ready for one in self._columns().values()) and not any(
            isinstance(value, Tensor) for value in options
        )

    def _columns(self) -> dict[str, TensorColumns]:
        """Return everything read, by the names of the samples."""
        states = dict(self._states)
        if isinstance(self._steps, TensorColumns):
            states[_STEP] = self._steps
        known = {"before": self._before, "gradient": self._gradient, **states, "after": self._after}
        return {name: columns for name, columns in known.items() if columns is not None}

    def put(self, session: Session) -> None:
        """Hand the record over; one with numbers on a device when the step of the run ends."""

        record = session.calls.last_record

        def made() -> OptimizerStep:
            step = self.step(record)
            session.calls.sink.optimizer_step(step)
            return step

        session.facts.append("events", made() if self.is_ready else made)

    def step(self, record: str | None) -> OptimizerStep:
        """Return the record; waits for numbers that are still on a device.

        Args:
            record: the last forward record of the step so far.
        """
        columns = self._columns()
        for one in columns.values():
            one.wait()
        steps = self._steps
        if isinstance(steps, TensorColumns):
            del columns[_STEP]
            steps = [row[0] if row else None for row in steps.samples]
        kind = type(self._optimizer)
        return OptimizerStep(
            class_name=f"{kind.__module__}.{kind.__qualname__}",
            number=self._place[0],
            call=self._place[1],
            record=record,
            outlined=self._counts.outlined,
            passes=self._counts.passes,
            groups=self._groups(),
            parameters=OptimizedParameters(
                name=self._names,
                shape=self._shapes,
                dtype=self._dtypes,
                has_gradient=self._has_gradient,
                steps=steps,
                gradient=columns["gradient"].fingerprints(),
                state={name: one.fingerprints() for name, one in self._states.items()},
                before=columns["before"].fingerprints(),
                after=columns["after"].fingerprints(),
                samples=self._samples(columns),
                notes=self._notes(columns),
            ),
        )

    def _groups(self) -> list[OptimizerGroup]:
        groups, first = [], 0
        for size, options in zip(self._sizes, self._options, strict=True):
            places = range(first, first + size)
            first = places.stop
            shown = {key: described(value) for key, value in options.items()}
            groups.append(OptimizerGroup(options=shown, parameters=list(places)))
        return groups

    def _samples(self, columns: dict[str, TensorColumns]) -> dict[str, Any]:
        counts = columns["before"].elements
        known: dict[int | None, list[int] | None] = {None: None}
        known |= {count: list(sample_index(count)) for count in set(counts) if count is not None}
        samples: dict[str, Any] = {"index": [known[count] for count in counts]}
        for name, one in columns.items():
            samples[name] = one.samples if one.text is None else one.text
            if one.elements != counts:  # positions in a part of it mean something else
                pairs = zip(one.rows(), one.elements, counts, strict=True)
                samples[name] = [row if found == count else None for row, found, count in pairs]
        return samples

    def _notes(self, columns: dict[str, TensorColumns]) -> dict[str, str]:
        return {
            f"{self._names[place]} {name}": note
            for name, one in columns.items()
            for place, note in one.notes.items()
        }


def names_of(optimizer: Optimizer, number: int, known: Mapping[int, str]) -> list[str]:
    """Return the names of the parameters: the model's, else the optimizer's own, else a place."""
    return [
        known.get(id(parameter)) or own
        for place, group in enumerate(optimizer.param_groups)
        for parameter, own in zip(
            group["params"],
            group.get("param_names")
            or [f"optimizer.{number}.group.{place}.{one}" for one in range(len(group["params"]))],
            strict=True,
        )
    ]


def options_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a group as they are now."""
    return {str(key): _kept(value) for key, value in group.items() if key not in _NO_OPTIONS}


def _kept(value: Any) -> Any:
    if isinstance(value, Tensor):
        return described(value) if value.is_cpu else value.detach().clone()
    return described(value)


def described(value: Any) -> Option:
    """Return a setting in the form in which it is written."""
    if isinstance(value, np.generic):  # what a schedule computed by NumPy is
        return described(value.item())
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [described(one) for one in value]
    if isinstance(value, dict):
        return {str(key): described(one) for key, one in value.items()}
    if isinstance(value, Tensor) and value.numel() <= _MAX_OPTION_ELEMENTS:
        return value.tolist()
    return f"<{type(value).__name__}>"


def _numbers(values: Sequence[Any]) -> list[Number] | TensorColumns:
    """Return counts, which may be numbers or tensors of one element; as columns on a device."""
    if any(isinstance(value, Tensor) and not value.is_cpu for value in values):
        return TensorColumns([value if isinstance(value, Tensor) else None for value in values])
    return [float(value) if isinstance(value, int | float | Tensor) else None for value in values]
