# SPDX-License-Identifier: Apache-2.0
"""`msprobe graph-visualize`: graphs as ``.vis.db``, with the options of mindstudio-probe."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

from msprobe.cli.graph import add_shared_options, open_compared
from msprobe.cli.options import add_output

_AXES: Final = {
    "tp": "ranks that share a layer",
    "cp": "ranks that share a sequence",
    "ep": "ranks that share the experts",
    "pp": "stages of the pipeline",
    "vpp": "pieces of the model in each stage; only 1",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the command and add its options."""
    parser.description = "Write the graph of a dump, or of two that are compared, as .vis.db."
    parser.add_argument(
        *("-tp", "--target-path"), type=Path, required=True, metavar="DIR", help="the dump"
    )
    parser.add_argument("-gp", "--golden-path", type=Path, metavar="DIR", help="its reference")
    add_output(parser, "where to write", required=True)
    add_shared_options(parser, "-fm")
    parser.add_argument(
        *("-tensor_log", "--is-print-compare-log"),
        action="store_true",
        help="accepted: nothing is logged tensor by tensor",
    )
    parser.add_argument(
        *("-progress_log", "--is-print-progress-log"),
        action="store_true",
        help="accepted: it takes no time that is worth a report",
    )
    parser.add_argument(
        "--rank-size",
        type=int,
        nargs="+",
        metavar="N",
        help="merge the ranks of a parallel run; the second number is for the reference",
    )
    for axis, meaning in _AXES.items():
        parser.add_argument(f"--{axis}", type=int, nargs="+", metavar="N", help=meaning)
    parser.add_argument(
        "--order", nargs="+", metavar="NAMES", help="axes, fastest first (tp-cp-ep-dp-pp)"
    )
    parser.add_argument(
        "--file-type", choices=("db", "json"), default="db", help="json: the merged dump itself"
    )


def run(options: argparse.Namespace) -> int:
    """Merge ranks where asked to, build the graphs, write them, and say where."""
    from tempfile import TemporaryDirectory

    if options.rank_size is None:
        return _write(options, options.target_path, options.golden_path)
    if options.file_type == "json":
        print(_merged(options, options.target_path, 0, options.output))
        return 0
    with TemporaryDirectory() as folder:
        reference = options.golden_path
        if reference is not None:
            reference = _merged(options, reference, 1, Path(folder, "reference"))
        target = _merged(options, options.target_path, 0, Path(folder, "target"), reference)
        return _write(options, target, reference)


def _merged(
    options: argparse.Namespace, dump: Path, side: int, output: Path, like: Path | None = None
) -> Path:
    """Return the folder of the merged dump of one side."""
    from msprobe.dump.reader import open_dump
    from msprobe.errors import UnsupportedError, UsageError
    from msprobe.graph.merging import DEFAULT_ORDER, Layout, merge_ranks

    def given(name: str, default: Any) -> Any:
        values = getattr(options, name)
        if values is None:
            return default
        if side >= len(values):
            raise UsageError(f"--{name}: give a second value for the reference")
        return values[side]

    if given("vpp", 1) != 1:
        raise UnsupportedError("--vpp: stages that hold several pieces of the model are not merged")
    layout = Layout(
        rank_size=given("rank_size", 1),
        **{axis: given(axis, 1) for axis in ("tp", "cp", "ep", "pp")},
        order=given("order", DEFAULT_ORDER),
    )
    whole = None if like is None else open_dump(like)
    return merge_ranks(open_dump(dump), layout, output, like=whole)


def _write(options: argparse.Namespace, target: Path, reference: Path | None) -> int:
    from msprobe.graph.vis_writer import vis_name, write_vis_db

    graphs = open_compared(target, reference, options)
    path = options.output / vis_name(graphs)
    print(write_vis_db(path, graphs, overflow=options.overflow_check))
    return 0
