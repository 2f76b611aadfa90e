# SPDX-License-Identifier: Apache-2.0
"""``verify.json``: the judgements of a dump as plain data (docs/reference/verify.md)."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from msprobe.checks.judging import Verdict
from msprobe.checks.verify_call import ResultRow
from msprobe.checks.verify_dump import VerifiedCall, VerifiedDump
from msprobe.checks.verify_lines import sentence

SCHEMA_VERSION: Final = 1


def verify_json(found: VerifiedDump) -> dict[str, Any]:
    """Return all judgements for strict JSON."""
    return {
        "schema_version": SCHEMA_VERSION,
        "dump": str(found.path),
        "sentence": sentence(found),
        "calls": len(found.calls),
        "judged": found.judged,
        "verdicts": {verdict: len(found.with_verdict(verdict)) for verdict in Verdict},
        "not_judged": {str(reason): count for reason, count in found.not_judged.most_common()},
        "notes": list(found.notes),
        "results": [_call_json(call) for call in found.calls],
    }


def _call_json(call: VerifiedCall) -> dict[str, Any]:
    report = call.report
    worst = call.worst
    return {
        "step": call.step,
        "rank": call.rank,
        "position": call.position,
        "name": report.name,
        "verdict": report.verdict,
        "ratio": None if worst is None or worst.judgement is None else worst.judgement.ratio,
        "reason": report.reason,
        "detail": report.detail,
        "reference": report.by,
        "generated": report.generated,
        "source": call.source,
        "seconds": round(report.elapsed_s, 6),
        "rows": [_row_json(row) for row in report.rows],
    }


def _row_json(row: ResultRow) -> dict[str, Any]:
    found: dict[str, Any] = {
        "record": row.record,
        "slot": row.slot,
        "dtype": row.dtype,
        "shape": list(row.shape),
        "reason": row.reason,
        "detail": row.detail,
    }
    if row.judgement is not None:
        judgement = asdict(row.judgement)
        for key in ("found", "expected"):
            if isinstance(judgement[key], complex):
                judgement[key] = [judgement[key].real, judgement[key].imag]
        found |= judgement
    return found
