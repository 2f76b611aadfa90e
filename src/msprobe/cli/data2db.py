# SPDX-License-Identifier: Apache-2.0
"""`msprobe data2db`: a run of the monitor in the formats of other programs."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from msprobe.monitor.exports import ExportFormat
    from msprobe.monitor.reader import MonitorRun

_KINDS: Final = ("trend_db", "csv", "parquet", "tensorboard")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the command and add its options."""
    parser.description = (
        "Write a run of the training monitor, or its csv files of mindstudio-probe, as "
        "monitor_data.trend.db or in another format."
    )
    parser.add_argument(
        "--data", metavar="DIR", type=Path, required=True, help="a run, or csv folders of ranks"
    )
    parser.add_argument("--db", metavar="DIR", type=Path, required=True, help="gets the files")
    parser.add_argument("--to", choices=_KINDS, default="trend_db", help="the format written")
    # Of mindstudio-probe; what is read says its own format, and one process is enough.
    parser.add_argument("--format", choices=("auto", "monitor"), help=argparse.SUPPRESS)
    parser.add_argument("--process-num", type=int, help=argparse.SUPPRESS)


def run(options: argparse.Namespace) -> int:
    """Write the files and print their names."""
    from msprobe.monitor.exports import ExportFormat, import_run
    from msprobe.monitor.reader import newest_run, open_monitor

    kind = ExportFormat(options.to)
    if options.data.is_file() or newest_run(options.data) is not None:
        with open_monitor(options.data) as found:
            return _write(found, options.db, kind)
    with (
        tempfile.TemporaryDirectory() as folder,
        open_monitor(import_run(options.data, Path(folder))) as found,
    ):
        return _write(found, options.db, kind)


def _write(found: MonitorRun, folder: Path, kind: ExportFormat) -> int:
    from msprobe.monitor.exports import export

    for path in export(found, folder, kind):
        print(path)
    return 0
