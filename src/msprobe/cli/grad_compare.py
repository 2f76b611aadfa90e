# SPDX-License-Identifier: Apache-2.0
"""`msprobe grad_compare`: compare the gradients of two runs by their signs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from msprobe.monitor.gradients.comparing import RankSimilarity

EXIT_SUSPICIOUS: Final = 1
_LINES: Final = 20


def add_parser(verbs: Any, formatter: type[argparse.HelpFormatter]) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser(
        "grad_compare",
        help="compare gradients that the task grad_probe recorded in two runs",
        description="Compare the signs of gradients, step by step. A parameter is suspicious if "
        "its similarity is below 0.97 at the first step, or falls by more than 0.03 from one "
        "step to the next.",
        formatter_class=formatter,
    )
    parser.add_argument("target", metavar="TARGET", type=Path, help="dump_path under test")
    parser.add_argument("reference", metavar="REFERENCE", type=Path, help="the trusted dump_path")
    parser.add_argument(
        "-o", "--output", metavar="DIR", type=Path, required=True, help="folder for the result"
    )
    parser.add_argument("--pictures", action="store_true", help="also a picture per parameter")
    parser.add_argument(
        "--exit-code", action="store_true", help="exit with 1 if a parameter is suspicious"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Compare, write tables and page, and print the suspicious parameters."""
    from msprobe.monitor.gradients.comparing import GradComparator

    found = GradComparator.compare_distributed(
        options.target, options.reference, options.output, pictures=options.pictures
    )
    for rank in found:
        _print(rank)
    print(f"tables and page: {options.output}")
    suspicious = any(rank.suspicious for rank in found)
    complete = not any(rank.missing for rank in found)
    return EXIT_SUSPICIOUS if options.exit_code and (suspicious or not complete) else 0


def _print(rank: RankSimilarity) -> None:
    count = len(rank.parameters) - 1
    verdict = f"{len(rank.suspicious)} suspicious" if rank.suspicious else "pass"
    print(f"{rank.rank}: {verdict}; {count} parameters, {len(rank.steps)} steps")
    for one in rank.suspicious[:_LINES]:
        if one.suspicion is not None:
            print(f"  {one.name}: step {one.suspicion.step}: {one.suspicion.reason}")
    if len(rank.suspicious) > _LINES:
        print(f"  … {len(rank.suspicious) - _LINES} more in verdict.csv")
    for text in rank.missing[:_LINES]:
        print(f"  not compared: {text}")
    if len(rank.missing) > _LINES:
        print(f"  … {len(rank.missing) - _LINES} more in missing.json")
