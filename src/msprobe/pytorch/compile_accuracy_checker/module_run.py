# SPDX-License-Identifier: Apache-2.0
"""One call of a module, recorded in the user's run and run again: eagerly, compiled, in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import nn

from msprobe.checks.compile_check import ResultKey
from msprobe.pytorch.live.operator_facts import tensors_of
from msprobe.pytorch.replay.noise import NoiseMode
from msprobe.replay.arguments import converted
from msprobe.replay.runner import Noise

_SEED: Final = 1234


Results = Mapping[ResultKey, torch.Tensor]


@dataclass(slots=True)
class ModuleCall:
    """A call of a module.

    Attributes:
        module: the module.
        args: its positional arguments.
        kwargs: its keyword arguments.
        autocast: type and device of autocast around it; None for none.
        gradients: of its outputs, by number.
    """

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    autocast: tuple[str, torch.dtype] | None
    gradients: dict[int, torch.Tensor] = field(default_factory=dict)

    def run(
        self,
        call: Callable[..., Any],
        module: nn.Module,
        *,
        dtype: torch.dtype | None = None,
        noise: Noise | None = None,
        seed: int = _SEED,
    ) -> Results:
        """Return outputs and gradients of a run.

        Args:
            call: `module`, or what it was compiled to.
            module: a copy of the recorded module, in `dtype`.
            dtype: of floating-point arguments; None for their own.
            noise: random errors in each step.
            seed: of the random numbers that it draws.
        """
        mode = None if noise is None else NoiseMode(noise)
        leaves: list[torch.Tensor] = []

        def given(value: Any, _: object) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            own = _in_type(value, dtype).clone()
            if mode is not None and own.dtype.is_floating_point:
                own = mode.disturbed(own)
            if not value.requires_grad:
                return own
            leaves.append(own.requires_grad_())
            return own.clone()  # the module may write into it

        device_type, autocast_dtype = self.autocast or ("cpu", None)
        is_cast = self.autocast is not None and dtype is not torch.float64
        torch.manual_seed(seed)
        with (
            torch.enable_grad(),
            torch.autocast(device_type, autocast_dtype, enabled=is_cast),
            mode or nullcontext(),
        ):
            out = call(*converted(self.args, given), **converted(dict(self.kwargs), given))
            outputs = tensors_of(_plain_tree(out))
        found = {ResultKey("forward", i): one.detach() for i, one in enumerate(outputs)}
        with mode or nullcontext():
            found.update(self._gradients(outputs, leaves, module, dtype))
        return found

    def _gradients(
        self,
        outputs: Sequence[torch.Tensor],
        leaves: Sequence[torch.Tensor],
        module: nn.Module,
        dtype: torch.dtype | None,
    ) -> Iterator[tuple[ResultKey, torch.Tensor]]:
        roots = [
            (one, _in_type(self.gradients[i], dtype).to(one.dtype))
            for i, one in enumerate(outputs)
            if one.requires_grad and i in self.gradients
        ]
        names = [(name, one) for name, one in module.named_parameters() if one.requires_grad]
        wanted = [*leaves, *(one for _, one in names)]
        if not roots or not wanted:
            return
        grads = torch.autograd.grad(
            [one for one, _ in roots], wanted, [grad for _, grad in roots], allow_unused=True
        )
        for index, grad in enumerate(grads[: len(leaves)]):
            if grad is not None:
                yield ResultKey("input_grad", index), grad
        for index, ((name, _), grad) in enumerate(zip(names, grads[len(leaves) :], strict=True)):
            if grad is not None:
                yield ResultKey("param_grad", index, name), grad

    def copied(self, dtype: torch.dtype | None = None, noise: Noise | None = None) -> nn.Module:
        """Return a copy of the module in a type, without dropout."""
        made = copy.deepcopy(self.module)
        for one in made.modules():
            if isinstance(one, nn.modules.dropout._DropoutNd):
                one.eval()
        if dtype is not None:
            made = made.to(dtype)
        if noise is not None:
            mode = NoiseMode(noise)
            with torch.no_grad():
                for parameter in made.parameters():
                    if parameter.dtype.is_floating_point:
                        parameter.copy_(mode.disturbed(parameter))
        return made


def _in_type(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    plain = tensor.detach()
    return plain.to(dtype) if dtype is not None and plain.dtype.is_floating_point else plain


def _plain_tree(out: Any) -> Any:
    """Return nested outputs as lists and dicts."""
    if hasattr(out, "to_tuple"):
        return list(out.to_tuple())
    return list(out) if isinstance(out, tuple) else out


def output_tensors(out: Any) -> list[torch.Tensor]:
    """Return the tensors of a module's output, in the order of `ModuleCall.run`."""
    return tensors_of(_plain_tree(out))
