# SPDX-License-Identifier: Apache-2.0
"""`msprobe export`: a dump as a table, or a dump or comparison as scalars, for other programs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msprobe.cli.options import add_dump, add_output

if TYPE_CHECKING:
    import polars as pl

_SUFFIXES: Final = (".parquet", ".csv", ".jsonl")
_EXAMPLES: Final = """\
examples:
  msprobe export dump values.parquet
  msprobe export dump large.csv --sql "select step, record, norm from records where norm > 1000"
  msprobe export dump --tensorboard events            scalars over the steps
  msprobe export dump --against reference --mlflow ports    how far two dumps lie apart
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the command and add its options."""
    parser.description = (
        "Write a table with a row for each value of each record of a dump, with step, rank, role, "
        "type, shape and statistics; or scalars over the steps for TensorBoard, W&B and MLflow."
    )
    parser.epilog = _EXAMPLES
    add_dump(parser)
    parser.add_argument(
        "file",
        metavar="FILE",
        type=Path,
        nargs="?",
        help="what to write: .parquet, .csv or .jsonl",
    )
    add_output(parser, "the same, as an option", metavar="FILE")
    parser.add_argument("--sql", metavar="QUERY", help="only its result; the table is records")
    scalars = parser.add_mutually_exclusive_group()
    add = scalars.add_argument
    add("--tensorboard", metavar="DIR", type=Path, help="write scalars as event files")
    add("--wandb", metavar="PROJECT", help="write scalars to W&B")
    add("--mlflow", metavar="EXPERIMENT", help="write scalars to MLflow")
    parser.add_argument(
        "--against",
        metavar="REFERENCE",
        type=Path,
        help="scalars of the comparison with this dump",
    )


def run(options: argparse.Namespace) -> int:
    """Write what was asked for and print how much it is."""
    from msprobe.errors import UsageError

    if options.file is not None and options.output is not None:
        raise UsageError(f"name the file to write once: {options.file}, or -o {options.output}")
    options.file = options.file or options.output
    if options.tensorboard or options.wandb or options.mlflow:
        if options.file is not None or options.sql is not None:
            raise UsageError("scalars are written without FILE and --sql: leave these out")
        return _write_scalars(options)
    if options.against is not None:
        raise UsageError("--against goes with --tensorboard, --wandb or --mlflow")
    if options.file is None:
        raise UsageError("name a file to write, as in msprobe export dump values.parquet")
    return _write_table(options)


def _write_scalars(options: argparse.Namespace) -> int:
    from msprobe.report import scalars

    if options.against is None:
        from msprobe.dump.reader import open_dump

        found = scalars.scalars_of(open_dump(options.dump).frame(), scalars.STATISTICS)
    else:
        from msprobe.compare.run import compare_dumps

        frame = compare_dumps(options.dump, options.against).frame
        found = scalars.scalars_of(frame, scalars.DIFFERENCES)
    if options.tensorboard:
        count, place = scalars.write_tensorboard(found, options.tensorboard), options.tensorboard
    elif options.wandb:
        count, place = scalars.write_wandb(found, options.wandb), f"W&B project {options.wandb}"
    else:
        count = scalars.write_mlflow(found, options.mlflow)
        place = f"MLflow experiment {options.mlflow}"
    print(f"wrote {count:,} scalars to {place}")
    return 0


def _write_table(options: argparse.Namespace) -> int:
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
            temporary.write_text(_json_lines(frame), encoding="utf-8")
    print(f"wrote {path}: {frame.height:,} rows")
    return 0


def _json_lines(frame: pl.DataFrame) -> str:
    """Return the rows as strict JSON; polars writes null for what is not finite."""
    import polars as pl
    import polars.selectors as cs

    from msprobe.json_text import strict_json

    lines = frame.write_ndjson().split("\n")
    is_odd = pl.any_horizontal(pl.lit(value=False), cs.float().is_finite().not_())
    for index in frame.select(is_odd.fill_null(value=False)).to_series().arg_true():
        lines[index] = strict_json(frame.row(index, named=True), indent=None).rstrip()
    return "\n".join(lines)


def _without_lists(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the frame with lists, the shapes, as text such as ``3x4``."""
    import polars as pl
    import polars.selectors as cs

    return frame.with_columns(cs.list().cast(pl.List(pl.String)).list.join("x"))
