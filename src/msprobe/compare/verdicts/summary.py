# SPDX-License-Identifier: Apache-2.0
"""`summarize`: what ``summary.json`` holds (docs/reference/summary.md)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

from msprobe.compare.model import Mode, Origin, Row, Status
from msprobe.compare.rank_comparison import RankComparison
from msprobe.compare.verdicts.across import settle_across
from msprobe.compare.verdicts.next_steps import next_steps, notes_on
from msprobe.compare.verdicts.ranking import Culprit, kind_of_row, rank_culprits

SCHEMA_VERSION: Final = 1
_MOST_LISTED: Final = 100


def summarize(
    comparisons: Sequence[RankComparison],
    *,
    target: str,
    reference: str,
    notes: Iterable[str] = (),
    elapsed_s: float = 0.0,
    bytes_read: int = 0,
) -> dict[str, Any]:
    """Return the summary of a comparison, ready for JSON.

    Before, origins are settled across steps and ranks: only here all of them are together.

    Args:
        comparisons: all steps and ranks, judged, with origins.
        target: path of the target, as the user gave it.
        reference: likewise.
        notes: what else the user should know.
        elapsed_s: how long it took.
        bytes_read: how many bytes of tensors were read.
    """
    from msprobe import __version__

    settle_across(comparisons)
    parts = [_part(comparison) for comparison in comparisons]
    culprits = rank_culprits(comparisons)
    counts = _total(part["counts"] for part in parts)
    origins = _total(part["origins"] for part in parts)
    first = _first_of(comparisons)
    return {
        "schema_version": SCHEMA_VERSION,
        "msprobe_version": __version__,
        "mode": str(_mode(comparisons)),
        "target": target,
        "reference": reference,
        "equal": not any(counts[status] for status in Status if status.is_difference)
        and not counts[Status.UNREAD],
        "counts": counts,
        "origins": origins,
        "rows": sum(part["rows"] for part in parts),
        "operations": sum(part["operations"] for part in parts),
        "first_difference": None if first is None else _difference(*first),
        "introduced": [_introduced(culprit) for culprit in culprits[:_MOST_LISTED]],
        "introduced_total": len(culprits),
        "unmatched": _unmatched(comparisons),
        "comparisons": parts,
        "next_steps": next_steps(comparisons, culprits),
        "notes": list(dict.fromkeys([*notes, *notes_on(comparisons)])),
        "elapsed_s": round(elapsed_s, 3),
        "bytes_read": bytes_read,
    }


def _mode(comparisons: Sequence[RankComparison]) -> Mode:
    modes = [comparison.mode for comparison in comparisons]
    return modes[0] if modes else Mode.STATISTICS


def _part(comparison: RankComparison) -> dict[str, Any]:
    counts = Counter(row.status for row in comparison.rows)
    origins = Counter(row.origin for row in comparison.rows)
    first = first_difference(comparison)
    return {
        "step": comparison.step,
        "rank": comparison.rank,
        "rows": len(comparison.rows),
        "operations": len(comparison.pairs),
        "counts": {str(status): counts[status] for status in Status},
        "origins": {str(origin): origins[origin] for origin in Origin},
        "first_difference": None if first is None else _difference(comparison, first),
    }


def _total(counters: Iterable[dict[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for counts in counters:
        for name, number in counts.items():
            total[name] = total.get(name, 0) + number
    return total or {str(status): 0 for status in Status}


def _first_of(
    comparisons: Sequence[RankComparison],
) -> tuple[RankComparison, Row] | None:
    found = [
        (comparison, row)
        for comparison in comparisons
        if (row := first_difference(comparison)) is not None
    ]
    return min(found, key=lambda item: (item[0].step, item[1].pair.position), default=None)


def first_difference(comparison: RankComparison) -> Row | None:
    """Return the first row in order of execution that differs, None if none does.

    Calls that one side lacks count only if something that follows differs because of them.
    """
    harmless = None
    for row in comparison.rows:
        if row.status.is_difference:
            if row.origin is not None:
                return row
            harmless = harmless or row
    return harmless


def _difference(comparison: RankComparison, row: Row) -> dict[str, Any]:
    side, record = comparison.side_of(row.pair), row.pair.name
    return {
        "name": row.name,
        "status": str(row.status),
        "origin": None if row.origin is None else str(row.origin),
        "step": comparison.step,
        "rank": comparison.rank,
        "order": row.pair.position,
        "module": side.module(record),
        "kind": kind_of_row(comparison, row),
        "error": _number(row.error),
        "cause": None if row.cause is None else str(row.cause),
        "reason": row.reason,
        "source": side.source_line(record),
    }


def _introduced(culprit: Culprit) -> dict[str, Any]:
    comparison, row = culprit.comparison, culprit.row
    side, record = comparison.side_of(row.pair), row.pair.name
    return {
        "name": record,
        "row": row.name,
        "kind": culprit.kind,
        "module": side.module(record),
        "status": str(row.status),
        "error": _number(row.error),
        "stack": side.frames(record),
        "source": side.source_line(record),
        "step": comparison.step,
        "rank": comparison.rank,
        "order": row.pair.position,
        "cause": None if row.cause is None else str(row.cause),
        "reason": row.reason,
    }


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _unmatched(comparisons: Sequence[RankComparison]) -> dict[str, Any]:
    pairs = [pair for comparison in comparisons for pair in comparison.pairs]
    added = [pair.name for pair in pairs if pair.reference is None]
    missing = [pair.name for pair in pairs if pair.target is None]
    return {
        "target": len(added),
        "reference": len(missing),
        "operations": {"added": added[:_MOST_LISTED], "missing": missing[:_MOST_LISTED]},
    }
