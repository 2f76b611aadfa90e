# SPDX-License-Identifier: Apache-2.0
"""`DiffJudge`: compares a run with a recorded one while it goes, for the task `diff_check`.

The files of a rank are ``diff_check_{rank folder}.csv`` and ``.json`` in the dump path, written
anew at each step. Tensors of the calls in which a difference begins are in the rank's folder of the
step: this run's in ``dump_tensor_data``, the reference's in ``reference_tensor_data``.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfile
from typing import Final

from msprobe.compare.call_differences import ExactRule, Rule, ToleranceRule
from msprobe.compare.live_step import Finding, FindingKind, LiveCall, LiveStep
from msprobe.compare.model import Matched, Row
from msprobe.compare.sides import Side
from msprobe.compare.verdicts.status import judge_row
from msprobe.dump.dump_steps import Dump
from msprobe.dump.rank_view import RankView
from msprobe.dump.reader import open_dump
from msprobe.dump.record_names import forward_name, parse_record_name, repeated_name
from msprobe.dump.records import JsonTree
from msprobe.dump.stack_frames import user_line
from msprobe.dump.value_reader import ValueReader
from msprobe.dump.values import Role, Value
from msprobe.errors import MsprobeError
from msprobe.files import write_report
from msprobe.json_text import parse_json, strict_json
from msprobe.numerics.tolerances import Tolerances
from msprobe.plain_text import count_text
from msprobe.report.csv_files import write_csv
from msprobe.report.tables import Table

logger = logging.getLogger(__name__)

REFERENCE_FOLDER: Final = "reference_tensor_data"
SCHEMA_VERSION: Final = 1
_COLUMNS: Final = (
    "step",
    "api_name",
    "reference_name",
    "kind",
    "module",
    "source",
    "value",
    "difference",
    "draws_random",
)
_WORDS: Final = {
    FindingKind.CALL: "its inputs agree with the reference, its output does not",
    FindingKind.ARGUMENT: "its tensors agree with the reference, another argument and its output "
    "do not",
    FindingKind.INPUT: "it is the first call whose inputs differ: they came from outside",
    FindingKind.ALONE: "only one of both runs makes this call",
}


@dataclass(frozen=True, slots=True)
class _Found:
    """A finding and its step."""

    step: int
    finding: Finding


@dataclass(frozen=True, slots=True)
class _Begun:
    """The place of a call: the record around it, and its stack."""

    parent: str | None
    frames: Sequence[str]


class DiffJudge:
    """Compares the records of a rank with those of a recorded run."""

    def __init__(self, reference: Path, *, is_exact: bool, limit: int) -> None:
        """Open the reference.

        Args:
            reference: path of the recorded run.
            is_exact: whether values are compared to the bit, else by statistics.
            limit: stop after this many calls that begin a difference; -1 never stops.

        Raises:
            DumpFormatError: there is no dump at the path.
        """
        self._path = reference
        self._dump: Dump = open_dump(reference)
        self._rule: Rule = ExactRule() if is_exact else ToleranceRule(Tolerances.load())
        self._tolerances = Tolerances.load()
        self._is_exact = is_exact
        self._limit = limit
        self._reader = ValueReader(Path("the record"), level="")
        self._begun: dict[str, _Begun] = {}
        self._step: LiveStep | None = None
        self._view: RankView | None = None
        self._number = 0
        self._place = 0
        self._folder = Path()
        self._has_parted = False
        self._found: list[_Found] = []
        self._calls = 0
        self._compared = 0
        self._equal = 0
        self._unjudged = 0

    @property
    def finished(self) -> bool:
        """Whether as many differences were found as were asked for."""
        return self._calls == self._limit

    # --- the run

    def begin_step(self, step: int, rank: int | None, folder: Path) -> None:
        """Begin a step; see `msprobe.capture.diff_check.Judge`."""
        self._number, self._folder, self._place = step, folder, 0
        self._begun.clear()
        self._view = self._view_of(step, rank)
        self._step = None
        if self._view is None:
            logger.warning(
                "diff_check: step %d of rank %s is not in %s: nothing is compared",
                step,
                rank or 0,
                self._path,
            )
            return
        reference = Side(self._view, source="reference")
        self._step = LiveStep(reference, self._rule, has_parted=self._has_parted)

    def begin_call(self, name: str, parent: str | None, frames: Sequence[str]) -> None:
        """Note the place of a call."""
        if self._step is not None:
            self._begun[name] = _Begun(parent, frames)

    def differs(self, name: str, text: bytes) -> bool:
        """Return whether a difference begins in a complete record."""
        if self._step is None:
            return False
        found = self._step.add(self._call(name, text))
        self._add(found)
        return any(each.begins and each.record == name for each in found)

    def end_step(self) -> None:
        """Compare what is left of the step, write the files, and log."""
        step, self._step = self._step, None
        if step is None:
            return
        if not self.finished:
            self._add(step.finish())
        self._has_parted = step.has_parted
        self._compared += step.compared
        self._equal += step.equal
        if self._is_exact and step.unjudged and not self._unjudged:
            logger.warning(
                "diff_check: %s: %d tensors have no checksum and are compared by their statistics; "
                'record the reference with "summary_mode": "md5"',
                self._path,
                step.unjudged,
            )
        self._unjudged += step.unjudged
        logger.info(
            "diff_check: step %d: %s compared, %d equal%s",
            self._number,
            count_text(step.compared, "call"),
            step.equal,
            "; no difference" if self._is_equal else "",
        )
        self._write()

    @property
    def _is_equal(self) -> bool:
        return not self._found and self._equal == self._compared

    def counts(self) -> dict[str, int]:
        """Return counts for the account of a step."""
        return {"diff_calls": self._calls}

    # --- inside

    def _view_of(self, step: int, rank: int | None) -> RankView | None:
        found = self._dump.steps.get(step)
        if found is None:
            return None
        views = list(found.ranks.values())
        if len(views) == 1:
            return views[0]
        return next((view for view in views if view.rank == rank), None)

    def _call(self, name: str, text: bytes) -> LiveCall:
        parsed = parse_record_name(name)
        values = self._reader.read_usual(text, parsed)
        if values is None:
            values = self._reader.read(parse_json(text), parsed)
        forward = forward_name(parsed) or repeated_name(parsed) or name
        enclosing = self._enclosing(forward)
        modules = (parse_record_name(each) for each in enclosing)
        begun = self._begun.get(forward)
        self._place += 1
        return LiveCall(
            name=parsed,
            # As `Side` leaves them out: attributes of primitives, random states.
            values=[value for value in values if value.role is not Role.OTHER],
            place=self._place,
            module=parsed.path
            if parsed.is_module
            else next((each.path for each in modules if each.is_module), ""),
            line=None if begun is None else user_line(tuple(begun.frames)),
            enclosing=enclosing,
        )

    def _enclosing(self, name: str) -> list[str]:
        found: list[str] = []
        begun = self._begun.get(name)
        while begun is not None and begun.parent is not None and begun.parent not in found:
            found.append(begun.parent)
            begun = self._begun.get(begun.parent)
        return found

    def _add(self, found: Sequence[Finding]) -> None:
        for finding in found:
            if self.finished:
                return
            for row in finding.rows:
                judge_row(row, self._tolerances, is_md5=True)
            self._found.append(_Found(self._number, finding))
            self._say(finding)
            if finding.begins:
                self._calls += 1
                self._copy_reference(finding)

    def _say(self, finding: Finding) -> None:
        where = [f"module {finding.module}"] * bool(finding.module)
        where += [finding.line] if finding.line else []
        logger.warning(
            "diff_check: step %d: %s%s: %s%s",
            self._number,
            finding.record or finding.reference,
            f" ({', '.join(where)})" if where else "",
            _WORDS[finding.kind],
            "".join(f"; {row.value.slot}: {_words(row)}" for row in finding.rows[:1]),
        )
        if self._calls + 1 == self._limit and finding.begins:
            calls = count_text(self._limit, "call")
            logger.info("diff_check ends after %s in which a difference begins", calls)

    def _copy_reference(self, finding: Finding) -> None:
        """Copy the tensors that the reference kept of a call, if it did."""
        assert self._view is not None
        for value in self._view.records.values_of(finding.reference):
            if value.data_name is not None:
                self._copy(self._view, value)

    def _copy(self, view: RankView, value: Value) -> None:
        folder = self._folder / REFERENCE_FOLDER
        try:
            source = view.tensor_path(value)
            folder.mkdir(parents=True, exist_ok=True)
            copyfile(source, folder / source.name)
        except (OSError, MsprobeError) as error:
            logger.warning("diff_check: a tensor of the reference is not copied: %s", error)

    # --- files

    def _write(self) -> None:
        stem = f"diff_check_{self._folder.name}"
        folder = self._folder.parent.parent
        rows = [row for found in self._found for row in _rows(found)]
        write_csv(Table.of(_COLUMNS, rows), folder / f"{stem}.csv", warns=False)
        write_report(folder / f"{stem}.json", strict_json(self._as_json()), warns=False)

    def _as_json(self) -> dict[str, JsonTree]:
        return {
            "schema_version": SCHEMA_VERSION,
            "reference": str(self._path),
            "compared": self._compared,
            "without_checksum": self._unjudged,
            "equal": self._is_equal,
            "findings": [
                {
                    "step": found.step,
                    "kind": str(found.finding.kind),
                    "record": found.finding.record,
                    "reference": found.finding.reference,
                    "module": found.finding.module,
                    "line": found.finding.line,
                    "draws_random": found.finding.draws_random,
                    "values": [
                        {"value": row.value.slot, "difference": _words(row)}
                        for row in found.finding.rows
                    ],
                }
                for found in self._found
            ],
        }


def _rows(found: _Found) -> list[list[JsonTree]]:
    finding = found.finding
    head = [found.step, finding.record, finding.reference, str(finding.kind)]
    head += [finding.module, finding.line or ""]
    values = [[row.value.slot, _words(row)] for row in finding.rows] or [["", ""]]
    return [[*head, *value, finding.draws_random] for value in values]


def _words(row: Row) -> str:
    if row.finding:
        return row.finding
    return "the values differ" if isinstance(row, Matched) else "only one side has it"
