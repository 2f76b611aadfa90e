# SPDX-License-Identifier: Apache-2.0
"""Gradients of the parameters of the user's cells, as the backward pass delivers them."""

from __future__ import annotations

import logging
from typing import Any

from msprobe.capture.session import Session
from msprobe.mindspore.cell_hooks import CellNames, own_parameters
from msprobe.mindspore.quiet import quietly

logger = logging.getLogger(__name__)


class ParameterGradients:
    """Watches parameters from `install` to the end of the step."""

    def __init__(self, session: Session, names: CellNames) -> None:
        """Create it for the cells that `names` knows."""
        self._session = session
        self._names = names
        self._installed = False

    def install(self) -> None:
        """Put hooks on the parameters; gradients may arrive until the step ends."""
        if self._installed:
            return
        self._installed = True
        undo = self._session.step_undo
        undo.callback(self._removed)
        seen: set[int] = set()
        for cell, name in self._names.items():
            trained = {
                key: parameter
                for key, parameter in own_parameters(cell).items()
                if parameter.requires_grad and id(parameter) not in seen
            }
            for key, parameter in trained.items():
                seen.add(id(parameter))
                hook = _Arrival(self._session, name, key, len(trained))
                try:
                    undo.callback(parameter.register_hook(hook).remove)
                except (RuntimeError, TypeError) as error:
                    logger.debug("no gradient of %s.%s is recorded: %s", name, key, error)

    def _removed(self) -> None:
        self._installed = False


class _Arrival:
    """The hook of one parameter; returns nothing, so that the gradient stays what it is."""

    __slots__ = ("_cell", "_key", "_of", "_session")

    def __init__(self, session: Session, cell: str, key: str, of: int) -> None:
        self._session = session
        self._cell = cell
        self._key = key
        self._of = of

    def __call__(self, gradient: Any) -> None:
        quietly(self._session, "parameter gradient", self._take, gradient)

    def _take(self, gradient: Any) -> None:
        if self._session.recorder.wants_parameters_of(self._cell):
            self._session.gradients.parameter(self._cell, self._key, gradient, of=self._of)
