# SPDX-License-Identifier: Apache-2.0
"""`msprobe op-script`: a recorded call as a script that shows whether it is right."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from msprobe.cli.options import add_dump, add_imports, add_output, decimal, whole_number

_SHRINK_S: Final = 60.0
_EPILOG: Final = """\
examples:
  msprobe op-script dump Functional.softmax.0            write Functional.softmax.0.forward.py
  msprobe op-script dump Functional.softmax.0 --backward --shrink -o softmax.py
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.description = (
        "Write a script of a few lines that makes one recorded call with its recorded inputs, "
        "compares the recorded result with float64, prints its error and what is allowed, and "
        "exits with 1 if it is wrong. It needs PyTorch only and fits into a bug report."
    )
    parser.epilog = _EPILOG
    add_dump(parser, "a dump, a step or rank folder of it")
    parser.add_argument("call", metavar="CALL", help="such as Functional.softmax.0")
    parser.add_argument("--backward", action="store_true", help="show its gradients")
    add_output(parser, "the script ({CALL}.forward.py, {CALL}.backward.py)", metavar="FILE")
    parser.add_argument(
        "--step", type=whole_number, metavar="N", help="the step that made the call (the first)"
    )
    parser.add_argument("--rank", type=whole_number, metavar="N", help="the rank (the only one)")
    parser.add_argument(
        "-d", "--device", default="cpu", help="where it runs if its result was not recorded (cpu)"
    )
    parser.add_argument(
        "--shrink",
        nargs="?",
        const=_SHRINK_S,
        type=decimal,
        metavar="S",
        help=f"look for a smaller call with the same fault, S seconds at most ({_SHRINK_S:g})",
    )
    add_imports(parser)


def run(options: argparse.Namespace) -> int:
    """Write the script."""
    from msprobe.checks.op_scripts import ScriptOptions, script_name, write_op_script
    from msprobe.dump.reader import open_dump
    from msprobe.replay.references import import_definitions

    for definitions in options.imports:
        import_definitions(definitions)
    view = open_dump(options.dump).step(options.step).rank(options.rank)
    name = script_name(options.call, backward=options.backward)
    path = write_op_script(
        view,
        options.call,
        options.output or Path(name),
        ScriptOptions(backward=options.backward, device=options.device, shrink_s=options.shrink),
    )
    print(path)
    return 0
