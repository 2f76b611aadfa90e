# SPDX-License-Identifier: Apache-2.0
"""Two files of details against each other: is a device less precise than a trusted one?"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msprobe.checks.accuracy_csv import (
    DETAILS,
    RESULT_COLUMNS,
    Column,
    DetailRow,
    ResultRow,
    Style,
    read_details,
    text_cell,
    write_rows,
)
from msprobe.checks.standards.first_verdict import Status, worst
from msprobe.checks.standards.ratio_verdict import RatioVerdict, ratio_verdict
from msprobe.checks.standards.standard import Algorithm, Generation, RatioMetric, Standards
from msprobe.errors import UsageError

_RESULT: Final = "api_precision_compare_result"
_DETAILS: Final = "api_precision_compare_details"
_EMPTY_SHAPE: Final = re.compile(r"\(0,?\)|\(0,.*|.*, 0[,)].*")
_TOPK_HINT: Final = "with sorted=False topk may return the same elements in another order"
# Documented titles of the ratio and of its result, and the English word of both.
_RATIO_TITLES: Final = {
    RatioMetric.SMALL_VALUE_ERROR: ("小值域错误比值", "小值域判定结果", "small_value_err"),
    RatioMetric.RMSE: ("均方根误差比值", "均方根误差判定结果", "rmse"),
    RatioMetric.MAX_REL_ERROR: ("相对误差最大值比值", "相对误差最大值判定结果", "max_rel_err"),
    RatioMetric.MEAN_REL_ERROR: ("相对误差平均值比值", "相对误差平均值判定结果", "mean_rel_err"),
    RatioMetric.ERROR_BALANCE: ("误差均衡性比值", "误差均衡性判定结果", "error_balance"),
}
_VALUE_TITLES: Final = {
    "nonfinite_error": (
        ("inf/nan错误率", "nonfinite_err"),
        ("inf/nan判定结果", "nonfinite_result"),
    ),
    "rel_error_share": (
        ("相对误差错误率", "rel_err_share"),
        ("相对误差判定结果", "rel_err_result"),
    ),
    "abs_error_share": (
        ("绝对误差错误率", "abs_err_share"),
        ("绝对误差判定结果", "abs_err_result"),
    ),
    "binary_error": (
        ("二进制一致错误率", "binary_err"),
        ("二进制一致错误率判定结果", "binary_result"),
    ),
}


def _columns() -> tuple[Column, ...]:
    found = [Column("API Name", "API Name", "name")]
    for metric, (ratio, result, english) in _RATIO_TITLES.items():
        found.append(Column(ratio, f"{english}_ratio", f"{metric}_ratio"))
        found.append(Column(result, f"{english}_result", f"{metric}_result"))
    for name, (value_titles, result_titles) in _VALUE_TITLES.items():
        found += [Column(*value_titles, name), Column(*result_titles, f"{name}_result")]
    found += [
        Column("ULP误差平均值", "mean_ulp", "mean_ulp"),
        Column("ULP误差大于阈值占比", "ulp_share", "ulp_share"),
        Column("ULP误差大于阈值占比比值", "ulp_share_ratio", "ulp_ratio"),
        Column("ULP误差判定结果", "ulp_result", "ulp_result"),
        Column("双千指标", "thousandth", "thousandth"),
        Column("双千指标判定结果", "thousandth_result", "thousandth_result"),
        Column("比对结果", "result", "status"),
        Column("比对算法", "algorithm", "algorithm"),
        Column("Message", "Message", "message"),
    ]
    return tuple(found)


COMPARED_COLUMNS: Final = _columns()


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRow:
    """One output of two devices.

    Attributes:
        row: the output on the device under test, or on the other one where that lacks it.
        verdict: the second verdict.
        is_missing: whether one of the files lacks the output.
    """

    row: DetailRow
    verdict: RatioVerdict
    is_missing: bool = False

    def message(self) -> str:
        """Return why the row is not a plain pass."""
        reasons = list(self.verdict.reasons)
        if self.row.api == "topk" and self.verdict.status is Status.ERROR:
            reasons.append(_TOPK_HINT)
        return "; ".join(reasons)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionComparison:
    """The outcome of two files.

    Attributes:
        rows: in the order of the target's file; outputs that it lacks come last.
        notes: oddities of the files, in words.
    """

    rows: tuple[ComparedRow, ...]
    notes: tuple[str, ...] = ()

    @property
    def missing(self) -> list[ComparedRow]:
        """Rows that only one of the files has."""
        return [row for row in self.rows if row.is_missing]

    def calls(self) -> list[ResultRow]:
        """Return a result for each call: the worst of its outputs, by direction."""
        found: dict[str, dict[bool, list[ComparedRow]]] = {}
        for row in self.rows:
            directions = found.setdefault(row.row.call, {False: [], True: []})
            directions[row.row.is_backward].append(row)
        return [
            ResultRow(
                name=call,
                forward=worst([row.verdict.status for row in rows[False]]),
                backward=worst([row.verdict.status for row in rows[True]]),
                message=_first_reasons([*rows[False], *rows[True]]),
            )
            for call, rows in found.items()
        ]


def compare_details(
    target: Path,
    reference: Path,
    *,
    standards: Standards,
    generation: Generation = Generation.NEW,
) -> PrecisionComparison:
    """Compare two files of details; see `compare_rows`.

    Raises:
        UsageError: a file cannot be read, has no row, or has two different rows of one name.
    """
    notes: list[str] = []
    sides = [_by_name(path, read_details(path), notes) for path in (target, reference)]
    compared = compare_rows(*sides, standards=standards, generation=generation)
    for side, other in ((target, reference), (reference, target)):
        names = sides[side is reference].keys() - sides[side is target].keys()
        if names:
            notes.append(f"{len(names)} outputs of {side} are not in {other}")
    return PrecisionComparison(rows=compared, notes=tuple(notes))


def compare_rows(
    target: dict[str, DetailRow],
    reference: dict[str, DetailRow],
    *,
    standards: Standards,
    generation: Generation,
) -> tuple[ComparedRow, ...]:
    """Judge each output by the ratio of the two devices' errors.

    Args:
        target: outputs of the device under test, by name.
        reference: outputs of the trusted device.
        standards: the limits.
        generation: whose limits of ratios.
    """

    def judge(row: DetailRow, other: DetailRow | None) -> ComparedRow:
        if other is None:
            return _missing(row, "the reference")
        skipped = _reason_to_skip(row, other)
        if skipped:
            return ComparedRow(
                row=row, verdict=RatioVerdict(status=Status.SKIP, reasons=(skipped,))
            )
        verdict = ratio_verdict(
            row.metrics,
            other.metrics,
            api=row.api,
            dtype=row.dtype,
            standards=standards,
            generation=generation,
        )
        return ComparedRow(row=row, verdict=verdict)

    both = [judge(row, reference.get(name)) for name, row in target.items()]
    rest = [_missing(row, "the target") for name, row in reference.items() if name not in target]
    return (*both, *rest)


def write_comparison(
    found: PrecisionComparison, directory: Path, style: Style
) -> tuple[Path, Path]:
    """Write the two documented files; return the paths of results and details.

    Raises:
        ReportWriteError: a file cannot be written.
    """
    stamp = time.strftime("%Y%m%d%H%M%S")
    while (result := directory / f"{_RESULT}_{stamp}.csv").exists():
        stamp = str(int(stamp) + 1)
    details = directory / f"{_DETAILS}_{stamp}.csv"
    write_rows(details, style.titles(COMPARED_COLUMNS), (_cells(row, style) for row in found.rows))
    # Here the documented first title has another letter than in the files of a check.
    titles = [column.name for column in RESULT_COLUMNS]
    write_rows(result, titles, (row.cells() for row in found.calls()))
    return result, details


def find_details(target: str | None, reference: str | None, directory: Path) -> tuple[Path, Path]:
    """Return the two files to compare, looked for where they are not named.

    Args:
        target: a file, a folder with one, or None to look in `directory`.
        reference: the same for the trusted device.
        directory: where to look.

    Raises:
        UsageError: there is no file, or more than can be told apart.
    """
    named = [None if path is None else _file_of(Path(path)) for path in (target, reference)]
    left = [path for path in _details_in(directory) if path not in named]
    marks = ("npu", "gpu")
    for place, mark in enumerate(marks):
        alike = [path for path in left if mark in path.name.lower()]
        if named[place] is None and len(alike) == 1:
            named[place] = alike[0]
            left.remove(alike[0])
    # The time is at the end of the names: the later one was made last, on the device under test.
    for place in (0, 1):
        if named[place] is None and len(left) == named.count(None):
            named[place] = left.pop()
    first, second = named
    if first is None or second is None:
        raise UsageError(
            f"name two files {DETAILS}_….csv: msprobe api-precision-compare TARGET REFERENCE "
            f"({directory.resolve()} has {len(_details_in(directory))})"
        )
    return first, second


def _details_in(directory: Path) -> list[Path]:
    return sorted(directory.glob(f"*{DETAILS}*.csv"))


def _file_of(path: Path) -> Path:
    if not path.is_dir():
        return path
    found = _details_in(path)
    if len(found) != 1:
        raise UsageError(f"{path}: has {len(found)} files {DETAILS}_….csv; name one")
    return found[0]


def _by_name(path: Path, rows: Iterable[DetailRow], notes: list[str]) -> dict[str, DetailRow]:
    found: dict[str, DetailRow] = {}
    for row in rows:
        if found.setdefault(row.name, row) != row:
            raise UsageError(f"{path}: has two different rows {row.name}")
        if found[row.name] is not row:
            notes.append(f"{path}: row {row.name} is there twice")
    if not found:
        raise UsageError(f"{path}: has no row")
    return found


def _missing(row: DetailRow, side: str) -> ComparedRow:
    verdict = RatioVerdict(status=Status.SKIP, reasons=(f"missing in {side}'s file",))
    return ComparedRow(row=row, verdict=verdict, is_missing=True)


def _reason_to_skip(row: DetailRow, other: DetailRow) -> str:
    if not row.dtype or not other.dtype:
        return row.message or other.message or "not checked"
    return "the output is empty" if _EMPTY_SHAPE.fullmatch(row.shape) else ""


def _first_reasons(rows: Sequence[ComparedRow]) -> str:
    """Return the reasons of the first row of the worst status."""
    status = worst([row.verdict.status for row in rows])
    reasons = (row.message() for row in rows if row.verdict.status is status)
    return next(filter(None, reasons), "")


def _cells(compared: ComparedRow, style: Style) -> list[str]:
    verdict = compared.verdict
    known = {
        "name": compared.row.name,
        "status": verdict.status.value,
        "algorithm": _algorithm(verdict.algorithm, style),
        "message": compared.message(),
        "ulp_ratio": style.number(verdict.ulp_ratio),
    }
    for metric, (ratio, status) in verdict.ratios.items():
        known |= {f"{metric}_ratio": style.number(ratio), f"{metric}_result": status.value}
    for name, (value, status) in verdict.values.items():
        known |= {name: style.number(value), f"{name}_result": status.value}
    if verdict.algorithm is Algorithm.ULP:
        known["ulp_result"] = verdict.status.value
    return [text_cell(known.get(column.name, "")) for column in COMPARED_COLUMNS]


def _algorithm(algorithm: Algorithm | None, style: Style) -> str:
    if algorithm is None:
        return ""
    return algorithm.name.lower() if style.english else algorithm.value
