# SPDX-License-Identifier: Apache-2.0
"""Whether torch is tracing, exporting or compiling right now: then nothing is observed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch

_dispatch_modes: Final = torch._C._len_torch_dispatch_stack
_mode_at: Final = torch._C._get_dispatch_stack_at
JIT_STATE: Final[Callable[[], object]] = torch._C._get_tracing_state
"""Returns the state of the tracing under way, None without one."""
_TRACERS: Final = frozenset({"FakeTensorMode", "ProxyTorchDispatchMode", "FunctionalTensorMode"})


_cuda_is_up: Final[Callable[[], bool]] = torch.cuda.is_initialized
_stream_capturing: Final = (
    getattr(torch._C, "_cuda_isCurrentStreamCapturing", None)
    if torch.backends.cuda.is_built()  # type: ignore[no-untyped-call]
    else None
)

# Outside of code that is compiled, `torch.compiler.is_compiling` returns this variable.
_HAS_FLAG: Final = isinstance(getattr(torch.compiler, "_is_compiling_flag", None), bool)
COMPILER: Final = vars(torch.compiler) if _HAS_FLAG and _stream_capturing is None else None
"""Variables that C looks into in place of `is_tracing`; None where there is more to ask."""


def is_tracing() -> bool:
    """Return whether a call now only builds a graph.

    That is so under jit, make_fx, fake tensors, export and AOT compilation; and while a CUDA graph
    is captured, where our own kernels would become part of it.
    """
    if torch.compiler.is_compiling() or JIT_STATE() is not None:
        return True
    count = _dispatch_modes()
    if count > 0 and any(type(_mode_at(i)).__name__ in _TRACERS for i in range(count)):
        return True
    return _stream_capturing is not None and _cuda_is_up() and bool(_stream_capturing())
