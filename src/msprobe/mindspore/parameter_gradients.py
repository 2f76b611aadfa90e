# SPDX-License-Identifier: Apache-2.0
"""Gradients of the parameters of the user's cells, as the backward pass delivers them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from mindspore import nn
from msprobe.capture.parameter_gradients import Names, ParameterOwner, ParameterWatch
from msprobe.capture.session import Session
from msprobe.mindspore.cell_hooks import own_parameters
from msprobe.mindspore.guard import quietly
from msprobe.mindspore.recorded_passes import RecordedPasses

logger = logging.getLogger(__name__)


def trained_parameters(cell: nn.Cell) -> dict[str, Any]:
    """Return the parameters of a cell itself that are trained."""
    parameters = own_parameters(cell).items()
    return {key: parameter for key, parameter in parameters if parameter.requires_grad}


class ParameterGradients(ParameterWatch):
    """Watches parameters from `install` to the end of the step.

    Attributes:
        passes: the backward passes whose gradients count: those over recorded calls.
    """

    def __init__(self, session: Session, names: Names) -> None:
        """Create it for the cells that `names` knows."""
        super().__init__(session, names)
        self.passes = RecordedPasses(session)

    def install(self) -> bool:
        """Put hooks on the parameters that have none yet; return whether no one had any."""
        begins = super().install()
        if begins:
            self._session.step_undo.callback(self.passes.forget)
        return begins

    def trained(self, module: nn.Cell) -> dict[str, Any]:
        """Return the parameters of a cell itself that are trained."""
        return trained_parameters(module)

    def watch(self, parameter: Any, owner: ParameterOwner) -> Callable[[], None] | None:
        """Hook a parameter."""
        hook = partial(_arrived, self.passes, owner)
        try:
            remove: Callable[[], None] = parameter.register_hook(hook).remove
        except (RuntimeError, TypeError) as error:
            where = f"{owner.module}.{owner.parameter}"
            logger.debug("no gradient of %s is recorded: %s", where, error)
            return None
        return remove


def _arrived(passes: RecordedPasses, owner: ParameterOwner, gradient: Any) -> None:
    """Record a gradient; return nothing, so that it is not changed."""
    quietly(owner.session, "parameter gradient", _take, passes, owner, gradient)


def _take(passes: RecordedPasses, owner: ParameterOwner, gradient: Any) -> None:
    if passes.is_running():
        owner.take(gradient)
