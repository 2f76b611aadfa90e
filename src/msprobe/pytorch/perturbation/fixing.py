# SPDX-License-Identifier: Apache-2.0
"""Go on with the better result of a call: `handler_type` ``fix``.

The result comes of a run in higher precision, in the type and on the device of the program's own
one, and is connected to the graph of the program. At stage ``backward`` the result stays, and its
derivative is that of the higher precision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from msprobe.checks.perturbation import SkippedError
from msprobe.config import Perturbation
from msprobe.pytorch.perturbation.arguments import RANDOM, CallCopy, is_float
from msprobe.pytorch.perturbation.modes import Raise, raised_to
from msprobe.replay.arguments import converted


def better_result(
    call: CallCopy, result: Any, args: Sequence[Any], kwargs: dict[str, Any], mode: Perturbation
) -> Any:
    """Return the result of a call in higher precision, in the form of its own result.

    Args:
        call: the call.
        result: the program's own result.
        args: the program's positional arguments, which gradients flow to.
        kwargs: its keyword arguments.
        mode: the kind of precision.

    Raises:
        SkippedError: there is no better result.
    """
    if call.writes:
        raise SkippedError("may write its arguments: its result is not replaced")
    if call.drew_random:
        raise SkippedError(RANDOM)
    wider = Raise(*raised_to(call, mode))
    try:
        better = call.run_as_given(converted(list(args), wider), converted(dict(kwargs), wider))
    except Exception as exc:
        raise SkippedError(f"cannot be run again: {type(exc).__name__}") from exc
    return _in_form_of(result, better)


def _in_form_of(result: Any, better: Any) -> Any:
    """Return a result with the types, devices and containers of another one.

    Raises:
        SkippedError: it has another structure.
    """
    if isinstance(result, Tensor) and isinstance(better, Tensor):
        if result.shape != better.shape:
            raise SkippedError("the result in higher precision has another shape")
        if not is_float(result):
            return result
        return better.to(device=result.device, dtype=result.dtype)
    if isinstance(result, tuple | list) and isinstance(better, tuple | list):
        if len(result) != len(better):
            raise SkippedError("the result in higher precision has another form")
        items = [_in_form_of(*pair) for pair in zip(result, better, strict=True)]
        if isinstance(result, tuple) and hasattr(result, "_fields"):
            return type(result)(*items)
        return type(result)(items)
    return result


def with_better_derivative(
    call: CallCopy,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    gradients: Callable[[Sequence[Tensor | None]], Sequence[Tensor | None]],
) -> Any:
    """Run a call with another derivative.

    Args:
        call: the call.
        args: the program's positional arguments.
        kwargs: its keyword arguments.
        gradients: returns the gradients of the arguments that require one, for those of the
            results.
    """
    needing: list[Tensor] = []

    def note(value: Any, _place: Any) -> Any:
        if isinstance(value, Tensor) and value.requires_grad:
            needing.append(value)
        return value

    converted(list(args), note)
    converted(dict(kwargs), note)

    def run() -> Any:
        return call.function(*args, **kwargs)

    return _WithDerivative.apply(run, gradients, *needing)  # type: ignore[no-untyped-call]


class _WithDerivative(torch.autograd.Function):
    """A call as one node of the graph."""

    @staticmethod
    def forward(
        ctx: Any, run: Callable[[], Any], gradients: Callable[..., Any], *needing: Tensor
    ) -> Any:
        ctx.gradients = gradients
        ctx.save_for_backward(*needing)  # so that writing into one is noticed
        return run()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *incoming: Tensor | None) -> Any:
        inputs = ctx.saved_tensors
        found = ctx.gradients(incoming)
        return (
            None,
            None,
            *(
                None if one is None else one.to(device=given.device, dtype=given.dtype)
                for one, given in zip(found, inputs, strict=True)
            ),
        )
