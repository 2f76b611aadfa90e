# SPDX-License-Identifier: Apache-2.0
"""Open and end the steps of the monitor; a framework installs its hooks and reads its tensors."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Any, Protocol

from msprobe.capture.session import Session
from msprobe.errors import MonitorStop
from msprobe.monitor.collecting.absences import OF_MODULES, EmptyStreams
from msprobe.monitor.collecting.activations import Activations, MonitoredModule
from msprobe.monitor.collecting.features import Features
from msprobe.monitor.collecting.model_notes import StackInfo, write_structure
from msprobe.monitor.collecting.run_numbers import RunNumbers
from msprobe.monitor.collecting.step_rows import Key, Layouts, Reading, StepRows, now
from msprobe.monitor.recorder import Recorder
from msprobe.monitor.rows import Stream
from msprobe.monitor.settings import MonitorSettings, StreamSettings, short_name

logger = logging.getLogger(__name__)


class _Measuring(Protocol):
    """Measures tensors of the step that runs."""

    def begin_step(self, rows: StepRows | None) -> None:
        """Take the rows of the step; None while nothing is collected."""


class StepCollector(ABC):
    """Collects one model under one configuration, from `begin_step` to `close`.

    Attributes:
        step: the number of the step that runs.
        collected: how many steps were collected.
        latest: the rows of the last collected step.
        has_closure: whether the optimizer calls a closure that computes the gradients.
        activations: the sink of calls of modules.
        numbers: the sink of facts.
        empty: tells of streams without rows.
    """

    def __init__(
        self,
        settings: MonitorSettings,
        recorder: Recorder,
        reading: Reading,
        *,
        session: Session,
        rank: int,
        step: int,
        activations: Activations,
        features: Features | None,
        as_number: Callable[[Any], float | None],
    ) -> None:
        """Create it; `begin_step` begins the first step.

        Args:
            settings: what to collect.
            recorder: gets the rows.
            reading: how tensors are read.
            session: observes the model.
            rank: of this process.
            step: number of the step that runs now.
            activations: the sink of calls of modules.
            features: computes features of these calls; None for none.
            as_number: returns a setting of an optimizer as a number, None for anything else.
        """
        self.settings = settings
        self._recorder = recorder
        self._reading = reading
        self._rank = rank
        self.step = step
        self.collected = 0
        self.latest: StepRows | None = None
        self.has_closure = False
        self._layouts = Layouts()
        self.streams = streams_of(settings, rank)
        self.activations = activations
        self.numbers = RunNumbers(self._skipped, as_number)
        self.empty = EmptyStreams()
        self._stacks = StackInfo()
        if settings.keys.stack_info:
            activations.on_call = self._stacks.take
        self._rows: StepRows | None = None
        self._installed: frozenset[Stream] = frozenset()
        self._is_stepping = False
        self._features = features
        if features is not None:
            activations.on_values = self._take_features
        self._measuring: list[_Measuring] = [activations, self.numbers]
        self._session = session
        session.calls.add(activations)
        session.calls.remove(session.recording)
        self._undo = ExitStack()

    # -- of the framework ------------------------------------------------------------------------

    @abstractmethod
    def attempt(self, where: str, action: Callable[..., Any], *args: Any) -> None:
        """Run an action of ours; an exception is noted, not raised."""

    @abstractmethod
    def read_before(self, rows: StepRows) -> None:
        """Measure what the optimizer gets."""

    @abstractmethod
    def read_after(self, rows: StepRows, result: object) -> None:
        """Measure what the optimizer leaves; `result` is what its step returned, if known."""

    @abstractmethod
    def end_observing(self) -> None:
        """End that."""

    @abstractmethod
    def install(self, due: frozenset[Stream]) -> None:
        """Install the hooks of some streams."""

    @abstractmethod
    def close(self) -> None:
        """Take everything away that is installed."""

    # -- the step of the optimizer ---------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether as many steps were collected as wanted."""
        return self.collected >= self.settings.keys.collect_times

    def before_step(self, *, has_closure: bool = False) -> None:
        """Read what the optimizer gets.

        Args:
            has_closure: whether it calls a closure that computes the gradients.

        Raises:
            MonitorStop: an alert ends the training.
        """
        if self._recorder.stop_request is not None:
            raise MonitorStop(self._recorder.stop_request)
        if self._is_stepping:  # the last attempt raised
            self._skipped()
        self._is_stepping = True
        self.has_closure = has_closure
        if self._rows is not None:
            self.attempt("optimizer step", self._read_before, self._rows)

    def after_step(self, result: object = None) -> None:
        """Read what the optimizer leaves, hand the rows on, and begin the next step."""
        self._is_stepping = False
        rows, self._rows = self._rows, None
        if rows is not None:
            self.attempt("optimizer step", self.read_after, rows, result)
            self.end_observing()
            self.numbers.put_losses()
            self.attempt("end of step", self._hand_on, rows)
        self.step += 1
        self.begin_step()

    def put_number(self, name: str, value: float) -> None:
        """Take a number of the user's for the step that runs."""
        if self._rows is not None:
            self._rows.put_number(Key(name), value)

    def begin_step(self) -> None:
        """Begin the step that runs now, if it is collected."""
        due = self._due()
        eps = self.settings.keys.eps
        self._rows = StepRows(self.step, due, eps, self._reading) if due else None
        self._tell_step()
        if self._rows is None:
            self.remove()
            return
        self._session.observe(self.step, self.numbers)
        if self._installed != due.keys():
            self.remove()
            self._installed = frozenset(due)
            self.install(self._installed)

    def remove(self) -> None:
        """Take all hooks away."""
        self._installed = frozenset()
        for undo in (self._session.undo, self._session.step_undo, self._undo):
            self._session.attempt("removing hooks", undo.close)

    # -- inside ----------------------------------------------------------------------------------

    def _read_before(self, rows: StepRows) -> None:
        self.read_before(rows)
        if self._features is not None:
            self._features.put(rows)

    def _take_features(self, *call: Any) -> None:
        if self._rows is not None and self._features is not None:
            self._features.take(self._rows, *call)

    def _tell_step(self) -> None:
        for each in self._measuring:
            each.begin_step(self._rows)
        if self._features is not None:
            self._features.begin_step()

    def _skipped(self) -> None:
        """Forget what was measured of a step that a scaler skipped, or that raised."""
        if self._rows is not None:
            self._rows.drop()
            self._tell_step()

    def _due(self) -> dict[Stream, StreamSettings]:
        if self.is_over or not self._recorder.is_writing:
            return {}
        return {
            stream: one
            for stream, one in self.streams.items()
            if self.settings.is_due(stream, self.step)
        }

    def _hand_on(self, rows: StepRows) -> None:
        rows.start_copies()
        self.collected += 1
        self.empty.take(rows.streams, rows.filled)
        self.latest = rows
        layouts, rank, at = self._layouts, self._rank, now()
        if self.collected == 1:
            self._write_notes(rows)
        self._recorder.put_step(rows.step, lambda: rows.rows(layouts, rank, at), rows.row_count)

    def _write_notes(self, rows: StepRows) -> None:
        """Write the files about the modules, after the first step."""
        folder, keys = self._recorder.directory, self.settings.keys
        if keys.stack_info:
            self.activations.on_call = None
            self._stacks.write(folder, self._rank)
        if keys.print_struct and OF_MODULES.isdisjoint(self.streams):
            logger.warning("print_struct shows activations: set xy_distribution, too")
        elif keys.print_struct:
            is_first = self._rank == min(keys.module_ranks, default=0)
            block = rows.rows(Layouts(), self._rank, now())
            write_structure(block, folder, self._rank, is_first=is_first)


def streams_of(settings: MonitorSettings, rank: int) -> dict[Stream, StreamSettings]:
    """Return the streams that a rank collects."""
    return {
        stream: one
        for stream, one in settings.streams.items()
        if not one.ranks or rank in one.ranks
    }


def monitored_modules(
    models: Iterable[Iterable[tuple[str, Any]]],
    observed: Iterable[tuple[Any, str]],
    settings: MonitorSettings,
    streams: Mapping[Stream, StreamSettings],
) -> dict[str, MonitoredModule]:
    """Return the modules by the name under which their calls are observed.

    Args:
        models: the modules of each model with their names; that of the model itself is empty.
        observed: modules, and the names under which their calls are observed.
        settings: say how names are shown.
        streams: those that this rank collects.
    """
    bases = {id(module): base for module, base in observed}
    forward, gradients = streams.get(Stream.ACTV), streams.get(Stream.ACTV_GRAD)
    found: dict[str, MonitoredModule] = {}
    short: dict[str, str] = {}
    for chunk, modules in enumerate(models):
        for path, module in modules:
            base = bases.get(id(module))
            if base is None or base in found:
                continue
            shown = short_name(path, short) if settings.keys.squash_name else path
            found[base] = one = MonitoredModule(path, shown, chunk, None if path else module)
            one.wants_forward = forward is not None and forward.wants(path)
            one.wants_gradients = gradients is not None and gradients.wants(path)
    return found


def monitored_parameters(
    models: Iterable[Iterable[tuple[str, Any]]], settings: MonitorSettings
) -> list[tuple[Key, Any]]:
    """Return each parameter once, given the parameters of each model with their names."""
    found: dict[int, tuple[Key, Any]] = {}
    short: dict[str, str] = {}
    for chunk, parameters in enumerate(models):
        for name, parameter in parameters:
            shown = short_name(name, short) if settings.keys.squash_name else name
            found.setdefault(id(parameter), (Key(shown, chunk), parameter))
    return [*found.values()]
