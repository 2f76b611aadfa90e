# SPDX-License-Identifier: Apache-2.0
"""The task `diff_check`: each complete record is compared with the record of another run.

`DiffRecording` hands complete records to a `Judge`, and writes those in which a difference begins,
with their tensors. The judge knows the other run; it is given by the framework's adapter.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from msprobe.capture.call import Call, Draft
from msprobe.capture.recording import Recording, RecordingContext
from msprobe.capture.stacks import Stack
from msprobe.dump.records import encode


class Judge(Protocol):
    """Compares the records of this run with those of another one.

    Attributes:
        finished: whether as many differences were found as were asked for.
    """

    @property
    def finished(self) -> bool:
        """Return whether as many differences were found as were asked for."""

    def begin_step(self, step: int, rank: int | None, folder: Path) -> None:
        """Begin a step.

        Args:
            step: its number.
            rank: of this process; None without a process group.
            folder: the rank's folder of the step.
        """

    def begin_call(self, name: str, parent: str | None, frames: Sequence[str]) -> None:
        """Note that a call begins.

        Args:
            name: of its forward record.
            parent: the record around it.
            frames: of its stack, innermost first.
        """

    def differs(self, name: str, text: bytes) -> bool:
        """Return whether a difference begins in a call.

        Args:
            name: of the complete record.
            text: the record, as JSON.
        """

    def end_step(self) -> None:
        """Compare what is left of the step, and report."""

    def counts(self) -> dict[str, int]:
        """Return counts for the account of the step."""


class DiffRecording(Recording):
    """Keeps only records in which a difference begins, and saves their tensors."""

    _has_more = True

    def __init__(self, around: RecordingContext, judge: Judge) -> None:
        """Create it; `judge` judges complete records."""
        super().__init__(around)
        self._judge = judge

    def begin(self, call: Call, stack: Stack) -> None:
        """Open the record of a call, and tell the judge its place."""
        self._judge.begin_call(call.forward_name, call.parent, stack.frames)
        super().begin(call, stack)

    def new_draft(self, name: str, order: int) -> Draft:
        """Return a new record, whose tensors are put aside until it is judged."""
        draft = super().new_draft(name, order)
        draft.files, draft.held = self.dump, []
        return draft

    def keeps(self, draft: Draft) -> bool:
        """Return whether a difference begins in the call."""
        held, draft.held = draft.held, None
        if self._judge.finished:
            return False
        text = encode(draft.parts, nonfinite=draft.nonfinite)
        if not self._judge.differs(draft.name, text):
            return False
        for payload, record, path in held or ():
            draft.save(payload, record, path)
        return True

    def write_interim(self, draft: Draft) -> None:
        """Write nothing: incomplete records are not judged."""
