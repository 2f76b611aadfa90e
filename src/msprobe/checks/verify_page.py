# SPDX-License-Identifier: Apache-2.0
"""`write_verify_page`: the judgements of a dump as a page.

Its reader is ``page/data/verify.js``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from msprobe.checks.judging import Judgement, Verdict
from msprobe.checks.verify_call import ResultRow
from msprobe.checks.verify_dump import VerifiedCall, VerifiedDump
from msprobe.checks.verify_lines import closing, sentence
from msprobe.dump.record_names import parse_record_name
from msprobe.json_text import strict
from msprobe.report.page_file import PageTables, write_page

MOST_SHOWN: Final = 20_000
"""Results on a page; of more, those with the largest errors. All are in ``verify.json``."""
_VIEWS: Final = (
    "verify_head",
    "verify_errors",
    "verify_list",
    "verify_operators",
    "verify_result",
)
_NUMBERS: Final = ("ratio", "ulps", "error", "relative", "allowed", "index")


class _Result(NamedTuple):
    call: VerifiedCall
    row: ResultRow

    @property
    def judgement(self) -> Judgement | None:
        return self.row.judgement

    @property
    def operator(self) -> str:
        name = parse_record_name(self.row.record)
        return f"{name.prefix}.{name.path}" if name.prefix else name.path

    @property
    def height(self) -> tuple[bool, int, float]:
        """How much it matters: faults first, then by error; what was not judged last."""
        found = self.judgement
        if found is None:
            return (False, -1, 0.0)
        return (True, found.verdict.severity if found.verdict.is_fault else 0, found.ratio)


def write_verify_page(found: VerifiedDump, path: Path) -> Path:
    """Write the page; return the file.

    Args:
        found: the judgements.
        path: the file to write; it appears when it is complete.

    Raises:
        ReportWriteError: the file cannot be written.
    """
    results = [_Result(call, row) for call in found.calls for row in _rows(call)]
    shown = results
    if len(results) > MOST_SHOWN:
        chosen = sorted(range(len(results)), key=lambda place: results[place].height, reverse=True)
        shown = [results[place] for place in sorted(chosen[:MOST_SHOWN])]
    tables = PageTables()
    verify = {
        "dump": str(found.path),
        "sentence": sentence(found),
        "closing": closing(found),
        "has_fault": any(call.is_fault for call in found.calls),
        "notes": list(found.notes),
        "places": len({(call.step, call.rank) for call in found.calls}),
        "results": len(results),
        "verdicts": {
            str(verdict): sum(
                each.judgement is not None and each.judgement.verdict is verdict for each in results
            )
            for verdict in Verdict
        },
        "operators": list(_operators(results)),
    }
    sections = {"verify": verify, "results": _columns(shown, tables), **tables.sections()}
    return write_page(path, title=f"msprobe verify: {found.path}", sections=sections, views=_VIEWS)


def _rows(call: VerifiedCall) -> Sequence[ResultRow]:
    report = call.report
    if report.rows:
        return report.rows
    # A call without results has a line that says why.
    empty = ResultRow(
        record=report.name,
        slot="",
        dtype="",
        shape=(),
        reason=report.reason,
        detail=report.detail,
    )
    return [empty]


def _columns(results: Sequence[_Result], tables: PageTables) -> dict[str, list[Any]]:
    calls = [each.call for each in results]
    rows = [each.row for each in results]
    judged = [each.judgement for each in results]
    columns: dict[str, list[Any]] = {
        "step": [call.step for call in calls],
        "rank": tables.texts("rank", [str(call.rank) for call in calls]),
        "position": [call.position for call in calls],
        "record": tables.texts("record", [row.record for row in rows]),
        "slot": tables.texts("slot", [row.slot for row in rows]),
        "operator": tables.texts("operator", [each.operator for each in results]),
        "verdict": tables.texts(
            "verdict", [None if one is None else str(one.verdict) for one in judged]
        ),
        "dtype": tables.texts("dtype", [row.dtype for row in rows]),
        "shape": tables.texts("shape", [str(list(row.shape)) for row in rows]),
        "reason": tables.texts("reason", [row.reason and str(row.reason) for row in rows]),
        "remark": tables.texts(
            "remark",
            [
                row.detail if one is None else one.remark
                for row, one in zip(rows, judged, strict=True)
            ],
        ),
        "source": tables.texts("source", [call.source for call in calls]),
        "by": tables.texts("by", [call.report.by for call in calls]),
        "generated": [call.report.generated for call in calls],
        "found": tables.texts("found", [None if one is None else str(one.found) for one in judged]),
        "expected": tables.texts(
            "expected", [None if one is None else str(one.expected) for one in judged]
        ),
        "histogram": [None if one is None else list(one.histogram) for one in judged],
    }
    for name in _NUMBERS:
        columns[name] = [None if one is None else strict(getattr(one, name)) for one in judged]
    return columns


def _operators(results: Sequence[_Result]) -> Iterator[list[Any]]:
    """Yield the name, results, judged results, faults, largest ratio and ulps of each operator."""
    groups: dict[str, list[_Result]] = defaultdict(list)
    for each in results:
        groups[each.operator].append(each)
    for name, group in groups.items():
        judged = [each.judgement for each in group if each.judgement is not None]
        yield [
            name,
            len(group),
            len(judged),
            sum(one.verdict.is_fault for one in judged),
            strict(max((one.ratio for one in judged), default=None)),
            strict(max((one.ulps for one in judged), default=None)),
        ]
