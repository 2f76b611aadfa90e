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

from msprobe.errors import MonitorFormatError
from msprobe.files import report_file
from msprobe.monitor.reader import MonitorRun
from msprobe.monitor.rows import MISSING, Layout, Rows, Stream
from msprobe.monitor.store import RunWriter

if TYPE_CHECKING:
    import polars as pl

DIGITS: Final = 6
_FOLDER: Final = re.compile(r"(.*)-rank(\d+)-[0-9a-f]+")
_FILE: Final = re.compile(r"(.+)_(\d+)-(\d+)\.csv")
_FIXED: Final = ("vpp_stage", "name", "step", "micro_step", "call", "shape", "dtype")
# In these a row belongs to a micro step.
_WITH_MICRO_STEP: Final = (
    Stream.ACTV,
    Stream.ACTV_GRAD,
    Stream.ATTENTION,
    Stream.ROUTER_LOGIT,
)


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
    written = []
    for rank in run.ranks:
        own = folder / _folder_name(run, rank)
        for stream in run.streams:
            table = run.table(stream, ranks=[rank])
            if table.is_empty():
                continue
            shown = _shown(table, stream, run.ops(stream), digits)
            windows = table["step"] // steps_per_file * steps_per_file
            for first in windows.unique().sort().to_list():
                path = own / f"{stream}_{first}-{first + steps_per_file - 1}.csv"
                with report_file(path) as temporary:
                    shown.filter(windows == first).write_csv(temporary)
                written.append(path)
    return written


def _shown(table: pl.DataFrame, stream: str, ops: list[str], digits: int) -> pl.DataFrame:
    import polars as pl

    has_micro = stream in _WITH_MICRO_STEP or bool((table["micro_step"] > 0).any())
    columns: list[Any] = [pl.col("chunk").alias("vpp_stage"), pl.col("name"), pl.col("step")]
    columns += [pl.col("micro_step")] if has_micro else []
    columns += [pl.col(op).round_sig_figs(digits) for op in ops]
    if (table["call"] > 0).any():
        columns.append(pl.col("call"))
    return table.select(*columns, pl.col("shape"), pl.col("dtype"))


def _folder_name(run: MonitorRun, rank: int) -> str:
    """Return the name of a rank's folder; the clock is UTC."""
    began = next((head.get("began") for head in run.heads(rank)), None)
    moment = datetime.fromisoformat(began) if isinstance(began, str) else datetime.now(UTC)
    number = zlib.crc32(f"{run.path.name} {rank}".encode())
    return f"{moment:%b%d_%H-%M-%S}-rank{rank}-{number:08x}"


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
        plain = table.select(_columns(table)).with_columns(numbers)
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
