# SPDX-License-Identifier: Apache-2.0
"""Frames of call stacks as dumps hold them, and whose code each of them is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

_FRAME: Final = re.compile(
    r"\s*File (?P<file>.*?), line (?P<line>\d+), in (?P<function>[^\n]*?),?\s*(?:\n(?P<code>.*))?",
    re.DOTALL,
)
# The installed framework, this program, and the interpreter's own library.
_FRAMEWORK_FILE: Final = re.compile(
    r"(?:^|[/\\])(?:site|dist)-packages[/\\](?:torch|torch_npu|mindspore|mindtorch|msprobe)[/\\]"
    r"|(?:^|[/\\])torch[/\\](?:nn|autograd|utils|distributed|optim|_|amp|cuda|fx|overrides)"
    r"|^(?:torch|mindspore|msprobe)[/\\]|(?:^|[/\\])mindspore[/\\](?:nn|ops|common|train|mint)[/\\]"
    r"|[/\\]lib[/\\]python3\.\d+[/\\](?!(?:site|dist)-packages)|^<frozen "
)
_OPTIMIZER_FILE: Final = re.compile(r"[/\\]optim(?:izers?)?[/\\](?!lr_scheduler)|optimizer[^/\\]*$")
_INSTALLED_FILE: Final = re.compile(r"(?:^|[/\\])(?:site|dist)-packages[/\\]")


class Frame(NamedTuple):
    """One frame.

    Attributes:
        file: as the program knew it.
        line: number of the line.
        function: that the line is in.
        code: the line itself, empty if it was not to be had.
    """

    file: str
    line: int
    function: str
    code: str

    @property
    def is_of_framework(self) -> bool:
        """Whether the code is a framework's, Python's own or msprobe's."""
        return _FRAMEWORK_FILE.search(self.file) is not None

    @property
    def is_installed(self) -> bool:
        """Whether the code is a framework's or that of another installed package."""
        return self.is_of_framework or _INSTALLED_FILE.search(self.file) is not None

    @property
    def is_of_optimizer(self) -> bool:
        """Whether the code is an optimizer's, as far as the file's name tells."""
        return _OPTIMIZER_FILE.search(self.file) is not None

    @property
    def is_of_scaler(self) -> bool:
        """Whether the code is a gradient scaler's."""
        return "grad_scaler" in self.file

    @property
    def place(self) -> str:
        """Name of the file and line, such as ``train.py:12``."""
        file = re.split(r"[/\\]", self.file)[-1]
        return f"{file}:{self.line}"


# The same few frames come back for every call of a run.
@lru_cache(maxsize=10_000)
def parse_frame(text: str) -> Frame | None:
    """Return a frame of ``stack.json`` taken apart; None if it has another form."""
    found = _FRAME.fullmatch(text)
    if found is None:
        return None
    code = (found["code"] or "").strip()
    return Frame(found["file"], int(found["line"]), found["function"], code)


@lru_cache(maxsize=10_000)
def _is_of_framework(text: str) -> bool:
    frame = parse_frame(text)
    return frame is not None and frame.is_of_framework


# The same few stacks come back, too.
@lru_cache(maxsize=10_000)
def innermost_user_frame(frames: tuple[str, ...]) -> Frame | None:
    """Return the innermost frame of the user's code; None if unknown."""
    return next(
        (frame for frame in map(parse_frame, user_frames(frames)) if frame is not None), None
    )


class Asking(NamedTuple):
    """The innermost frame of an optimizer in a stack.

    Attributes:
        frame: the frame.
        is_of_user: it runs code of the user, which makes the call.
    """

    frame: Frame
    is_of_user: bool


@lru_cache(maxsize=10_000)
def first_of_optimizer(frames: tuple[str, ...]) -> Asking | None:
    """Return the innermost frame of an optimizer; None where there is none."""
    is_of_user = False
    for frame in map(parse_frame, frames):
        if frame is not None and frame.is_of_optimizer:
            return Asking(frame, is_of_user)
        is_of_user |= frame is not None and not frame.is_of_framework
    return None


def user_line(frames: tuple[str, ...]) -> str | None:
    """Return the innermost line of the user's code, such as ``train.py:12``; None if unknown."""
    frame = innermost_user_frame(frames)
    return None if frame is None else frame.place


def called_at(frames: Sequence[str], line: str | None) -> str:
    """Return the user's own line that led to a call, and that of a library beside it.

    Args:
        frames: those outside frameworks, innermost first.
        line: the innermost one, as `user_line` returns it.
    """
    parsed = map(parse_frame, frames)
    own = next((one.place for one in parsed if one is not None and not one.is_installed), line)
    return f"{own} via {line}" if line and own != line else own or ""


def user_frame(frames: Sequence[str]) -> str | None:
    """Return the innermost frame of the user's code, in one line; None without frames."""
    return " ".join(user_frames(frames)[0].split()) if frames else None


def user_frames(frames: Sequence[str]) -> list[str]:
    """Return the frames outside frameworks; all of them if there are none outside."""
    return [frame for frame in frames if not _is_of_framework(frame)] or list(frames)
