# SPDX-License-Identifier: Apache-2.0
"""`msprobe perturb`: which recorded calls magnify rounding errors."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from msprobe.cli.options import (
    add_dump,
    add_exit_code,
    add_imports,
    add_json,
    add_name_filters,
    add_output,
    add_ranks,
    add_steps,
    add_workers,
    decimal,
    whole_number,
)
from msprobe.plain_text import rank_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.text import Text

    from msprobe.checks.perturbation_results import PerturbationResults
    from msprobe.dump.dump_steps import RankKey

EXIT_FOUND: Final = 1
EXIT_UNJUDGED: Final = 2
_MODES: Final = (
    *("high_precision", "ulp_noise", "relative_noise", "permute", "rerun", "cpu_reference"),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the command and add its options."""
    parser.description = (
        "Run every recorded call again on the CPU, as it was and with a slight change, and rank "
        "the calls by how much they magnify it. The same as the task free_benchmark, without a "
        "training."
    )
    parser.epilog = (
        "examples:\n"
        "  msprobe perturb dump\n"
        "  msprobe perturb dump -m permute --stage backward -o result"
    )
    add_dump(parser)
    parser.add_argument(
        "-m", "--mode", choices=_MODES, default="ulp_noise", help="what is changed (ulp_noise)"
    )
    parser.add_argument(
        "--stage",
        choices=("forward", "backward"),
        default="forward",
        help="results, or gradients of inputs (forward)",
    )
    add_output(parser, "folder for free_benchmark.csv, .json and .html (no files)")
    add_steps(parser)
    add_ranks(parser)
    add_name_filters(parser)
    add_imports(parser)
    add_workers(
        parser,
        "processes (as many as pay off); 0 for none, then a crash ends it all",
        kind=whole_number,
    )
    parser.add_argument(
        "--timeout", type=decimal, default=60.0, metavar="S", help="seconds a call may take (60)"
    )
    add_json(parser, "print free_benchmark.json instead of lines")
    add_exit_code(
        parser, "exit with 1 if a finding is a warning or an error, with 2 if nothing was perturbed"
    )


def run(options: argparse.Namespace) -> int:
    """Perturb the calls of a dump and print the answer."""
    from msprobe.checks.perturb_dump import perturb_dump
    from msprobe.checks.perturbation import Severity
    from msprobe.checks.verify_dump import Selection
    from msprobe.config import Perturbation, Stage
    from msprobe.dump.reader import open_dump
    from msprobe.replay.workers import Limits
    from msprobe.report.call_progress import call_progress

    dump = open_dump(options.dump)
    with call_progress() as progress:
        found = perturb_dump(
            dump,
            mode=Perturbation(options.mode),
            stage=Stage(options.stage),
            selection=Selection(
                steps=options.step or (),
                ranks=options.rank or (),
                names=tuple(options.list),
                scope=options.scope and tuple(options.scope),
            ),
            imports=options.imports,
            workers=options.workers,
            limits=Limits(seconds=options.timeout),
            progress=progress,
        )
    _show(found, options)
    if not options.exit_code:
        return 0
    if any(one.counts[Severity.WARNING] + one.counts[Severity.ERROR] for one in found.values()):
        return EXIT_FOUND
    return 0 if any(one.examined for one in found.values()) else EXIT_UNJUDGED


def _show(found: Mapping[RankKey, PerturbationResults], options: argparse.Namespace) -> None:
    from msprobe.cli.terminal import make_console, print_json, print_lines
    from msprobe.dump.layout import rank_folder

    for key, results in found.items():
        if options.output is not None:
            number = key if isinstance(key, int) else 0
            folder = rank_folder(key) if isinstance(key, int) else str(key)
            results.begin(options.output / folder, number)
            results.write()
            results.write_page()
    if options.json:
        print_json({str(key): results.as_json() for key, results in found.items()})
        return
    print_lines(make_console(), _lines(found))


def _lines(found: Mapping[RankKey, PerturbationResults]) -> Iterator[Text]:
    from rich.text import Text

    from msprobe.plain_text import plain

    for key, results in found.items():
        if len(found) > 1:
            yield Text(rank_text(key), "bold")
        for place, line in enumerate(results.lines()):
            yield Text(plain(line), "" if place else "bold")
