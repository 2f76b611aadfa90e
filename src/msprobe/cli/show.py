# SPDX-License-Identifier: Apache-2.0
"""`msprobe show`: print a dump, a part of it, or one record."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msprobe.cli.options import add_json, add_limit, whole_number

if TYPE_CHECKING:
    from rich.console import Console

    from msprobe.dump.dump_steps import Dump
    from msprobe.dump.rank_view import RankView

_DEFAULT_LIMIT: Final = 200
# A module's forward, backward and parameter gradients are shown in full; more becomes a tree.
_MAX_DETAILS: Final = 3

_EXAMPLES: Final = """\
examples:
  msprobe show dump                            overview and tree of the first step
  msprobe show dump --step 2 --depth 2         only two levels of the tree of step 2
  msprobe show dump --filter '*attn*forward*'  calls whose record name fits
  msprobe show dump --nonfinite                calls with NaN or Inf; !! where they begin
  msprobe show dump layers.0.fc                a module's records in detail
  msprobe show dump Tensor.add.0.forward       one record in detail
  msprobe show weights.npy                     an array: type, shape, statistics
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the command and add its options."""
    parser.description = (
        "Show what a dump holds: an overview and the tree of modules and APIs with\n"
        "their statistics, or with NAME one record in detail."
    )
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "dump", metavar="DUMP", help="a dump path, a step or rank folder, a file; or an array file"
    )
    parser.add_argument(
        "name",
        metavar="NAME",
        nargs="?",
        help="a record's name, a module's path, or any part of a name",
    )
    parser.add_argument(
        "--step", type=whole_number, metavar="N", help="the step to show (the first)"
    )
    parser.add_argument("--rank", metavar="N", help="the rank to show (the first)")
    parser.add_argument("--filter", metavar="GLOB", help="only records whose name fits")
    parser.add_argument(
        "--nonfinite", action="store_true", help="only records that hold a NaN or an infinity"
    )
    parser.add_argument(
        "--depth", type=whole_number, default=0, metavar="N", help="levels of the tree"
    )
    add_limit(parser, "calls", _DEFAULT_LIMIT)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Show a dump, a part of it, or one record; or an array."""
    from msprobe.cli.array_files import is_array_file, show_array
    from msprobe.garbage import collector_paused

    if is_array_file(options.dump):
        show_array(Path(options.dump), as_json=options.json)
        return 0
    with collector_paused():
        return _show_dump(options)


def _show_dump(options: argparse.Namespace) -> int:
    from msprobe.cli.terminal import make_console
    from msprobe.dump.reader import open_dump

    dump = open_dump(options.dump)
    view = _choose_rank(dump, options.step, options.rank)
    selected = _select(view, options.name, options.filter)
    if options.nonfinite:
        selected = _keep_nonfinite(view, selected)
    if options.json:
        _print_json(dump, view, selected, options)
        return 0
    console = make_console()
    if options.name is not None and selected is not None and _are_few(view, selected):
        _print_details(console, view, selected)
        return 0
    _print_tree(console, dump, view, selected, options)
    return 0


def _are_few(view: RankView, selected: list[str]) -> bool:
    """Return whether these records can all be shown in detail; structure dumps hold none."""
    recorded = all(name in view.records for name in selected)
    return recorded and 0 < len(selected) <= _MAX_DETAILS


def _choose_rank(dump: Dump, step_number: int | None, rank: str | None) -> RankView:
    step = dump.step(step_number)
    if rank is None:
        return next(iter(step.ranks.values()))
    if rank.isascii() and rank.isdigit() and len(rank) < 10:
        return step.rank(int(rank))
    return step.rank(rank)


def _select(view: RankView, name: str | None, pattern: str | None) -> list[str] | None:
    """Return the requested record names, in order; None for all."""
    from fnmatch import fnmatchcase

    from msprobe.errors import RecordNotFoundError

    names = None if name is None else _find(view, name)
    if pattern is not None:
        candidates = list(view.records) or list(view.parents)
        names = [each for each in names or candidates if fnmatchcase(each, pattern)]
        if not names:
            raise RecordNotFoundError(view.records_path, f"no record fits {pattern!r}")
    return names


def _keep_nonfinite(view: RankView, names: list[str] | None) -> list[str]:
    from msprobe.report.nonfinite import find_nonfinite

    marks = find_nonfinite(view).marks
    return [name for name in (view.records if names is None else names) if name in marks]


def _find(view: RankView, wanted: str) -> list[str]:
    """Return the record of that name, or else those of that module or API, or with that part."""
    if wanted in view.records:
        return [wanted]
    names = list(view.records) or list(view.parents)
    parsed = [view.records.parsed(name) for name in names]
    exact = [name.full for name in parsed if wanted in (name.path, name.base)]
    found = exact or [name for name in names if wanted.lower() in name.lower()]
    if found:
        return found
    from msprobe.errors import RecordNotFoundError
    from msprobe.near_misses import did_you_mean

    modules = [name.path for name in parsed if name.path]
    hint = did_you_mean(wanted, [*modules, *names], count=3) or "; msprobe show DUMP lists them"
    raise RecordNotFoundError(view.records_path, f"no record is called {wanted!r}{hint}")


def _print_details(console: Console, view: RankView, names: list[str]) -> None:
    from msprobe.cli.terminal import print_lines
    from msprobe.report.record_lines import record_lines

    # All are made before the first is printed: after an error, none is.
    details = [list(record_lines(view, view.records[name], width=console.width)) for name in names]
    for position, lines in enumerate(details):
        if position:
            console.print()
        print_lines(console, lines)


def _print_tree(
    console: Console,
    dump: Dump,
    view: RankView,
    selected: list[str] | None,
    options: argparse.Namespace,
) -> None:
    from msprobe.cli.terminal import print_lines
    from msprobe.report.nonfinite import find_nonfinite
    from msprobe.report.overview_lines import overview_lines
    from msprobe.report.tree_lines import TreeOptions, tree_lines

    nonfinite = find_nonfinite(view)
    tree = TreeOptions(
        width=console.width,
        depth=options.depth,
        limit=options.limit,
        selected=None if selected is None else set(selected),
        unicode=console.encoding.lower().startswith("utf"),
        styled=console.color_system is not None,
    )
    overview = list(overview_lines(dump, view, nonfinite, width=console.width))
    calls = list(tree_lines(view, nonfinite, tree))
    print_lines(console, overview)
    console.print()
    print_lines(console, calls)


def _print_json(
    dump: Dump, view: RankView, selected: list[str] | None, options: argparse.Namespace
) -> None:
    from msprobe.cli.terminal import print_json
    from msprobe.report.as_json import overview_json, record_json, records_json

    wanted = view.records if selected is None else selected
    names = [name for name in wanted if name in view.records]
    if options.name is not None and len(names) == 1:
        tree: Any = record_json(view, view.records[names[0]])
    else:
        shown = names[: options.limit] if options.limit else names
        tree = overview_json(dump, view) | {"values": list(records_json(view, shown))}
    print_json(tree)
