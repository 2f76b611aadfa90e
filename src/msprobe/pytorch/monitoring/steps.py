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
    optimizer: Any, before: Callable[[], None], after: Callable[..., None], undo: ExitStack
) -> None:
    """Call `before` and `after` around each step; `after` with what the step returned, if known.

    Those of torch have hooks for that. Others (DeepSpeed, Megatron-core) get a `step` of their own
    on the object, which `undo` takes away.
    """
    if isinstance(optimizer, Optimizer):
        undo.callback(optimizer.register_step_pre_hook(lambda *_: before()).remove)
        undo.callback(optimizer.register_step_post_hook(lambda *_: after()).remove)
        return
    original = optimizer.step

    @wraps(original)
    def step(*args: Any, **kwargs: Any) -> Any:
        before()
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
