# SPDX-License-Identifier: Apache-2.0
"""Be told before and after each step of an optimizer, until that is undone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from typing import Any

from torch.optim import Optimizer


def plain_optimizer(optimizer: Any) -> Any:
    """Return the optimizer inside a wrapper that only hands its steps on (accelerate)."""
    while type(optimizer).__name__ in ("AcceleratedOptimizer", "DeepSpeedOptimizerWrapper"):
        optimizer = optimizer.optimizer
    return optimizer


def watch_steps(
    optimizer: Any, before: Callable[[bool], None], after: Callable[..., None], undo: ExitStack
) -> None:
    """Call `before` and `after` around each step.

    `before` learns whether a closure will compute the gradients, `after` what the step returned, if
    that is known.

    Those of torch have hooks for that. Others (DeepSpeed, Megatron-core) get a `step` of their own
    on the object, which `undo` takes away.
    """
    if isinstance(optimizer, Optimizer):
        undo.callback(optimizer.register_step_pre_hook(_telling(before)).remove)
        undo.callback(optimizer.register_step_post_hook(lambda *_: after()).remove)
        return
    original = optimizer.step

    @wraps(original)
    def step(*args: Any, **kwargs: Any) -> Any:
        before(_has_closure(args, kwargs))
        result = original(*args, **kwargs)
        after(result)
        return result

    had_own = "step" in vars(optimizer)
    optimizer.step = step

    def restore() -> None:
        if vars(optimizer).get("step") is not step:
            return  # replaced by other code since
        if had_own:
            optimizer.step = original
        else:
            del optimizer.step

    undo.callback(restore)


def _telling(before: Callable[[bool], None]) -> Callable[..., None]:
    # The optimizer is the first of the arguments that the hook is given.
    return lambda _, args, kwargs: before(_has_closure(args[1:], kwargs))


def _has_closure(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return callable(kwargs.get("closure", args[0] if args else None))
