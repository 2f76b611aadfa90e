# SPDX-License-Identifier: Apache-2.0
"""Call stacks, each walked and formatted once per code location.

A stack is looked up by a 64-bit key of its frames (`stack_key`), so a call seen before costs under
a microsecond. Only a new key walks the Python frames and reads source lines.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Final

from msprobe.capture.stack_key import stack_key

_OWN_FOLDER: Final = str(Path(__file__).resolve().parent.parent)
# Keys of stacks that never recur (recursion with ever new depth) must not fill the memory.
_MAX_STACKS: Final = 100_000


@dataclass(frozen=True, slots=True)
class Traits:
    """What the frames of a stack say about a call, as the adapter's classifier found it.

    Attributes:
        owner: ``optimizer`` or ``clip_grad`` when the call happens inside one of these.
        internal: the call belongs to the framework's own machinery and is not recorded.
        checkpointed: the call lies inside an activation checkpoint, forward or recomputation.
    """

    owner: str | None = None
    internal: bool = False
    checkpointed: bool = False


@dataclass(frozen=True, slots=True)
class Stack:
    """One distinct call stack.

    Attributes:
        index: its key in ``stack.json``.
        frames: formatted frames, innermost first, msprobe's own left out.
        traits: what the frames say about the call.
        codes: the code objects; held because the key is made of their addresses.
    """

    index: int
    frames: tuple[str, ...]
    traits: Traits
    codes: tuple[CodeType, ...]


class StackTable:
    """All stacks of a run, by key."""

    __slots__ = ("_by_key", "_classify", "_lines", "_made")

    def __init__(self, classify: Callable[[Sequence[CodeType]], Traits]) -> None:
        self._classify = classify
        self._by_key: dict[int, Stack] = {}
        self._lines: dict[tuple[CodeType, int], str] = {}
        self._made = 0

    def here(self, skip: int) -> Stack:
        """Return the stack of the caller, leaving out the `skip` innermost frames.

        Args:
            skip: 0 starts at the caller of this method.
        """
        key = stack_key(skip + 1)
        known = self._by_key.get(key)
        if known is not None:
            return known
        stack = self._walk(sys._getframe(skip + 1))
        if len(self._by_key) < _MAX_STACKS:
            self._by_key[key] = stack
        return stack

    def _walk(self, start: FrameType | None) -> Stack:
        codes: list[CodeType] = []
        frames: list[str] = []
        frame = start
        while frame is not None:
            code = frame.f_code
            codes.append(code)
            if not code.co_filename.startswith(_OWN_FOLDER):
                frames.append(self._format(code, frame))
            frame = frame.f_back
        others = [code for code in codes if not code.co_filename.startswith(_OWN_FOLDER)]
        index = self._made
        self._made += 1
        return Stack(index, tuple(frames), self._classify(others), tuple(codes))

    def _format(self, code: CodeType, frame: FrameType) -> str:
        line_number = frame.f_lineno or code.co_firstlineno
        key = (code, line_number)
        text = self._lines.get(key)
        if text is None:
            source = linecache.getline(code.co_filename, line_number, frame.f_globals).strip()
            text = f"File {code.co_filename}, line {line_number}, in {code.co_name}, \n {source}"
            self._lines[key] = text
        return text
