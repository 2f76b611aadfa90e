# SPDX-License-Identifier: Apache-2.0
"""`msprobe compare`: compare two dumps and name the culprit."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msprobe.cli.compare_options import add_all

if TYPE_CHECKING:
    from msprobe.compare.input_file import CompareInput
    from msprobe.compare.result import CompareResult, LegacyChoices
    from msprobe.compare.set_aside import SetAside

EXIT_DIFFERENT: Final = 1
EXIT_UNREAD: Final = 2

_EXAMPLES: Final = """\
examples:
  msprobe compare dump_new dump_old                      where do they differ, and who began it
  msprobe compare dump_new/step3 dump_old/step3 --html   with a report to click through
  msprobe compare dump_new dump_old -v                   modules, unpaired calls, notes, files
  msprobe compare dump_new dump_old --exit-code --quiet  for scripts: 1 when they differ
  msprobe compare dump --replicas                        do the ranks of one run agree
  msprobe compare new.npy old.npy                        two arrays, element by element
  msprobe compare -i compare.json -o out                 as mindstudio-probe has it

exit codes: 0 done, 1 the dumps differ (only with --exit-code), 2 an error, or a tensor file
            could not be read, 130 Ctrl-C
"""
_ONLY_MODE: Final = "auto"
_OTHER_MODES: Final = ("offline_data", "offline_model", "torchair", "atb")
_OTHER_MODES_OPTIONS: Final = (
    "fusion_rule_file",
    "quant_fusion_rule_file",
    "close_fusion_rule_file",
    "input_data",
    "input_shape",
    "output_size",
    "dym_shape_range",
    "only_final_statistic",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the command and add its options."""
    parser.description = (
        "Compare two dumps of a run: say whether they differ, where first, and which "
        "call\nintroduced the difference. TARGET is the run under test, REFERENCE the trusted one."
    )
    parser.epilog = _EXAMPLES
    parser.usage = "msprobe compare TARGET REFERENCE [options]"
    add_all(parser)


def run(options: argparse.Namespace) -> int:
    """Compare two dumps, or the ranks of one; write files and print the result."""
    from msprobe.cli.array_files import is_array_file
    from msprobe.cli.other_inputs import advise_compare
    from msprobe.cli.terminal import reader_may_leave
    from msprobe.compare.random_logs import is_random_log
    from msprobe.errors import DumpFormatError, UnsupportedError

    _refuse_other_modes(options)
    given = _input(options)
    paths = (given.target, given.reference)
    try:
        if not options.replicas and all(map(is_array_file, paths)):
            return _compare_arrays(given, options)
        if not options.replicas and all(map(is_random_log, paths)):
            return _compare_random(given, options)
        result = _compare(given, options)
    except (DumpFormatError, UnsupportedError):
        advise_compare(*paths)
        raise
    files = result.write(
        options.output,
        table=options.format,
        html=options.html,
        legacy=_legacy(given, options),
        page_parts=lambda sections: _graphs(result, sections),
    )
    with reader_may_leave():
        _show(result, files, options)
    if options.exit_code and result.differs:
        return EXIT_DIFFERENT
    return EXIT_UNREAD if result.has_unread else 0


def _graphs(result: CompareResult, sections: Mapping[str, Any]) -> Mapping[str, Any]:
    from msprobe.graph.one_page import graphs_for_page

    return graphs_for_page(result, sections)


def _compare_arrays(given: CompareInput, options: argparse.Namespace) -> int:
    from msprobe.cli.array_files import compare_array_files, show_compared

    row = compare_array_files(given.target, given.reference, _path(options.tolerances))
    show_compared(row, as_json=options.json, quiet=options.quiet)
    return EXIT_DIFFERENT if options.exit_code and row.status.is_difference else 0


def _compare_random(given: CompareInput, options: argparse.Namespace) -> int:
    """Compare two files of random calls, and print the first draw that differs."""
    from dataclasses import asdict

    from msprobe.cli.terminal import print_json
    from msprobe.compare.random_logs import compare_random_logs

    found, equal = compare_random_logs(given.target, given.reference)
    if options.json:
        print_json({"equal_draws": equal, "first": None if found is None else asdict(found)})
    elif not options.quiet:
        print(
            f"{equal} draws of random numbers are equal"
            if found is None
            else f"draw {found.number} differs: {found.words}"
        )
    return EXIT_DIFFERENT if options.exit_code and found is not None else 0


def _show(result: CompareResult, files: Sequence[Path], options: argparse.Namespace) -> None:
    if options.json:
        from msprobe.cli.terminal import print_json

        print_json(result.summary)
        sys.stdout.flush()
        if not options.quiet:
            _list_files(files)
    elif options.quiet:
        from msprobe.report.comparison_lines import quiet_line

        print(quiet_line(result.summary))
    else:
        _print(result, files, options)


def _refuse_other_modes(options: argparse.Namespace) -> None:
    from msprobe.errors import UnsupportedError, UsageError

    if options.mode in _OTHER_MODES:
        raise UnsupportedError(
            f"--mode {options.mode} compares files of Ascend's offline tools, which msprobe does "
            "not read; it compares dumps of training runs, without --mode"
        )
    if options.mode != _ONLY_MODE:
        raise UsageError(f"--mode {options.mode} is unknown; leave it out")
    for name in _OTHER_MODES_OPTIONS:
        if getattr(options, name) is not None:
            raise UnsupportedError(
                f"--{name.replace('_', '-')} belongs to the offline modes of mindstudio-probe, "
                "which msprobe lacks; leave it out"
            )
    if options.consistent_check or options.backend is not None:
        raise UnsupportedError(
            "--consistent-check is not supported: write a mapping file for the renamed modules "
            "(-lm or -dm)"
        )


def _input(options: argparse.Namespace) -> CompareInput:
    """Return the dumps to compare, from any of the three ways to name them."""
    from msprobe.compare.input_file import CompareInput, read_compare_input
    from msprobe.errors import UsageError

    golden = options.golden_path, options.target_path
    ways = [bool(options.dumps), options.input_path is not None, golden != (None, None)]
    if sum(ways) > 1:
        raise UsageError("give the dumps once: TARGET REFERENCE, or -tp and -gp, or -i")
    ranks, steps = options.rank, options.step
    if options.input_path is not None:
        found = read_compare_input(Path(options.input_path))
        return CompareInput(
            target=found.target,
            reference=found.reference,
            ranks=found.ranks if ranks is None else ranks,
            steps=found.steps if steps is None else steps,
            names_stacks=found.names_stacks,
            notes=found.notes,
        )
    paths = options.dumps or [path for path in golden[::-1] if path is not None]
    wanted = 1 if options.replicas else 2
    if len(paths) != wanted:
        what = "one dump (with --replicas)" if wanted == 1 else "a TARGET and a REFERENCE"
        may_be_left_out = {"-cm": options.cell_mapping, "-am": options.api_mapping}.items()
        taken = [flag for flag, value in may_be_left_out if isinstance(value, str)]
        hint = f" ({taken[0]} takes the word behind it: put the dumps first)" if taken else ""
        raise UsageError(f"compare needs {what}; {len(paths)} given{hint}")
    return CompareInput(target=Path(paths[0]), reference=Path(paths[-1]), ranks=ranks, steps=steps)


def _compare(given: CompareInput, options: argparse.Namespace) -> CompareResult:
    from msprobe.compare.options import CompareOptions
    from msprobe.errors import UsageError

    choices = CompareOptions(
        steps=given.steps,
        ranks=given.ranks,
        align="always" if options.fuzzy_match else options.align,
        data_mapping=_path(options.data_mapping),
        cell_mapping=True if options.cell_mapping is True else _path(options.cell_mapping),
        api_mapping=True if options.api_mapping is True else _path(options.api_mapping),
        layer_mapping=_path(options.layer_mapping),
        call_pairs=_path(options.pairs),
        tolerances=_path(options.tolerances),
        processing=_path(options.config),
        workers=options.workers,
        scheduler=options.scheduler,
        verify=options.verify,
        noise=tuple(map(Path, options.noise)),
        show_progress=not options.quiet and sys.stderr.isatty(),
    )
    notes = [*given.notes, *_notes(given, options)]
    if options.replicas:
        if choices.noise:
            raise UsageError("--noise belongs to a TARGET and a REFERENCE, not to --replicas")
        from msprobe.compare.replicas import compare_replicas

        return compare_replicas(given.target, choices, output=options.output, notes=notes)
    from msprobe.compare.run import run_comparison

    return run_comparison(
        given.target,
        given.reference,
        choices,
        output=options.output,
        notes=notes,
        framework=options.framework,
        set_aside=_set_aside(given, options),
    )


def _set_aside(given: CompareInput, options: argparse.Namespace) -> SetAside | None:
    """Return where the rows of large comparisons go; None if files are wanted that need them."""
    from msprobe.compare.set_aside import SetAside

    legacy = _legacy(given, options)
    needs_rows = legacy.advisor or legacy.first_difference or options.layer_mapping is not None
    if needs_rows or options.format in ("xlsx", "csv"):
        return None
    return SetAside(options.output)


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def _notes(given: CompareInput, options: argparse.Namespace) -> list[str]:
    """Return notes on options that have no effect any more."""
    notes = []
    if options.is_print_compare_log:
        notes.append("--is-print-compare-log has no effect: the table has every row")
    if options.stack_mode and not given.names_stacks:
        notes.append("--stack-mode has no effect: call stacks are shown where the dump has them")
    return notes


def _legacy(given: CompareInput, options: argparse.Namespace) -> LegacyChoices:
    """Return which of mindstudio-probe's files to write: its old flags ask for them."""
    from msprobe.compare.result import LegacyChoices

    is_old = (
        options.input_path is not None
        or options.highlight
        or options.compare_only
        or options.stack_mode
    )
    return LegacyChoices(
        columns=options.columns or ("documented" if _is_documented(options) else "neutral"),
        generation="8.3.3" if is_old else "26.2.0",
        stack=options.stack_mode or not given.names_stacks,
        rank_pairs=is_old and given.target.is_dir(),
        advisor=is_old and not options.compare_only,
        first_difference=options.diff_analyze,
    )


def _is_documented(options: argparse.Namespace) -> bool:
    """Return whether the command was typed as the documents of mindstudio-probe have it."""
    words = (options.framework, options.input_path, options.target_path, options.golden_path)
    flags = (options.highlight, options.compare_only, options.stack_mode, options.diff_analyze)
    return any(word is not None for word in words) or any(flags)


def _list_files(files: Sequence[Path]) -> None:
    for path in files:
        print(f"wrote {path}", file=sys.stderr)


def _print(result: CompareResult, files: Sequence[Path], options: argparse.Namespace) -> None:
    from msprobe.cli.terminal import make_console, print_lines
    from msprobe.report.comparison_lines import comparison_lines, short_lines

    screen = make_console()
    width, unicode = screen.width, screen.encoding.lower().startswith("utf")
    if options.verbose:
        lines = comparison_lines(
            result.summary, result.release(), width=width, unicode=unicode, files=files
        )
    else:
        # The table costs time and memory, and only values that could not be read are looked up.
        frame = result.release() if result.has_unread else None
        lines = short_lines(result.summary, frame, width=width, unicode=unicode, files=files)
    print_lines(screen, lines)
