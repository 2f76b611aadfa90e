# SPDX-License-Identifier: Apache-2.0
"""The account of a step: records kept, records left out and why, and the cost."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from msprobe.capture.ending import StepEnding, remark
from msprobe.dump.facts import Ended, Ending
from msprobe.dump.records import JsonTree
from msprobe.plain_text import count_text, number_ranges, size_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Counts of what was written to disk.

    Attributes:
        size_bytes: bytes of JSON and tensor files.
        tensors: number of tensor files, linked ones included.
        complete: whether everything that was captured is there.
    """

    size_bytes: int
    tensors: int
    complete: bool


@dataclass(slots=True)
class Account:
    """Counts of one step; one line of log and ``account.json`` come of it.

    Attributes:
        step: number of the step.
        records: records written.
        skipped: calls that made no record, by reason.
        notes: facts a reader must know to judge the dump, once each.
        errors: how often something failed inside capture, by kind.
        expected: runs in which calls of the model should have been seen; empty for none.
        misses_model: whether none was seen all the same.
        spent_s: seconds of the training thread that capture cost.
        is_whole: whether the step came to its end.
    """

    step: int
    records: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    notes: dict[str, None] = field(default_factory=dict)
    errors: Counter[str] = field(default_factory=Counter)
    expected: str = ""
    misses_model: bool = False
    spent_s: float = 0.0
    is_whole: bool = True

    def note(self, text: str) -> None:
        """Add a fact; adding it twice changes nothing."""
        self.notes[text] = None

    def close(self, ended: Ended, *, saw_calls: bool) -> None:
        """End the step.

        Args:
            ended: how it ended.
            saw_calls: whether a call was seen, recorded or not.
        """
        self.is_whole = ended.how is Ending.WHOLE
        if (text := remark(ended)) is not None:
            self.note(text)
        self.misses_model = bool(self.expected) and not saw_calls
        if self.misses_model:
            self.note(f"{self.expected} ran, and no call of the model was seen")

    def _is_complete(self, written: Written) -> bool:
        return written.complete and self.is_whole and not (self.errors or self.misses_model)

    def as_json(self, written: Written) -> dict[str, JsonTree]:
        """Return the content of ``account.json``."""
        return {
            "step": self.step,
            "complete": self._is_complete(written),
            "records": self.records,
            "tensors": written.tensors,
            "bytes": written.size_bytes,
            "capture_ms": round(self.spent_s * 1e3, 3),
            "skipped": dict(self.skipped),
            "errors": dict(self.errors),
            "notes": list(self.notes),
        }

    def line(self, written: Written) -> str:
        """Return the account as one line for the log."""
        said = [f"step {self.step}: {count_text(self.records, 'record')}"]
        if written.tensors:
            said.append(count_text(written.tensors, "tensor"))
        said.append(size_text(written.size_bytes))
        said.append(f"{self.spent_s * 1e3:.1f} ms spent")
        if self.skipped:
            said.append("skipped " + ", ".join(f"{n} ({why})" for why, n in self.skipped.items()))
        if self.errors:
            failures = ", ".join(f"{n} of {kind}" for kind, n in self.errors.items())
            said.append(f"FAILED {failures}, see dump_error_info.log")
        said.append("complete" if self._is_complete(written) else "INCOMPLETE")
        return "; ".join([", ".join(said), *self.notes])


@dataclass(slots=True)
class RunTotals:
    """Counts over all steps of a run, for the warning at its end.

    Attributes:
        started: first and last step in which recording was asked for; None before.
        is_other_rank: whether the configuration leaves this rank out.
        has_opened: whether a step was recorded.
        records: records written.
        skipped: calls that made no record, by reason.
        errors: failures inside msprobe, of a task that has no account for each step.
    """

    started: tuple[int, int] | None = None
    is_other_rank: bool = False
    has_opened: bool = False
    records: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)

    def start(self, step: int) -> None:
        """Note that recording was asked for in a step."""
        first, last = self.started or (step, step)
        self.started = (min(first, step), max(last, step))

    def add(self, account: Account) -> None:
        """Add a step that is over."""
        self.records += account.records
        self.skipped += account.skipped

    def why_nothing(self, wanted: Sequence[int]) -> str | None:
        """Return why nothing was recorded; None if something was, or if this rank is not wanted.

        Args:
            wanted: the steps to record, sorted; empty for all.
        """
        if self.is_other_rank or self.records:
            return None
        if self.started is None:
            return (
                "no step began: no DataLoader gave this thread a batch, or no model was called; a "
                "program that has an optimizer and only evaluates needs msprobe run --step-function"
            )
        if self.has_opened:
            reasons = ", ".join(f"{count} ({why})" for why, count in self.skipped.items())
            return f"no call was kept: {reasons}" if reasons else None
        first, last = self.started
        ran = f"step {first}" if first == last else f"steps {first} to {last}"
        if any(first <= step <= last for step in wanted) or not wanted:
            return f"dump_enable was not true in {ran}, and no one asked (msprobe attach, SIGUSR1)"
        return f"the configuration wants step {_spelled(wanted)}, and start() was called in {ran}"


def _spelled(steps: Sequence[int]) -> str:
    """Return sorted numbers as ranges, ``3-5, 8``."""
    ranges = number_ranges(steps)
    shown = [f"{first}-{last}" if last > first else str(first) for first, last in ranges[:8]]
    return ", ".join(shown) + (" …" if len(ranges) > 8 else "")


class Step:
    """The step that events belong to now.

    Attributes:
        number: counted by the user's `step`.
        account: its counts.
        next_order: returns the next place in the order of its records and calls.
        ending: judges how it ends.
        is_bad: whether a record shows NaN or +Inf.
    """

    __slots__ = ("account", "ending", "is_bad", "next_order", "number")

    def __init__(self) -> None:
        """Create it as step 0."""
        self.begin(0)

    def begin(self, number: int) -> None:
        """Begin another step."""
        self.number = number
        self.account = Account(number)
        self.next_order: Callable[[], int] = itertools.count().__next__
        self.ending = StepEnding(self.next_order)
        self.is_bad = False
