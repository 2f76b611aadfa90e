# SPDX-License-Identifier: Apache-2.0
"""Switch recording on and off from outside while a job runs: the key `dump_enable`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from msprobe.config.reading import json_kind, read_config_file
from msprobe.errors import ConfigFileError
from msprobe.plain_text import reason


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpSwitch:
    """State of `dump_enable` when the file was last readable.

    Attributes:
        enabled: the last good value; None when the key is absent.
        stamp: modification time in ns, size and inode of the file read; None before the first.
        problem: why the present file cannot be used, empty when it can; `enabled` is then old.
    """

    enabled: bool | None = None
    stamp: tuple[int, int, int] | None = None
    problem: str = ""

    @property
    def is_on(self) -> bool:
        """Whether to record: only an explicit ``false`` switches off."""
        return self.enabled is not False


def reload_dump_enable(path: Path, last: DumpSwitch) -> DumpSwitch:
    """Return the state of `dump_enable` now; `last` itself when the file has not changed.

    Never raises for anything that a file can hold or lack: a file that is being edited must not
    end a training run. Costs one `stat` when the file has not changed.

    Args:
        path: the `config.json`.
        last: the result of an earlier call, or ``DumpSwitch(enabled=config.dump_enable)``.
    """
    try:
        status = path.stat()
        stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
        if stamp == last.stamp:
            return last
        values, _ = read_config_file(path)
    except ConfigFileError as error:
        return replace(last, stamp=stamp, problem=str(error))
    except OSError as error:
        return replace(last, stamp=None, problem=f"{path}: {reason(error)}")
    value = values.get("dump_enable")
    if value is not None and not isinstance(value, bool):
        problem = f'{path}: "dump_enable" is {json_kind(value)}; use true or false'
        return replace(last, stamp=stamp, problem=problem)
    return DumpSwitch(enabled=value, stamp=stamp)
