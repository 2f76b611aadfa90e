# SPDX-License-Identifier: Apache-2.0
"""Put a torch function mode under all others, and take exactly that one away again.

A user's own modes and device contexts are entered and left in any order around `start` and `stop`:
popping whatever is on top would take away the wrong one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext

_length = torch._C._len_torch_function_stack
_push = torch._C._push_on_torch_function_stack
_pop = torch._C._pop_torch_function_stack
_at = torch._C._get_function_stack_at


def is_installed(mode: TorchFunctionMode) -> bool:
    """Return whether `mode` is on this thread's stack."""
    return any(_at(index) is mode for index in range(_length()))


def install_lowest(mode: TorchFunctionMode) -> None:
    """Put `mode` under every other mode; only a default device context stays below it.

    The lowest mode sees a call last, with whatever the user's own modes made of it.
    """
    if is_installed(mode):
        return

    def place(modes: list[Any]) -> list[Any]:
        position = 1 if modes and _must_be_lowest(modes[0]) else 0
        return [*modes[:position], mode, *modes[position:]]

    _rebuild(place)


def _must_be_lowest(mode: Any) -> bool:
    """Return whether torch takes `mode` from the bottom of the stack when it ends.

    That of ``torch.set_default_device`` is; that of ``with torch.device(…)``, which was never
    entered by its Python method, is taken from the top, wherever it lies.
    """
    return isinstance(mode, DeviceContext) and hasattr(mode, "old_device")


def remove(mode: TorchFunctionMode) -> None:
    """Take `mode` away wherever it is on the stack; nothing happens when it is not."""
    if is_installed(mode):
        _rebuild(lambda modes: [other for other in modes if other is not mode])


def _rebuild(place: Callable[[list[Any]], list[Any]]) -> None:
    modes = [_pop() for _ in range(_length())]
    modes.reverse()
    for mode in place(modes):
        _push(mode)
