# SPDX-License-Identifier: Apache-2.0
"""The documented files of the accuracy check: results and details, of a check and of a comparison.

Titles are those of the documents, or English words in the same order. Both are read, also from the
files of mindstudio-probe.
"""

from __future__ import annotations

import csv
import io
import math
import re
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final, NamedTuple

from msprobe.checks.standards.first_verdict import Status
from msprobe.checks.standards.metrics import NO_METRICS, Metrics
from msprobe.dump.formats.dtypes import normal_dtype
from msprobe.errors import ReportWriteError, UsageError
from msprobe.files import write_report
from msprobe.plain_text import plain, reason

RESULT: Final = "accuracy_checking_result"
DETAILS: Final = "accuracy_checking_details"
DEFAULT_PRECISION: Final = 14
"""Decimals of numbers, as documented."""
_MAX_BYTES: Final = 1 << 30
# A number keeps this many digits at least, whatever its size, unless fewer decimals are asked for.
_DIGITS: Final = 6
_FORMULA_STARTS: Final = ("=", "@", "+", "-")


class Column(NamedTuple):
    """The two titles of a column, and the name of its content."""

    documented: str
    english: str
    name: str


def _plain(*titles: str) -> tuple[Column, ...]:
    return tuple(Column(title, title, title) for title in titles)


RESULT_COLUMNS: Final = (
    Column("API name", "API name", "API Name"),
    *_plain("Forward Test Success", "Backward Test Success", "Message"),
)
METRIC_COLUMNS: Final = (
    Column("余弦相似度", "cosine", "cosine"),
    Column("最大绝对误差", "max_abs_err", "max_abs_error"),
    Column("双百指标", "hundredth", "hundredth"),
    Column("双千指标", "thousandth", "thousandth"),
    Column("双万指标", "ten_thousandth", "ten_thousandth"),
    Column("二进制一致错误率", "binary_err", "binary_error"),
    Column("误差均衡性", "error_balance", "error_balance"),
    Column("均方根误差", "rmse", "rmse"),
    Column("小值域错误占比", "small_value_err", "small_value_error"),
    Column("相对误差最大值", "max_rel_err", "max_rel_error"),
    Column("相对误差平均值", "mean_rel_err", "mean_rel_error"),
    Column("inf/nan错误率", "nonfinite_err", "nonfinite_error"),
    Column("相对误差错误率", "rel_err_share", "rel_error_share"),
    Column("绝对误差错误率", "abs_err_share", "abs_error_share"),
    Column("ULP误差最大值", "max_ulp", "max_ulp"),
    Column("ULP误差平均值", "mean_ulp", "mean_ulp"),
    Column("ULP误差大于阈值占比", "ulp_share", "ulp_share"),
)
DETAIL_COLUMNS: Final = (
    *_plain("API Name", "Bench Dtype", "DEVICE Dtype", "Shape"),
    *METRIC_COLUMNS,
    *_plain("Status", "Message"),
)
# Those of MindSpore's check, whose metrics are computed otherwise.
MINDSPORE_COLUMNS: Final = (
    *_plain("API Name", "Bench Dtype", "Tested Dtype", "Shape"),
    Column("Cosine", "Cosine", "cosine"),
    Column("MaxAbsErr", "MaxAbsErr", "max_abs_error"),
    Column("MaxRelativeErr", "MaxRelativeErr", "max_rel_error"),
    *_plain("Status", "Message"),
)
_METRIC_NAMES: Final = frozenset(field.name for field in fields(Metrics))


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultRow:
    """One operator's result; a direction that was not checked is None."""

    name: str
    forward: Status | None
    backward: Status | None
    message: str = ""

    def cells(self) -> list[str]:
        """Return the cells of `RESULT_COLUMNS`; one space where there is no result."""
        statuses = (self.forward, self.backward)
        words = (" " if status is None else status.value for status in statuses)
        return [_text(self.name), *words, _text(self.message)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DetailRow:
    """One output of one operator.

    Attributes:
        name: ``{api}.{forward|backward}.output.{number}``.
        dtype: type of the device's output, without a framework's prefix; empty if unknown.
        reference_dtype: type of the reference.
        shape: as a tuple is printed; empty if unknown.
        metrics: the documented metrics.
        status: the first verdict.
        message: its reason.
    """

    name: str
    dtype: str = ""
    reference_dtype: str = ""
    shape: str = ""
    metrics: Metrics = NO_METRICS
    status: Status
    message: str = ""

    @property
    def api(self) -> str:
        """The operator's bare name, such as ``conv1d``."""
        return bare_api(self.call)

    @property
    def call(self) -> str:
        """The call's name, such as ``Functional.conv1d.0``."""
        return _ENDING.sub("", self.name)

    @property
    def is_backward(self) -> bool:
        """Whether it is a gradient."""
        found = _ENDING.search(self.name)
        return found is not None and found[1] == "backward"


_ENDING: Final = re.compile(r"\.(forward|backward)(\.pass\d+)?\.output(_kwargs)?\..*$")


def bare_api(call: str) -> str:
    """Return ``conv1d`` for ``Functional.conv1d.0``; a dotted name loses its first part."""
    parts = call.split(".")
    return parts[-2] if len(parts) > 2 else parts[-1]


class Style(NamedTuple):
    """How a file is written.

    Attributes:
        english: whether the titles are English.
        precision: decimals of numbers.
        type_prefix: in front of types, as documented: ``torch.``.
        columns: of the details.
    """

    english: bool = False
    precision: int = DEFAULT_PRECISION
    type_prefix: str = "torch."
    columns: tuple[Column, ...] = DETAIL_COLUMNS

    def titles(self, columns: Sequence[Column]) -> list[str]:
        """Return the titles of a file."""
        return [column.english if self.english else column.documented for column in columns]

    def detail_cells(self, row: DetailRow) -> list[str]:
        """Return the cells of a row of details; one space where there is no value."""
        known = {
            "API Name": _text(row.name),
            "Bench Dtype": self._dtype(row.reference_dtype),
            "DEVICE Dtype": self._dtype(row.dtype),
            "Tested Dtype": self._dtype(row.dtype),
            "Shape": row.shape or " ",
            "Status": row.status.value,
            "Message": _text(row.message),
        }
        return [
            self.number(getattr(row.metrics, column.name))
            if column.name in _METRIC_NAMES
            else known[column.name]
            for column in self.columns
        ]

    def number(self, value: float | None) -> str:
        """Return a number's cell: as many decimals as asked for, more for tiny numbers."""
        if value is None:
            return " "
        if value == 0 or not math.isfinite(value):
            return f"{value:.{self.precision}f}"
        digits = min(_DIGITS, self.precision)
        if abs(value) < 10.0 ** (digits - 1 - self.precision) or abs(value) >= 1e15:
            return f"{value:.{max(self.precision - 1, 0)}e}"
        return f"{value:.{self.precision}f}"

    def _dtype(self, dtype: str) -> str:
        return f"{self.type_prefix}{dtype}" if dtype else " "


class CheckFiles:
    """The two growing files of a check: a killed check can go on where it ended.

    The details of a call are written before its result, and a call counts as done when its result
    is there.
    """

    def __init__(
        self, result: Path, style: Style, *, done: Iterable[ResultRow] = (), source: str = ""
    ) -> None:
        """Start with no row; see `new_files` and `resumed_files`."""
        self._source = source
        self.result = result
        self.details = details_beside(result)
        self._style = style
        self.done = {row.name: row for row in done}

    def add(self, result: ResultRow, details: Sequence[DetailRow]) -> None:
        """Append a call.

        Args:
            result: its result.
            details: its outputs and gradients.

        Raises:
            ReportWriteError: a file cannot be written.
        """
        if not self.result.exists():
            self.rewrite((), ())
        _append(self.details, map(self._style.detail_cells, details))
        _append(self.result, [result.cells()])
        self.done[result.name] = result

    def put_in_order(self, calls: Sequence[str]) -> None:
        """Sort the rows of a finished check by the order of its calls.

        Raises:
            ReportWriteError: a file cannot be written.
        """
        places = {call: place for place, call in enumerate(calls)}
        rows = sorted(self.done.values(), key=lambda row: places.get(row.name, -1))
        details = sorted(read_details(self.details), key=lambda row: places.get(row.call, -1))
        self.rewrite(details, rows)

    def rewrite(self, details: Iterable[DetailRow], rows: Iterable[ResultRow]) -> None:
        """Replace all rows of both files.

        Raises:
            ReportWriteError: a file cannot be written.
        """
        style = self._style
        if self._source:
            write_report(_source_file(self.result), self._source, warns=False)
        _write_csv(self.details, style.titles(style.columns), map(style.detail_cells, details))
        _write_csv(self.result, style.titles(RESULT_COLUMNS), (row.cells() for row in rows))


def new_files(directory: Path, style: Style, *, suffix: str = "", source: str = "") -> CheckFiles:
    """Return two new files, with the time in their names; the first row creates them.

    Args:
        directory: where they will be.
        style: of the cells.
        suffix: end of their names.
        source: checksum of the recording, kept in a file beside them; empty for none.
    """
    stamp, path = time.strftime("%Y%m%d%H%M%S"), Path()
    while (path := directory / f"{RESULT}_{stamp}{suffix}.csv").exists():
        stamp = str(int(stamp) + 1)
    return CheckFiles(path, style, source=source)


def _source_file(result: Path) -> Path:
    return result.with_suffix(".source")


def resumed_files(
    result: Path,
    style: Style,
    *,
    calls: Container[str],
    shape_of: Callable[[DetailRow], str],
    source: str = "",
) -> CheckFiles:
    """Open the files of an interrupted check to append to.

    Details without a result are removed: their call is checked again.

    Args:
        result: the file of results.
        style: of the cells.
        calls: names of all calls of the recording.
        shape_of: returns the shape that the recording has of a result, as a row has it.
        source: checksum of the recording.

    Raises:
        UsageError: a file cannot be read, is none of a check, or of another recording.
        ReportWriteError: they cannot be written.
    """
    done = read_results(result)
    for row in done:
        if row.name not in calls:
            raise UsageError(
                f"{result}: is of another recording: it has {row.name}, which this one has not"
            )
    details = details_beside(result)
    known = {row.name for row in done}
    kept = [row for row in read_details(details) if row.call in known] if details.exists() else []
    for each in kept:
        if each.shape and _numbers(each.shape) != _numbers(shape_of(each)):
            raise UsageError(
                f"{details}: is of another recording: {each.name} has the shape {each.shape} "
                f"there, {shape_of(each) or 'none'} here"
            )
    kept_source = _source_file(result)
    if source and kept_source.exists() and kept_source.read_text(encoding="utf-8") != source:
        raise UsageError(
            f"{result}: is of another recording: the records of {kept_source.name} have another "
            "checksum; name the recording that this check began with"
        )
    if details.exists():
        style = style._replace(english=_is_english(details))
    files = CheckFiles(result, style, done=done, source=source)
    files.rewrite(kept, done)
    return files


def _numbers(shape: str) -> list[str]:
    return re.findall(r"\d+", shape)


def details_beside(result: Path) -> Path:
    """Return the file of details that belongs to a file of results.

    Raises:
        UsageError: its name does not have the word result.
    """
    head, word, tail = result.name.rpartition("result")
    if not word:
        raise UsageError(
            f"{result}: the name of a file of results has the word result in it, so that the file "
            "of details beside it is found"
        )
    return result.with_name(f"{head}details{tail}")


def read_results(path: Path) -> list[ResultRow]:
    """Return the rows of a file of results; an unfinished last line is left out.

    Raises:
        UsageError: it cannot be read, or is no such file.
    """
    return [
        ResultRow(
            name=cells["API Name"],
            forward=_status(cells["Forward Test Success"], path),
            backward=_status(cells["Backward Test Success"], path),
            message=cells["Message"],
        )
        for cells in _rows(path, RESULT_COLUMNS, needed=RESULT_COLUMNS[:3])
    ]


def read_details(path: Path) -> list[DetailRow]:
    """Return the rows of a file of details, of this program or of mindstudio-probe.

    Raises:
        UsageError: it cannot be read, is no such file, or a cell cannot be used.
    """
    return [
        DetailRow(
            name=cells["API Name"],
            dtype=normal_dtype(cells["DEVICE Dtype"] or cells["Tested Dtype"]),
            reference_dtype=normal_dtype(cells["Bench Dtype"]),
            shape=cells["Shape"],
            metrics=Metrics(
                **{name: _float(cells[name], path) for name in _METRIC_NAMES if cells[name]}
            ),
            status=_status(cells["Status"], path) or Status.SKIP,
            message=cells["Message"],
        )
        for cells in _rows(
            path, (*DETAIL_COLUMNS, *MINDSPORE_COLUMNS), needed=_plain("API Name", "Status")
        )
    ]


def write_rows(path: Path, titles: Sequence[str], rows: Iterable[Sequence[str]]) -> Path:
    """Write a whole file, in the documented encoding.

    Raises:
        ReportWriteError: it cannot be written.
    """
    return _write_csv(path, titles, rows)


def text_cell(text: str) -> str:
    """Return a text as a cell: one line, no formula of a spreadsheet, one space if empty."""
    return _text(text) or " "


def _rows(
    path: Path, columns: Sequence[Column], needed: Sequence[Column]
) -> Iterator[dict[str, str]]:
    """Yield the rows of a file as texts by the names of columns; absent cells are empty."""
    text = _read_text(path)
    lines = list(csv.reader(io.StringIO(text, newline="")))
    names = {title: column.name for column in columns for title in column[:2]}
    titles = [title.strip() for title in lines[0]] if lines else []
    places = {names[title]: place for place, title in enumerate(titles) if title in names}
    missing = [column.documented for column in needed if column.name not in places]
    if missing:
        raise UsageError(f"{path}: no file of an accuracy check: it has no column {missing[0]!r}")
    if not text.endswith("\n") and len(lines) > 1:
        lines.pop()  # cut off while it was written
    for cells in lines[1:]:
        if not any(cells):
            continue
        yield {
            name: cells[places[name]].strip() if places.get(name, len(cells)) < len(cells) else ""
            for name in names.values()
        }


def _read_text(path: Path) -> str:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise UsageError(f"{path}: is larger than 1 GiB")
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as exc:
        raise UsageError(f"{path}: cannot be read: {reason(exc)}") from exc
    except UnicodeDecodeError as exc:
        raise UsageError(f"{path}: is not UTF-8 text (byte {exc.start})") from exc
    if "\0" in text:
        raise UsageError(f"{path}: is no text")
    return text


def _is_english(path: Path) -> bool:
    return METRIC_COLUMNS[0].english in _read_text(path).partition("\n")[0].split(",")


def _status(text: str, path: Path) -> Status | None:
    if not text:
        return None
    try:
        return Status(text)
    except ValueError:
        known = ", ".join(Status)
        raise UsageError(f"{path}: {text!r} is no status; known are {known}") from None


def _float(text: str, path: Path) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{path}: {text!r} is no number") from None


def _text(text: str) -> str:
    line = plain(" ".join(text.split()))
    return f" {line}" if line.startswith(_FORMULA_STARTS) else line


def _lines(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    for row in rows:
        line = io.StringIO(newline="")
        csv.writer(line).writerow(row)
        yield line.getvalue()


def _write_csv(path: Path, titles: Sequence[str], rows: Iterable[Sequence[str]]) -> Path:
    lines = list(_lines([titles, *rows]))
    return write_report(path, ["\ufeff", *lines], warns=False)


def _append(path: Path, rows: Iterable[Sequence[str]]) -> None:
    text = "".join(_lines(rows))
    try:
        with path.open("a", encoding="utf-8", errors="backslashreplace", newline="") as file:
            file.write(text)
    except OSError as exc:
        raise ReportWriteError(path, f"cannot be written: {reason(exc)}") from exc
