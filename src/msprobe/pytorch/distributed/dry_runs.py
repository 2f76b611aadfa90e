# SPDX-License-Identifier: Apache-2.0
"""Leaving out the calls with which a pipeline stage learns its shapes.

Before its first micro-batch each stage of ``torch.distributed.pipelining`` runs its module, and the
last one the loss and its gradients, with memory that nobody has filled. What these calls see is
another one in each run and may be NaN; no number of the training comes from it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Final

from msprobe.pytorch.interception.code_swap import divert

_MODULE: Final = "torch.distributed.pipelining.stage"
# The last one has this task in older versions of torch.
_METHODS: Final = (
    "_forward_metadata_inference",
    "_backward_metadata_inference",
    "_shape_inference",
)


def hook_dry_runs(unobserved: Callable[[], AbstractContextManager[None]]) -> Callable[[], None]:
    """Run those calls inside `unobserved` until the returned undo is called.

    Args:
        unobserved: makes a context in which nothing is recorded.
    """
    stage = getattr(sys.modules.get(_MODULE), "PipelineStage", None)

    def run(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with unobserved():
            return original(*args, **kwargs)

    undo = ExitStack()
    for name in _METHODS:
        if method := getattr(stage, name, None):
            undo.callback(divert(method, run))
    return undo.close
