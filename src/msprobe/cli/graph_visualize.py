# SPDX-License-Identifier: Apache-2.0
"""`msprobe graph-visualize`: graphs as ``.vis.db``, with the options of mindstudio-probe."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msprobe.cli.graph import add_shared_options, open_compared
from msprobe.cli.options import add_output, positive_number

if TYPE_CHECKING:
    from msprobe.graph.merging import Layout

_AXES: Final = {
    "tp": "ranks that share a layer",
    "cp": "ranks that share a sequence",
    "ep": "ranks that share the experts",
    "pp": "stages of the pipeline",
    "vpp": "pieces of the model in each stage",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the command and add its options."""
    parser.description = "Write the graph of a dump, or of two that are compared, as .vis.db."
    parser.epilog = "examples:\n  msprobe graph-visualize -tp new -gp old -o result"
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
        type=positive_number,
        nargs="+",
        metavar="N",
        help="merge the ranks of a parallel run; the second number is for the reference",
    )
    for axis, meaning in _AXES.items():
        parser.add_argument(f"--{axis}", type=positive_number, nargs="+", metavar="N", help=meaning)
    parser.add_argument(
        "--order", nargs="+", metavar="NAMES", help="axes, fastest first (tp-cp-ep-dp-pp)"
    )
    parser.add_argument(
        "--file-type", choices=("db", "json"), default="db", help="json: the merged dump itself"
    )


def run(options: argparse.Namespace) -> int:
    """Merge ranks where asked to, build the graphs, write them, and say where."""
    if options.rank_size is None:
        return _write(options, options.target_path, options.golden_path)
    from msprobe.graph.merging import merge_ranks, merged_dumps

    target = _layout(options, 0)
    if options.file_type == "json":
        from msprobe.dump.reader import open_dump

        print(merge_ranks(open_dump(options.target_path), target, options.output))
        return 0
    layouts = [target] if options.golden_path is None else [target, _layout(options, 1)]
    with merged_dumps(options.target_path, options.golden_path, layouts) as merged:
        return _write(options, *merged)


def _layout(options: argparse.Namespace, side: int) -> Layout:
    """Return the layout of the target, 0, or the reference, 1."""
    from msprobe.errors import UsageError
    from msprobe.graph.merging import Layout

    given = {}
    for name in ("rank_size", *_AXES, "order"):
        values = getattr(options, name)
        if values is not None and side >= len(values):
            raise UsageError(f"--{name}: give a second value for the reference")
        if values is not None:
            given[name] = values[side]
    return Layout(**given)


def _write(options: argparse.Namespace, target: Path, reference: Path | None) -> int:
    from msprobe.graph.vis_writer import vis_name, write_vis_db

    graphs = open_compared(target, reference, options)
    path = options.output / vis_name(graphs)
    print(write_vis_db(path, graphs, overflow=options.overflow_check))
    return 0
