# SPDX-License-Identifier: Apache-2.0
"""`msprobe merge_result`: merge the tables of several ranks, metric by metric."""

from __future__ import annotations

import argparse
from typing import Any, Final

_EXAMPLES: Final = """\
the YAML file:
  api:                     # beginnings of row names
    - Functional.linear
    - Torch.add.0.forward
  compare_index:           # columns; leave it out for all metrics
    - MaxAbsErr
"""


def add_parser(verbs: Any, _: type[argparse.HelpFormatter]) -> None:
    """Add the verb to the command line."""
    from rich_argparse import RawDescriptionRichHelpFormatter

    parser = verbs.add_parser(
        "merge_result",
        aliases=["merge-result"],
        help="merge the tables that compare made of several ranks",
        description="Merge the tables compare_result_rank{N}_{time}.xlsx or .csv of a folder, also "
        "those of\nmindstudio-probe: a sheet a metric, a row a value, a column a rank.",
        epilog=_EXAMPLES,
        formatter_class=RawDescriptionRichHelpFormatter,
    )
    parser.add_argument(
        "-i", "--input_dir", required=True, metavar="DIR", help="folder of the tables"
    )
    parser.add_argument(
        "-o", "--output_dir", required=True, metavar="DIR", help="where to; made if missing"
    )
    parser.add_argument(
        "-config",
        "--config-path",
        "--config",
        required=True,
        metavar="FILE",
        help="YAML file that says which rows and metrics",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Merge and print the path of the result."""
    from msprobe.compare.legacy.merge import merge_results

    print(f"wrote {merge_results(options.input_dir, options.output_dir, options.config_path)}")
    return 0
