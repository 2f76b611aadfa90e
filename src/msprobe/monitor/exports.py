# SPDX-License-Identifier: Apache-2.0
"""Write a run in formats of other programs, and read their files as a run."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from msprobe.errors import MonitorFormatError
from msprobe.files import report_file
from msprobe.monitor.csv_files import DIGITS, is_csv_folder, read_csv, write_csv
from msprobe.monitor.reader import MonitorRun
from msprobe.monitor.rows import is_missing
from msprobe.monitor.trend_db import SUFFIX, read_trend_db, write_trend_db
from msprobe.report.scalars import event_writer, put_event


class ExportFormat(StrEnum):
    """Formats that a run can be written in."""

    CSV = "csv"
    PARQUET = "parquet"
    TREND_DB = "trend_db"
    TENSORBOARD = "tensorboard"


DB_NAME: Final = f"monitor_data{SUFFIX}"


def export(
    run: MonitorRun,
    folder: Path,
    kind: ExportFormat,
    *,
    steps_per_file: int = 1,
    digits: int = DIGITS,
    mapping: Mapping[str, str] | None = None,
    micro_steps_as_steps: bool = False,
) -> list[Path]:
    """Write a run; return the files or folders.

    Args:
        run: the run.
        folder: gets the files; made if missing.
        kind: the format.
        steps_per_file: steps in one csv file.
        digits: significant digits in csv files.
        mapping: for a ``trend.db``, see `write_trend_db`.
        micro_steps_as_steps: the same.

    Raises:
        ReportWriteError: a file cannot be written.
        UnsupportedError: TensorBoard's writer is not installed.
    """
    match kind:
        case ExportFormat.CSV:
            return write_csv(run, folder, steps_per_file=steps_per_file, digits=digits)
        case ExportFormat.TREND_DB:
            path = write_trend_db(
                run,
                folder / DB_NAME,
                mapping=mapping,
                micro_steps_as_steps=micro_steps_as_steps,
            )
            return [path]
        case ExportFormat.TENSORBOARD:
            return write_tensorboard(run, folder)
        case ExportFormat.PARQUET:
            return _write_parquet(run, folder)


def import_run(source: Path, folder: Path) -> Path:
    """Make a run of csv folders or a ``trend.db`` of mindstudio-probe; return its folder.

    Raises:
        MonitorFormatError: it is neither.
        MonitorWriteError: the run cannot be written.
    """
    if source.is_file():
        return read_trend_db(source, folder)
    databases = sorted(source.glob(f"*{SUFFIX}")) if source.is_dir() else []
    if databases:
        return read_trend_db(databases[0], folder)
    if is_csv_folder(source):
        return read_csv(source, folder)
    raise MonitorFormatError(source, f"holds neither csv folders of ranks nor a *{SUFFIX}")


def _write_parquet(run: MonitorRun, folder: Path) -> list[Path]:
    """Write one file for each stream, with all ranks."""
    written = []
    for stream in run.streams:
        path = folder / f"{stream}.parquet"
        with report_file(path) as temporary:
            run.table(stream).write_parquet(temporary)
        written.append(path)
    return written


def write_tensorboard(
    run: MonitorRun, folder: Path, *, streams: list[str] | None = None
) -> list[Path]:
    """Write event files, ``rank{R}/{stream}``; return these folders.

    Tags are ``vp{chunk}:{name}[:micro{m}]/{op}``.

    Args:
        run: the run.
        folder: gets the folders.
        streams: None for all.

    Raises:
        UnsupportedError: TensorBoard is not installed.
    """
    written = []
    for rank in run.ranks:
        for stream in run.streams if streams is None else streams:
            own = folder / f"rank{rank}" / stream
            writer = event_writer(own)
            for rows in run.blocks(rank):
                if rows.layout.stream == stream:
                    _put_events(writer, rows)
            writer.close()
            written.append(own)
    return written


def _put_events(writer: Any, rows: Any) -> None:
    layout = rows.layout
    micro = f":micro{rows.micro_step}" if rows.micro_step else ""
    tags = [
        f"vp{chunk}:{name}{micro}" for name, chunk in zip(layout.names, layout.chunks, strict=True)
    ]
    for op, values in zip(layout.ops, rows.values, strict=True):
        found = {
            f"{tag}/{op}": float(value)
            for tag, value, gone in zip(tags, values, is_missing(values), strict=True)
            if not gone
        }
        put_event(writer, found, step=rows.step, time=rows.time)
