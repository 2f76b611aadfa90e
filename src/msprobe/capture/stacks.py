# SPDX-License-Identifier: Apache-2.0
"""Call stacks, each walked and formatted once per code location.

A stack is looked up by a 64-bit key of its frames (`stack_key`), so a call seen before costs under
a microsecond. Only a new key walks the Python frames and reads source lines. The key mixes the
address of each frame's code object with its instruction offset. It is only unique while those code
objects live, so `StackTable` holds them. Two stacks have equal keys by accident with a probability
of about 2**-64.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Final

from msprobe.capture.statistics import native_module

OWN_FOLDER: Final = str(Path(__file__).resolve().parent.parent)
# Keys of stacks that never recur (recursion with ever new depth) must not fill the memory.
_MAX_STACKS: Final = 100_000


def python_stack_key(frame: FrameType) -> int:
    """Same as `stack_key` without the C extension, at about ten times its cost."""
    inner: FrameType | None = frame
    trace = []
    while inner is not None:
        trace.append((id(inner.f_code), inner.f_lasti))
        inner = inner.f_back
    return hash(tuple(trace)) & (1 << 64) - 1 or 1


_NATIVE: Final = native_module()
stack_key: Final[Callable[[FrameType], int]] = (
    python_stack_key if _NATIVE is None else _NATIVE.stack_key
)
"""Return a non-zero 64-bit key of the stack that ends in a frame."""


@dataclass(frozen=True, slots=True)
class Traits:
    """Facts about a call from its stack frames, as found by the adapter's classifier.

    Attributes:
        owner: ``optimizer`` or ``clip_grad`` when the call happens inside one of these.
        internal: the call belongs to the framework's own machinery and is not recorded.
        checkpointed: the call lies inside an activation checkpoint, forward or recomputation.
    """

    owner: str | None = None
    internal: bool = False
    checkpointed: bool = False


def owner_in(
    files: Sequence[str], *, clipping: str, optimisers: str | tuple[str, ...]
) -> str | None:
    """Return the `Traits.owner` of a call.

    Args:
        files: the files of its frames.
        clipping: the framework's file of functions that clip gradients.
        optimisers: beginnings of the paths of its optimisers.
    """
    if clipping in files:
        return "clip_grad"
    if any(file.startswith(optimisers) for file in files):
        return "optimizer"
    return None


@dataclass(frozen=True, slots=True)
class Stack:
    """One distinct call stack.

    Attributes:
        index: its key in ``stack.json``.
        frames: formatted frames, innermost first, without those of msprobe and those that the
            adapter calls machinery; where these are all there is, with the latter.
        traits: facts about the call from its frames.
        codes: the code objects; held because the key is made of their addresses.
        instructions: where in its code each frame is.
        around: indices of stacks that this one is known to lie inside.
    """

    index: int
    frames: tuple[str, ...]
    traits: Traits
    codes: tuple[CodeType, ...] = ()
    instructions: tuple[int, ...] = ()
    around: set[int] = field(default_factory=set, compare=False)

    def is_inside(self, outer: Stack) -> bool:
        """Return whether a call with this stack was made by the one with the stack `outer`.

        Both of one thread. The innermost frame of `outer` has gone on since then, no other has.
        """
        if outer.index in self.around:
            return True
        depth = len(self.codes) - len(outer.codes)
        if depth <= 0 or self.codes[depth] is not outer.codes[0]:
            return False
        is_inside = (
            self.codes[depth + 1 :] == outer.codes[1:]
            and self.instructions[depth + 1 :] == outer.instructions[1:]
        )
        if is_inside:
            self.around.add(outer.index)
        return is_inside


def calling_frame() -> FrameType:
    """Return the innermost frame that is not ours: that of the code that called us."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(OWN_FOLDER) and frame.f_back is not None:
        frame = frame.f_back
    return frame


class StackTable:
    """All stacks of a run.

    Attributes:
        by_key: those that are remembered, by `stack_key` of their innermost frames.
    """

    __slots__ = (
        "_by_frames",
        "_by_index",
        "_classify",
        "_is_machinery",
        "_lines",
        "_made",
        "by_key",
    )

    def __init__(
        self,
        classify: Callable[[Sequence[CodeType]], Traits],
        is_machinery: Callable[[CodeType], bool],
    ) -> None:
        """Create it, empty.

        Args:
            classify: finds the traits of a stack, innermost frame first; sees all but our own.
            is_machinery: whether a frame is the framework's own and not shown.
        """
        self._classify = classify
        self._is_machinery = is_machinery
        self.by_key: dict[int, Stack] = {}
        self._by_index: dict[int, Stack] = {}
        self._by_frames: dict[tuple[str, ...], Stack] = {}
        self._lines: dict[tuple[CodeType, int], str] = {}
        self._made = 0

    def at(self, frame: FrameType) -> Stack:
        """Return the stack of which `frame` is the innermost frame."""
        key = stack_key(frame)
        known = self.by_key.get(key)
        if known is not None:
            return known
        stack = self._walk(frame)
        if len(self.by_key) < _MAX_STACKS:
            self.by_key[key] = self._by_index[stack.index] = stack
        return stack

    def frames(self, index: int | None) -> tuple[str, ...]:
        """Return the frames of the stack with an index; none where it is not known any more."""
        found = None if index is None else self._by_index.get(index)
        return () if found is None else found.frames

    def of(self, frames: tuple[str, ...]) -> Stack:
        """Return a stack of frames that were found in another way than by running, formatted."""
        if frames not in self._by_frames:
            self._by_frames[frames] = Stack(self._made, frames, Traits())
            self._made += 1
        return self._by_frames[frames]

    def _walk(self, start: FrameType | None) -> Stack:
        frames: list[FrameType] = []
        frame = start
        while frame is not None:
            frames.append(frame)
            frame = frame.f_back
        others = [one for one in frames if not one.f_code.co_filename.startswith(OWN_FOLDER)]
        shown = [one for one in others if not self._is_machinery(one.f_code)] or others
        traits = self._classify([one.f_code for one in others])
        index = self._made
        self._made += 1
        codes = tuple(one.f_code for one in frames)
        instructions = tuple(one.f_lasti for one in frames)
        return Stack(index, tuple(map(self._format, shown)), traits, codes, instructions)

    def _format(self, frame: FrameType) -> str:
        code = frame.f_code
        line_number = frame.f_lineno or code.co_firstlineno
        key = (code, line_number)
        text = self._lines.get(key)
        if text is None:
            source = linecache.getline(code.co_filename, line_number, frame.f_globals).strip()
            text = f"File {code.co_filename}, line {line_number}, in {code.co_name}, \n {source}"
            self._lines[key] = text
        return text
