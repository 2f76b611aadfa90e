# SPDX-License-Identifier: Apache-2.0
"""Where an optimizer keeps the gradients and states of parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor


class OptimizerView(Protocol):
    """The values of parameters as an optimizer has them."""

    def gradient(self, parameter: Tensor) -> Tensor | None:
        """Return the reduced gradient of a parameter, None without one."""

    def states(self, parameter: Tensor) -> Mapping[str, Any]:
        """Return the states of a parameter by name, empty before the first step."""

    def groups(self) -> list[dict[str, Any]]:
        """Return the groups of settings."""


class PlainView:
    """`torch.optim`, and everything that keeps its states by parameter.

    Args:
        optimizer: with `state` and `param_groups`.
        reads_main_grad: whether a parameter's `main_grad` is its gradient, where it has one.
    """

    def __init__(self, optimizer: Any, *, reads_main_grad: bool) -> None:
        self._optimizer = optimizer
        self._reads_main_grad = reads_main_grad

    def gradient(self, parameter: Tensor) -> Tensor | None:
        """Return ``main_grad`` or ``grad``."""
        return gradient_of(parameter, reads_main_grad=self._reads_main_grad)

    def states(self, parameter: Tensor) -> Mapping[str, Any]:
        """Return the optimizer's own states."""
        found: Mapping[str, Any] = self._optimizer.state.get(parameter, {})
        return found

    def groups(self) -> list[dict[str, Any]]:
        """Return the optimizer's groups."""
        return list(self._optimizer.param_groups)


def gradient_of(parameter: Tensor, *, reads_main_grad: bool) -> Tensor | None:
    """Return ``main_grad`` where it is wanted and there, else ``grad``."""
    if reads_main_grad:
        main: Tensor | None = getattr(parameter, "main_grad", None)
        if main is not None:
            return main
    return parameter.grad


def view_of(optimizer: Any, *, reads_main_grad: bool) -> OptimizerView:
    """Return how the values of an optimizer are read."""
    return PlainView(optimizer, reads_main_grad=reads_main_grad)
