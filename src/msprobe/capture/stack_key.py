# SPDX-License-Identifier: Apache-2.0
"""A number for the call stack of the moment, to look stacks up in a table in a microsecond.

The key mixes the address of each frame's code object with its instruction offset. It is only
unique while those code objects live: a table of keys must also hold the code objects of each
stack it knows, or a function defined later at the same address could be taken for an old one.
Two stacks have equal keys by accident with a probability of about 2**-64.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Final

from msprobe.capture.statistics import native_module

_MASK: Final = (1 << 64) - 1


def python_stack_key(skip: int) -> int:
    """Do what `stack_key` does without the C extension, at about ten times its cost.

    The keys of the two differ: never mix them in one table.
    """
    frame: FrameType | None = sys._getframe(1)
    trace = []
    while frame is not None:
        trace.append((id(frame.f_code), frame.f_lasti))
        frame = frame.f_back
    return hash(tuple(trace[skip:])) & _MASK or 1


def _choose() -> Callable[[int], int]:
    native = native_module()
    return python_stack_key if native is None else native.stack_key


stack_key: Final = _choose()
"""``stack_key(skip) -> int``: a non-zero 64-bit key of the calling thread's Python stack.

Args:
    skip: how many of the innermost frames to leave out; with 0 the caller is the first.
"""
