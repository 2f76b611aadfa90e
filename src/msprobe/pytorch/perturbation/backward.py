# SPDX-License-Identifier: Apache-2.0
"""Gradients of a call, computed again from changed inputs when its backward pass comes.

The hook sits on the results of the call and changes nothing. The gradients of the inputs are
computed twice from the gradient that arrives, with the inputs as they were and with changed ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd.graph import register_multi_grad_hook

from msprobe.checks.perturbation import Judged, SkippedError
from msprobe.config import Perturbation
from msprobe.operators.operator import Family
from msprobe.pytorch.perturbation.arguments import RANDOM, CallCopy
from msprobe.pytorch.perturbation.examination import disturbed, judged, judged_twice
from msprobe.pytorch.perturbation.modes import NOISES, REFERENCES, Trial, trial_of
from msprobe.pytorch.replay.noise import NoiseMode
from msprobe.pytorch.values.tensor_search import output_slots
from msprobe.replay.runner import Noise

Gradients = Sequence[Tensor | None]
_JUMPING: Final = (Family.KINKED, Family.DISCRETE)


def differentiable(result: Any) -> list[Tensor]:
    """Return the results of a call through which gradients flow."""
    return [one for one in output_slots(result) if isinstance(one, Tensor) and one.requires_grad]


def when_gradients_come(result: Any, take: Callable[[Gradients], None]) -> bool:
    """Call `take` with the gradients of a call's results, once all of them are there.

    Returns: whether gradients flow through the call at all.
    """
    outputs = differentiable(result)
    if not outputs:
        return False
    register_multi_grad_hook(outputs, take)
    return True


def examine_gradients(call: CallCopy, incoming: Gradients, mode: Perturbation) -> list[Judged]:
    """Compute the gradients of a call's inputs twice and return the judgement of each.

    Args:
        call: the call.
        incoming: the gradients of its differentiable results; None where none arrived.
        mode: the change.

    Raises:
        SkippedError: the change says nothing about this call, or it cannot be run again.
    """
    call.check_unchanged()
    if mode is Perturbation.PERMUTE:
        raise SkippedError("inputs in another order have gradients in another order")
    if mode in NOISES and call.operator.family in _JUMPING:
        raise SkippedError("gradients that jump where values pass each other")
    if mode in REFERENCES and call.drew_random:
        raise SkippedError(RANDOM)
    args, kwargs = call.again()
    found = gradients_of(call, Trial(args, kwargs), incoming)

    def again(noise: Noise) -> list[Tensor | None]:
        return gradients_of(call, trial_of(call, mode), incoming, noise)

    def judgements(trial: Trial) -> Iterator[Judged]:
        changed = gradients_of(call, trial, incoming)
        return judged(call, trial, mode, found, changed, again=again, incoming=incoming)

    return judged_twice(call, mode, judgements)


def gradients_of(
    call: CallCopy, trial: Trial, incoming: Gradients, noise: Noise | None = None
) -> list[Tensor | None]:
    """Return the gradients of the arguments that require one.

    Args:
        call: the call.
        trial: its arguments.
        incoming: the gradients of its differentiable results.
        noise: random errors in each step; None for none.

    Raises:
        SkippedError: the function, or its backward pass, fails.
    """
    args, kwargs = trial.args, trial.kwargs
    mode = None if noise is None else NoiseMode(noise)
    if mode is not None:
        args, kwargs = disturbed(args, mode), disturbed(kwargs, mode)
    leaves: list[Tensor] = []
    roots, given = [], []
    with mode or nullcontext():
        result = call.run(args, kwargs, plain=trial.plain, leaves=leaves)
        for one, gradient in zip(differentiable(result), incoming, strict=False):
            if gradient is not None:
                roots.append(one)
                given.append(gradient.detach().to(device=one.device, dtype=one.dtype))
        if not roots or not leaves:
            raise SkippedError("no gradient arrives")
        try:
            return list(torch.autograd.grad(roots, leaves, given, allow_unused=True))
        except Exception as exc:
            raise SkippedError(f"its backward pass fails: {type(exc).__name__}") from exc
