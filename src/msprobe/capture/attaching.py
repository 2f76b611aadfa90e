# SPDX-License-Identifier: Apache-2.0
"""Ask a running program for a recording, by `msprobe attach` or by a signal.

A session that can be switched (`dump_enable`) announces itself by a file in a folder that only its
user may enter, and looks for a request there at each `start`: one `stat`, no thread, no port.
SIGUSR1 asks for the next step.
"""

from __future__ import annotations

import atexit
import logging
import os
import stat
import tempfile
from pathlib import Path
from typing import Final

import msgspec

from msprobe.capture import signals
from msprobe.capture.signals import SignalRequest
from msprobe.errors import UsageError
from msprobe.files import write_whole
from msprobe.plain_text import reason

logger = logging.getLogger(__name__)

_MOST_STEPS: Final = 1_000_000


class Announcement(msgspec.Struct):
    """State of a session that can be attached to.

    Attributes:
        dump_path: where it records.
        step: the step it was in when it took the last request; -1 before the first.
        requests: number of requests that it took.
    """

    dump_path: str
    step: int = -1
    requests: int = 0


class _Request(msgspec.Struct):
    steps: int


class Attachable:
    """The end of a session; use `wanted` at each start of a step."""

    def __init__(self, dump_path: Path, *, listens: bool) -> None:
        """Announce the session; do nothing where that is not possible.

        Args:
            dump_path: where it records.
            listens: whether SIGUSR1 asks for the next step.
        """
        self._is_asked = False
        self._signal = SignalRequest(self._signalled) if listens else None
        self._announced = Announcement(str(dump_path))
        self._until = 0
        self._process = os.getpid()
        self._folder: Path | None = None
        try:
            self._folder = _own_folder()
            self._announce(self._folder)
            atexit.register(self.close)
        except (OSError, UsageError) as error:
            logger.info("msprobe attach will not find this process: %s", reason(error))
            self._folder = None

    def wanted(self, step: int) -> bool:
        """Return whether a request asks for this step, which begins now."""
        if self._folder is not None and os.getpid() == self._process:
            request = self._folder / f"{self._process}.request"
            if request.exists():
                self._take(request, step)
        if self._is_asked:
            self._is_asked = False
            self._until = max(self._until, step + 1)
            logger.info("%s: recording step %d", signals.NAME, step)
        return step < self._until

    def close(self) -> None:
        """Let go of the signal and take the announcement back; a forked child leaves it alone."""
        if self._signal is not None:
            self._signal.close()
        if self._folder is not None and os.getpid() == self._process:
            for suffix in ("json", "request"):
                (self._folder / f"{self._process}.{suffix}").unlink(missing_ok=True)

    def _signalled(self) -> None:
        self._is_asked = True

    def _take(self, request: Path, step: int) -> None:
        try:
            found = msgspec.json.decode(request.read_bytes(), type=_Request)
            request.unlink()
            self._until = step + min(max(found.steps, 0), _MOST_STEPS)
            self._announced.step = step
            self._announced.requests += 1
            self._announce(request.parent)
        except (OSError, msgspec.MsgspecError) as error:
            logger.warning("a request of msprobe attach cannot be used: %s", reason(error))
            request.unlink(missing_ok=True)
            return
        logger.info("msprobe attach: recording steps %d to %d", step, self._until - 1)

    def _announce(self, folder: Path) -> None:
        write_whole(folder / f"{self._process}.json", [msgspec.json.encode(self._announced)])


def announcement(process: int) -> Announcement:
    """Return the announcement of the session in a process.

    Raises:
        UsageError: there is none that can be asked.
    """
    path = _own_folder() / f"{process}.json"
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Announcement)
        os.kill(process, 0)
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(
            f"process {process} cannot be asked to record: it has ended, belongs to another user, "
            "or was started without msprobe run --on-request and without "
            '"dump_enable" in its config.json'
        ) from error
    return found


def request(process: int, steps: int) -> None:
    """Ask a process to record its next steps.

    Raises:
        UsageError: it cannot be asked.
    """
    announcement(process)
    path = _own_folder() / f"{process}.request"
    try:
        write_whole(path, [msgspec.json.encode(_Request(steps))])
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {reason(error)}") from error


def _own_folder() -> Path:
    """Return the folder of announcements, which belongs to this user alone.

    Raises:
        OSError: it cannot be made.
        UsageError: there is one of that name that others may write to.
    """
    user = os.getuid() if hasattr(os, "getuid") else 0
    folder = Path(tempfile.gettempdir()) / f"msprobe-{user}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    is_own = not hasattr(os, "getuid") or (found.st_uid == user and not found.st_mode & 0o077)
    if not stat.S_ISDIR(found.st_mode) or not is_own:
        raise UsageError(f"{folder} is not a folder of this user alone; remove it")
    return folder
