# SPDX-License-Identifier: Apache-2.0
"""`Spool`: the files of a recording that grows, in an order in which a reader can use them.

Tensors come before the records that name them are complete, and ``dump.json`` last: where it is,
the step has ended and everything is there.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from msprobe.dump import layout

_DIRECTION: Final = re.compile(r"\.(?:forward|backward)\.")


class Part(NamedTuple):
    """A part of a file that is to be sent.

    Attributes:
        path: the file.
        offset: its first byte.
        size: number of bytes; those of a file that was removed are 0.
        is_last: whether the file is complete with it.
        is_gone: whether the file was removed.
    """

    path: Path
    offset: int
    size: int
    is_last: bool = True
    is_gone: bool = False

    @property
    def call(self) -> str | None:
        """The call whose tensor it is; None for records."""
        if self.path.parent.name != layout.TENSOR_FOLDER:
            return None
        return _DIRECTION.split(self.path.name, 1)[0]


@dataclass(slots=True)
class _Step:
    """State of one step that is being received."""

    journal_bytes: int = 0
    tensors: set[str] = field(default_factory=set)


class Spool:
    """Watches one rank of a recording."""

    def __init__(self, dump_path: Path, rank: str) -> None:
        """Watch the rank folder `rank` of every step in `dump_path`."""
        self._dump_path = dump_path
        self._rank = rank
        self._steps: dict[str, _Step] = {}
        self._ended: set[str] = set()

    @property
    def last_ended(self) -> int:
        """The last step of which all files have been named; -1 for none."""
        return max((int(name.removeprefix("step")) for name in self._ended), default=-1)

    def news(self) -> Iterator[Part]:
        """Yield the parts of files that are new since the last time."""
        for name in self._step_names():
            if name not in self._ended:
                yield from self._of_step(name)

    def remove_tensors(self, step: str) -> None:
        """Remove the tensors of a step whose files were all sent."""
        folder = self._dump_path / step / self._rank / layout.TENSOR_FOLDER
        shutil.rmtree(folder, ignore_errors=True)

    def _step_names(self) -> list[str]:
        try:
            names = [path.name for path in self._dump_path.iterdir()]
        except OSError:
            return []
        steps = [name for name in names if layout.STEP_FOLDER.fullmatch(name)]
        return sorted(steps, key=lambda name: int(name.removeprefix("step")))

    def _of_step(self, name: str) -> Iterator[Part]:
        folder = self._dump_path / name / self._rank
        step = self._steps.setdefault(name, _Step())
        has_ended = self._has_ended(folder)  # asked first: what is written later is seen next time
        yield from self._tensors(folder / layout.TENSOR_FOLDER, step)
        if not has_ended:
            yield from self._journal(folder / layout.JOURNAL, step)
            return
        for file in (layout.STACK_JSON, layout.CONSTRUCT_JSON, layout.FACTS_JSON, layout.DUMP_JSON):
            size = _size(folder / file)
            if size is not None:
                yield Part(folder / file, 0, size)
        yield Part(folder / layout.JOURNAL, 0, 0, is_gone=True)
        self._ended.add(name)
        del self._steps[name]

    @staticmethod
    def _has_ended(folder: Path) -> bool:
        return (folder / layout.DUMP_JSON).exists() and not (folder / layout.JOURNAL).exists()

    @staticmethod
    def _journal(path: Path, step: _Step) -> Iterator[Part]:
        size = _size(path)
        if size is not None and size > step.journal_bytes:
            yield Part(path, step.journal_bytes, size - step.journal_bytes, is_last=False)
            step.journal_bytes = size

    @staticmethod
    def _tensors(folder: Path, step: _Step) -> Iterator[Part]:
        try:
            entries = list(os.scandir(folder))
        except OSError:
            return
        for entry in entries:
            is_tensor = entry.name.endswith(layout.TENSOR_SUFFIXES) and entry.name[0] != "."
            if is_tensor and entry.name not in step.tensors:
                step.tensors.add(entry.name)
                size = _size(Path(entry.path))
                if size is not None:
                    yield Part(Path(entry.path), 0, size)


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
