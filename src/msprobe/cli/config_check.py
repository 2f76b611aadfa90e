# SPDX-License-Identifier: Apache-2.0
"""`msprobe config-check`: collect the start settings of a run, or compare those of two."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from msprobe.cli.options import add_exit_code, add_json, add_limit, add_output

_DEFAULT_PACK: Final = Path("config_check_pack.zip")
_DEFAULT_RESULT: Final = Path("config_check_result")
_DEFAULT_CKPT: Final = Path("ckpt_similarity.json")
EXIT_DIFFERENT: Final = 1
_LISTED: Final = 10

_EXAMPLES: Final = """\
examples:
  msprobe config-check -d train.sh model.yaml -o run_a.zip  collect
  msprobe config-check run_b.zip run_a.zip -o result        compare; the trusted run comes second
  msprobe config-check -c run_a.zip run_b.zip -o result     as mindstudio-probe has it, in its order
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the command and add its options."""
    parser.description = (
        "Collect environment, packages, system and arguments of a run into a zip\n"
        "file, or compare two such files. Passwords and access tokens are not stored.\n"
        "Seeds, data and weights are added by ConfigChecker in the training script."
    )
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "packs",
        nargs="*",
        metavar="TARGET REFERENCE",
        type=Path,
        help="two zip files to compare: of the run under test, and of the trusted one",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "-d",
        "--dump",
        nargs="*",
        metavar="FILE",
        type=Path,
        help="collect, with the arguments in these .sh, .yaml, .toml and .json files",
    )
    what.add_argument(
        "-c",
        "--compare",
        nargs=2,
        metavar=("BENCH", "CMP"),
        type=Path,
        help="compare two zip files, the trusted one first; or two checkpoints",
    )
    for flag, name in (
        ("-vc", "--verl-compare"),
        ("-vv", "--verl-verify"),
        ("-sc", "--slime-compare"),
    ):
        what.add_argument(flag, name, dest="logs", nargs="+", help=argparse.SUPPRESS)
    add_output(
        parser,
        "what to write: the zip file, the folder of the results, or the JSON file",
        metavar="PATH",
    )
    add_limit(parser, "differences of an item", _LISTED)
    add_json(parser)
    add_exit_code(parser, "exit with 1 if the runs differ")


def run(options: argparse.Namespace) -> int:
    """Collect or compare."""
    from msprobe.errors import UnsupportedError

    if options.logs:
        raise UnsupportedError(
            "arguments out of the logs of verl and slime (-vc, -vv, -sc) are not read; save the "
            "configuration as YAML or JSON, collect it with -d and compare it with -c"
        )
    if options.dump is not None and not options.packs:
        return _collect(options)
    bench, cmp = _two(options)
    if _is_pack(bench) and _is_pack(cmp):
        return _compare(bench, cmp, options)
    from msprobe.cli.compare_ckpt import compare

    return compare(
        str(cmp),
        str(bench),
        output=options.output or _DEFAULT_CKPT,
        style="json" if options.json else "text",
        limit=options.limit,
        exit_code=options.exit_code,
    )


def _two(options: argparse.Namespace) -> tuple[Path, Path]:
    """Return the reference and the target."""
    from msprobe.errors import UsageError

    packs = options.packs
    if options.dump is not None or (options.compare is not None and packs):
        raise UsageError(f"config-check either collects (-d) or compares; leave out {packs[0]}")
    if options.compare is not None:
        return tuple(options.compare)
    if len(packs) != 2:
        raise UsageError(
            f"config-check needs a TARGET and a REFERENCE to compare, {len(packs)} given; "
            "or -d, to collect: msprobe config-check -d train.sh"
        )
    return packs[1], packs[0]


def _is_pack(path: Path) -> bool:
    # Other zip archives (.pt, .npz) have another suffix.
    return path.suffix == ".zip" and not path.is_dir()


def _collect(options: argparse.Namespace) -> int:
    from msprobe.cli.terminal import make_console, print_json, print_lines
    from msprobe.plain_text import plain
    from msprobe.run_config.arguments import read_arguments
    from msprobe.run_config.collecting import collect_static
    from msprobe.run_config.pack import PackWriter, read_pack
    from msprobe.run_config.result_lines import hidden_line

    path = options.output or _DEFAULT_PACK
    read_arguments(options.dump)  # for its errors, before an older pack is replaced
    writer = PackWriter(path)
    collect_static(writer, options.dump)
    found = read_pack(path)
    hidden = found.hidden()
    if options.json:
        tree = {"pack": str(path), "hidden": hidden, "unresolved": found.unresolved}
        print_json(tree, indent=None)
        return 0
    print(f"collected: {path}")
    for name, reason in found.unresolved.items():
        print(plain(f"not resolved: {name}: {reason}"))
    if hidden:
        print_lines(make_console(), [hidden_line(hidden, limit=options.limit)])
    return 0


def _compare(bench: Path, cmp: Path, options: argparse.Namespace) -> int:
    from msprobe.cli.terminal import make_console, print_json, print_lines
    from msprobe.run_config.comparing import compare_packs
    from msprobe.run_config.result_files import comparison_json, is_difference, write_results
    from msprobe.run_config.result_lines import comparison_lines

    found = compare_packs(bench, cmp)
    directory = options.output or _DEFAULT_RESULT
    written = write_results(found, directory)
    if options.json:
        print_json(comparison_json(found))
    else:
        console = make_console()
        print_lines(console, comparison_lines(found, limit=options.limit))
        console.print(f"\nall of it: {written[0]}", style="dim")
    return EXIT_DIFFERENT if options.exit_code and is_difference(found.level) else 0
