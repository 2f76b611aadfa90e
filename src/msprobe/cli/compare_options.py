# SPDX-License-Identifier: Apache-2.0
"""The options of `msprobe compare`: its own, and those of both generations of mindstudio-probe."""

from __future__ import annotations

import argparse
from typing import Final

DEFAULT_OUTPUT: Final = "./output"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add all options of `msprobe compare`."""
    parser.add_argument(
        "dumps",
        nargs="*",
        metavar="DUMP",
        help="TARGET and REFERENCE: dump paths, step folders, rank folders or files",
    )
    _add_inputs(parser)
    _add_output(parser)
    _add_matching(parser)
    _add_work(parser)
    _add_former(parser)


def _add_inputs(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what to compare")
    group.add_argument("-tp", "--target_path", metavar="PATH", help="same as TARGET")
    group.add_argument("-gp", "--golden_path", metavar="PATH", help="same as REFERENCE")
    group.add_argument(
        "-i", "--input_path", metavar="FILE", help="both paths from a JSON file (compare.json)"
    )
    group.add_argument("--step", metavar="N,N", help="only these steps of the target")
    group.add_argument("--rank", metavar="R,R", help="only these ranks")
    group.add_argument(
        "--replicas",
        action="store_true",
        help="compare the data-parallel ranks of one dump with each other",
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument(
        "-o",
        "--output_path",
        "--output",
        metavar="DIR",
        nargs="?",
        const=DEFAULT_OUTPUT,
        default=DEFAULT_OUTPUT,
        help="where files go (./output)",
    )
    group.add_argument(
        "--format",
        choices=("xlsx", "csv", "parquet"),
        help="format of the table (xlsx; parquet above 200,000 rows or 100 tables)",
    )
    group.add_argument("--xlsx", action="store_const", const="xlsx", dest="format", help="default")
    group.add_argument("--html", action="store_true", help="also write a report to click through")
    group.add_argument("--json", action="store_true", help="print the summary as JSON")
    group.add_argument("--quiet", action="store_true", help="print only the verdict, one sentence")
    group.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="also print the modules as a tree, unpaired calls, notes and files",
    )
    group.add_argument(
        "--exit-code",
        action="store_true",
        help="end with 1 when the dumps differ, as git diff does",
    )
    group.add_argument(
        "-da",
        "--diff_analyze",
        action="store_true",
        help="also write the files of mindstudio-probe's first-difference search",
    )
    group.add_argument(
        "-s",
        "--stack_mode",
        action="store_true",
        help="a column with call stacks; automatic, unless the compare.json has stack_path",
    )
    group.add_argument(
        "-c", "--compare_only", action="store_true", help="no advisor file of mindstudio-probe"
    )
    group.add_argument(
        "-hl",
        "--highlight",
        action="store_true",
        help="colour rows of the xlsx table (always done)",
    )


def _add_matching(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how calls find their partners")
    group.add_argument(
        "--align",
        choices=("auto", "always", "never"),
        default="auto",
        help="align calls by order and similarity where names find no partner (auto)",
    )
    group.add_argument(
        "-f", "-fm", "--fuzzy_match", action="store_true", help="same as --align always"
    )
    group.add_argument("-dm", "--data_mapping", metavar="FILE", help="target row: reference row")
    group.add_argument(
        "-cm", "--cell_mapping", metavar="FILE", nargs="?", const=True, help="cell.Class: m.Class"
    )
    group.add_argument(
        "-am",
        "--api_mapping",
        metavar="FILE",
        nargs="?",
        const=True,
        help="MindSpore APIs to PyTorch APIs; without FILE the built-in table",
    )
    group.add_argument(
        "-lm", "--layer_mapping", metavar="FILE", help="renamed children by class of layer"
    )


def _add_work(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how values are compared")
    group.add_argument("--tolerances", metavar="FILE", help="YAML that changes tolerances by name")
    group.add_argument(
        "--config", metavar="FILE", help="YAML of matrices to multiply tensors with beforehand"
    )
    group.add_argument("--workers", type=_positive, metavar="N", help="threads (one a core)")
    group.add_argument(
        "--scheduler", metavar="ADDRESS", help="a dask cluster to work on, tcp://host:port"
    )


def _add_former(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("of mindstudio-probe")
    group.add_argument("-m", "--mode", default="auto", help="auto is the only mode")
    group.add_argument(
        "-tensor_log", "--is_print_compare_log", action="store_true", help="accepted, no effect"
    )
    group.add_argument("--consistent_check", action="store_true", help=argparse.SUPPRESS)
    group.add_argument("--backend", help=argparse.SUPPRESS)
    for flags in (
        ("-fr", "--fusion_rule_file"),
        ("-qfr", "--quant_fusion_rule_file"),
        ("-cfr", "--close_fusion_rule_file"),
        ("--input_data",),
        ("--input_shape",),
        ("--output_size",),
        ("--dym_shape_range",),
        ("-ofs", "--only_final_statistic"),
    ):
        group.add_argument(*flags, nargs="?", const="", help=argparse.SUPPRESS)


def _positive(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive number")
    return number
