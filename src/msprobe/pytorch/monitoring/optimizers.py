# SPDX-License-Identifier: Apache-2.0
"""Where an optimizer keeps the gradients and states of parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor


class OptimizerView(Protocol):
    """The values of parameters as an optimizer has them.

    Attributes:
        tells_norm: whether the norm of all gradients is what `told` says, and not that of the
            gradients: these are parts, or the step scales and clips them.
    """

    tells_norm: bool

    def value(self, parameter: Tensor) -> Tensor:
        """Return the elements of a parameter that this process holds."""

    def gradient(self, parameter: Tensor) -> Tensor | None:
        """Return the reduced gradient of a parameter, None without one."""

    def has_part(self, parameter: Tensor) -> bool:
        """Return whether `gradient` is a part of the reduced one, other than those of other ranks.

        Of a `DTensor` it need not be told.
        """

    def states(self, parameter: Tensor) -> Mapping[str, Any]:
        """Return the states of a parameter by name, empty before the first step."""

    def groups(self) -> list[dict[str, Any]]:
        """Return the groups of settings."""

    def told(self, result: object) -> Mapping[str, float]:
        """Return the numbers of the run that the optimizer tells of the step it made.

        Args:
            result: what `step()` returned.
        """


class PlainView:
    """`torch.optim`, and everything that keeps its states by parameter.

    Args:
        optimizer: with `state` and `param_groups`.
        reads_main_grad: whether a parameter's `main_grad` is its gradient, where it has one.
    """

    tells_norm = False

    def __init__(self, optimizer: Any, *, reads_main_grad: bool) -> None:
        self._optimizer = optimizer
        self._reads_main_grad = reads_main_grad

    def value(self, parameter: Tensor) -> Tensor:
        """Return the parameter."""
        return parameter

    def gradient(self, parameter: Tensor) -> Tensor | None:
        """Return ``main_grad`` or ``grad``."""
        return gradient_of(parameter, reads_main_grad=self._reads_main_grad)

    def has_part(self, parameter: Tensor) -> bool:
        """Return False."""
        return False

    def states(self, parameter: Tensor) -> Mapping[str, Any]:
        """Return the optimizer's own states."""
        found: Mapping[str, Any] = self._optimizer.state.get(parameter, {})
        return found

    def groups(self) -> list[dict[str, Any]]:
        """Return the optimizer's groups."""
        return list(self._optimizer.param_groups)

    def told(self, result: object) -> Mapping[str, float]:
        """Return nothing."""
        return {}


def gradient_of(parameter: Tensor, *, reads_main_grad: bool) -> Tensor | None:
    """Return ``main_grad`` where it is wanted and there, else ``grad``."""
    if reads_main_grad:
        main: Tensor | None = getattr(parameter, "main_grad", None)
        if main is not None:
            return main
    return parameter.grad


def added_up(parameter: Tensor, *, reads_main_grad: bool) -> Tensor | None:
    """Return where gradients are added up if that is not in `grad`.

    In `main_grad` if that is wanted; of DeepSpeed in `grad_accum` or, in bfloat16, `_hp_grad`.
    """
    names = [*(("main_grad",) if reads_main_grad else ()), "grad_accum", "_hp_grad"]
    found = (getattr(parameter, name, None) for name in names)
    return next((one for one in found if one is not None), None)


def view_of(optimizer: Any, *, reads_main_grad: bool) -> OptimizerView:
    """Return how the values of an optimizer are read, by the names of its classes."""
    from msprobe.pytorch.monitoring import partitions

    kinds = {kind.__name__ for kind in type(optimizer).__mro__}
    if "DeepSpeedZeroOptimizer_Stage3" in kinds:
        return partitions.ZeroThreeView(optimizer)
    if kinds & {"DeepSpeedZeroOptimizer", "BF16_Optimizer"}:
        return partitions.ZeroView(optimizer)
    if kinds & {"FP16_Optimizer", "FP16_UnfusedOptimizer"} and hasattr(optimizer, "fp16_groups"):
        return partitions.ZeroZeroView(optimizer)
    if "ChainedOptimizer" in kinds:
        views = [
            view_of(one, reads_main_grad=reads_main_grad) for one in optimizer.chained_optimizers
        ]
        return partitions.ChainedView(optimizer, views)
    if "MegatronOptimizer" in kinds:
        return partitions.MegatronView(optimizer, reads_main_grad=reads_main_grad)
    return PlainView(optimizer, reads_main_grad=reads_main_grad)
