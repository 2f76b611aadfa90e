# SPDX-License-Identifier: Apache-2.0
"""`check_call`: one call of the accuracy check, run anew on a device and on the CPU in float64.

Each result has two verdicts side by side. Its own error in parts of the allowed one decides; the
documented standard is measured and written beside it, and where both disagree, the row says why.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from msprobe.checks.accuracy_csv import DetailRow, ResultRow, bare_api
from msprobe.checks.judging import Judgement, Verdict
from msprobe.checks.standards.first_verdict import Judged, Status, first_verdict, worst
from msprobe.checks.standards.metrics import NO_METRICS, Floats, Metrics, as_floats, measure
from msprobe.checks.standards.standard import Generation, Standards
from msprobe.checks.verify_call import CallReport, VerifyOptions, verify_call
from msprobe.checks.verify_call import ResultRow as VerifiedRow
from msprobe.dump.record_names import call_name
from msprobe.dump.tensor_archive_writer import write_archive
from msprobe.dump.tensor_files import StoredTensor
from msprobe.dump.values import PartPath
from msprobe.errors import ReportWriteError
from msprobe.numerics.number_types import Kind, kind_of
from msprobe.plain_text import reason
from msprobe.replay.forms import tensor_forms
from msprobe.replay.recorded_calls import BackwardPass, RecordedCall
from msprobe.replay.runner import Runner, Setting
from msprobe.replay.tensors import CallTensors, TensorSource

_STATUS: Final = {
    Verdict.EXACT: Status.PASS,
    Verdict.ROUNDING: Status.PASS,
    Verdict.OVERFLOW: Status.WARNING,
    Verdict.SUSPICIOUS: Status.WARNING,
    Verdict.WRONG: Status.ERROR,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """How calls are checked.

    Attributes:
        device: where they are run.
        standards: the documented standards.
        generation: whose rules choose the standard.
        error_data: folder for inputs and outputs of calls that do not pass; None for none.
        dtype: type to run calls in; None for the recorded ones.
        reference: type of the reference.
    """

    device: str
    standards: Standards
    generation: Generation = Generation.NEW
    error_data: Path | None = None
    dtype: str | None = None
    reference: str = "float64"


@dataclass(frozen=True, slots=True, kw_only=True)
class SidedRow:
    """One result with both verdicts.

    Attributes:
        detail: its row in the documented file of details.
        documented: the documented first verdict.
    """

    detail: DetailRow
    documented: Judged | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedCall:
    """One call's results.

    Attributes:
        result: its row in the documented file of results.
        rows: its outputs and gradients.
        report: the judgements by its own error; None where an earlier check made them.
    """

    result: ResultRow
    rows: tuple[SidedRow, ...] = ()
    report: CallReport | None = None

    @property
    def status(self) -> Status:
        """The worst status of both directions."""
        found = [one for one in (self.result.forward, self.result.backward) if one is not None]
        return worst(found) or Status.SKIP


def check_call(
    call: RecordedCall, runner: Runner, tensors: TensorSource, options: CheckOptions
) -> CheckedCall:
    """Check one call; never raises for what is wrong with the call.

    Args:
        call: the call.
        runner: of its framework.
        tensors: where its tensors come from.
        options: how to check.
    """
    api = bare_api(call_name(call.name))
    seen = _Seen(api, options)
    index = options.standards.grad_index.get(api)
    if index is not None and runner.reruns:
        call = replace(call, passes=tuple(_with_one_gradient(one, index) for one in call.passes))
    report = verify_call(
        call,
        runner,
        tensors,
        VerifyOptions(
            device=options.device,
            rerun=runner.reruns or options.dtype is not None,
            dtype=options.dtype,
            reference=Setting(dtype=options.reference),
            units=runner.float32_units(options.device) if runner.reruns else {},
        ),
        seen.add,
    )
    rows = tuple(seen.row(row, report) for row in report.rows)
    result = _result(call, report, rows)
    found = CheckedCall(result=result, rows=rows, report=report)
    if options.error_data is not None and found.status in (Status.WARNING, Status.ERROR):
        save_tensors(options.error_data, call, tensors, seen.tensors)
    return found


def _with_one_gradient(one: BackwardPass, index: int) -> BackwardPass:
    """Return a backward pass from one output: the gradients of the others are none."""
    if not isinstance(one.incoming, list):
        return one
    kept = [form if place == index else None for place, form in enumerate(one.incoming)]
    return replace(one, incoming=kept)


@dataclass(frozen=True, slots=True)
class _Measured:
    """One result as the documented standard sees it, and the largest value that overflowed."""

    metrics: Metrics
    documented: Judged
    reference_dtype: str
    needed: float


@dataclass(slots=True)
class _Seen:
    """Measures the results of one call as the documented standard does."""

    api: str
    options: CheckOptions
    tensors: dict[str, tuple[StoredTensor, StoredTensor]] = field(default_factory=dict)
    _measured: dict[str, _Measured] = field(default_factory=dict)

    def add(self, row: VerifiedRow, found: StoredTensor, reference: StoredTensor) -> None:
        """Measure one result."""
        name = _name(row)
        standards = self.options.standards
        if self.options.error_data is not None:
            self.tensors[name] = (found, reference)
        target, expected = found.values(), reference.values()
        metrics = NO_METRICS
        if target.shape == expected.shape:
            metrics = measure(
                target,
                expected,
                dtype=found.dtype,
                reference_dtype=reference.dtype,
                api=self.api,
                algorithm=standards.algorithm(self.api, found.dtype, self.options.generation),
                standards=standards,
            )
        judged = first_verdict(
            target, expected, metrics, dtype=found.dtype, api=self.api, standards=standards
        )
        needed = _needed(as_floats(target), as_floats(expected))
        self._measured[name] = _Measured(metrics, judged, reference.dtype, needed)

    def row(self, row: VerifiedRow, report: CallReport) -> SidedRow:
        """Return both verdicts of one result."""
        name = _name(row)
        own = row.judgement
        if own is None:
            text = ": ".join(filter(None, (str(row.reason or ""), row.detail)))
            skipped = DetailRow(name=name, status=Status.SKIP, message=text)
            return SidedRow(detail=skipped)
        measured = self._measured[name]
        status = _STATUS[own.verdict]
        detail = DetailRow(
            name=name,
            dtype=row.dtype,
            reference_dtype=measured.reference_dtype,
            shape=str(row.shape),
            metrics=measured.metrics,
            status=status,
            message=_message(own, measured, status, row.dtype, report),
        )
        return SidedRow(detail=detail, documented=measured.documented)


def _name(row: VerifiedRow) -> str:
    return f"{row.record}.{row.slot}"


def _needed(target: Floats, reference: Floats) -> float:
    """Return the largest value in place of which a result is infinite; 0 where none is."""
    if target.shape != reference.shape:
        return 0.0
    return float(np.max(np.abs(reference[np.isinf(target)]), initial=0.0))


def _message(
    own: Judgement, measured: _Measured, status: Status, dtype: str, report: CallReport
) -> str:
    """Return why a result does not pass, and where the documented standard says otherwise."""
    parts = []
    documented = measured.documented
    is_same = documented.status is status
    if status is not Status.PASS or not is_same:
        parts.append(own_words(own, dtype))
    if own.verdict is Verdict.OVERFLOW:
        parts.append(f"it would have to hold {measured.needed:.6g}")
    if not is_same:
        reason = f" ({documented.reason})" if documented.reason else ""
        parts.append(f"documented standard: {documented.status}{reason}")
    if parts and report.generated:
        parts.append("generated data")
    return "; ".join(parts)


def own_words(own: Judgement, dtype: str) -> str:
    """Return the verdict by a result's own error in words."""
    if own.verdict is Verdict.EXACT:
        return "the exact result, rounded"
    if own.verdict is Verdict.ROUNDING:
        return f"rounding of {dtype}: {own.ratio:.3g} of the allowed error" + _remark(own)
    if own.verdict is Verdict.OVERFLOW:
        return f"overflow: {own.remark}"
    if not math.isfinite(own.ratio):
        return f"{own.verdict}: {own.remark}" if own.remark else str(own.verdict)
    ulps = f"{own.ulps:.4g} ulp, " if kind_of(dtype) in (Kind.FLOAT, Kind.COMPLEX) else ""
    factor = f", off by the factor {own.factor:.6g}" if own.factor is not None else ""
    text = f"{own.verdict}: {ulps}{own.ratio:.4g} times the allowed error{factor}"
    return text + _remark(own)


def _remark(own: Judgement) -> str:
    return f" ({own.remark})" if own.remark else ""


def _result(call: RecordedCall, report: CallReport, rows: tuple[SidedRow, ...]) -> ResultRow:
    forward = [row.detail for row in rows if not row.detail.is_backward]
    backward = [row.detail for row in rows if row.detail.is_backward]
    reason = ": ".join(filter(None, (str(report.reason or ""), report.detail)))
    status = worst([row.status for row in backward])
    if call.passes and status is None:
        status = Status.SKIP
    worst_first = [*forward, *backward]
    messages = [row.message for row in worst_first if row.status in (Status.ERROR, Status.WARNING)]
    return ResultRow(
        name=call_name(call.name),
        forward=worst([row.status for row in forward]) or Status.SKIP,
        backward=status,
        message=messages[0] if messages else reason,
    )


def save_tensors(
    directory: Path,
    call: RecordedCall,
    tensors: CallTensors,
    outputs: dict[str, tuple[StoredTensor, StoredTensor]],
) -> None:
    """Save inputs and both results of a call, under the documented names.

    Args:
        directory: made when needed.
        call: the call.
        tensors: has its arguments.
        outputs: results and their references by name, such as ``Torch.add.0.forward.output.0``.

    Raises:
        ReportWriteError: a file cannot be written.
    """
    inputs = {call.name: [*_places(call.args, ("input",)), *_places(call.kwargs, ())]}
    for one in call.passes:
        inputs[one.name] = _places(one.incoming, ("gradient", one.name))
    for record, places in inputs.items():
        for number, (place, form) in enumerate(places):
            _write(directory / f"{record}.input.{number}.pt", tensors.read(form, place))
    for name, (found, reference) in outputs.items():
        record, _, slot = name.partition(".output")
        _write(directory / f"{record}.output.device{slot}.pt", found)
        _write(directory / f"{record}.output.bench{slot}.pt", reference)


def _places(tree: Any, place: PartPath) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the tensors in a part of a call, with the places that its runner reads them at."""
    forms = tensor_forms(tree, place)
    return [(".".join(map(str, found)), form) for found, form in forms if "shape" in form]


def _write(path: Path, tensor: StoredTensor) -> None:
    """Write a tensor as ``torch.save`` does; one without elements has no file."""
    array = np.ascontiguousarray(tensor.array)
    if array.size == 0:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_archive(str(path), tensor.dtype, array.shape, array.data.cast("B"))
    except OSError as exc:
        raise ReportWriteError(path, f"cannot be written: {reason(exc)}") from exc
