# SPDX-License-Identifier: Apache-2.0
"""Whether torch is tracing, exporting or compiling right now: then nothing is observed."""

from __future__ import annotations

from typing import Final

import torch

_dispatch_modes: Final = torch._C._len_torch_dispatch_stack
_mode_at: Final = torch._C._get_dispatch_stack_at
_jit_state: Final = torch._C._get_tracing_state
_TRACERS: Final = frozenset({"FakeTensorMode", "ProxyTorchDispatchMode", "FunctionalTensorMode"})


def is_tracing() -> bool:
    """Return whether a call now only builds a graph: jit, make_fx, fake tensors, export, AOT."""
    if torch.compiler.is_compiling() or _jit_state() is not None:
        return True
    count = _dispatch_modes()
    return count > 0 and any(type(_mode_at(i)).__name__ in _TRACERS for i in range(count))


def is_capturing_cuda_graph() -> bool:
    """Return whether kernels now go into a CUDA graph, where our own must not be."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
