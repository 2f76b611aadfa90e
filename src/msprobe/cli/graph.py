# SPDX-License-Identifier: Apache-2.0
"""`msprobe graph`: the model as it ran, as a graph."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

_EXAMPLES: Final = """\
examples:
  msprobe graph dump -o graph.json --export json          one recording
  msprobe graph new old -o graph.json --export json       two, with what differs at its place
"""
_EXPORTS: Final = ("json",)


def add_parser(verbs: Any, _: type[argparse.HelpFormatter]) -> None:
    """Add the verb to the command line."""
    from rich_argparse import RawDescriptionRichHelpFormatter

    parser = verbs.add_parser(
        "graph",
        help="the model as it ran: modules, calls and the values between them",
        description="Write the model as it ran as a graph: modules with the calls inside them, and "
        "the values\nbetween these; with a REFERENCE, also what differs, at the node where it "
        "begins.",
        usage="msprobe graph DUMP [REFERENCE] [options]",
        epilog=_EXAMPLES,
        formatter_class=RawDescriptionRichHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("dumps", nargs="+", metavar="DUMP", help="a dump, and its reference")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="the file to write")
    parser.add_argument("--export", choices=_EXPORTS, default="json", metavar="FORMAT", help="json")
    parser.add_argument("--step", type=int, nargs="+", metavar="N", help="only these steps")
    parser.add_argument("--rank", type=int, nargs="+", metavar="N", help="only these ranks")
    parser.add_argument(
        "-oc", "--overflow_check", action="store_true", help="grade calls that met NaN or Inf"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Build the graphs, write them, and say where."""
    import json

    from msprobe.errors import UsageError
    from msprobe.files import write_report
    from msprobe.graph.page_json import whole
    from msprobe.graph.sources import open_graphs

    if len(options.dumps) > 2:
        raise UsageError("give one dump, or a dump and its reference")
    reference = options.dumps[1] if len(options.dumps) > 1 else None
    graphs = open_graphs(
        options.dumps[0],
        reference,
        steps=options.step,
        ranks=options.rank,
        overflow=options.overflow_check,
    )
    path = options.output or Path(f"msprobe_graph.{options.export}")
    text = json.dumps(whole(graphs), allow_nan=False, separators=(",", ":"))
    print(write_report(path, text))
    return 0
