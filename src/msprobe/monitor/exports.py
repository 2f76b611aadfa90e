# SPDX-License-Identifier: Apache-2.0
"""Write a run in formats of other programs, and read their files as a run."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from msprobe.errors import MonitorFormatError, UnsupportedError
from msprobe.files import report_file
from msprobe.monitor.csv_files import (
    DIGITS,
    CsvFiles,
    is_csv_folder,
    rank_folder,
    read_csv,
    write_csv,
)
from msprobe.monitor.listeners import RowListener, tell
from msprobe.monitor.reader import MonitorRun
from msprobe.monitor.rows import Rows, is_missing
from msprobe.monitor.trend_db import SUFFIX, read_trend_db, write_trend_db
from msprobe.report.scalars import event_writer, put_event, wandb_run


class ExportFormat(StrEnum):
    """Formats that a run can be written in."""

    CSV = "csv"
    PARQUET = "parquet"
    TREND_DB = "trend_db"
    TENSORBOARD = "tensorboard"
    WANDB = "wandb"


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
        UnsupportedError: TensorBoard's writer, or wandb, is not installed.
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
        case ExportFormat.WANDB:
            return _write_wandb(run, folder)
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
    advice = "name a folder that TrainerMon wrote"
    raise MonitorFormatError(
        source, f"holds neither csv folders of ranks nor a *{SUFFIX}; {advice}"
    )


def _write_parquet(run: MonitorRun, folder: Path) -> list[Path]:
    """Write one file for each stream, with all ranks."""
    written = []
    for stream in run.streams:
        path = folder / f"{stream}.parquet"
        with report_file(path) as temporary:
            run.table(stream).write_parquet(temporary)
        written.append(path)
    return written


class EventFiles:
    """Writes TensorBoard's event files, ``rank{R}/{stream}``; a listener of the monitor's rows.

    Tags are ``vp{chunk}:{name}[:call{c}][:micro{m}]/{op}``.

    Args:
        folder: gets the folders.
        streams: None for all.
        begins: the first step that comes; what earlier processes wrote from it on is forgotten.
    """

    def __init__(
        self, folder: Path, *, streams: Collection[str] | None = None, begins: int = 0
    ) -> None:
        self._folder = folder
        self._streams = streams
        self._begins = begins
        self._writers: dict[Path, Any] = {}

    @property
    def written(self) -> list[Path]:
        """The folders so far."""
        return list(self._writers)

    def take(self, rows: Rows) -> None:
        """Write a block of the step that is being collected.

        Raises:
            UnsupportedError: TensorBoard is not installed.
        """
        stream = rows.layout.stream
        if self._streams is not None and stream not in self._streams:
            return
        own = self._folder / f"rank{rows.rank}" / stream
        writer = self._writers.get(own)
        if writer is None:
            writer = self._writers[own] = event_writer(own, begins=self._begins)
        for values in tagged(rows):
            put_event(writer, values, step=rows.step, time=rows.time)

    def end_step(self, step: int, time: float) -> None:
        """Let others read what was written."""
        for writer in self._writers.values():
            writer.flush()

    def close(self) -> None:
        """Close the files."""
        for writer in self._writers.values():
            writer.close()


class WandbRun:
    """Logs the rows of one rank to a run of W&B of its own; a listener of the monitor's rows.

    Where it goes is what wandb's environment says (``WANDB_MODE``, ``WANDB_PROJECT`` …). Tags are
    those of `EventFiles`, after the stream.

    Args:
        name: of the run.
        group: that runs of all ranks have in common.
        folder: gets wandb's files.
    """

    def __init__(self, name: str, group: str, folder: Path) -> None:
        self._facts = {"name": name, "group": group, "dir": str(folder)}
        self._run: Any = None
        self._values: dict[str, float] = {}

    def take(self, rows: Rows) -> None:
        """Take a block of the step that is being collected."""
        for values in tagged(rows):
            stream = rows.layout.stream
            self._values |= {f"{stream}/{tag}": value for tag, value in values.items()}

    def end_step(self, step: int, time: float) -> None:
        """Log the step.

        Raises:
            UnsupportedError: wandb is not installed.
        """
        values, self._values = self._values, {}
        if self._run is None:
            self._run = wandb_run(**self._facts)
        self._run.log(values, step=step)

    def close(self) -> None:
        """End the run."""
        if self._run is not None:
            self._run.finish()


def live_listener(
    kind: ExportFormat, run: MonitorRun, rank: int, *, begins: int, steps_per_file: int, digits: int
) -> RowListener:
    """Return what writes the rows of a rank in another format while they come.

    Args:
        kind: `ExportFormat.CSV`, `ExportFormat.TENSORBOARD` or `ExportFormat.WANDB`.
        run: the run, which may be empty.
        rank: of this process.
        begins: the first step that comes.
        steps_per_file: of csv files.
        digits: of csv files.

    Raises:
        UnsupportedError: a package is missing.
        OSError: files of earlier processes cannot be changed.
    """
    if kind is ExportFormat.CSV:
        own = rank_folder(run, rank, run.path / kind)
        return CsvFiles(own, steps_per_file=steps_per_file, digits=digits, begins=begins)
    require(kind)
    if kind is ExportFormat.WANDB:
        return WandbRun(f"{run.path.name}-rank{rank}", run.path.name, run.path)
    return EventFiles(run.path / kind, begins=begins)


def write_tensorboard(
    run: MonitorRun, folder: Path, *, streams: Collection[str] | None = None
) -> list[Path]:
    """Write event files as `EventFiles` does; return their folders.

    Args:
        run: the run.
        folder: gets the folders.
        streams: None for all.

    Raises:
        UnsupportedError: TensorBoard is not installed.
    """
    require(ExportFormat.TENSORBOARD)
    written = []
    for rank in run.ranks:
        files = EventFiles(folder, streams=streams)
        tell(run.blocks(rank), files)
        written += files.written
    return written


def _write_wandb(run: MonitorRun, folder: Path) -> list[Path]:
    """Log each rank to a run of its own; return the folder with wandb's files."""
    require(ExportFormat.WANDB)
    for rank in run.ranks:
        tell(run.blocks(rank), WandbRun(f"{run.path.name}-rank{rank}", run.path.name, folder))
    return [folder / "wandb"]


def require(kind: ExportFormat) -> None:
    """Refuse a format whose package is not installed.

    Raises:
        UnsupportedError: it is not installed.
    """
    if kind not in (ExportFormat.TENSORBOARD, ExportFormat.WANDB):
        return
    found = find_spec(kind)
    if found is None or found.origin is None:  # None: a folder, such as that of wandb's own files
        raise UnsupportedError(f'the format "{kind}" needs the package {kind}')


def tagged(rows: Rows) -> Iterator[dict[str, float]]:
    """Yield the values of each operation of a block by their tags; absent ones have none."""
    layout = rows.layout
    micro = f":micro{rows.micro_step}" if rows.micro_step else ""
    named = zip(layout.names_of_calls, layout.chunks, strict=True)
    tags = [f"vp{chunk}:{name}{micro}" for name, chunk in named]
    for op, values in zip(layout.ops, rows.values, strict=True):
        yield {
            f"{tag}/{op}": float(value)
            for tag, value, gone in zip(tags, values, is_missing(values), strict=True)
            if not gone
        }
