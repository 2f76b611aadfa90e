# SPDX-License-Identifier: Apache-2.0
"""The command `msprobe`: arguments in, exit code out; the work is done in the other rooms.

Entry point: `main`. `parser` makes the parser, `commands.py` lists the commands; each is a module
with `add_options` and `run`. Anything may be imported here, but inside functions, so that `msprobe
--help` stays quick.
Exit codes: 0 done, 2 an error, with one line on stderr, 130 interrupted.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # the constant of `typing`, which is imported where an interrupt is caught
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: the words after `msprobe`; None takes those of the process.

    Returns:
        The exit code: 0 done, 2 an error, 130 interrupted.
    """
    try:
        from msprobe.cli.entry import run_command_line
    except KeyboardInterrupt:
        print("msprobe: error: interrupted", file=sys.stderr)
        return 130
    return run_command_line(sys.argv[1:] if arguments is None else arguments)
