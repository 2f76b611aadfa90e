# SPDX-License-Identifier: Apache-2.0
"""Gradients and states of optimizers that keep them in flat partitions.

DeepSpeed's ZeRO 0 to 3 in low precision, and Megatron-core's mixed precision and distributed
optimizers. A parameter has what lies in this rank's partition, one-dimensional where it was cut;
without any part there it has no gradient and no states. Nothing is gathered, and nothing patched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch.distributed as dist
from torch import Tensor

from msprobe.monitor.collecting.run_numbers import (
    GRAD_NORM,
    GRAD_NORM_CLIPPED,
    LOSS_SCALE,
    SKIPPED,
    clipped_norm,
)
from msprobe.pytorch.monitoring.optimizers import OptimizerView, PlainView

_NO_STATES: Final[Mapping[str, Any]] = {}


class _ZeroBase:
    """Common base of the optimizers of ZeRO.

    Args:
        optimizer: of DeepSpeed, as `deepspeed.initialize` returns it.
    """

    tells_norm = True

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer

    def has_part(self, parameter: Tensor) -> bool:
        """Return True."""
        return True

    def groups(self) -> list[dict[str, Any]]:
        """Return the groups of the optimizer inside."""
        return list(self._optimizer.param_groups)

    def told(self, result: object) -> Mapping[str, float]:
        """Return norms, and what the loss scaler did."""
        optimizer = self._optimizer
        skipped = bool(getattr(optimizer, "overflow", False))
        norm = getattr(optimizer, "_global_grad_norm", None)
        found = {} if norm is None or skipped else _norms(norm, optimizer.clip_grad)
        settings = getattr(optimizer, "loss_scale_config", optimizer)
        if getattr(settings, "dynamic_loss_scale", False):
            found |= {LOSS_SCALE: float(optimizer.loss_scale), SKIPPED: float(skipped)}
        return found


class ZeroZeroView(_ZeroBase):
    """The float16 optimizers of ZeRO 0: whole gradients, states of main parameters in float32.

    Args:
        optimizer: a `FP16_Optimizer`, with a flat one for each group, or a `FP16_UnfusedOptimizer`.
    """

    def __init__(self, optimizer: Any) -> None:
        super().__init__(optimizer)
        self._places: dict[Tensor, tuple[Tensor, int]] = {}
        for number, group in enumerate(optimizer.fp16_groups):
            begin = 0
            for place, parameter in enumerate(group):
                if hasattr(optimizer, "fp32_groups_flat"):
                    self._places[parameter] = (optimizer.fp32_groups_flat[number], begin)
                else:
                    self._places[parameter] = (optimizer.fp32_groups[number][place], 0)
                begin += parameter.numel()

    def value(self, parameter: Tensor) -> Tensor:
        """Return the parameter."""
        return parameter

    def gradient(self, parameter: Tensor) -> Tensor | None:
        """Return the gradient, as the loss scale left it."""
        return parameter.grad

    def has_part(self, parameter: Tensor) -> bool:
        """Return False."""
        return False

    def states(self, parameter: Tensor) -> Mapping[str, Any]:
        """Return the parts of the states that are the parameter's."""
        if parameter not in self._places:
            return _NO_STATES
        main, begin = self._places[parameter]
        states = self._optimizer.optimizer.state.get(main, _NO_STATES)
        return {
            name: state.reshape(-1).narrow(0, begin, parameter.numel())
            for name, state in states.items()
            if isinstance(state, Tensor) and state.shape == main.shape
        }


class ZeroView(_ZeroBase):
    """ZeRO 1 and 2, and the bfloat16 optimizer of ZeRO 0.

    Their parameters are linked to their parts of the partition (`deepspeed.utils.tensor_fragment`).
    """

    def value(self, parameter: Tensor) -> Tensor:
        """Return the parameter, which all ranks have."""
        return parameter

    def gradient(self, parameter: Tensor) -> Tensor | None:
        """Return the averaged gradient in the partition; with ZeRO 0, all of it."""
        whole: Tensor | None = getattr(parameter, "_hp_grad", None)
        if whole is not None:
            return whole
        part = getattr(parameter, "_hp_mapping", None)
        if part is None:
            return None
        try:
            found: Tensor = part.get_lp_grad_fragment(parameter._index_in_param_group)  # type: ignore[attr-defined]
        except (ValueError, KeyError, IndexError):  # no backward pass reached it
            return None
        return found

    def has_part(self, parameter: Tensor) -> bool:
        """Return whether it is in the partition."""
        return getattr(parameter, "_hp_grad", None) is None

    def states(self, parameter: Tensor) -> Mapping[str, Any]:
        """Return parts of the states, after the first step."""
        part = getattr(parameter, "_hp_mapping", None)
        return _NO_STATES if part is None else part.optim_fragment or _NO_STATES


class ZeroThreeView(_ZeroBase):
    """ZeRO 3: parameters are partitions, too."""

    def value(self, parameter: Tensor) -> Tensor:
        """Return this rank's part of a parameter."""
        part: Tensor | None = getattr(parameter, "ds_tensor", None)
        return parameter if part is None else _without_padding(parameter, part)

    def gradient(self, parameter: Tensor) -> Tensor | None:
        """Return this rank's part of the averaged gradient."""
        return self._read(parameter, self._optimizer.get_local_fp32_grad_for_param)

    def states(self, parameter: Tensor) -> Mapping[str, Any]:
        """Return parts of the states."""
        found = {}
        for name in self._names():
            state = self._read(parameter, partial(self._state, name))
            if state is not None:
                found[name] = state
        return found

    def _state(self, name: str, parameter: Tensor) -> Tensor | None:
        found: Tensor | None = self._optimizer.get_local_fp32_param(parameter, name)
        return found

    def _names(self) -> list[str]:
        states = self._optimizer.optimizer.state
        first: Mapping[str, Any] = next(iter(states.values()), _NO_STATES)
        return [name for name, one in first.items() if isinstance(one, Tensor) and one.dim()]

    def _read(self, parameter: Tensor, read: Callable[[Tensor], Tensor | None]) -> Tensor | None:
        try:
            found = read(parameter)
        except (AttributeError, KeyError):  # it is not partitioned, or no backward pass reached it
            return None
        return None if found is None else _without_padding(parameter, found)


class MegatronView(PlainView):
    """A single optimizer of Megatron-core, which steps main parameters in float32.

    Args:
        optimizer: a `DistributedOptimizer`, `Float16OptimizerWithFloat16Params` or `FP32Optimizer`.
        reads_main_grad: whether a parameter's `main_grad` is its gradient, where it has one.
    """

    tells_norm = True

    def __init__(self, optimizer: Any, *, reads_main_grad: bool) -> None:
        super().__init__(optimizer, reads_main_grad=reads_main_grad)
        self._places = getattr(optimizer, "model_param_group_index_map", None)

    def gradient(self, parameter: Tensor) -> Tensor | None:
        """Return the gradient; of a distributed optimizer the part that this rank reduced."""
        found = super().gradient(parameter)
        if self._places is None or found is None:
            return found
        if parameter not in self._places:
            return None
        part = self._optimizer._get_model_param_range_map(parameter)["param"]
        return found.view(-1)[part.start : part.end]

    def has_part(self, parameter: Tensor) -> bool:
        """Return whether the optimizer is distributed."""
        return self._places is not None

    def states(self, parameter: Tensor) -> Mapping[str, Any]:
        """Return the states of the main parameter."""
        main = getattr(parameter, "main_param", parameter)
        if self._places is not None:
            if parameter not in self._places:
                return _NO_STATES
            group, place = self._places[parameter]
            main = self._optimizer.optimizer.param_groups[group]["params"][place]
        found: Mapping[str, Any] = self._optimizer.optimizer.state.get(main, _NO_STATES)
        return found

    def told(self, result: object) -> Mapping[str, float]:
        """Return the norms that the step returned, and what the loss scaler did."""
        return _told_by_megatron([self._optimizer], result)


class ChainedView:
    """Megatron-core's chain of optimizers; each has its own parameters.

    Args:
        optimizer: the chain.
        views: of its members.
    """

    def __init__(self, optimizer: Any, views: Sequence[OptimizerView]) -> None:
        self._optimizer = optimizer
        self._views = views
        self.tells_norm = any(view.tells_norm for view in views)

    def value(self, parameter: Tensor) -> Tensor:
        """Return the parameter."""
        return parameter

    def gradient(self, parameter: Tensor) -> Tensor | None:
        """Return the gradient as the member with this parameter has it."""
        found = (view.gradient(parameter) for view in self._views)
        return next((one for one in found if one is not None), None)

    def has_part(self, parameter: Tensor) -> bool:
        """Return whether the member with this parameter has a part of its gradient."""
        return any(
            view.has_part(parameter) for view in self._views if view.gradient(parameter) is not None
        )

    def states(self, parameter: Tensor) -> Mapping[str, Any]:
        """Return the states as the member with this parameter has them."""
        found = (view.states(parameter) for view in self._views)
        return next((one for one in found if one), _NO_STATES)

    def groups(self) -> list[dict[str, Any]]:
        """Return the groups of all members."""
        return [group for view in self._views for group in view.groups()]

    def told(self, result: object) -> Mapping[str, float]:
        """Return the norms that the step returned, and what the loss scaler did."""
        return _told_by_megatron(self._optimizer.chained_optimizers, result)


def _told_by_megatron(optimizers: Sequence[Any], result: object) -> Mapping[str, float]:
    """Return numbers of ``(successful, norm, zeros)``, which a step of Megatron-core returns."""
    if not (isinstance(result, tuple) and len(result) == 3):
        return {}
    successful, norm, _ = result
    clip = max((float(one.config.clip_grad) for one in optimizers), default=0.0)
    # Without clipping a single optimizer computes no norm, and returns 0.
    found = _norms(norm, clip) if norm else {}
    scalers = [one for one in optimizers if getattr(one, "grad_scaler", None) is not None]
    if scalers:
        found |= {LOSS_SCALE: float(scalers[0].get_loss_scale()), SKIPPED: float(not successful)}
    return found


def _norms(norm: Any, clip: float) -> dict[str, float]:
    before = float(norm)
    return {
        GRAD_NORM: before,
        GRAD_NORM_CLIPPED: clipped_norm(before, clip if clip > 0 else math.inf),
    }


def _without_padding(parameter: Any, part: Tensor) -> Tensor:
    """Return the elements of a partition that are the parameter's; the last rank's is filled up."""
    flat = part.reshape(-1)
    first = dist.get_rank(parameter.ds_process_group) * flat.numel()
    return flat[: max(parameter.ds_numel - first, 0)]
