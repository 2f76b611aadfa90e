# SPDX-License-Identifier: Apache-2.0
"""Gradients before FSDP reduces them, both its first and its second form.

A parameter of FSDP2 is a part (a `DTensor`). For as long as its module runs, the module has the
whole in its place, and its gradient is added up there until it is reduced into that of the part.
FSDP2 sets the whole before hooks of the user's run, and keeps it for the next time. FSDP1 adds up
the gradients of all parameters of a module in one flat parameter.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from msprobe.pytorch.gradients.parameter_gradients import make_first

Take = Callable[[Tensor, Tensor], None]
"""Takes a parameter, and the gradient of the whole that was just added up."""


def flat_parameters(models: Iterable[nn.Module]) -> list[Any]:
    """Return the flat parameters of FSDP1 that ranks have parts of."""
    handles: list[Any] = [
        getattr(one, "_handle", None) for model in models for one in model.modules()
    ]
    return [
        one.flat_param
        for one in handles
        if getattr(one, "uses_sharded_strategy", False) and hasattr(one, "flat_param")
    ]


def watch_flat(flat: Any, take: Take, undo: ExitStack) -> None:
    """Watch the gradients of the parameters in a flat one (``use_orig_params=True``)."""
    if flat._params is not None:
        _watch(flat, lambda whole: _take_views(whole, take), undo)


def watch_wholes(
    models: Iterable[nn.Module], parameters: Iterable[Tensor], take: Take, undo: ExitStack
) -> None:
    """Watch the gradients of those parameters that FSDP2 keeps in parts."""
    parts = {id(one): one for one in parameters}
    hooked: dict[int, weakref.ref[Tensor]] = {}

    def begins(own: dict[str, Tensor], module: nn.Module, _: Any) -> None:
        for name, part in own.items():
            whole = module._parameters.get(name)
            if whole is None or whole is part or not (whole.requires_grad and whole.is_leaf):
                continue
            known = hooked.get(id(whole))
            if known is None or known() is not whole:
                hooked[id(whole)] = weakref.ref(whole)
                _watch(whole, partial(_take_whole, part, take), undo)

    for module in {one for model in models for one in model.modules()}:
        own = {
            name: parts[id(one)]
            for name, one in module._parameters.items()
            if id(one) in parts and hasattr(one, "to_local")
        }
        if own:
            undo.callback(module.register_forward_pre_hook(partial(begins, own)).remove)


def _watch(whole: Tensor, accumulated: Callable[[Tensor], None], undo: ExitStack) -> None:
    handle = whole.register_post_accumulate_grad_hook(accumulated)  # type: ignore[no-untyped-call]
    make_first(whole, handle.id)
    undo.callback(handle.remove)


def _take_whole(part: Tensor, take: Take, whole: Tensor) -> None:
    if whole.grad is not None:
        take(part, whole.grad)


def _take_views(flat: Any, take: Take) -> None:
    gradient = flat.grad
    if gradient is None:
        return
    pieces: Sequence[Tensor] = torch.split(gradient, flat._numels_with_padding)
    views = (one for one, fills in zip(pieces, flat._is_padding_mask, strict=True) if not fills)
    for parameter, shape, view in zip(flat._params, flat._shapes, views, strict=True):
        take(parameter, view.view(shape))
