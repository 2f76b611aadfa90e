# SPDX-License-Identifier: Apache-2.0
"""`msprobe api_precision_compare`: is a device less precise than a trusted one?"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msprobe.cli.options import add_output

if TYPE_CHECKING:
    from msprobe.checks.precision_compare import PrecisionComparison

EXIT_FOUND: Final = 1
_MOST_LISTED: Final = 20


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the command and add its options."""
    parser.description = (
        "Compare two files accuracy_checking_details_{time}.csv, of acc-check or of "
        "mindstudio-probe, each made on one device, by the documented precision standards. Writes "
        "api_precision_compare_result_{time}.csv and …_details_{time}.csv."
    )
    parser.epilog = (
        "examples:\n  msprobe api-precision-compare details_npu.csv details_gpu.csv -o result\n\n"
        "exit codes: 0 all pass, 1 errors found or outputs missing, 2 could not be compared, "
        "130 Ctrl-C"
    )
    parser.add_argument("target", metavar="TARGET", nargs="?", help="of the device under test")
    parser.add_argument("reference", metavar="REFERENCE", nargs="?", help="of the trusted device")
    parser.add_argument(
        "-npu",
        "-a",
        "--npu-csv-path",
        metavar="FILE",
        help="the first, as an option; found in the current folder if not given",
    )
    parser.add_argument(
        "-gpu", "-b", "--gpu-csv-path", metavar="FILE", help="the second, as an option"
    )
    add_output(parser, "folder of results (./)", default=Path(), aliases=("--out-path",))
    parser.add_argument("--english", action="store_true", help="write English column titles")
    parser.add_argument(
        "--standards",
        metavar="DIR",
        type=Path,
        help="folder with your api_precision_standard.yaml, api_precision_threshold.yaml",
    )


def run(options: argparse.Namespace) -> int:
    """Compare two files of details and print which outputs are worse."""
    from msprobe.checks.accuracy_csv import Style
    from msprobe.checks.precision_compare import compare_details, find_details, write_comparison
    from msprobe.checks.standards.standard import Generation, Standards

    target, reference = find_details(
        options.npu_csv_path or options.target,
        options.gpu_csv_path or (options.target if options.npu_csv_path else options.reference),
        Path(),
    )
    # The documents of the spelling with a framework have one limit for all operators.
    generation = Generation.DOCUMENTED if options.framework else Generation.NEW
    found = compare_details(
        target, reference, standards=Standards.load(options.standards), generation=generation
    )
    files = write_comparison(found, options.output, Style(english=options.english))
    print(f"target:    {target}\nreference: {reference}")
    return _print(found, files)


def _print(found: PrecisionComparison, files: tuple[Path, Path]) -> int:
    from msprobe.checks.standards.first_verdict import Status

    by_status = {
        status: [row for row in found.rows if row.verdict.status is status] for status in Status
    }
    errors, missing = by_status[Status.ERROR], found.missing
    skipped = len(by_status[Status.SKIP]) - len(missing)
    print(
        f"{len(found.rows)} outputs: {len(by_status[Status.PASS])} pass, {len(errors)} errors, "
        f"{skipped} not judged, {len(missing)} missing on one side"
    )
    for row in [*errors, *missing][:_MOST_LISTED]:
        print(f"  {row.verdict.status:5} {row.row.name}: {row.message()}")
    rest = len(errors) + len(missing) - _MOST_LISTED
    if rest > 0:
        print(f"  and {rest} more")
    for note in found.notes:
        print(f"note: {note}")
    print(f"results: {files[0]}\ndetails: {files[1]}")
    return EXIT_FOUND if errors or missing else 0
