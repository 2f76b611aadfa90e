# SPDX-License-Identifier: Apache-2.0
"""The options of `msprobe compare`: its own, and those of both generations of mindstudio-probe."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from msprobe.cli.options import (
    add_exit_code,
    add_json,
    add_quiet,
    add_ranks,
    add_scheduler,
    add_steps,
    add_workers,
    positive_number,
)

DEFAULT_OUTPUT: Final = Path("output")


def add_all(parser: argparse.ArgumentParser) -> None:
    """Add all options of `msprobe compare`."""
    parser.add_argument(
        "dumps",
        nargs="*",
        metavar="TARGET REFERENCE",
        help="the dump under test and the trusted one: dump paths, step folders, rank folders or "
        "files",
    )
    _add_inputs(parser)
    _add_output(parser)
    _add_matching(parser)
    _add_work(parser)
    _add_former(parser)


def _add_inputs(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what to compare")
    group.add_argument("-tp", "--target-path", metavar="PATH", help="same as TARGET")
    group.add_argument("-gp", "--golden-path", metavar="PATH", help="same as REFERENCE")
    group.add_argument(
        "-i", "--input-path", metavar="FILE", help="both paths from a JSON file (compare.json)"
    )
    add_steps(group, "only these steps of the target, such as 0,5-7 (all)")
    add_ranks(group)
    group.add_argument(
        "--replicas",
        action="store_true",
        help="compare the data-parallel ranks of one dump with each other",
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument(
        "-o",
        "--output",
        "--output-path",
        dest="output",
        metavar="DIR",
        type=Path,
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
    group.add_argument(
        "--columns",
        choices=("documented", "neutral"),
        help="titles in xlsx and csv: of mindstudio-probe (documented), where its spellings are "
        "used; else target and reference (neutral)",
    )
    group.add_argument("--xlsx", action="store_const", const="xlsx", dest="format", help="default")
    group.add_argument("--html", action="store_true", help="also write a report to click through")
    add_json(group, "print the summary as JSON")
    add_quiet(group, "print only the verdict, one sentence")
    group.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="also print the modules as a tree, unpaired calls, notes and files",
    )
    add_exit_code(group, "exit with 1 if the dumps differ, as git diff does")
    group.add_argument(
        "-da",
        "--diff-analyze",
        action="store_true",
        help="also write the files of mindstudio-probe's first-difference search",
    )
    group.add_argument(
        "-s",
        "--stack-mode",
        action="store_true",
        help="a column with call stacks; automatic, unless the compare.json has stack_path",
    )
    group.add_argument(
        "-c", "--compare-only", action="store_true", help="no advisor file of mindstudio-probe"
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
        "-f", "-fm", "--fuzzy-match", action="store_true", help="same as --align always"
    )
    group.add_argument("-dm", "--data-mapping", metavar="FILE", help="target row: reference row")
    group.add_argument(
        "-cm", "--cell-mapping", metavar="FILE", nargs="?", const=True, help="cell.Class: m.Class"
    )
    group.add_argument(
        "-am",
        "--api-mapping",
        metavar="FILE",
        nargs="?",
        const=True,
        help="MindSpore APIs to PyTorch APIs; without FILE the built-in table",
    )
    group.add_argument(
        "-lm", "--layer-mapping", metavar="FILE", help="renamed children by class of layer"
    )
    group.add_argument(
        "--pairs", metavar="FILE", help="pairs of calls, as the page of msprobe graph saves them"
    )


def _add_work(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how values are compared")
    group.add_argument("--tolerances", metavar="FILE", help="YAML that changes tolerances by name")
    _add_noise(group)
    group.add_argument(
        "--config", metavar="FILE", help="YAML of matrices to multiply tensors with beforehand"
    )
    add_workers(group, "threads (one per core)", kind=positive_number)
    add_scheduler(group)
    group.add_argument(
        "--no-verify",
        dest="verify",
        action="store_false",
        help="do not compute calls again in float64 to see which side errs",
    )


def _add_noise(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--noise",
        nargs="+",
        default=(),
        metavar="DUMP",
        help="recordings of the reference program with task noise_floor, two or more: rounding is "
        "measured by them, not estimated",
    )


def _add_former(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("of mindstudio-probe")
    group.add_argument("-m", "--mode", default="auto", help="auto is the only mode")
    group.add_argument(
        "-tensor_log", "--is-print-compare-log", action="store_true", help="accepted, no effect"
    )
    group.add_argument("--consistent-check", action="store_true", help=argparse.SUPPRESS)
    group.add_argument("--backend", help=argparse.SUPPRESS)
    for flags in (
        ("-fr", "--fusion-rule-file"),
        ("-qfr", "--quant-fusion-rule-file"),
        ("-cfr", "--close-fusion-rule-file"),
        ("--input-data",),
        ("--input-shape",),
        ("--output-size",),
        ("--dym-shape-range",),
        ("-ofs", "--only-final-statistic"),
    ):
        group.add_argument(*flags, nargs="?", const="", help=argparse.SUPPRESS)
