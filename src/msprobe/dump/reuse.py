# SPDX-License-Identifier: Apache-2.0
"""Recordings that a new one into the same folder would replace, and folders that are kept."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from msprobe.dump import layout
from msprobe.dump.run_times import RunTimes, process_began
from msprobe.errors import UsageError
from msprobe.log import launched_rank
from msprobe.plain_text import reason

logger = logging.getLogger(__name__)

KEPT_FILE: Final = "msprobe_keep"
"""A folder that holds a file of this name is never recorded into."""
_MOST_ACCOUNTS: Final = 1_000
_LARGEST_ACCOUNT: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class EarlierRecording:
    """A recording by an earlier run.

    Attributes:
        began: seconds since 1970.
        is_of_this_process: whether this process made it, with another debugger.
        steps: its steps, ascending.
        records: number of its records, of all ranks; 0 for signatures.
    """

    began: float
    is_of_this_process: bool
    steps: tuple[int, ...]
    records: int

    def in_words(self) -> str:
        """Return when it was made, and how large it is."""
        made = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.began))
        if not self.steps:
            return f"signatures made {made}"
        first, last = self.steps[0], self.steps[-1]
        steps = f"step {first}" if first == last else f"{len(self.steps)} steps from {first} on"
        return f"a recording made {made} ({steps}, {self.records:,} records)"


class _Account(msgspec.Struct):
    run: RunTimes
    records: int = 0


def keep(folder: Path) -> Path:
    """Mark a folder as one that is never recorded into; return the file that does it.

    Raises:
        UsageError: there is no recording in it, or it cannot be written.
    """
    if not _step_folders(folder) and _signatures(folder) is None:
        raise UsageError(f"{folder} holds no recording; name the dump_path of one, above step0")
    path = folder / KEPT_FILE
    try:
        path.write_text("msprobe does not record into this folder while this file is here.\n")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {reason(error)}") from error
    return path


def release(folder: Path) -> bool:
    """Undo `keep`; return whether the folder was marked.

    Raises:
        UsageError: there is no such folder.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder}: there is no such folder; check the path")
    path = folder / KEPT_FILE
    was_kept = path.exists()
    path.unlink(missing_ok=True)
    return was_kept


def refuse_kept(folder: Path, *, overwrite: bool) -> None:
    """Make sure that a folder may be recorded into.

    Raises:
        UsageError: it is marked by `keep`; or it holds a recording, and `overwrite` is false.
    """
    if (folder / KEPT_FILE).exists():
        raise UsageError(
            f"{folder} holds a recording that is kept: name another dump_path, or type "
            f"msprobe keep --release {folder}"
        )
    earlier = None if overwrite else find_earlier(folder)
    if earlier is not None:
        raise UsageError(
            f'{folder} holds {earlier.in_words()}, and "overwrite" is false: name another '
            "dump_path, or remove the folder"
        )


def warn_of_replacing(folder: Path) -> None:
    """Log which recording a new one replaces; once for all ranks, where these can be told."""
    if launched_rank() not in ("", "0"):
        return
    earlier = find_earlier(folder)
    if earlier is not None and not earlier.is_of_this_process:
        logger.warning("%s holds %s; the new recording replaces it", folder, earlier.in_words())


def find_earlier(folder: Path) -> EarlierRecording | None:
    """Return the recording in a folder; None if there is none but that of this run's other ranks.

    Another rank of this run may have begun to record already, but ends no step before this
    process has begun.
    """
    now = process_began()
    steps, records, began, is_own = set(), 0, [], False
    for number, step in _step_folders(folder):
        for account in sorted(step.glob(f"*/{layout.ACCOUNT_JSON}"))[:_MOST_ACCOUNTS]:
            found = _read(account)
            if found is None or not (found.run.ended < now or found.run.began == now):
                continue
            steps.add(number)
            records += found.records
            began.append(found.run.began)
            is_own |= found.run.began == now
    if not steps:
        written = _signatures(folder)
        if written is None or written >= now:
            return None
        began.append(written)
    return EarlierRecording(min(began), is_own, tuple(sorted(steps)), records)


def _step_folders(folder: Path) -> list[tuple[int, Path]]:
    try:
        found = [(layout.STEP_FOLDER.fullmatch(each.name), each) for each in folder.iterdir()]
    except OSError:
        return []
    return [(int(match[1]), each) for match, each in found if match]


def _signatures(folder: Path) -> float | None:
    """Return when signatures in a folder were last written; None if there are none."""
    try:
        return max(
            (file.stat().st_mtime for file in folder.glob("signatures/*.msig")), default=None
        )
    except OSError:
        return None


def _read(path: Path) -> _Account | None:
    try:
        if path.stat().st_size > _LARGEST_ACCOUNT:
            return None
        return msgspec.json.decode(path.read_bytes(), type=_Account)
    except (OSError, msgspec.MsgspecError, ValueError):
        return None
