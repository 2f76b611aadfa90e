# SPDX-License-Identifier: Apache-2.0
"""The command `msprobe`: arguments in, exit code out; the work is done in the other rooms.

Entry point: `main`. `commands.py` lists the commands; each is a module with `add_options` and
`run`. Anything may be imported here, but inside functions, so that `msprobe --help` stays quick.
Exit codes: 0 done, 2 an error, with one line on stderr, 130 interrupted.
"""

from __future__ import annotations

from msprobe.cli.entry import main

__all__ = ["main"]
