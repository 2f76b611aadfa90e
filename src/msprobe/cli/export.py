# SPDX-License-Identifier: Apache-2.0
"""`msprobe export`: the values of a dump as one table for other programs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msprobe.cli.options import add_dump

if TYPE_CHECKING:
    import polars as pl

_SUFFIXES: Final = (".parquet", ".csv", ".jsonl")
_EXAMPLES: Final = """\
examples:
  msprobe export dump values.parquet
  msprobe export dump large.csv --sql "select step, record, norm from records where norm > 1000"
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the command and add its options."""
    parser.description = (
        "Write a table with a row for each value of each record of a dump, with step, rank, role, "
        "type, shape and statistics."
    )
    parser.epilog = _EXAMPLES
    add_dump(parser)
    parser.add_argument(
        "file", metavar="FILE", type=Path, help="what to write: .parquet, .csv or .jsonl"
    )
    parser.add_argument("--sql", metavar="QUERY", help="only its result; the table is records")


def run(options: argparse.Namespace) -> int:
    """Write the table and print how many rows it has."""
    from msprobe.dump.reader import open_dump
    from msprobe.errors import ReportWriteError, UsageError
    from msprobe.files import report_file

    path: Path = options.file
    if path.suffix not in _SUFFIXES:
        raise UsageError(f"{path}: the name has to end with {', '.join(_SUFFIXES)}")
    if path.is_dir():
        raise ReportWriteError(path, "it is a folder; name a file in it")
    dump = open_dump(options.dump)
    frame = dump.frame() if options.sql is None else dump.sql(options.sql)
    with report_file(path) as temporary:
        if path.suffix == ".parquet":
            frame.write_parquet(temporary)
        elif path.suffix == ".csv":
            _without_lists(frame).write_csv(temporary)
        else:
            frame.write_ndjson(temporary)
    print(f"wrote {path}: {frame.height:,} rows")
    return 0


def _without_lists(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the frame with lists, the shapes, as text such as ``3x4``."""
    import polars as pl
    import polars.selectors as cs

    return frame.with_columns(cs.list().cast(pl.List(pl.String)).list.join("x"))
