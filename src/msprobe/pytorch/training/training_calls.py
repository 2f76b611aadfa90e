# SPDX-License-Identifier: Apache-2.0
"""Record gradient clipping, updates of gradient scalers, and steps of learning-rate schedulers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from numbers import Real
from types import GeneratorType
from typing import Any, Final

import torch
from torch import Tensor
from torch.optim import lr_scheduler

from msprobe.capture.nan_check import NanCheck
from msprobe.capture.session import Session
from msprobe.dump.facts import Clip, Event, Number, Scaler, Schedule
from msprobe.pytorch.interception.guard import quietly
from msprobe.pytorch.interception.traceable_swap import divert_traceably
from msprobe.pytorch.interception.tracing import is_tracing
from msprobe.pytorch.values.readable import PLAIN
from msprobe.pytorch.values.tensor_columns import TensorColumns

# Its gradients are parts, whose norm only its own method knows.
_FSDP: Final = "torch.distributed.fsdp.fully_sharded_data_parallel"
Arguments = tuple[Any, ...]
Original = Callable[..., Any]
Wake = Callable[[], None]
Finish = Callable[[Clip, Number], Clip]
InParts = Callable[[Any], tuple[Tensor, Finish] | None]
"""Of a norm that several ranks share: the part of this one, and what puts it into the record."""


class TrainingCalls:
    """Takes such calls from `install` until the step of the run ends."""

    def __init__(
        self,
        session: Session,
        go_to_sleep: Callable[[bool], Wake],
        concerns: Callable[[Iterable[int]], bool] = lambda _: True,
        in_parts: InParts = lambda _: None,
        passes: Callable[[], int | None] = lambda: None,
    ) -> None:
        """Create it.

        Args:
            session: see `OptimizerSteps`.
            go_to_sleep: the same.
            concerns: tells by the ``id`` of parameters or optimizers whether clipping of these, or
                the scale of a scaler for these, is taken.
            in_parts: tells of a norm which part of it this rank has; None of a whole one.
            passes: returns how many backward passes the step has begun; None if not known.
        """
        self._passes = passes
        self._session = session
        self._in_parts = in_parts
        self._concerns = concerns
        self._go_to_sleep = go_to_sleep
        self._inside = False
        self._installed = False

    def install(self) -> None:
        """Watch the functions until the step ends."""
        self._install(self._watch_clipping, self._watch_scalers, self._watch_schedules)

    def install_scalers(self) -> None:
        """Watch gradient scalers alone until the step ends."""
        self._install(self._watch_scalers)

    def install_clipping(self) -> None:
        """Watch what limits gradients alone until the step ends."""
        self._install(self._watch_clipping)

    def _install(self, *watched: Callable[[], None]) -> None:
        if self._installed:
            return
        self._installed = True
        self._session.lasting_undo.callback(self._removed)
        for watch in watched:
            watch()

    def _watch_clipping(self) -> None:
        for name in ("clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_"):
            function = getattr(torch.nn.utils, name, None)
            if function is not None:
                self._divert(function, partial(self._clip, name))
        sharded = sys.modules.get(_FSDP)
        if sharded is not None:
            function = sharded.FullyShardedDataParallel.clip_grad_norm_
            self._divert(function, partial(self._clip, "clip_grad_norm_"))

    def _watch_scalers(self) -> None:
        self._divert(torch.amp.GradScaler.update, self._scale)

    def _watch_schedules(self) -> None:
        for kind in vars(lr_scheduler).values():
            if isinstance(kind, type) and issubclass(kind, lr_scheduler.LRScheduler):
                step = vars(kind).get("step")
                if step is not None:
                    self._divert(step, self._schedule)

    def _divert(self, function: Any, handler: Callable[..., Any]) -> None:
        undo = self._session.attempt("watching training calls", divert_traceably, function, handler)
        if undo is not None:
            self._session.lasting_undo.callback(undo)

    def _removed(self) -> None:
        self._installed = False

    # -- the diversions ------------------------------------------------------------------------

    def _clip(self, name: str, original: Original, args: Arguments, _kwargs: Any) -> Any:
        if self._inside or is_tracing():
            return original(*args)
        parameters, args = _listed(args)
        with self._observed():
            result = original(*args)
        if self._concerns(map(id, parameters)):
            count = len(parameters)
            quietly(self._session, "clipping", self._take_clip, name, count, args, result)
        return result

    def _take_clip(self, name: str, count: int, args: Arguments, result: Any) -> None:
        limits_norm = name != "clip_grad_value_"
        total_norm = None
        if limits_norm:
            total_norm = args[2] if name == "clip_grads_with_norm_" else result
        of_parts = self._in_parts(total_norm)
        read, finish = (total_norm, _as_it_is) if of_parts is None else of_parts
        passes = self._passes()

        def made(numbers: list[Number]) -> Clip:
            maximum, norm_type, norm = numbers
            clip = Clip(
                function=name,
                max=maximum,
                norm_type=norm_type,
                total_norm=norm if read is total_norm else None,
                parameters=count,
                passes=passes,
            )
            return finish(clip, norm)

        norm_type = float(args[2]) if name == "clip_grad_norm_" else None
        self._append(_Numbers([args[1], norm_type, read]), made)

    def _scale(self, original: Original, args: Arguments, _kwargs: Any) -> Any:
        scaler = args[0]
        if self._inside or is_tracing() or not scaler.is_enabled():
            return original(*args)
        before = quietly(self._session, "scaler", _scale_and_found, scaler)
        is_other = not self._concerns(scaler._per_optimizer_states)
        result = original(*args)
        if before is not None:
            quietly(self._session, "scaler", self._take_scale, before, scaler, is_other)
        return result

    def _take_scale(self, before: _Numbers, scaler: Any, is_other: bool) -> None:
        after = _Numbers([scaler._scale])

        def made(numbers: list[Number]) -> Scaler:
            scale, *found = numbers
            skipped = any(found) if found else None
            if is_other:
                return Scaler(scale=None, skipped=skipped, new_scale=None)
            return Scaler(scale=scale, skipped=skipped, new_scale=after.wait()[0])

        self._append(before, made, after.is_ready)

    def _schedule(self, original: Original, args: Arguments, _kwargs: Any) -> Any:
        # One that is made steps for the first time.
        if self._inside or is_tracing() or getattr(args[0], "_is_initial", False):
            return original(*args)
        with self._observed():
            result = original(*args)
        quietly(self._session, "schedule", self._take_schedule, args[0])
        return result

    def _take_schedule(self, scheduler: Any) -> None:
        kind, last_epoch = type(scheduler), getattr(scheduler, "last_epoch", None)

        def made(numbers: list[Number]) -> Schedule:
            return Schedule(
                class_name=f"{kind.__module__}.{kind.__qualname__}",
                last_epoch=last_epoch,
                lr=numbers,
            )

        self._append(_Numbers([group["lr"] for group in scheduler.optimizer.param_groups]), made)

    @contextmanager
    def _observed(self) -> Iterator[None]:
        """Let the calls inside make no records of their own."""
        wake = self._go_to_sleep(False)
        self._inside = True
        try:
            yield
        finally:
            self._inside = False
            wake()

    def _append(
        self, numbers: _Numbers, made: Callable[[list[Number]], Event], is_ready: bool = True
    ) -> None:
        def waited() -> Event:
            return made(numbers.wait())

        entry = waited() if numbers.is_ready and is_ready else waited
        check = self._session.checks.check
        if isinstance(check, NanCheck):
            check.note_update(entry)
        else:
            self._session.facts.append("events", entry)


def _as_it_is(clip: Clip, _: Number) -> Clip:
    return clip


class _Numbers:
    """Numbers and tensors of one number; those on a device come later."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._values = values
        # One over several ranks holds a part of the number only.
        self._columns = TensorColumns([one if type(one) in PLAIN else None for one in values])

    @property
    def is_ready(self) -> bool:
        return self._columns.is_ready

    def wait(self) -> list[Number]:
        self._columns.wait()
        return [
            float(one) if isinstance(one, Real) else row[0] if row else None
            for one, row in zip(self._values, self._columns.samples, strict=True)
        ]


def _scale_and_found(scaler: Any) -> _Numbers:
    """Return the scale, and for each optimizer and device whether it found an infinity or NaN."""
    states = scaler._per_optimizer_states.values()
    found = [one for state in states for one in state["found_inf_per_device"].values()]
    return _Numbers([scaler._scale, *found])


def _listed(args: Arguments) -> tuple[Collection[Any], Arguments]:
    """Return the parameters that the first argument has, and arguments that still have them."""
    parameters, *rest = args
    if isinstance(parameters, torch.nn.Module):
        return list(parameters.parameters()), args
    if isinstance(parameters, Tensor):
        return [parameters], args
    if isinstance(parameters, Collection):
        return parameters, args
    items = list(parameters)
    # Torch warns of a generator that has nothing left.
    again = (one for one in items) if isinstance(parameters, GeneratorType) else items
    return items, (again, *rest)
