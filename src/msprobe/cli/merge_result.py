# SPDX-License-Identifier: Apache-2.0
"""`msprobe merge-result`: merge the tables of several ranks, metric by metric."""

from __future__ import annotations

import argparse
from typing import Final

from msprobe.cli.options import add_output

_EXAMPLES: Final = """\
examples:
  msprobe merge-result -i tables -o merged --config merge.yaml

the YAML file:
  api:                     # beginnings of row names
    - Functional.linear
    - Torch.add.0.forward
  compare_index:           # columns; leave it out for all metrics
    - MaxAbsErr
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the command and add its options."""
    parser.description = (
        "Merge the tables compare_result_rank{N}_{time}.xlsx or .csv of a folder, also "
        "those of\nmindstudio-probe: a sheet a metric, a row a value, a column a rank."
    )
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "-i", "--input-dir", required=True, metavar="DIR", help="folder of the tables"
    )
    add_output(parser, "where to; made if missing", aliases=("--output-dir",), required=True)
    parser.add_argument(
        "-config",
        "--config-path",
        "--config",
        required=True,
        metavar="FILE",
        help="YAML file that says which rows and metrics",
    )


def run(options: argparse.Namespace) -> int:
    """Merge and print the path of the result."""
    from msprobe.compare.legacy.merge import merge_results

    print(f"wrote {merge_results(options.input_dir, options.output, options.config_path)}")
    return 0
