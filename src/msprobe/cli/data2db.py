# SPDX-License-Identifier: Apache-2.0
"""`msprobe data2db`: a run of the monitor in the formats of other programs."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msprobe.cli.options import add_output
from msprobe.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from msprobe.monitor.exports import ExportFormat
    from msprobe.monitor.reader import MonitorRun

_KINDS: Final = ("trend_db", "csv", "parquet", "tensorboard", "wandb")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the command and add its options."""
    parser.description = (
        "Write a run of the training monitor, or its csv files of mindstudio-probe, as "
        "monitor_data.trend.db or in another format."
    )
    parser.epilog = "examples:\n  msprobe data2db --data monitor_output -o result --to csv"
    parser.add_argument(
        "--data", metavar="DIR", type=Path, required=True, help="a run, or csv folders of ranks"
    )
    add_output(parser, "folder of the files", aliases=("--db",), required=True)
    parser.add_argument("--to", choices=_KINDS, default="trend_db", help="the format written")
    parser.add_argument(
        "--mapping",
        metavar="FILE",
        type=Path,
        help='JSON object {"layers.0.mlp": "blocks.0.ffn"}: beginnings of names in trend_db',
    )
    parser.add_argument(
        "--micro-step",
        choices=("true", "false"),
        help="whether each micro step is a step of its own in trend_db (the default)",
    )
    # Of mindstudio-probe; what is read says its own format, and one process is enough.
    parser.add_argument("--format", choices=("auto", "monitor"), help=argparse.SUPPRESS)
    parser.add_argument("--process-num", type=int, help=argparse.SUPPRESS)


def run(options: argparse.Namespace) -> int:
    """Write the files and print their names."""
    from msprobe.monitor.exports import ExportFormat, import_run
    from msprobe.monitor.reader import newest_run, open_monitor

    kind = ExportFormat(options.to)
    if kind is not ExportFormat.TREND_DB and (options.mapping or options.micro_step):
        raise UsageError("--mapping and --micro-step go with --to trend_db")
    if options.data.is_file() or newest_run(options.data) is not None:
        with open_monitor(options.data) as found:
            return _write(found, options, kind)
    with (
        tempfile.TemporaryDirectory() as folder,
        open_monitor(import_run(options.data, Path(folder))) as found,
    ):
        return _write(found, options, kind)


def _write(found: MonitorRun, options: argparse.Namespace, kind: ExportFormat) -> int:
    from msprobe.monitor.exports import export

    mapping = None if options.mapping is None else _read_mapping(options.mapping)
    written = export(
        found,
        options.output,
        kind,
        mapping=mapping,
        micro_steps_as_steps=options.micro_step != "false",
    )
    for path in written:
        print(path)
    return 0


def _read_mapping(path: Path) -> dict[str, str]:
    """Return the mapping of names in a file."""
    from msprobe.config.reading import read_config_file

    found, _ = read_config_file(path)
    for name, other in found.items():
        if not isinstance(other, str):
            raise ConfigError(name, other, "a name", source=path)
    return found
