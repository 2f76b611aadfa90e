# SPDX-License-Identifier: Apache-2.0
"""Measure parameters, their gradients before and after reduction, and states of optimizers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from msprobe.capture.session import Session
from msprobe.monitor.collecting.step_rows import Batch, Key, StepRows
from msprobe.monitor.rows import Stream
from msprobe.monitor.settings import StreamSettings
from msprobe.pytorch.gradients.parameter_gradients import make_first
from msprobe.pytorch.interception.guard import quietly
from msprobe.pytorch.monitoring.optimizers import OptimizerView, added_up
from msprobe.pytorch.monitoring.partial_norms import copies_of
from msprobe.pytorch.monitoring.unsharded import flat_parameters, watch_flat, watch_wholes
from msprobe.pytorch.values.measures import Known
from msprobe.pytorch.values.readable import readable

Named = tuple[Key, Tensor]

_MOMENTS: Final = {"exp_avg": Stream.EXP_AVG, "exp_avg_sq": Stream.EXP_AVG_SQ}
_COUNTS: Final = ("step", "eta", "mu", "mu_product", "RMS")
"""States of torch's optimizers that are single numbers, also of parameters without dimensions."""
RATIO: Final = "ratio"
MG_DIRECTION: Final = "mg_direction"


class _Accumulated:
    """How often the gradient of a parameter was added up in a step."""

    __slots__ = ("begun", "count", "has_whole", "key")

    def __init__(self, key: Key) -> None:
        self.key = key
        self.begun = 0
        self.count = 0
        self.has_whole = False  # FSDP keeps a part: gradients of the whole are told apart


class Parameters:
    """The parameters of the models, read around each step of the optimizer.

    Attributes:
        rows: of the step; None while nothing is collected.
    """

    def __init__(
        self,
        session: Session,
        parameters: Sequence[Named],
        view: OptimizerView,
        *,
        micro_steps: int,
        reads_main_grad: bool,
        every_micro_step: bool,
        holds_reduced: bool,
        direction: bool,
        are_parts: bool,
    ) -> None:
        """Create it; no hook is installed.

        Args:
            session: learns of exceptions.
            parameters: the parameters with their names.
            view: reads gradients and states.
            micro_steps: backward passes for each step of the optimizer.
            reads_main_grad: whether gradients are in `main_grad`.
            every_micro_step: whether gradients before reduction are measured each time.
            holds_reduced: whether this rank measures reduced gradients that others have, too.
            direction: whether gradients are compared with first moments.
            are_parts: whether plain tensors are parts of parameters that ranks share.
        """
        self._session = session
        self._parameters = parameters
        self._view = view
        self._micro_steps = micro_steps
        self._reads_main_grad = reads_main_grad
        self._every_micro_step = every_micro_step
        self._holds_reduced = holds_reduced
        self._direction = direction
        self._are_parts = are_parts
        self.rows: StepRows | None = None
        self._begun = 0
        self._unreduced: dict[int, Batch] = {}
        self._known_parameters: Known = {}
        self._known_gradients: Known = {}
        self._before: list[tuple[Key, Tensor, Tensor]] = []

    def begin_step(self, rows: StepRows | None) -> None:
        """Begin a step, or stop with None."""
        self.rows = rows
        self._begun += 1
        self._unreduced.clear()
        self._known_gradients.clear()
        self._before.clear()

    # -- before reduction ----------------------------------------------------------------------

    def install(self, models: Sequence[nn.Module], chosen: StreamSettings, undo: ExitStack) -> None:
        """Watch the gradients of parameters as torch accumulates them.

        Args:
            models: the models.
            chosen: tells which are wanted.
            undo: takes the hooks away.
        """
        trained = {
            parameter: _Accumulated(key)
            for key, parameter in self._parameters
            if parameter.requires_grad and parameter.is_leaf and chosen.wants(key.name)
        }
        for parameter, gradients in trained.items():
            handle = parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                partial(self._accumulated, gradients)
            )
            make_first(parameter, handle.id)
            undo.callback(handle.remove)

        def take(parameter: Tensor, gradient: Tensor) -> None:
            if parameter in trained:
                self._accumulated(trained[parameter], parameter, gradient)

        watch_wholes(models, trained, take, undo)
        for flat in flat_parameters(models):
            watch_flat(flat, take, undo)

    def _accumulated(
        self, gradients: _Accumulated, parameter: Tensor, whole: Tensor | None = None
    ) -> None:
        """Count a gradient, and measure it if it is wanted: a hook that runs for each of them."""
        rows = self.rows
        if whole is not None:
            gradients.has_whole = True
        elif gradients.has_whole:
            return  # FSDP2 calls the hooks of its part with the reduced gradient
        if rows is None:
            return
        if gradients.begun != self._begun:
            gradients.begun, gradients.count = self._begun, 0
        micro_step = gradients.count
        gradients.count = micro_step + 1
        if self._every_micro_step or micro_step == self._micro_steps - 1:
            quietly(
                *(self._session, "gradient", self._take_unreduced),
                *(rows, gradients.key, micro_step, parameter, whole),
            )

    def _take_unreduced(
        self, rows: StepRows, key: Key, micro_step: int, parameter: Tensor, whole: Tensor | None
    ) -> None:
        gradient = whole
        if gradient is None:
            gradient = parameter.grad
            earlier = added_up(parameter, reads_main_grad=self._reads_main_grad)
            if earlier is not None:
                # Other hooks, which run after this one, add the gradient to it.
                if gradient is None or _is_added(parameter):
                    gradient = earlier
                else:
                    gradient = earlier.view_as(gradient) + gradient
            if gradient is None:
                return
        number = micro_step if self._every_micro_step else 0
        batch = self._unreduced.get(number)
        if batch is None:
            batch = self._unreduced[number] = rows.batch(Stream.GRAD_UNREDUCED, number)
        batch.add((key,), [gradient], self._known_gradients)

    # -- around the step of the optimizer --------------------------------------------------------

    def read_gradients(self) -> None:
        """Measure the gradients that the optimizer gets, and how they agree with first moments."""
        rows = self.rows
        if rows is None:
            return
        self._put(rows, Stream.GRAD_REDUCED, self._reduced, self._known_gradients)
        if self._direction:
            self._put_direction(rows)

    def _reduced(self, parameter: Tensor) -> Tensor | None:
        """Return the gradient that the optimizer gets, if this rank measures it."""
        gradient = self._view.gradient(parameter)
        if self._holds_reduced or self._are_parts or gradient is None:
            return gradient
        has_part = self._view.has_part(parameter) or not _is_whole(gradient)
        return gradient if has_part else None

    def read_before(self) -> None:
        """Measure parameters and states before the step."""
        rows = self.rows
        if rows is None:
            return
        self._put_states(rows)
        self._put(rows, Stream.PARAM_ORIGIN, self._view.value, self._known_parameters)
        if Stream.UPDATE in rows.streams:
            self._copy_parameters(rows)

    def read_after(self) -> None:
        """Measure what the optimizer leaves."""
        rows = self.rows
        if rows is None:
            return
        self._put(rows, Stream.PARAM_UPDATED, self._view.value, self._known_parameters)
        if self._before:
            self._put_updates(rows)

    def total_norm(self) -> tuple[float | None, float | None]:
        """Return the norm of all gradients together as the optimizer gets them.

        Those that were measured unreduced and have not changed since are not read again.

        Returns:
            The norm; None without gradients, where the optimizer tells it, and where this rank has
            a part of one only. And the part of this rank, where it has one of all.
        """
        if self._view.tells_norm or self._are_parts:
            return None, None
        found = [
            gradient
            for _, parameter in self._parameters
            if (gradient := self._view.gradient(parameter)) is not None
        ]
        is_whole = all(map(_is_whole, found))
        copies = np.array([1 if is_whole else copies_of(gradient) for gradient in found])
        if not found or not copies.all():
            return None, None
        from msprobe.pytorch.values.measures import Measures

        measures = Measures(-1.0)
        measures.add(found, self._known_gradients)
        squares = measures.wait()[0][:, 3] ** 2
        if is_whole:
            return math.sqrt(squares.sum()), None
        return None, math.sqrt((squares / copies).sum())

    # -- inside ----------------------------------------------------------------------------------

    def _put(
        self,
        rows: StepRows,
        stream: Stream,
        read: Callable[[Tensor], Tensor | None],
        known: Known,
    ) -> None:
        found = [(key, read(parameter)) for key, parameter in rows.wanted(stream, self._parameters)]
        keys = [key for key, tensor in found if tensor is not None]
        tensors = [tensor for _, tensor in found if tensor is not None]
        if tensors:
            rows.batch(stream).add(keys, tensors, known)

    def _put_states(self, rows: StepRows) -> None:
        wanted = [*_MOMENTS.values(), Stream.STATE]
        if not any(stream in rows.streams for stream in wanted):
            return
        found: dict[Stream, tuple[list[Key], list[Tensor]]] = {}
        for key, parameter in self._parameters:
            for name, state in self._view.states(parameter).items():
                if not isinstance(state, Tensor) or _is_count(name, state, parameter):
                    continue
                stream = _MOMENTS.get(name, Stream.STATE)
                settings = rows.streams.get(stream)
                if settings is None or not settings.wants(key.name):
                    continue
                shown = key if name in _MOMENTS else key._replace(name=f"{key.name}:{name}")
                keys, tensors = found.setdefault(stream, ([], []))
                keys.append(shown)
                tensors.append(state)
        for stream, (keys, tensors) in found.items():
            rows.batch(stream).add(keys, tensors)

    def _copy_parameters(self, rows: StepRows) -> None:
        self._before = [
            (key, found, found.detach().clone())
            for key, parameter in rows.wanted(Stream.UPDATE, self._parameters)
            if parameter.requires_grad
            and isinstance(found := readable(self._view.value(parameter)), Tensor)
        ]

    def _put_updates(self, rows: StepRows) -> None:
        """Measure the differences, which take the place of the copies."""
        keys = [key for key, _, _ in self._before]
        copies = [copy for _, _, copy in self._before]
        norms = torch._foreach_norm(copies)
        torch._foreach_sub_(copies, [parameter for _, parameter, _ in self._before])
        norms += torch._foreach_norm(copies)
        rows.batch(Stream.UPDATE).add(keys, copies)
        sizes, changes = torch.stack(norms).double().reshape(2, -1).tolist()
        for key, change, size in zip(keys, changes, sizes, strict=True):
            if size:  # a bias of zeros has no such number
                rows.put_number(key, change / size, stream=Stream.UPDATE, op=RATIO)
        self._before = []

    def _put_direction(self, rows: StepRows) -> None:
        for key, parameter in rows.wanted(Stream.OTHER, self._parameters):
            gradient = self._view.gradient(parameter)
            moment = self._view.states(parameter).get("exp_avg")
            if gradient is None:
                continue
            share = 1.0
            if isinstance(moment, Tensor) and moment.numel():
                if moment.numel() != gradient.numel():  # a part of the one, and the whole other
                    continue
                if moment.shape != gradient.shape:  # parts are flat
                    moment = moment.view_as(gradient)
                signs = gradient.sign() * moment.sign()
                share = (signs.sum().item() / moment.numel() + 1) / 2
            rows.put_number(key, share, stream=Stream.OTHER, op=MG_DIRECTION)


def _is_count(name: str, state: Tensor, parameter: Tensor) -> bool:
    """Return whether a state is one number for the whole parameter, such as its steps."""
    return state.dim() == 0 and (parameter.dim() > 0 or name in _COUNTS)


def _is_added(parameter: Tensor) -> bool:
    """Return whether a fused kernel has added the gradient to `main_grad` already."""
    return bool(getattr(parameter, "grad_added_to_main_grad", False))


def _is_whole(gradient: Tensor) -> bool:
    """Return whether all elements of a gradient can be read here."""
    found = readable(gradient)
    return isinstance(found, Tensor) and found.shape == gradient.shape


def plain_number(value: Any) -> float | None:
    """Return a setting of an optimizer as a number, None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, Tensor) and value.numel() == 1 and value.is_cpu:
        return float(value)
    return None
