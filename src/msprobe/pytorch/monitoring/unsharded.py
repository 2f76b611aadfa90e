# SPDX-License-Identifier: Apache-2.0
"""Gradients before FSDP2 reduces them.

A parameter of FSDP2 is a part (a `DTensor`). For as long as its module runs, the module has the
whole in its place, and its gradient is added up there until it is reduced into that of the part.
FSDP2 sets the whole before hooks of the user's run, and keeps it for the next time.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from typing import Any

from torch import Tensor, nn

from msprobe.pytorch.gradients.parameter_gradients import make_first

Take = Callable[[Tensor, Tensor], None]
"""Takes a parameter and the whole, whose gradient was just added up."""


class WholeParameters:
    """Watches the gradients of the wholes.

    Args:
        parameters: the parts that are wanted.
        take: called after each backward pass of one.
        undo: gets what removes the hooks.
    """

    def __init__(self, parameters: Iterable[Tensor], take: Take, undo: ExitStack) -> None:
        self._parts = {id(one): one for one in parameters}
        self._take = take
        self._undo = undo
        self._hooked: dict[int, weakref.ref[Tensor]] = {}

    def install(self, models: Iterable[nn.Module]) -> None:
        """Hook the modules that have such parameters."""
        for module in {one for model in models for one in model.modules()}:
            own = {
                name: self._parts[id(one)]
                for name, one in module._parameters.items()
                if id(one) in self._parts and hasattr(one, "to_local")
            }
            if own:
                handle = module.register_forward_pre_hook(partial(self._begins, own))
                self._undo.callback(handle.remove)

    def _begins(self, own: dict[str, Tensor], module: nn.Module, _: Any) -> None:
        for name, part in own.items():
            whole = module._parameters.get(name)
            if whole is None or whole is part or not (whole.requires_grad and whole.is_leaf):
                continue
            known = self._hooked.get(id(whole))
            if known is None or known() is not whole:
                self._hooked[id(whole)] = weakref.ref(whole)
                handle = whole.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    partial(self._take, part)
                )
                make_first(whole, handle.id)
                self._undo.callback(handle.remove)
