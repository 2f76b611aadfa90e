# SPDX-License-Identifier: Apache-2.0
"""Put a torch dispatch mode under the user's own, and take exactly that one away again.

torch keeps its own modes (fake tensors, functionalisation, tracing) apart, below all others; they
stay where they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_length = torch._C._len_torch_dispatch_stack
_push = torch._C._push_on_torch_dispatch_stack
_pop = torch._C._pop_torch_dispatch_stack
_at = torch._C._get_dispatch_stack_at


def is_installed(mode: TorchDispatchMode) -> bool:
    """Return whether `mode` is on this thread's stack."""
    return any(_at(index) is mode for index in range(_length()))


def install_lowest(mode: TorchDispatchMode) -> None:
    """Put `mode` under every mode of the user: it sees what these let through."""
    if not is_installed(mode):
        _rebuild(lambda modes: [mode, *modes])


def remove(mode: TorchDispatchMode) -> None:
    """Take `mode` away wherever it is on the stack; nothing happens when it is not."""
    if is_installed(mode):
        _rebuild(lambda modes: [other for other in modes if other is not mode])


def _rebuild(place: Callable[[list[Any]], list[Any]]) -> None:
    stack: list[Any] = [_at(index) for index in range(_length())]
    users = [mode for mode in stack if getattr(mode, "_mode_key", None) is None]
    for _ in users:
        _pop(None)
    for mode in place(users):
        _push(mode)
