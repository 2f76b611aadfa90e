# SPDX-License-Identifier: Apache-2.0
"""`msprobe repair`: make the JSON files of captures that were killed."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from msprobe.dump.repair import RepairedRank


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the command and add its options."""
    parser.description = (
        "Make the JSON files of a capture that was killed from its journal, for other "
        "programs; msprobe itself reads journals directly. The journal is removed once the files "
        "are on disk, and so are left-over temporary files. A capture that is still running is "
        "left alone."
    )
    parser.epilog = "examples:\n  msprobe repair dump --dry-run\n  msprobe repair dump"
    parser.add_argument("dump", metavar="DUMP", help="a dump path, a step folder or a rank folder")
    parser.add_argument(
        "--dry-run", action="store_true", help="only say what would be done; change nothing"
    )


def run(options: argparse.Namespace) -> int:
    """Repair a dump and print the result; 2 if a folder could not be repaired."""
    import sys

    from msprobe.dump.repair import repair_dump
    from msprobe.plain_text import plain

    done = repair_dump(options.dump, dry_run=options.dry_run)
    for rank in done:
        stream = sys.stdout if rank.problem is None else sys.stderr
        print(plain(f"{rank.directory}: {_what(rank, options.dry_run)}"), file=stream)
    if not done:
        print("nothing to repair")
    return 2 if any(rank.problem for rank in done) else 0


def _what(rank: RepairedRank, dry_run: bool) -> str:
    from msprobe.plain_text import count_text

    if rank.problem is not None:
        return f"not repaired: {rank.problem}"
    said = []
    if rank.records is not None:
        verb = "would make" if dry_run else "made"
        lost = (
            f", {count_text(rank.damaged_lines, 'damaged line')} left out"
            if rank.damaged_lines
            else ""
        )
        lost += ", the last line was cut off" if rank.is_torn else ""
        if rank.missing_tensors:
            missing = count_text(len(rank.missing_tensors), "tensor file")
            lost += f"; {missing} that records name had not been written"
        if rank.unfinished:
            more = count_text(rank.unfinished, "record")
            lost += f"; {more} of calls that had not ended, from their tensor files"
        said.append(
            f"{verb} the JSON files of {count_text(rank.records, 'record')} from the journal{lost}"
        )
    if rank.kept is not None:
        verb = "would keep" if dry_run else "kept"
        count = count_text(rank.kept, "whole record")
        said.append(f"{verb} the {count} of a file that was cut short (the old one as ….json.cut)")
    if rank.temporaries:
        verb = "would remove" if dry_run else "removed"
        said.append(f"{verb} {count_text(len(rank.temporaries), 'temporary file')}")
    return "; ".join(said)
