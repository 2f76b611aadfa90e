# SPDX-License-Identifier: Apache-2.0
"""Ask a running program for a recording, by `msprobe attach` or by a signal.

A session that can be switched (`dump_enable`) has a socket on 127.0.0.1 and looks for a datagram at
each `start`: one system call, no thread. A request counts if it holds the session's token, which is
in a file that only the user of the program may read. SIGUSR1 asks for the next step.
"""

from __future__ import annotations

import atexit
import hmac
import logging
import os
import secrets
import socket
import stat
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import msgspec

from msprobe.capture import signals
from msprobe.capture.signals import SignalRequest
from msprobe.errors import UsageError
from msprobe.files import write_whole
from msprobe.plain_text import reason

logger = logging.getLogger(__name__)

_HOST: Final = "127.0.0.1"
_MOST_STEPS: Final = 1_000_000
_MOST_BYTES: Final = 65_535
_MOST_REQUESTS: Final = 100  # at one step
_REPEAT_S: Final = 1.0


class _Announcement(msgspec.Struct):
    port: int
    token: str


class _Request(msgspec.Struct):
    token: str
    number: str
    steps: int


class Answer(msgspec.Struct):
    """Answer of a session that took a request.

    Attributes:
        number: of the request.
        step: the first step that it records.
        dump_path: where.
    """

    number: str
    step: int
    dump_path: str


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
        self._dump_path = dump_path
        self._until = 0
        self._process = os.getpid()
        self._token = secrets.token_hex()
        self._taken = Answer("", 0, "")
        self._socket: socket.socket | None = None
        try:
            self._announced = _own_folder() / f"{self._process}.json"
            self._socket = self._open()
            atexit.register(self.close)
        except (OSError, UsageError) as error:
            logger.info("msprobe attach will not find this process: %s", reason(error))

    def wanted(self, step: int) -> bool:
        """Return whether a request asks for this step, which begins now."""
        if self._socket is not None and os.getpid() == self._process:
            self._look(self._socket, step)
        if self._is_asked:
            self._is_asked = False
            self._until = max(self._until, step + 1)
            logger.info("%s: recording step %d", signals.NAME, step)
        return step < self._until

    def close(self) -> None:
        """Let go of the signal and take the announcement back; a forked child leaves it alone."""
        if self._signal is not None:
            self._signal.close()
        if self._socket is not None and os.getpid() == self._process:
            self._socket.close()
            self._socket = None
            self._announced.unlink(missing_ok=True)

    def _signalled(self) -> None:
        self._is_asked = True

    def _open(self) -> socket.socket:
        opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            opened.setblocking(False)
            opened.bind((_HOST, 0))
            announced = _Announcement(opened.getsockname()[1], self._token)
            write_whole(self._announced, [msgspec.json.encode(announced)])
        except OSError:
            opened.close()
            raise
        return opened

    def _look(self, opened: socket.socket, step: int) -> None:
        for _ in range(_MOST_REQUESTS):
            try:
                content, sender = opened.recvfrom(_MOST_BYTES)
            except BlockingIOError:
                return
            except OSError:
                continue  # Windows: an earlier sender is gone
            try:
                found = msgspec.json.decode(content, type=_Request)
                if not hmac.compare_digest(found.token.encode(), self._token.encode()):
                    raise msgspec.ValidationError("its token is not that of this process")
            except msgspec.MsgspecError as error:
                logger.warning("a request of msprobe attach is not taken: %s", error)
                continue
            if found.number != self._taken.number:
                self._take(found, step)
            try:
                opened.sendto(msgspec.json.encode(self._taken), sender)
            except OSError as error:
                logger.info("msprobe attach gets no answer: %s", reason(error))

    def _take(self, found: _Request, step: int) -> None:
        self._until = step + min(max(found.steps, 0), _MOST_STEPS)
        self._taken = Answer(found.number, step, str(self._dump_path))
        logger.info("msprobe attach: recording steps %d to %d", step, self._until - 1)


class Request:
    """Asks a process to record its next steps."""

    def __init__(self, process: int, steps: int) -> None:
        """Find the process; `send` asks it.

        Raises:
            UsageError: it cannot be asked.
        """
        self._process = process
        try:
            content = (_own_folder() / f"{process}.json").read_bytes()
            announced = msgspec.json.decode(content, type=_Announcement)
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self._socket.connect((_HOST, announced.port))
        except (OSError, msgspec.MsgspecError) as error:
            raise self._refused() from error
        self._number = secrets.token_hex()
        self._content = msgspec.json.encode(_Request(announced.token, self._number, steps))

    def send(self) -> None:
        """Send the request; a repetition is taken once."""
        try:
            self._socket.send(self._content)
        except OSError as error:
            raise self._refused() from error

    def answer(self, until: float) -> Answer | None:
        """Wait for the answer, which comes when the next step begins, and return it.

        Args:
            until: when to give up (`time.monotonic()`); None is returned then.

        Raises:
            UsageError: the process has ended.
        """
        with self._socket:
            while (left := until - time.monotonic()) > 0:
                self._socket.settimeout(min(left, _REPEAT_S))
                try:
                    found = msgspec.json.decode(self._socket.recv(_MOST_BYTES), type=Answer)
                except TimeoutError:
                    self.send()
                    continue
                except (OSError, msgspec.MsgspecError) as error:
                    raise self._refused() from error
                if found.number == self._number:
                    return found
        return None

    def _refused(self) -> UsageError:
        why = (
            "it has not imported its framework yet, belongs to another user, or was started "
            'without msprobe run --on-request and without "dump_enable" in its config.json'
        )
        if sys.platform != "win32":  # there, `os.kill` ends a process
            try:
                os.kill(self._process, 0)
            except ProcessLookupError:
                why = "there is no such process"
            except PermissionError:
                why = "it belongs to another user"
        return UsageError(f"process {self._process} cannot be asked to record: {why}")


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
