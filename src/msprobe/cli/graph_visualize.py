# SPDX-License-Identifier: Apache-2.0
"""`msprobe graph_visualize`: graphs as ``.vis.db``, with the options of mindstudio-probe."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_parser(verbs: Any, formatter: type[argparse.HelpFormatter]) -> None:
    """Add the verb to the command line."""
    from msprobe.cli.graph import add_shared_options

    parser = verbs.add_parser(
        "graph_visualize",
        help="write graphs as .vis.db, with the options of mindstudio-probe",
        description="Write the graph of a dump, or of two that are compared, as .vis.db.",
        formatter_class=formatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        *("-tp", "--target_path"), type=Path, required=True, metavar="DIR", help="the dump"
    )
    parser.add_argument("-gp", "--golden_path", type=Path, metavar="DIR", help="its reference")
    parser.add_argument(
        *("-o", "--output_path"), type=Path, required=True, metavar="DIR", help="where to write"
    )
    add_shared_options(parser, "-fm")
    parser.add_argument(
        *("-tensor_log", "--is_print_compare_log"),
        action="store_true",
        help="accepted: nothing is logged tensor by tensor",
    )
    parser.add_argument(
        *("-progress_log", "--is_print_progress_log"),
        action="store_true",
        help="accepted: it takes no time that is worth a report",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Build the graphs, write them, and say where."""
    from msprobe.cli.graph import open_compared
    from msprobe.graph.vis_writer import vis_name, write_vis_db

    graphs = open_compared(options.target_path, options.golden_path, options)
    path = options.output_path / vis_name(graphs)
    print(write_vis_db(path, graphs, overflow=options.overflow_check))
    return 0
