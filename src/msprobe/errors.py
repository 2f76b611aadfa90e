# SPDX-License-Identifier: Apache-2.0
"""Every exception that msprobe raises on purpose.

    MsprobeError
    ├── ConfigError           a key of config.json or an argument has a value that cannot be used
    │   └── ConfigFileError       the file as a whole cannot be read: missing, not JSON …
    ├── UsageError            the API was called in a way or order that cannot work
    ├── FileError             a file or folder cannot be used
    │   ├── DumpFormatError       a dump on disk is damaged, hostile or of an unknown layout
    │   │   ├── MonitorFormatError    a run of the monitor is damaged, or of an unknown layout
    │   │   └── RecordNotFoundError   the dump is fine but holds nothing of that name
    │   ├── CheckpointFormatError a checkpoint on disk is damaged, hostile or of an unknown layout
    │   ├── RunConfigFormatError  a pack of config_check is damaged, hostile or of an unknown layout
    │   ├── MonitorWriteError     a run of the monitor cannot be written, or another process does it
    │   ├── DumpWriteError        a dump cannot be written (full disk, no permission …)
    │   └── ReportWriteError      a table or page cannot be written
    ├── MonitorStop           an alert of the monitor ends the training, as its settings ask
    └── UnsupportedError      the framework, its version or the device cannot do what was asked

The message says what was found, where, and what to do. The pieces hang on the exception, so that
a program can act on them without parsing text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path


class MsprobeError(Exception):
    """Base of all errors raised by msprobe; catch this to catch every one of them."""


class ConfigError(MsprobeError, ValueError):
    """A configuration value cannot be used.

    Attributes:
        key: path of the key, such as ``statistics.scope[1]``; an argument's name for arguments.
        found: the value found.
        allowed: the allowed values or the rule, in words; empty when there is no short list.
        source: the file (or ``constructor``, ``start()`` …) that the value came from.
    """

    def __init__(
        self,
        key: str,
        found: object,
        allowed: Sequence[object] | str = (),
        *,
        source: str | Path = "config.json",
        hint: str = "",
    ) -> None:
        self.key = key
        self.found = found
        self.allowed = allowed
        self.source = str(source)
        rule = allowed if isinstance(allowed, str) else "one of " + ", ".join(map(str, allowed))
        message = f'{self.source}: "{key}" is {_as_json(found)}'
        if allowed:
            message += f"; use {rule}"
        if hint:
            message += f" ({hint})"
        super().__init__(message)


def _as_json(found: object) -> str:
    """Return a value in the form of the user's JSON file, cut to a readable length."""
    try:
        shown = json.dumps(found, ensure_ascii=False, default=repr)
    except (TypeError, ValueError, RecursionError):  # odd keys, huge integers, deep nesting
        shown = f"a value of type {type(found).__name__}"
    shown = shown.encode("utf-8", "backslashreplace").decode("utf-8")
    return shown if len(shown) <= 200 else shown[:200] + "…"


class ConfigFileError(ConfigError):
    """The configuration file as a whole cannot be read; `key` is empty.

    Attributes:
        line: line of the fault, from 1; None when the fault is not at one place.
        column: column of the fault, from 1.
    """

    def __init__(
        self, path: str | Path, problem: str, *, line: int | None = None, column: int | None = None
    ) -> None:
        super().__init__("", str(path), source=path)
        self.line = line
        self.column = column
        place = "" if line is None else f"line {line}, column {column}: "
        self.args = (f"{path}: {place}{problem}",)


class UsageError(MsprobeError):
    """The API was called in a way or in an order that cannot work."""


class FileError(MsprobeError):
    """A file or folder cannot be used.

    Attributes:
        path: the file or folder concerned.
        problem: the problem, in words.
    """

    def __init__(self, path: str | Path, problem: str) -> None:
        self.path = Path(path)
        self.problem = problem
        super().__init__(f"{path}: {problem}")


class DumpFormatError(FileError):
    """A dump on disk is damaged, hostile or of an unknown layout."""


class RecordNotFoundError(DumpFormatError, KeyError):
    """The dump is readable but holds nothing under the name that was asked for."""

    def __str__(self) -> str:
        """Return the plain message (``KeyError`` would show its repr)."""
        return str(self.args[0])


class CheckpointFormatError(FileError):
    """A checkpoint on disk is damaged, hostile or of an unknown layout."""


class MonitorFormatError(DumpFormatError):
    """A run of the monitor is damaged, foreign or of an unknown layout."""


class MonitorWriteError(FileError):
    """A run of the monitor cannot be written."""


class MonitorStop(MsprobeError):  # noqa: N818 - it stops the training, as `StopIteration` a loop
    """An alert of the monitor ends the training, because its settings ask for that."""


class RunConfigFormatError(FileError):
    """A pack of ``config_check`` is damaged, hostile or of an unknown layout."""


class DumpWriteError(FileError):
    """A dump cannot be written. Training goes on; the dump is marked incomplete."""


class ReportWriteError(FileError):
    """A table or page cannot be written."""


class UnsupportedError(MsprobeError):
    """The framework, its version or the device cannot do what was asked."""
