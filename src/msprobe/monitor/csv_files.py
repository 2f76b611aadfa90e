# SPDX-License-Identifier: Apache-2.0
"""The csv files of mindstudio-probe's monitor: written from a run, and read into one.

One folder for each rank, ``{MonDD_HH-MM-SS}-rank{R}-{8 hex digits}``; in it a file
``{stream}_{first}-{last}.csv`` for each window of steps. Values have significant digits, where the
original rounds to decimals and loses second moments.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from msprobe.errors import MonitorFormatError, ReportWriteError
from msprobe.files import write_whole
from msprobe.monitor.listeners import tell
from msprobe.monitor.reader import MonitorRun, frame_of
from msprobe.monitor.rows import MISSING, Layout, Rows, Stream
from msprobe.monitor.store import RunWriter
from msprobe.plain_text import reason

if TYPE_CHECKING:
    import polars as pl

DIGITS: Final = 6
_FOLDER: Final = re.compile(r"(.*)-rank(\d+)-[0-9a-f]+")
_FILE: Final = re.compile(r"(.+)_(\d+)-(\d+)\.csv")
_FIXED: Final = ("vpp_stage", "name", "step", "micro_step", "call", "shape", "dtype")
_COUNTED: Final = ("nans", "infs")
_NUMBERS: Final = ("micro_step", "call")
"""Columns that a block has only where one of their values is not 0."""
# In these a row belongs to a micro step.
_WITH_MICRO_STEP: Final = (
    Stream.ACTV,
    Stream.ACTV_GRAD,
    Stream.ATTENTION,
    Stream.ROUTER_LOGIT,
)


class CsvFiles:
    """Writes the rows of one rank as they come; a listener of the monitor's rows.

    Each step is appended, so that the files can be read meanwhile.

    Args:
        folder: of the rank, see `rank_folder`; made with the first row.
        steps_per_file: how many steps a file holds.
        digits: significant digits of values.
        begins: the first step that comes; what earlier processes wrote from it on goes.
    """

    def __init__(
        self, folder: Path, *, steps_per_file: int = 1, digits: int = DIGITS, begins: int = 0
    ) -> None:
        """Create it.

        Raises:
            OSError: files of earlier processes cannot be changed.
        """
        self._folder = folder
        self._steps_per_file = steps_per_file
        self._digits = digits
        self._waiting: dict[Path, list[pl.DataFrame]] = {}
        self._written: dict[Path, None] = {}
        for path in sorted(folder.glob("*.csv")):
            self._cut(path, begins)

    @property
    def written(self) -> list[Path]:
        """The files that have rows of this process."""
        return list(self._written)

    def take(self, rows: Rows) -> None:
        """Take a block of the step that is being collected."""
        first = rows.step // self._steps_per_file * self._steps_per_file
        name = f"{rows.layout.stream}_{first}-{first + self._steps_per_file - 1}.csv"
        shown = _shown(rows, self._digits)
        self._waiting.setdefault(self._folder / name, []).append(shown)

    def end_step(self, step: int, time: float = 0.0) -> None:
        """Append what was taken.

        Raises:
            OSError: a file cannot be written.
        """
        import polars as pl

        waiting, self._waiting = self._waiting, {}
        for path, frames in waiting.items():
            self._append(path, pl.concat(frames, how="diagonal"))

    def close(self) -> None:
        """Append what is left."""
        self.end_step(0)

    def _append(self, path: Path, frame: pl.DataFrame) -> None:
        import polars as pl

        known = _header_of(path)
        if known and set(known) != set(frame.columns):
            frame = pl.concat([_as_text(path.read_bytes()), _as_text(_text(frame))], how="diagonal")
            known = []
        numbers = [pl.col(name).fill_null(0) for name in _NUMBERS if name in frame.columns]
        frame = frame.with_columns(numbers).select(_ordered(frame.columns))
        path.parent.mkdir(parents=True, exist_ok=True)
        text = _text(frame, with_header=not known)
        if known:
            with path.open("ab") as file:
                file.write(text)
        else:
            write_whole(path, [text])
        self._written[path] = None

    def _cut(self, path: Path, begins: int) -> None:
        """Take away the rows from a step on, and what a killed process left half written."""
        match = _FILE.fullmatch(path.name)
        if match is None or int(match[3]) < begins:
            return
        if int(match[2]) >= begins:
            path.unlink()
            return
        import polars as pl

        content = path.read_bytes()
        table = _as_text(content[: content.rfind(b"\n") + 1])
        kept = table.filter(pl.col("step").cast(pl.Int64) < begins)
        write_whole(path, [_text(kept)])


def write_csv(
    run: MonitorRun, folder: Path, *, steps_per_file: int = 1, digits: int = DIGITS
) -> list[Path]:
    """Write a run as csv files; return them.

    Args:
        run: the run.
        folder: gets a folder for each rank.
        steps_per_file: how many steps a file holds.
        digits: significant digits of values.

    Raises:
        ReportWriteError: a file cannot be written.
    """
    written: list[Path] = []
    for rank in run.ranks:
        own = rank_folder(run, rank, folder)
        try:
            files = CsvFiles(own, steps_per_file=steps_per_file, digits=digits)
            tell(run.blocks(rank), files)
        except OSError as error:
            raise ReportWriteError(own, f"cannot be written: {reason(error)}") from error
        written += files.written
    return written


def _shown(rows: Rows, digits: int) -> pl.DataFrame:
    import polars as pl

    table = frame_of(rows)
    stream = rows.layout.stream
    columns: list[Any] = [pl.col("chunk").alias("vpp_stage"), pl.col("name"), pl.col("step")]
    if stream in _WITH_MICRO_STEP or rows.micro_step:
        columns.append(pl.col("micro_step"))
    columns += [
        pl.col(op).cast(pl.Int64, strict=False)
        if op in _COUNTED
        else pl.col(op).round_sig_figs(digits)
        for op in rows.layout.ops
    ]
    if any(rows.layout.calls):
        columns.append(pl.col("call"))
    return table.select(*columns, pl.col("shape"), pl.col("dtype"))


def _ordered(columns: list[str]) -> list[str]:
    """Return the columns of a file in the order of the documents."""
    first = [one for one in _FIXED[:4] if one in columns]
    last = [one for one in _FIXED[4:] if one in columns]
    return [*first, *(one for one in columns if one not in _FIXED), *last]


def _header_of(path: Path) -> list[str]:
    """Return the columns of a file, none without one."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8") as file:
        return file.readline().rstrip("\n").split(",")


def _as_text(content: bytes) -> pl.DataFrame:
    """Return the cells of a csv file as they are written."""
    import polars as pl

    return pl.read_csv(content, infer_schema=False)


def _text(frame: pl.DataFrame, *, with_header: bool = True) -> bytes:
    return frame.write_csv(include_header=with_header).encode()


def rank_folder(run: MonitorRun, rank: int, folder: Path) -> Path:
    """Return the folder of a rank's csv files in `folder`; the clock in its name is UTC."""
    began = next((head.get("began") for head in run.heads(rank)), None)
    moment = datetime.fromisoformat(began) if isinstance(began, str) else datetime.now(UTC)
    number = zlib.crc32(f"{run.path.name} {rank}".encode())
    return folder / f"{moment:%b%d_%H-%M-%S}-rank{rank}-{number:08x}"


def is_csv_folder(path: Path) -> bool:
    """Return whether a folder holds csv folders of ranks, or is one."""
    return path.is_dir() and bool(_rank_folders(path))


def read_csv(
    source: Path, folder: Path, *, first: str | None = None, last: str | None = None
) -> Path:
    """Make a run of csv files of mindstudio-probe; return its folder.

    Args:
        source: the output folder with one folder for each rank, or one of these.
        folder: gets the run.
        first: the earliest folder of a rank, by the time in its name; None for all.
        last: the latest.

    Raises:
        MonitorFormatError: there are no such files, or one is damaged.
        MonitorWriteError: the run cannot be written.
    """
    found = _rank_folders(source, first, last)
    if not found:
        raise MonitorFormatError(source, "holds no csv folders of a monitor (…-rank0-…)")
    for rank, paths in sorted(found.items()):
        blocks = [rows for path in paths for rows in _blocks(path, rank)]
        blocks.sort(key=lambda rows: rows.step)
        with RunWriter(folder, rank, {"imported": str(source), "rank": rank}) as writer:
            for rows in blocks:
                writer.append(rows)
    return folder


def _rank_folders(
    path: Path, first: str | None = None, last: str | None = None
) -> dict[int, list[Path]]:
    """Return the csv files by rank, of folders whose time lies between two."""
    found: dict[int, list[Path]] = {}
    folders = [path, *(one for one in path.glob("*") if one.is_dir())]
    for one in folders:
        match = _FOLDER.fullmatch(one.name)
        files = sorted(file for file in one.glob("*.csv") if _FILE.fullmatch(file.name))
        if match and files and (first or "") <= match[1] and (not last or match[1] <= last):
            found.setdefault(int(match[2]), []).extend(files)
    return found


def _blocks(path: Path, rank: int) -> Iterator[Rows]:
    import polars as pl

    match = _FILE.fullmatch(path.name)
    stream = match[1] if match else path.stem
    try:
        table = pl.read_csv(path, infer_schema_length=None)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise MonitorFormatError(path, f"cannot be read: {str(error).splitlines()[0]}") from error
    if not {"name", "step"} <= set(table.columns):
        raise MonitorFormatError(path, "has no columns name and step")
    ops = [name for name in table.columns if name not in _FIXED]
    try:
        numbers = table.select(pl.col(op).cast(pl.Float64) for op in ops)
        # The model itself has no name there: `.input`.
        names = pl.col("name").str.strip_prefix(".")
        plain = table.select(_columns(table)).with_columns(names).with_columns(numbers)
    except pl.exceptions.PolarsError as error:
        raise MonitorFormatError(path, "holds values that are no numbers") from error
    if plain["step"].has_nulls():
        raise MonitorFormatError(path, "has a row without a step")
    for (step, micro_step), part in plain.group_by("step", "micro_step", maintain_order=True):
        yield _rows(part, stream, tuple(ops), rank, int(step), int(micro_step))


def _columns(table: pl.DataFrame) -> list[Any]:
    """Return the fixed columns; those that a file lacks are empty."""
    import polars as pl

    defaults: dict[str, tuple[Any, Any]] = {
        "vpp_stage": (0, pl.Int64),
        "name": ("", pl.String),
        "step": (0, pl.Int64),
        "micro_step": (0, pl.Int64),
        "call": (0, pl.Int64),
        "shape": ("", pl.String),
        "dtype": ("", pl.String),
    }
    return [
        (pl.col(name) if name in table.columns else pl.lit(value)).cast(kind).alias(name)
        for name, (value, kind) in defaults.items()
    ]


def _rows(
    part: pl.DataFrame, stream: str, ops: tuple[str, ...], rank: int, step: int, micro_step: int
) -> Rows:
    layout = Layout(
        stream=stream,
        ops=ops,
        names=tuple(part["name"]),
        chunks=tuple(part["vpp_stage"]),
        calls=tuple(part["call"]),
        shapes=tuple(part["shape"]),
        dtypes=tuple(part["dtype"]),
    )
    values = np.array(
        [[MISSING if one is None else one for one in part[op]] for op in ops], np.float64
    ).reshape(len(ops), part.height)
    return Rows(layout, rank, step, micro_step, 0.0, values)
