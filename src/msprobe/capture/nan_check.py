# SPDX-License-Identifier: Apache-2.0
"""The task `nan_check`: where NaN and infinities begin, forward and backward.

A call that receives finite values and gives others is a *source*. What follows has inherited them.
Masks are left out, and so is what the program asked for (`msprobe.capture.nonfinite_records`).
"""

from __future__ import annotations

import csv
import io
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET

from msprobe.capture.call import Draft
from msprobe.capture.nonfinite_records import (
    BEGINNINGS,
    MOST_SKIPPED,
    SPREADING,
    FindingKind,
    Value,
    is_nonfinite,
    nonfinite_kind,
    values_of,
)
from msprobe.config import NanCheckSection, StopOn
from msprobe.dump.facts import Event, Scaler
from msprobe.dump.record_names import RecordKind, parse_record_name
from msprobe.dump.records import JsonTree, TensorRecord
from msprobe.dump.stack_frames import user_frame
from msprobe.files import write_whole
from msprobe.operators.nonfinite import largest_of
from msprobe.plain_text import count_text, reason

logger = logging.getLogger(__name__)

# Findings of a run that are kept; a run with NaN everywhere has one for every call.
_MOST_FINDINGS: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class NanFinding:
    """One call with a value that is not finite, or near overflow.

    Attributes:
        step: number of the step.
        name: of the record.
        kind: how it comes to the value.
        value: which one, ``output.0``.
        dtype: of the value.
        shape: of the value.
        nan: number of NaN; None where a device only said that something is not finite.
        pos_inf: number of +Inf.
        neg_inf: number of -Inf.
        first: index of the first NaN, or else of the first +Inf or -Inf; None if unknown.
        max: the largest value.
        min: the smallest value.
        subnormal: share of subnormal numbers among the nonzero ones; None where not asked for.
        zeros: share of zeros; the same.
        module: the record of the module around it; None outside of modules.
        line: file, line and function of the call.
        received: the values that went in, in words.
        order: place among the records of the step.
    """

    step: int
    name: str
    kind: FindingKind
    value: str
    dtype: str
    shape: tuple[int, ...]
    nan: int | None
    pos_inf: int | None
    neg_inf: int | None
    first: tuple[int, ...] | None
    max: float | None
    min: float | None
    subnormal: float | None
    zeros: float | None
    module: str | None
    line: str | None
    received: str
    order: int

    def __str__(self) -> str:
        """Return it as lines for the log."""
        counts = ((self.nan, "NaN"), (self.pos_inf, "+Inf"), (self.neg_inf, "-Inf"))
        said = ", ".join(f"{count} {what}" for count, what in counts if count)
        if not said:
            said = f"{self.min} to {self.max}"
        if self.kind is FindingKind.UNDERFLOW:
            said = f"{self.subnormal:.0%} of nonzero elements are subnormal, {self.zeros:.0%} zero"
        place = f", the first at {list(self.first)}" if self.first is not None else ""
        shape = f"{self.dtype} {list(self.shape)}"
        lines = [f"step {self.step}: {self.name}", f"  {self.value}: {said}{place} ({shape})"]
        if self.received:
            lines.append(f"  given: {self.received}")
        if self.module is not None:
            lines.append(f"  in {self.module}")
        if self.line is not None:
            lines.append(f"  at {self.line}")
        return "\n".join(lines)


COLUMNS: Final = tuple(one.name for one in fields(NanFinding))
Report = Callable[[NanFinding], object]


class NanCheck:
    """Judges the records of a run.

    Attributes:
        finished: whether the search is over.
        report: is called with the first source of each step; None for no one.
    """

    def __init__(self, section: NanCheckSection) -> None:
        """Create it for the settings of the task."""
        self.finished = False
        self.report: Report | None = None
        self._section = section
        self._step = 0
        self._results: Path | None = None
        self._findings: list[NanFinding] = []
        self._counts: Counter[FindingKind] = Counter()
        self._left_out = 0
        self._of_step: list[NanFinding] = []
        self._to_report: NanFinding | None = None
        self._updates: list[Event | Callable[[], Event]] = []
        self._skipped = 0

    def wants(self, name: str) -> bool:
        """Return whether `tensor_list` wants a call."""
        return any(part in name for part in self._section.tensor_list)

    def begin_step(self, step: int, results: Path) -> None:
        """Begin a step.

        Args:
            step: its number.
            results: path of the files of results, without a suffix.
        """
        self._step, self._results = step, results
        self._of_step = []
        self._updates = []

    def note_update(self, update: Event | Callable[[], Event]) -> None:
        """Take an update of a gradient scaler, or a function that waits for its numbers."""
        self._updates.append(update)

    def keeps(self, draft: Draft) -> bool:
        """Judge a finished draft; the tensors of one that `tensor_list` wants are saved."""
        held, draft.held = draft.held, None
        values = list(values_of(draft.parts))
        for _, _, record in values:
            record.is_nan = is_nonfinite(record)
        finding = None if self.finished else self._judge(draft, values)
        if finding is not None:
            self._of_step.append(finding)
            draft.parts["finding"] = str(finding.kind)
        is_kept = finding is not None or self.wants(draft.name)
        for payload, record, path in (held or ()) if is_kept else ():
            draft.save(payload, record, path)
        return is_kept

    def _judge(self, draft: Draft, values: list[Value]) -> NanFinding | None:
        had_before = any(one.kind in SPREADING for one in self._of_step)
        kind, bad = nonfinite_kind(draft, values, had_before=had_before)
        if kind is None:
            given = [record for is_given, _, record in values if is_given]
            results = [(path, record) for is_given, path, record in values if not is_given]
            kind = FindingKind.NEAR
            bad = [(path, one) for path, one in results if self._is_near(one)]
            if not bad or any(map(self._is_near, given)):
                kind = FindingKind.UNDERFLOW
                bad = [(path, one) for path, one in results if self._underflows(one, given)]
        return self._finding(draft, kind, *bad[0]) if bad else None

    def _is_near(self, record: TensorRecord) -> bool:
        share, largest = self._section.near_overflow, largest_of(record.dtype)
        if not share or largest is None or is_nonfinite(record):
            return False
        ends = [end for end in (record.max, record.min) if isinstance(end, float)]
        # The smallest number there is fills masks.
        return any(share * largest <= abs(end) and end != -largest for end in ends)

    def _underflows(self, record: TensorRecord, given: list[TensorRecord]) -> bool:
        """Return whether much of a result has underflowed, and no argument had."""
        limit, share = self._section.underflow, record.subnormal_share
        if not limit or share is UNSET:
            return False
        if share >= limit and not any(_share(one.subnormal_share) >= limit for one in given):
            return True
        like = [one for one in given if tuple(one.shape) == tuple(record.shape)]
        if len(like) != 1 or like[0].dtype == record.dtype or like[0].zero_share is UNSET:
            return False  # no cast, or one of integers
        return _share(record.zero_share) - like[0].zero_share >= limit

    def _finding(
        self, draft: Draft, kind: FindingKind, path: str, record: TensorRecord
    ) -> NanFinding:
        first = record.first_nonfinite
        places = {} if first is UNSET else first
        place = next((places[name] for name in ("nan", "inf", "-inf") if name in places), None)
        stack = draft.stack
        return NanFinding(
            step=self._step,
            name=draft.name,
            kind=kind,
            value=path,
            dtype=record.dtype,
            shape=tuple(record.shape),
            nan=_or_none(record.nan_count),
            pos_inf=_or_none(record.pos_inf_count),
            neg_inf=_or_none(record.neg_inf_count),
            first=None if place is None else tuple(place),
            max=_number(record.max),
            min=_number(record.min),
            subnormal=_or_none(record.subnormal_share),
            zeros=_or_none(record.zero_share),
            module=draft.parent,
            line=user_frame(stack.frames) if stack else None,
            received=_in_words(draft.parts),
            order=draft.order,
        )

    # -- the end of a step ---------------------------------------------------------------------

    def end_step(self) -> dict[str, Any]:
        """Log the first source of the step, write results; return counts for the account."""
        found = self._without_skipped(sorted(self._of_step, key=lambda one: one.order))
        self._of_step = []
        room = max(0, _MOST_FINDINGS - len(self._findings))
        self._left_out += len(found[room:])
        self._findings += found[:room]
        counts = Counter(one.kind for one in found)
        self._counts += counts
        first = _first(found)
        if first is not None:
            logger.warning("%s", _announced(first, found))
            if self._section.stop_on is StopOn.FIRST_SOURCE:
                self.finished = True
                logger.info("nan_check ends with step %d", self._step)
        elif found:
            then = "; the update was skipped" if found[0].kind is FindingKind.SCALED else ""
            calls = count_text(len(found), "call")
            logger.info("%s in %s%s, first %s", found[0].kind, calls, then, found[0])
        self._to_report = first
        if found:
            self._write()
        return {"nan_check": {str(kind): counts[kind] for kind in FindingKind}}

    def _without_skipped(self, found: list[NanFinding]) -> list[NanFinding]:
        """Return findings; what a gradient scaler expects and deals with is no source.

        A scaler tries scales until gradients overflow. But one that skips all updates hides a
        fault, and so does one whose gradients are NaN without an overflow.
        """
        updates = [one() if callable(one) else one for one in self._updates]
        self._updates = []
        scalers = [one for one in updates if isinstance(one, Scaler)]
        if not any(one.skipped for one in scalers):
            self._skipped = 0 if scalers else self._skipped
            return found
        self._skipped += 1
        first = _first(found)
        is_overflow = first is not None and not first.nan and _is_of_gradient(first.name)
        if not is_overflow or self._skipped > MOST_SKIPPED:
            return found
        return [
            replace(one, kind=FindingKind.SCALED) if one.kind in SPREADING else one for one in found
        ]

    def tell(self) -> None:
        """Call `report` with the first finding of the step that ended, once; its errors pass."""
        first, self._to_report = self._to_report, None
        if first is not None and self.report is not None:
            self.report(first)

    def _write(self) -> None:
        """Write the findings so far: a table, and a summary beside it."""
        if self._results is None:
            return
        text = io.StringIO()
        table = csv.writer(text)
        table.writerow(COLUMNS)
        table.writerows([asdict(one)[name] for name in COLUMNS] for one in self._findings)
        first = _first(self._findings)
        summary = {
            "findings": {str(kind): self._counts[kind] for kind in FindingKind},
            "left_out": self._left_out,
            "first": None if first is None else asdict(first),
        }
        content = msgspec.json.format(msgspec.json.encode(summary), indent=2)
        for suffix, written in ((".json", content), (".csv", text.getvalue().encode())):
            try:
                write_whole(self._results.with_suffix(suffix), [written])
            except OSError as error:
                logger.warning("%s%s cannot be written: %s", self._results, suffix, reason(error))


_Number = TypeVar("_Number", int, float)
_MOST_SHOWN: Final = 6


def _in_words(parts: Mapping[str, JsonTree]) -> str:
    """Return the values that went in, a few of them."""
    given = [(path, record) for is_given, path, record in values_of(parts) if is_given]
    said = [
        f"{path} {record.dtype} {list(record.shape)} from {record.min} to {record.max}"
        for path, record in given[:_MOST_SHOWN]
    ]
    if len(given) > _MOST_SHOWN:
        said.append(f"{len(given) - _MOST_SHOWN} more")
    return "; ".join(said)


def _first(found: list[NanFinding]) -> NanFinding | None:
    """Return the first finding that explains the others."""
    return next((one for one in found if one.kind in BEGINNINGS), None)


def _announced(first: NanFinding, found: list[NanFinding]) -> str:
    """Return the first finding of a step in words, with what led to it."""
    how = "begins here" if first.kind is FindingKind.SOURCE else "came in from outside"
    later = sum(one.kind in SPREADING for one in found) - 1
    more = f"{count_text(later, 'more call')} {'shows' if later == 1 else 'show'} one"
    lines = [f"NaN or Inf {how} ({more})", str(first)]
    kinds = (FindingKind.ONLY_MINUS_INF, FindingKind.NEAR)
    before = [one for one in found if one.kind in kinds and one.order < first.order]
    if before:
        lines.append(f"  before it, {before[-1].kind}: {before[-1].name} ({before[-1].value})")
    return "\n".join(lines)


def _or_none(count: _Number | msgspec.UnsetType) -> _Number | None:
    return None if count is UNSET else count


def _share(share: float | msgspec.UnsetType) -> float:
    return 0.0 if share is UNSET else share


def _is_of_gradient(name: str) -> bool:
    """Return whether a record is of gradients."""
    return parse_record_name(name).kind is not RecordKind.FORWARD


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
