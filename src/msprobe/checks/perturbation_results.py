# SPDX-License-Identifier: Apache-2.0
"""`PerturbationResults`: findings of a run, its calls ranked, and the files of these.

``free_benchmark.csv`` has a row for each finding, in the columns that `free_benchmark` is known
for and further ones after them. ``free_benchmark.json`` ranks all calls by amplification, and
``free_benchmark.html`` shows them.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from msprobe.checks.perturbation import SEVERITIES, Judged, Severity
from msprobe.files import write_report
from msprobe.json_text import strict, strict_json
from msprobe.report.csv_files import write_csv
from msprobe.report.page_file import write_page
from msprobe.report.tables import Table, TableRow

logger = logging.getLogger(__name__)

CSV_FILE: Final = "free_benchmark.csv"
JSON_FILE: Final = "free_benchmark.json"
PAGE_FILE: Final = "free_benchmark.html"
COLUMNS: Final = (
    *("rank", "pert_mode", "stage", "step", "api_name", "max_rel", "dtype", "shape"),
    *("output_index", "severity", "amplification", "input_change", "output_change", "max_ulp"),
    *("nonfinite", "differing", "first_place", "elements", "module", "source", "detail"),
)
_FLIPS: Final = "symbol_flipping"
# Of a run with a finding in every call of every step, the first ones tell as much.
_MOST_ROWS: Final = 100_000
_LISTED: Final = 10
# On a page, those that matter most; all are in `JSON_FILE`.
_MOST_SHOWN: Final = 5_000


class PerturbedCall(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One result of a perturbed call.

    Attributes:
        step: number of the step.
        name: of the forward or backward record.
        judged: the judgement.
        module: record of the module around it; empty if unknown.
        source: line of the user's code that made the call; empty if unknown.
    """

    step: int
    name: str
    judged: Judged
    module: str = ""
    source: str = ""

    @property
    def _order(self) -> tuple[int, float]:
        return SEVERITIES[self.judged.severity], self.judged.amplification

    def is_worse_than(self, other: PerturbedCall) -> bool:
        """Return whether this one matters more."""
        return self._order > other._order


@dataclass(frozen=True, slots=True, kw_only=True)
class PerturbationRun:
    """The head of the results.

    Attributes:
        mode: the perturbation as the user named it.
        stage: ``forward`` or ``backward``.
        handler: ``check`` or ``fix``.
        judges_errors: whether amplifications are errors against a reference.
    """

    mode: str
    stage: str
    handler: str = "check"
    judges_errors: bool = False


class PerturbationResults:
    """Takes judged calls; keeps the files of a rank up to date.

    Attributes:
        skipped: calls of the run that were not perturbed, by reason.
        examined: calls that were.
        fixed: results that were replaced.
        learned_from: calls of the steps that learn.
        spent_s: seconds of the training that went into it.
        worst: the worst result of each call, over all steps.
        counts: findings by severity.
    """

    def __init__(self, run: PerturbationRun) -> None:
        """Create it; nothing is written before `begin` and `write`."""
        self._run = run
        self._folder: Path | None = None
        self._rank = 0
        self._rows: list[PerturbedCall] = []
        self._written = -1  # not even the titles
        self._steps = 0
        self.skipped: Counter[str] = Counter()
        self.examined = 0
        self.fixed = 0
        self.learned_from = 0
        self.spent_s = 0.0
        self.worst: dict[str, PerturbedCall] = {}
        self.counts: Counter[Severity] = Counter()

    # -- what happens --------------------------------------------------------------------------

    def add(self, call: PerturbedCall) -> None:
        """Take one result."""
        known = self.worst.get(call.name)
        if known is None or call.is_worse_than(known):
            self.worst[call.name] = call
        severity = call.judged.severity
        if severity is Severity.NONE:
            return
        self.counts[severity] += 1
        if len(self._rows) < _MOST_ROWS:
            self._rows.append(call)

    # -- files ---------------------------------------------------------------------------------

    def begin(self, folder: Path, rank: int) -> None:
        """Write to `folder` from now on, as the process of this rank."""
        self._folder, self._rank = folder, rank
        self._steps += 1

    def write(self) -> None:
        """Bring the files up to date.

        Raises:
            ReportWriteError: they cannot be written.
        """
        if self._folder is None:
            return
        if len(self._rows) != self._written:
            self._written = len(self._rows)
            table = Table(columns=COLUMNS, count=len(self._rows), rows=self._table_rows)
            write_csv(table, self._folder / CSV_FILE, warns=False)
        try:
            text = msgspec.json.encode(self.as_json()).decode() + "\n"
        except UnicodeEncodeError:  # a lone surrogate, as in undecodable file names
            text = strict_json(self.as_json(), indent=None)
        write_report(self._folder / JSON_FILE, text, warns=False)

    def write_page(self) -> None:
        """Write the page of the ranked calls, at the end of a run.

        Raises:
            ReportWriteError: it cannot be written.
        """
        if self._folder is None:
            return
        content = self.as_json()
        calls = content["calls"]
        notes = [f"left out: {count} ({reason})" for reason, count in self.skipped.most_common()]
        if len(calls) > _MOST_SHOWN:
            notes.append(f"{_MOST_SHOWN} of {len(calls)} calls; {JSON_FILE} has all")
        perturbation = {
            "sentence": self._headline(),
            "worst": next(
                (severity for severity, count in content["findings"].items() if count), ""
            ),
            "left_out": notes,
            "measure": self._measure,
            "calls": calls[:_MOST_SHOWN],
        }
        write_page(
            self._folder / PAGE_FILE,
            title=f"msprobe free_benchmark: {self._run.mode}, {self._run.stage}",
            sections={"perturbation": perturbation},
            views=("perturbation_head", "perturbation_calls"),
        )

    def _table_rows(self) -> Iterator[TableRow]:
        for call in self._rows:
            yield self._cells(call), None

    def _cells(self, call: PerturbedCall) -> Sequence[str | int | float | None]:
        run, judged, change = self._run, call.judged, call.judged.change
        ratio: str | float | None = _FLIPS if change.flips else change.ratio
        return (
            *(self._rank, run.mode, run.stage, call.step, call.name, ratio, change.dtype),
            *(str(list(change.shape)), change.output_index, judged.severity),
            *(judged.amplification, judged.input_change, change.relative, change.worst_ulp),
            *(change.nonfinite, change.differing, change.first, change.count),
            *(call.module, call.source, judged.detail),
        )

    def ranked(self) -> list[PerturbedCall]:
        """Return the worst result of each call, the one that matters most first."""
        return sorted(self.worst.values(), key=lambda call: call._order, reverse=True)

    def as_json(self) -> dict[str, Any]:
        """Return the content of ``free_benchmark.json``."""
        run = self._run
        return {
            "rank": self._rank,
            "mode": run.mode,
            "stage": run.stage,
            "handler": run.handler,
            "steps": self._steps,
            "cost": {
                "spent_s": round(self.spent_s, 6),
                "calls_perturbed": self.examined,
                "calls_left_out": dict(self.skipped),
                "calls_learned_from": self.learned_from,
                "results_replaced": self.fixed,
            },
            "findings": {one.value: self.counts[one] for one in list(Severity)[:0:-1]},
            "calls": [_entry(call) for call in self.ranked()],
        }

    # -- words ---------------------------------------------------------------------------------

    def lines(self) -> Iterator[str]:
        """Yield the ranked summary for people."""
        yield self._headline()
        what = self._measure
        ranked = self.ranked()
        for place, call in enumerate(ranked[:_LISTED], 1):
            judged = call.judged
            parts = [f"{place:>3}. {call.name}", f"step {call.step}"]
            if judged.input_change:
                parts.append(f"{what} {judged.amplification:.3g}")
            if judged.severity is not Severity.NONE:
                parts.append(f"{judged.severity}: {judged.detail}")
            yield ", ".join([*parts, *filter(None, (call.module, call.source))])
        for reason, count in self.skipped.most_common():
            yield f"     left out: {count} ({reason})"

    @property
    def _measure(self) -> str:
        return "error in units of rounding" if self._run.judges_errors else "amplification"

    def _headline(self) -> str:
        run = self._run
        found = [f"{self.counts[one]} {one}" for one in list(Severity)[:0:-1] if self.counts[one]]
        text = f"{run.mode}, {run.stage}: {self.examined} calls perturbed"
        if self.learned_from:
            text += f", {self.learned_from} learned from"
        if self.fixed:
            text += f", {self.fixed} results replaced"
        return f"{text}; findings: {', '.join(found) or 'none'}; {self.spent_s:.1f} s spent"

    def log_summary(self) -> None:
        """Log the ranked summary."""
        for line in self.lines():
            logger.info(line)


def _entry(call: PerturbedCall) -> dict[str, Any]:
    judged = call.judged
    return {
        "api_name": call.name,
        "step": call.step,
        "output_index": judged.change.output_index,
        "severity": judged.severity,
        "amplification": strict(judged.amplification),
        "output_change": strict(judged.change.relative),
        "input_change": strict(judged.input_change),
        "dtype": judged.change.dtype,
        "module": call.module,
        "source": call.source,
        "detail": judged.detail,
    }
