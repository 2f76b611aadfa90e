# SPDX-License-Identifier: Apache-2.0
"""Collect the state in which a step starts: settings, random generators, flags, parameters."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from numpy.typing import NDArray

from mindspore import nn
from msprobe.capture.array_statistics import raw_statistics
from msprobe.capture.session import Session
from msprobe.capture.statistics import Projections
from msprobe.dump.facts import Modes, Parameters
from msprobe.mindspore.adapter import host_values, on_host
from msprobe.mindspore.cell_hooks import class_of, prefixed
from msprobe.mindspore.describing import dtype_name
from msprobe.mindspore.guard import quietly
from msprobe.mindspore.run_config_hooks import (
    NO_SETTINGS,
    generator_states,
    mindspore_settings,
)
from msprobe.mindspore.tensor_payload import crc32_hex
from msprobe.operators.lookup import parameter_name
from msprobe.run_config.collecting import collect_settings
from msprobe.run_config.live_objects import live_objects, plain_settings
from msprobe.run_config.program_arguments import kind_of_arguments
from msprobe.run_config.random_recording import python_and_numpy_states, undrawn_generators

if TYPE_CHECKING:
    from msprobe.mindspore.optimizer_steps import OptimizerSteps

Print = tuple[str | None, float | None, Projections | None]
NO_PRINT: Final[Print] = (None, None, None)
BUFFER: Final = "buffer"
_BUFFERS: Final = ("running_mean", "running_var")


def print_of(values: NDArray[Any] | None) -> Print:
    """Return checksum, norm and projections of the values of a tensor, where these are known."""
    if values is None:
        return NO_PRINT
    _, _, _, norm, _, projections = raw_statistics(values)
    return crc32_hex(values), None if norm is None else float(norm), projections


class StartState:
    """Puts the state at the start of each recorded step into its facts."""

    __slots__ = ("_dump", "_fixed", "_models", "_of_models", "_optimizers", "_prints", "_session")

    def __init__(self, session: Session, optimizers: OptimizerSteps) -> None:
        """Create it; nothing is read.

        Args:
            session: gets the facts.
            optimizers: knows which parameters their records tell.
        """
        self._session = session
        self._optimizers = optimizers
        self._dump: object = None
        # Environment, packages and the rest are the same for the whole run.
        self._fixed: dict[str, str] | None = None
        self._of_models: dict[str, str] = {}
        self._models: tuple[weakref.ref[nn.Cell], ...] = ()  # whose settings are known
        self._prints: dict[str, Print] = {}  # parameter → as it was when the step began

    def collect(self, models: Sequence[nn.Cell]) -> None:
        """Put the state of the step; if it has begun before, add models that were found since."""
        session = self._session
        begins = session.dump is not self._dump
        references = tuple(map(weakref.ref, models))
        if not session.facts.is_open or not (begins or references != self._models):
            return
        self._dump = session.dump
        quietly(session, "settings", self._put_settings, models, references)
        if begins:
            self._prints = {}
            quietly(session, "random states", self._put_random_states)
        if models:
            quietly(session, "state of the model", self._put_model, models)

    def _put_settings(
        self, models: Sequence[nn.Cell], references: tuple[weakref.ref[nn.Cell], ...]
    ) -> None:
        if self._fixed is None:
            self._fixed = collect_settings(live_objects(kind_of_arguments))
        if references != self._models:
            self._models, self._of_models = references, cell_settings(models)
        self._session.facts.put(
            "settings", {**mindspore_settings(), **self._fixed, **self._of_models}
        )

    def _put_random_states(self) -> None:
        states: dict[str, str | None] = dict([*python_and_numpy_states(), *generator_states()])
        self._session.facts.put("random", states)
        self._session.step_undo.callback(quietly, self._session, "random states", self._put_undrawn)

    def _put_undrawn(self) -> None:
        self._session.facts.put("undrawn", undrawn_generators())

    def _put_model(self, models: Sequence[nn.Cell]) -> None:
        named = named_parameters(models)
        facts = self._session.facts
        facts.put("modes", modes_of(models, named))
        known = self._prints
        known |= {name: print_of(host_values(one)) for name, one in named if name not in known}
        prints = [known[name] for name, _ in named]
        parameters = Parameters(
            name=[name for name, _ in named],
            kind=[kind_of(name) for name, _ in named],
            shape=[list(parameter.shape) for _, parameter in named],
            dtype=[dtype_name(parameter) for _, parameter in named],
            requires_grad=[bool(parameter.requires_grad) for _, parameter in named],
            checksum=[checksum for checksum, _, _ in prints],
            norm=[norm for _, norm, _ in prints],
            projections=[projections for _, _, projections in prints],
            same_as=[None] * len(named),  # MindSpore names a parameter once
        )
        facts.put("parameters", parameters)
        if on_host():
            undo, session = self._session.step_undo, self._session
            undo.callback(quietly, session, "state after the step", self._put_after, named)

    def _put_after(self, named: Sequence[tuple[str, Any]]) -> None:
        """Put the buffers that the step has changed, and the parameters that no record tells."""
        told = self._optimizers.told
        # Code of the program's own may change parameters by gradients, and compiled code anyway.
        is_trained = self._optimizers.ran_compiled or self._session.current.ending.took_gradients
        trained = {
            name
            for name, one in named
            if is_trained and one.requires_grad and id(one) not in told and kind_of(name) != BUFFER
        }
        after = [
            (name, one, print_of(host_values(one)))
            for name, one in named
            if name in trained or kind_of(name) == BUFFER
        ]
        if not after:
            return
        changed = [each for each in after if each[0] in trained or each[2] != self._prints[each[0]]]
        found = Parameters(
            name=[name for name, _, _ in changed],
            dtype=[dtype_name(one) for _, one, _ in changed],
            checksum=[checksum for *_, (checksum, _, _) in changed],
            norm=[norm for *_, (_, norm, _) in changed],
            projections=[projections for *_, (_, _, projections) in changed],
        )
        self._session.facts.put("buffers_after", found)


def kind_of(name: str) -> str:
    """Return ``buffer`` for what PyTorch has as one, the statistics of a normalisation."""
    return BUFFER if parameter_name(name.rpartition(".")[2]) in _BUFFERS else "parameter"


def named_parameters(models: Sequence[nn.Cell]) -> list[tuple[str, Any]]:
    """Return the parameters of several nets with their names."""
    return [
        (prefix + name, value)
        for prefix, model in prefixed(models)
        for name, value in model.parameters_and_names()
    ]


def modes_of(models: Sequence[nn.Cell], named: Sequence[tuple[str, Any]]) -> Modes:
    """Return the flags of nets now; `named` are their parameters."""
    training: dict[str, bool] = {}
    for prefix, model in prefixed(models):
        _add_flags(model, prefix, None, training, set())
    frozen = [name for name, one in named if not one.requires_grad]
    return Modes(training=training, requires_grad_false=frozen)


def cell_settings(models: Sequence[nn.Cell]) -> dict[str, str]:
    """Return class, ``extend_repr`` and plain attributes of each cell."""
    found: dict[str, str] = {}
    for prefix, model in prefixed(models):
        for path, cell in model.cells_and_names():
            name = f"module.{prefix}{path}".rstrip(".")
            shown = f"{class_of(cell)}({cell.extend_repr()})"
            found[name] = shown
            for key, text in plain_settings(cell, without=NO_SETTINGS):
                if f"{key}=" not in shown:
                    found[f"{name}.{key}"] = text
    return found


def _add_flags(
    cell: nn.Cell, path: str, around: bool | None, flags: dict[str, bool], open_cells: set[int]
) -> None:
    """Add the training flag of a cell, and of each inside that differs from the one around it."""
    if bool(cell.training) is not around:
        flags[path[:-1]] = bool(cell.training)
    open_cells.add(id(cell))
    inner: Mapping[str, nn.Cell | None] = cell._cells
    for name, one in inner.items():
        if one is not None and id(one) not in open_cells:
            _add_flags(one, f"{path}{name}.", bool(cell.training), flags, open_cells)
    open_cells.discard(id(cell))
