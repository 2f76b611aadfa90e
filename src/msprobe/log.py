# SPDX-License-Identifier: Apache-2.0
"""The logger `msprobe`: one handler, one level, and warnings that come only once.

Importing this changes nothing; a debugger or the command line calls `ensure_handler`.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Hashable
from typing import Final

LEVEL_VARIABLE: Final = "MSPROBE_LOG_LEVEL"
SILENT: Final = logging.CRITICAL + 1

_LEVELS: Final = {
    "0": logging.DEBUG,
    "1": logging.INFO,
    "2": logging.WARNING,
    "3": logging.ERROR,
    "4": SILENT,
}
# Set by torchrun, msrun, and the mpirun of Open MPI and of MPICH.
_RANK_VARIABLES: Final = ("RANK", "RANK_ID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_root: Final = logging.getLogger("msprobe")
_lock: Final = threading.Lock()
_already_said: Final[set[tuple[str, Hashable]]] = set()


def ensure_handler() -> None:
    """Give the logger `msprobe` its level and, if its messages have no handler yet, a handler.

    The level comes from ``MSPROBE_LOG_LEVEL``: 0 debug, 1 info (default), 2 warning, 3 error,
    4 silent; without the variable, a level that the user has set on the logger stays. The handler
    writes to stderr; its lines name the rank that a launcher has set. Handlers that the user has
    placed, on this logger or above it, are left to do the work. May be called many times.
    """
    with _lock:
        value = os.environ.get(LEVEL_VARIABLE, "").strip()
        level = _LEVELS.get(value)
        if level is not None:
            _root.setLevel(level)
        elif _root.level == logging.NOTSET:
            _root.setLevel(logging.INFO)
        if not _root.hasHandlers():
            _root.addHandler(_stderr_handler())
    if value and level is None:
        rule = "use 0 (debug), 1 (info), 2 (warning), 3 (error) or 4 (silent)"
        warn_once(_root, LEVEL_VARIABLE, "%s is %r; %s", LEVEL_VARIABLE, value, rule)


def launched_rank() -> str:
    """Return the rank that a launcher has set for this process; empty without one."""
    found = (os.environ.get(name, "").strip() for name in _RANK_VARIABLES)
    return next(filter(None, found), "")


def _stderr_handler() -> logging.Handler:
    handler = _StderrHandler()
    rank = launched_rank()
    prefix = f"[rank {rank}] ".replace("%", "%%") if rank else ""
    line = f"%(asctime)s {prefix}[%(levelname)s] %(name)s: %(message)s"
    handler.setFormatter(logging.Formatter(line))
    return handler


class _StderrHandler(logging.Handler):
    """Writes to the present `sys.stderr`: notebooks and tests exchange it."""

    def emit(self, record: logging.LogRecord) -> None:
        stream = sys.stderr
        if stream is None:  # a process without a console
            return
        try:
            stream.write(self.format(record) + "\n")
            stream.flush()
        except Exception:  # noqa: BLE001 - logging must never end the user's training
            self.handleError(record)


def warn_once(logger: logging.Logger, key: Hashable, message: str, *args: object) -> None:
    """Log a warning the first time that this logger gets this key, and never again.

    Args:
        logger: where to log.
        key: two warnings with equal keys are the same.
        message: as for `logging.Logger.warning`.
        *args: values for the message.
    """
    mark = (logger.name, key)
    with _lock:
        if mark in _already_said:
            return
        _already_said.add(mark)
    logger.warning(message, *args, stacklevel=2)


def reset_warn_once() -> None:
    """Forget which warnings were given; a new run says them again."""
    with _lock:
        _already_said.clear()
