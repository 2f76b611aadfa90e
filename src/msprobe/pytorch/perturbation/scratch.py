# SPDX-License-Identifier: Apache-2.0
"""Memory that is used again for each call.

Fresh memory of a megabyte costs as much on a CPU as the arithmetic that fills it.
"""

from __future__ import annotations

import threading
from typing import Any, Final

import torch
from torch import Tensor

_BUFFERS: Final[dict[Any, Tensor]] = {}
_LARGEST: Final = 1 << 21


def scratch(slot: str | int, like: Tensor) -> Tensor:
    """Return memory for a tensor like a contiguous one; its content is undefined.

    It is that of the previous call with this slot in this thread; large tensors get new memory.
    """
    count = like.numel()
    if count > _LARGEST:
        return torch.empty(like.shape, dtype=like.dtype, device=like.device)
    key = (slot, like.dtype, like.device, threading.get_ident())
    buffer = _BUFFERS.get(key)
    if buffer is None or buffer.numel() < count:
        # Memory of inference mode could not be written outside of it.
        with torch.inference_mode(mode=False):
            buffer = _BUFFERS[key] = torch.empty(count, dtype=like.dtype, device=like.device)
    return buffer.as_strided(like.shape, like.stride())
