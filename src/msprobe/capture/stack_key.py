# SPDX-License-Identifier: Apache-2.0
"""A number for a call stack, to look stacks up in a table in a microsecond.

The key mixes the address of each frame's code object with its instruction offset. It is only
unique while those code objects live: a table of keys must also hold the code objects of each
stack it knows, or a function defined later at the same address could be taken for an old one.
Two stacks have equal keys by accident with a probability of about 2**-64.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType
from typing import Final

from msprobe.capture.statistics import native_module

_MASK: Final = (1 << 64) - 1


def python_stack_key(frame: FrameType) -> int:
    """Same as `stack_key` without the C extension, at about ten times its cost.

    The keys of the two differ: never mix them in one table.
    """
    inner: FrameType | None = frame
    trace = []
    while inner is not None:
        trace.append((id(inner.f_code), inner.f_lasti))
        inner = inner.f_back
    return hash(tuple(trace)) & _MASK or 1


def _choose() -> Callable[[FrameType], int]:
    native = native_module()
    return python_stack_key if native is None else native.stack_key


stack_key: Final = _choose()
"""``stack_key(frame) -> int``: a non-zero 64-bit key of the stack that ends in this frame."""
