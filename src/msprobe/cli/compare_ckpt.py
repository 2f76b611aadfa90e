# SPDX-License-Identifier: Apache-2.0
"""`msprobe compare-ckpt`: compare two checkpoints."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msprobe.cli.options import (
    add_exit_code,
    add_json,
    add_limit,
    add_output,
    add_pair,
    add_quiet,
    decimal,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from msprobe.checkpoints.comparing import CheckpointComparison

EXIT_DIFFERENT: Final = 1
_LISTED: Final = 20

_EXAMPLES: Final = """\
examples:
  msprobe compare-ckpt new.safetensors old.safetensors
  msprobe compare-ckpt ./hf_model ./converted.pt        formats may differ
  msprobe compare-ckpt run_a/ckpt run_b/ckpt -o diff.json
  msprobe compare-ckpt a.pt b.pt --filter '*attn*' --rtol 1e-3
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the command and add its options."""
    parser.description = (
        "Compare the parameters of two checkpoints. Files may be .safetensors, .pt,\n"
        ".pth, .bin, .npz, .npy or MindSpore's .ckpt; folders may hold such files, shards with an\n"
        "index, a distributed checkpoint (FSDP, DCP), or one of Megatron-LM, DeepSpeed ZeRO or\n"
        "MindSpore's ranks. Nothing in a file is executed."
    )
    parser.epilog = _EXAMPLES
    add_pair(parser, "the checkpoint under test", "the trusted checkpoint")
    add_output(parser, "also write every parameter as JSON", metavar="FILE")
    parser.add_argument(
        "--filter",
        "--only",
        metavar="GLOB",
        action="append",
        default=[],
        help="only parameters whose name fits; repeatable",
    )
    parser.add_argument("--rtol", type=decimal, default=0.0, metavar="X", help="see --atol")
    parser.add_argument(
        "--atol",
        type=decimal,
        default=0.0,
        metavar="X",
        help="values within ATOL + RTOL * |reference| are close (0, 0: must be equal)",
    )
    parser.add_argument(
        "--no-renamed",
        action="store_true",
        help="do not look for equal values under other names",
    )
    add_limit(parser, "parameters of a section", _LISTED)
    add_quiet(parser)
    add_json(parser)
    add_exit_code(parser, "exit with 1 if they differ, or were not compared completely")


def run(options: argparse.Namespace) -> int:
    """Compare two checkpoints and print how they differ."""
    return compare(
        str(options.target),
        str(options.reference),
        output=options.output,
        only=options.filter,
        rtol=options.rtol,
        atol=options.atol,
        find_renamed=not options.no_renamed,
        style="quiet" if options.quiet else "json" if options.json else "text",
        limit=options.limit,
        exit_code=options.exit_code,
    )


def compare(
    target: str,
    reference: str,
    *,
    output: Path | None = None,
    only: list[str] | None = None,
    rtol: float = 0.0,
    atol: float = 0.0,
    find_renamed: bool = True,
    style: str = "text",
    limit: int = _LISTED,
    exit_code: bool = False,
) -> int:
    """Compare two checkpoints, print the result and return the exit code."""
    from msprobe.checkpoints.comparing import compare_checkpoints
    from msprobe.checkpoints.result_json import comparison_json, parameters_json, write_json
    from msprobe.cli.other_inputs import refuse_dumps
    from msprobe.cli.terminal import print_json
    from msprobe.errors import UsageError
    from msprobe.garbage import collector_paused
    from msprobe.numerics.elementwise import Tolerance

    if output is not None and output.exists():
        raise UsageError(f"{output} exists already; remove it or name another file")
    refuse_dumps(Path(target), Path(reference))
    with collector_paused():
        found = compare_checkpoints(
            target,
            reference,
            only=only or (),
            tolerance=Tolerance(rtol=rtol, atol=atol),
            find_renamed=find_renamed,
            progress=_progress() if style == "text" else None,
        )
    if output is not None:
        write_json(output, parameters_json(found))
    if style == "json":
        print_json(comparison_json(found))
    elif style == "text":
        _print(found, output, limit)
    return EXIT_DIFFERENT if exit_code and not found.is_equal else 0


def _print(found: CheckpointComparison, output: Path | None, limit: int) -> None:
    from msprobe.checkpoints.result_lines import comparison_lines
    from msprobe.cli.terminal import make_console, print_lines

    console = make_console()
    print_lines(console, comparison_lines(found, limit=limit))
    if output is not None:
        console.print(f"\nevery parameter: {output}", style="dim")


def _progress() -> Callable[[int, int], None] | None:
    """Return a function that shows the progress on stderr; None where stderr is no terminal."""
    if not sys.stderr.isatty():
        return None

    def show(done: int, total: int) -> None:
        share = 100 * done // total if total else 100
        end = "\r" if done < total else "\r" + " " * 40 + "\r"
        print(f"{share:3d} % of {total / 1e9:.1f} GB", end=end, file=sys.stderr, flush=True)

    return show
