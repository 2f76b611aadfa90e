# SPDX-License-Identifier: Apache-2.0
"""`msprobe grad-compare`: compare the gradients of two runs by their signs."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from msprobe.cli.options import add_exit_code, add_output, add_pair

if TYPE_CHECKING:
    from msprobe.monitor.gradients.comparing import RankSimilarity

EXIT_SUSPICIOUS: Final = 1
_LINES: Final = 20


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the command and add its options."""
    parser.description = (
        "Compare the signs of gradients that the task grad_probe recorded, step by step.\n"
        "A parameter is suspicious if its similarity is below 0.97 at the first step, or falls\n"
        "by more than 0.03 from one step to the next."
    )
    parser.epilog = "examples:\n  msprobe grad-compare probe_new probe_old -o result"
    add_pair(parser, "dump_path under test", "the trusted dump_path")
    add_output(parser, "folder for the result", required=True)
    parser.add_argument("--pictures", action="store_true", help="also a picture per parameter")
    add_exit_code(parser, "exit with 1 if a parameter is suspicious or was not compared")


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
    if not count:
        verdict = "nothing compared"
    elif rank.suspicious:
        verdict = "suspicious"
    else:
        verdict = "incomplete" if rank.missing else "pass"
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
