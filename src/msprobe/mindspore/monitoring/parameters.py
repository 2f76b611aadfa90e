# SPDX-License-Identifier: Apache-2.0
"""Measure parameters, their gradients before and after reduction, and states of optimizers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mindspore import Tensor
from msprobe.capture.session import Session
from msprobe.mindspore.adapter import values_of
from msprobe.mindspore.guard import quietly
from msprobe.mindspore.optimizer_steps import groups_of, states_of
from msprobe.monitor.collecting.step_rows import Key, StepRows
from msprobe.monitor.rows import Stream

Named = tuple[Key, Any]

_FIRST: Final = frozenset({"moment1", "exp_avg", "adam_m", "lamb_m"})
_SECOND: Final = frozenset({"moment2", "exp_avg_sq", "adam_v", "lamb_v"})


class Parameters:
    """The parameters of the models, read around each call of the optimizer.

    Attributes:
        rows: of the step; None while nothing is collected.
    """

    def __init__(
        self,
        session: Session,
        parameters: Sequence[Named],
        optimizer: Any,
        *,
        micro_steps: int,
        every_micro_step: bool,
        direction: bool,
        holds_reduced: bool,
    ) -> None:
        """Create it; no hook is installed.

        Args:
            session: learns of exceptions.
            parameters: the parameters with their names.
            optimizer: which updates them.
            micro_steps: backward passes for each step of the optimizer.
            every_micro_step: whether gradients before reduction are measured each time.
            direction: whether gradients are compared with first moments.
            holds_reduced: whether this rank measures reduced gradients, which others have, too.
        """
        self._session = session
        self._parameters = parameters
        self._optimizer = optimizer
        self._micro_steps = micro_steps
        self._every_micro_step = every_micro_step
        self._direction = direction
        self._holds_reduced = holds_reduced
        self.rows: StepRows | None = None
        self._passes: Counter[int] = Counter()
        self._gradients: dict[int, Any] = {}
        self._before: list[tuple[Key, Any, NDArray[Any]]] = []

    def begin_step(self, rows: StepRows | None) -> None:
        """Begin a step, or stop with None."""
        self.rows = rows
        self._passes.clear()
        self._gradients = {}
        self._before = []

    # -- before reduction ----------------------------------------------------------------------

    def install(self, undo: ExitStack) -> None:
        """Watch the gradients of parameters as backward passes deliver them."""
        for key, parameter in self._parameters:
            if parameter.requires_grad:
                undo.callback(
                    parameter.register_hook(partial(self._arrived, key, parameter)).remove
                )

    def _arrived(self, key: Key, parameter: Any, gradient: Any) -> None:
        """Measure a gradient; return nothing, so that it is not changed."""
        if self.rows is not None:
            quietly(self._session, "gradient", self._take, self.rows, key, parameter, gradient)

    def _take(self, rows: StepRows, key: Key, parameter: Any, gradient: Any) -> None:
        micro_step = self._passes[id(parameter)]
        self._passes[id(parameter)] = micro_step + 1
        settings = rows.streams.get(Stream.GRAD_UNREDUCED)
        is_wanted = self._every_micro_step or micro_step == self._micro_steps - 1
        if is_wanted and settings is not None and settings.wants(key.name):
            number = micro_step if self._every_micro_step else 0
            rows.batch(Stream.GRAD_UNREDUCED, number).add((key,), [gradient])

    # -- around the call of the optimizer --------------------------------------------------------

    def read_before(self, rows: StepRows, gradients: Sequence[Any]) -> None:
        """Measure what the optimizer gets.

        Args:
            rows: of the step.
            gradients: in the order of the optimizer's parameters.
        """
        pairs = zip(self._optimizer.parameters, gradients, strict=False)
        self._gradients = {id(one): gradient for one, gradient in pairs if _is_dense(gradient)}
        if self._holds_reduced:
            self._put(rows, Stream.GRAD_REDUCED, lambda one: self._gradients.get(id(one)))
        states = states_of(self._optimizer, self._optimizer.parameters)
        self._put_states(rows, states)
        self._put(rows, Stream.PARAM_ORIGIN, lambda one: one)
        if Stream.UPDATE in rows.streams:
            self._before = [
                (key, one, np.array(values, copy=True))
                for key, one in rows.wanted(Stream.UPDATE, self._parameters)
                if one.requires_grad and (values := values_of(one)) is not None
            ]
        if self._direction:
            self._put_direction(rows, states)

    def read_after(self, rows: StepRows) -> None:
        """Measure what the optimizer leaves."""
        self._put(rows, Stream.PARAM_UPDATED, lambda one: one)
        for key, parameter, before in self._before:
            after = values_of(parameter)
            assert after is not None
            change = np.subtract(after, before)
            rows.batch(Stream.UPDATE).add((key,), [change])
            size = np.linalg.norm(before.astype(np.float64))
            if size:  # a bias of zeros has no such number
                ratio = np.linalg.norm(change.astype(np.float64)) / size
                rows.put_number(key, float(ratio), stream=Stream.UPDATE, op="ratio")
        self._before = []

    def total_norm(self, table: Callable[[float], Any]) -> float | None:
        """Return the norm of all gradients that the optimizer gets, None without any."""
        if not self._gradients:
            return None
        measures = table(-1.0)
        measures.add(list(self._gradients.values()))
        norms = measures.wait()[0][:, 3]
        return float((norms * norms).sum() ** 0.5)

    def settings(self) -> list[dict[str, Any]]:
        """Return the settings of the optimizer, by group; of schedules what holds now."""
        return [group.options for group in groups_of(self._optimizer)]

    # -- inside ----------------------------------------------------------------------------------

    def _put(self, rows: StepRows, stream: Stream, read: Callable[[Any], Any]) -> None:
        found = [(key, read(parameter)) for key, parameter in rows.wanted(stream, self._parameters)]
        keys = [key for key, tensor in found if tensor is not None]
        if keys:
            rows.batch(stream).add(keys, [tensor for _, tensor in found if tensor is not None])

    def _put_states(self, rows: StepRows, states: dict[str, list[Any]]) -> None:
        places = {id(one): place for place, one in enumerate(self._optimizer.parameters)}
        for name, tensors in states.items():
            is_first, is_second = name in _FIRST, name in _SECOND
            stream = Stream.STATE
            if is_first or is_second:
                stream = Stream.EXP_AVG if is_first else Stream.EXP_AVG_SQ
            for key, parameter in rows.wanted(stream, self._parameters):
                place = places.get(id(parameter))
                tensor = None if place is None else tensors[place]
                if tensor is not None:
                    shown = key._replace(name=f"{key.name}:{name}")
                    named = shown if stream is Stream.STATE else key
                    rows.batch(stream).add((named,), [tensor])

    def _put_direction(self, rows: StepRows, states: dict[str, list[Any]]) -> None:
        moments = next((one for name, one in states.items() if name in _FIRST), None)
        if moments is None:
            return
        by_parameter = dict(zip(map(id, self._optimizer.parameters), moments, strict=True))
        for key, parameter in rows.wanted(Stream.OTHER, self._parameters):
            gradient = self._gradients.get(id(parameter))
            moment = by_parameter.get(id(parameter))
            if gradient is None or moment is None or not moment.size:
                continue
            ours, theirs = values_of(gradient), values_of(moment)
            assert ours is not None
            assert theirs is not None
            agreeing = float(np.sum(np.sign(ours) * np.sign(theirs), dtype=np.float64))
            share = (agreeing / moment.size + 1) / 2
            rows.put_number(key, share, stream=Stream.OTHER, op="mg_direction")


def _is_dense(gradient: Any) -> bool:
    return isinstance(gradient, Tensor)


def as_number(value: Any) -> float | None:
    """Return a setting of an optimizer as a number, None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)
