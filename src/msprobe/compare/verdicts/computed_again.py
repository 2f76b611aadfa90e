# SPDX-License-Identifier: Apache-2.0
"""Calls of a comparison computed again in float64: which side errs, or is it rounding?

Where a call has other results though its inputs agree, each side's call is computed again from that
side's own tensors, as `msprobe verify` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from msprobe.compare.causes import Cause
from msprobe.compare.model import Mode
from msprobe.compare.verdicts.culprit_classes import class_of
from msprobe.compare.verdicts.own_error import CulpritKey, OwnError, OwnErrors, key_of
from msprobe.compare.verdicts.ranking import Culprit
from msprobe.compare.verdicts.verdict import Findings, Verdict
from msprobe.compare.verdicts.verdict_classes import VerdictClass
from msprobe.dump.record_names import RecordKind, RecordName, forward_name, parse_record_name
from msprobe.errors import MsprobeError

if TYPE_CHECKING:
    from msprobe.checks.verify_call import CallReport
    from msprobe.checks.verify_dump import CallTask
    from msprobe.compare.sides import Side

# A call takes milliseconds; these are judged in about a second, after the start of a process.
_MOST_JUDGED: Final = 20
_SECONDS: Final = 60.0
_CLASSES: Final = (VerdictClass.KERNEL, VerdictClass.UNEXPLAINED, VerdictClass.GRADIENT)


def needs_own_errors(verdict: Verdict, culprits: Sequence[Culprit]) -> bool:
    """Return whether own errors may change a verdict: it blames a call that can be judged."""
    if not culprits or verdict.where is None:
        return False
    first = culprits[0]
    return verdict.where.record == first.row.pair.name and may_be_judged(first)


def with_own_errors(findings: Findings) -> Findings:
    """Return findings with errors of calls, without the culprits that rounding explains."""
    own = judge_culprits(findings.culprits)
    # A right backward pass proves nothing: a gradient that is detached elsewhere is missing there.
    rounding = {
        key
        for key, errors in own.items()
        if errors.is_rounding and parse_record_name(key.record).kind is RecordKind.FORWARD
    }
    steps = [
        each
        if each.proof is None
        else replace(
            each,
            proof=each.proof.without(
                [key.record for key in rounding if (key.step, key.rank) == (each.step, each.rank)]
            ),
        )
        for each in findings.steps
    ]
    culprits = [culprit for culprit in findings.culprits if key_of(culprit) not in rounding]
    return replace(findings, culprits=culprits, steps=steps, own_errors=own)


def may_be_judged(culprit: Culprit) -> bool:
    """Return whether computing a culprit's call again tells which side errs.

    Both sides made the call and kept its tensors, and nothing that it was given explains why its
    results differ.
    """
    row = culprit.row
    if culprit.comparison.mode is not Mode.TENSOR or not row.pair.is_matched:
        return False
    if any(
        side.level == "L2" for side in (culprit.comparison.target, culprit.comparison.reference)
    ):
        return False
    if culprit.kind not in ("forward", "backward") or row.cause not in (None, Cause.UNPROVED_INPUT):
        return False
    if class_of(culprit) not in _CLASSES:
        return False
    names = [parse_record_name(name) for name in (row.pair.target, row.pair.reference) if name]
    return not any(name.is_module or name.recompute or _call_of(name) is None for name in names)


def judge_culprits(culprits: Sequence[Culprit]) -> Mapping[CulpritKey, OwnErrors]:
    """Return the errors of the first calls that can be judged, in one process of its own.

    Where the framework of a dump is not installed, the errors say so.
    """
    chosen: dict[CulpritKey, Culprit] = {}
    for culprit in culprits:
        if len(chosen) < _MOST_JUDGED and may_be_judged(culprit):
            chosen.setdefault(key_of(culprit), culprit)
    asked = {key: tuple(_asks(culprit)) for key, culprit in chosen.items()}
    tasks = list(dict.fromkeys(task for asks in asked.values() for task, _ in asks))
    if not tasks:
        return {}
    try:
        reports = _reports(tasks)
    except MsprobeError as exc:
        failed = OwnError(not_judged=str(exc))
        return dict.fromkeys(asked, OwnErrors(failed, failed))
    return {
        key: OwnErrors(*(_error(reports[task], record) for task, record in asks))
        for key, asks in asked.items()
    }


def _reports(tasks: Sequence[CallTask]) -> Mapping[CallTask, CallReport]:
    from msprobe.checks.verify_dump import verify_calls
    from msprobe.replay.workers import Limits

    return verify_calls(tasks, limits=Limits(seconds=_SECONDS))


def _asks(culprit: Culprit) -> Iterator[tuple[CallTask, str]]:
    """Yield the target's and the reference's call, with the name of the record."""
    pair, comparison = culprit.row.pair, culprit.comparison
    assert pair.target is not None
    assert pair.reference is not None
    yield _ask(comparison.target, pair.target), pair.target
    yield _ask(comparison.reference, pair.reference), pair.reference


def _ask(side: Side, record: str) -> CallTask:
    from msprobe.checks.verify_dump import CallTask

    call = _call_of(parse_record_name(record))
    assert call is not None
    return CallTask(str(side.view.directory), side.view.records_path.name, call)


def _call_of(name: RecordName) -> str | None:
    """Return the forward record of the call that a record is about."""
    return name.full if name.kind is RecordKind.FORWARD else forward_name(name)


def _error(report: CallReport, record: str) -> OwnError:
    """Return the worst error of a record's results."""
    from msprobe.checks.judging import Verdict

    if report.generated:
        return OwnError(not_judged="its tensors were not recorded")
    judged = [row for row in report.rows if row.record == record and row.judgement is not None]
    if not judged:
        rows = [row for row in report.rows if row.record == record]
        reason = next((row.reason for row in rows if row.reason), report.reason)
        return OwnError(not_judged=str(reason or "no numbers in its results"))
    found = [(row.slot, row.judgement) for row in judged if row.judgement is not None]
    slot, worst = max(found, key=lambda each: (each[1].verdict.severity, each[1].ratio))
    return OwnError(
        is_fault=worst.verdict.is_fault,
        is_certain=worst.verdict is Verdict.WRONG,
        ulps=worst.ulps,
        ratio=worst.ratio,
        slot=slot,
        remark=worst.remark,
    )
